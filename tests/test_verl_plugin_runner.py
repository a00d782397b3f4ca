"""What ends a run reaches the driver as the project's own exception, not as Ray's wrappers."""

from __future__ import annotations

import traceback

import pytest

pytest.importorskip("verl")

import ray
from ray.core.generated.common_pb2 import ActorDiedErrorContext

from datapm_rl.errors import InfraError, UserError
from datapm_rl.verl_plugin.run_state import RunStopped, TooManyMissing
from datapm_rl.verl_plugin.runner import _unwrap

pytestmark = pytest.mark.unit


def wrapped(error: Exception) -> ray.exceptions.RayTaskError:
    story = "".join(traceback.format_exception(error))
    return ray.exceptions.RayTaskError("run", story, error).as_instanceof_cause()


@pytest.mark.parametrize("error", [RunStopped("x"), UserError("x"), TooManyMissing(2, 1.0, {"x": 4}, {"y": 9})])
def test_own_exception_is_found_behind_rays(error):
    assert type(_unwrap(wrapped(error))) is type(error)
    assert str(_unwrap(wrapped(wrapped(error)))) == str(error)


def test_lost_worker_is_one_sentence():
    lost = _unwrap(wrapped(ray.exceptions.ActorDiedError()))
    assert isinstance(lost, InfraError)
    assert "\n" not in str(lost)


def test_lost_worker_is_named():
    who = ActorDiedErrorContext(class_name="CpuServer", name="hf_cpu_server_0_0", actor_id=b"x" * 16, pid=7)
    lost = _unwrap(wrapped(ray.exceptions.ActorDiedError(who)))
    assert str(lost) == "worker_lost: CpuServer hf_cpu_server_0_0 died (killed, or out of memory)"


def test_unforeseen_error_is_kept_whole():
    error = wrapped(KeyError("x"))
    assert _unwrap(error) is error
