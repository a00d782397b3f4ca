"""Settings for commands that verify without a training run: `key=value` words over the defaults of `OwnConfig`."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from typing import cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from datapm_rl.config import OwnConfig
from datapm_rl.errors import UserError

GROUPS = ("prm", "sandbox", "agent")
"""Groups that such a command reads."""


def own_config(overrides: Sequence[str]) -> OwnConfig:
    """The settings of `["prm.verifier=generative", ...]`. UserError: an unknown key, a value of the wrong type."""
    base = OmegaConf.structured(OwnConfig)
    known = [f"{group}.{field.name}" for group in GROUPS for field in dataclasses.fields(getattr(OwnConfig(), group))]
    config = base
    for word in overrides:
        key, equals, _ = word.partition("=")
        if not equals:
            raise UserError(f"cannot read {word!r}: write key=value, such as prm.verifier=generative")
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise UserError(f"unknown key {key}, the nearest is {near}")
        try:
            config = OmegaConf.merge(config, OmegaConf.from_dotlist([word]))
        except (OmegaConfBaseException, YAMLError) as error:
            raise UserError(f"{word!r} does not fit: {str(error).strip().splitlines()[0]}") from None
    return cast(OwnConfig, OmegaConf.to_object(config))
