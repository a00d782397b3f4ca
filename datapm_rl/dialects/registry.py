"""Dialects by name."""

from __future__ import annotations

import difflib

from datapm_rl.dialects.base import Dialect
from datapm_rl.dialects.datamind import DATAMIND
from datapm_rl.dialects.deepanalyze import DEEPANALYZE
from datapm_rl.dialects.dsgym import DSGYM
from datapm_rl.errors import UserError

DIALECTS = {dialect.name: dialect for dialect in (DEEPANALYZE, DATAMIND, DSGYM)}


def get_dialect(name: str) -> Dialect:
    """The dialect of that name; UserError names the nearest one."""
    if name in DIALECTS:
        return DIALECTS[name]
    near = difflib.get_close_matches(str(name), DIALECTS, n=1, cutoff=0.0)[0]
    raise UserError(f"unknown dialect {name!r}: the nearest is {near!r}, and there are {', '.join(DIALECTS)}")
