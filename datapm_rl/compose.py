"""Compose the configuration of a run, and say in one sentence what is wrong with it.

Hydra composes; this module turns its exceptions into `UserError`s that name the key and the nearest valid one, and
finds keys in a recipe that nothing reads (Hydra lets a file add any key to verl's part of the configuration).
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from datapm_rl.config import register_schema
from datapm_rl.errors import UserError

CONFIG_DIR = Path(__file__).resolve().parent.parent / "configs"

OPEN_GROUPS = (
    "ray_kwargs.ray_init.",  # arguments of ray.init
    ".mixed_precision.",
    ".override_config.",  # the model's own configuration
    ".betas",
)
"""Parts of verl's configuration that take any key."""


def compose_config(overrides: list[str]) -> DictConfig:
    """The configuration for command-line `overrides`, as `python -m datapm_rl.train` takes them."""
    register_schema()
    overrides = in_order(overrides)
    with _hydra():
        try:
            config = hydra.compose("train", overrides=[*overrides, _verl_search_path()])
        except MissingConfigException as error:
            raise _missing_group(error) from error
        except (HydraException, OmegaConfBaseException) as error:
            raise _explain(error, overrides) from error
        base = hydra.compose("train", overrides=[_verl_search_path()])
    appended = [_key(text) for text in overrides if text.startswith("+")]
    known = set(_keys(base))
    for key in _keys(config):
        opened = any(part in key for part in OPEN_GROUPS) or any(key.startswith(name) for name in appended)
        if key not in known and not opened:
            raise UserError(f"unknown key {key} in the recipe{_nearest(key, known)}: correct it there")
    return config


def in_order(overrides: list[str]) -> list[str]:
    """The same overrides, so that whatever is added to a recipe wins over it, and `+scale=` over both.

    >>> in_order(["+scale=cpu", "run.seed=1", "+recipe=dabench"])
    ['+recipe=dabench', 'run.seed=1', '+scale=cpu']
    """
    return sorted(overrides, key=lambda text: text.startswith("+scale=") - text.startswith("+recipe="))


def recipes() -> list[str]:
    """Names for `+recipe=NAME`."""
    return sorted(path.stem for path in (CONFIG_DIR / "recipe").glob("*.yaml"))


def _hydra() -> Any:
    GlobalHydra.instance().clear()
    return hydra.initialize_config_dir(str(CONFIG_DIR), version_base=None)


def _verl_search_path() -> str:
    """verl's configuration folder by path: by package name Hydra would import verl, which takes seconds."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("verl is not installed: run bash launch/quickstart.sh, or pip install -e .[cpu]")
    return f"hydra.searchpath=[file://{spec.submodule_search_locations[0]}/trainer/config]"


def _missing_group(error: MissingConfigException) -> UserError:
    name = (error.missing_cfg_file or "").removeprefix("recipe/")
    if name == error.missing_cfg_file:
        return UserError(f"cannot compose the configuration: {_first_line(error)}")
    return UserError(f"no recipe {name!r}{_nearest(name, recipes())}: recipes are {', '.join(recipes())}")


def _explain(error: Exception, overrides: list[str]) -> UserError:
    """Name the override at fault: an unknown key with its nearest valid one, or a value of the wrong type."""
    if isinstance(error, OverrideParseException):
        return UserError(f"cannot read {error.override!r}: write key=value ({_first_line(error)})")
    base = hydra.compose("train", overrides=[_verl_search_path()])
    known = set(_keys(base)) | {key.rsplit(".", 1)[0] for key in _keys(base) if "." in key}
    for text in overrides:
        key = _key(text)
        if not text.startswith(("+", "~")) and key not in known and OmegaConf.select(base, key) is None:
            return UserError(f"unknown key {key}{_nearest(key, known)} (to add a key of verl's on purpose: +{key}=...)")
    if any(text.startswith("+scale=") for text in overrides) and "platform appears more than once" in str(error):
        return UserError("this recipe is made for the CPU already: leave +scale=cpu out, which shrinks GPU recipes")
    reason = _first_line(error.__cause__ or error)
    return UserError(f"cannot compose the configuration: {_first_line(error)} ({reason})")


def _nearest(word: str, known: Any) -> str:
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f", the nearest is {matches[0]}" if matches else ""


def _keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for name in config:
        node = config._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_missing() and len(node) > 0:
            yield from _keys(node, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _key(override: str) -> str:
    return override.lstrip("+~").split("=", 1)[0]


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def config_differences(old: DictConfig, new: DictConfig, ignore: tuple[str, ...]) -> list[str]:
    """Settings that differ, each as `key: old -> new`; a setting that follows another one (`${...}`) does not count."""
    before, after = _values(old), _values(new)
    return [
        f"{key}: {before.get(key)} -> {after.get(key)}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in ignore
    ]


def _values(config: DictConfig) -> dict[str, Any]:
    """Values by dotted key, as written: interpolations are not followed."""
    flat: dict[str, Any] = {}

    def walk(value: Any, prefix: str) -> None:
        if isinstance(value, dict) and value:
            for name, item in value.items():
                walk(item, f"{prefix}.{name}" if prefix else str(name))
        else:
            flat[prefix] = value

    walk(OmegaConf.to_container(config, resolve=False), "")
    return flat
