"""Our own attacks, by category. A successful one prints ESCAPED, one that cannot try prints SKIPPED."""

from __future__ import annotations

from sandbox_attacks_disk import DISK
from sandbox_attacks_files import FILES
from sandbox_attacks_later import LATER
from sandbox_attacks_limits import LIMITS
from sandbox_attacks_output import OUTPUT
from sandbox_attacks_poison import POISON
from sandbox_attacks_privileges import PRIVILEGES
from sandbox_attacks_protocol import PROTOCOL
from sandbox_attacks_reach import REACH
from sandbox_cases import PRELUDE, Case


def own_attacks() -> list[Case]:
    """All of them, with the prelude before their code."""
    cases = [*LIMITS, *OUTPUT, *LATER, *FILES, *DISK, *REACH, *PRIVILEGES, *POISON, *PROTOCOL]
    return [Case(**{**vars(case), "code": PRELUDE + case.code}) for case in cases]
