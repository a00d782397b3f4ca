"""Public bugs of code sandboxes that no other test of ours names. All of them: docs/training.md."""

from __future__ import annotations

import pytest

from datapm_rl.sandbox import Limits, Sandbox
from datapm_rl.trajectory import StepStatus

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    limits = Limits(wall_s=2.0, memory_mb=512, processes=2)
    folder = tmp_path_factory.mktemp("data")
    root = tmp_path_factory.mktemp("root")
    with Sandbox(limits, preload=("numpy",), workspace_root=root) as sandbox, sandbox.session(folder) as one:
        yield one


def test_power_that_never_ends_is_stopped_and_the_session_goes_on(session):
    """smolagents PR#1318: `5 ** (3 ** 2048)` hangs in C code, where no signal handler of Python's runs."""
    assert session.run("5 ** (3 ** 2048)").status in (StepStatus.TIMEOUT, StepStatus.MEMORY)
    assert session.run("1 + 1").value == "2"


def test_numpy_starts_no_pool_of_threads(session):
    """SandboxFusion#70: under limits of memory and processes OpenBLAS could not create its threads."""
    assert session.run("(np.ones((400, 400)) @ np.ones((400, 400)))[0, 0]").value == "np.float64(400.0)"
    assert session.run("import os; os.environ['OPENBLAS_NUM_THREADS']").value == "'1'"


def test_plots_need_no_screen(session):
    """unsloth PR#7789: plt.show() waited for a window to be closed."""
    assert session.run("import os; os.environ['MPLBACKEND']").value == "'Agg'"
