"""What ends a run reaches the driver as the project's own exception, not as Ray's wrappers."""

from __future__ import annotations

import pytest

pytest.importorskip("verl")

import ray

from datapm_rl.errors import InfraError, UserError
from datapm_rl.verl_plugin.run_state import RunStopped, TooManyMissing
from datapm_rl.verl_plugin.runner import _unwrap

pytestmark = pytest.mark.unit


def wrapped(error: Exception) -> ray.exceptions.RayTaskError:
    return ray.exceptions.RayTaskError("run", "Traceback ...", error).as_instanceof_cause()


@pytest.mark.parametrize("error", [RunStopped("x"), UserError("x"), TooManyMissing(2, 1.0, {"x": 4}, {"y": 9})])
def test_own_exception_is_found_behind_rays(error):
    assert type(_unwrap(wrapped(error))) is type(error)
    assert str(_unwrap(wrapped(wrapped(error)))) == str(error)


def test_lost_worker_is_one_sentence():
    lost = _unwrap(wrapped(ray.exceptions.ActorDiedError()))
    assert isinstance(lost, InfraError)
    assert "\n" not in str(lost)


def test_unforeseen_error_is_kept_whole():
    error = wrapped(KeyError("x"))
    assert _unwrap(error) is error
