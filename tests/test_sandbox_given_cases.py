"""The shared attacks that this first executor can contain, and the shared snippets that must work.

Left out, until there is isolation by the kernel: what reads, writes or signals outside the workspace, the network,
namespaces, raised limits (as root), shared memory, the fork bomb and the inode bomb.
"""

import importlib.util
import json
from pathlib import Path

import pytest

from datapm_rl.sandbox import Limits, Sandbox
from datapm_rl.trajectory import StepStatus

SHARED = Path(__file__).parents[2] / "shared"
pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not (SHARED / "hostile").is_dir(), reason="the shared cases are not here"),
]

CONTAINED = [
    "01_infinite_loop",
    "04_regex_backtrack",
    "07_swallow_baseexception",
    "10_stop_self",
    "13_plt_show",
    "19_setsid_escape",
    "25_sys_exit",
    "28_segfault",
    "31_raise_in_repr",
    "34_stdout_flood",
    "37_huge_repr",
    "40_alloc_100gb",
    "46_zip_bomb",
    "58_own_env_secret",
    "64_inherited_fds",
]
NEEDED = {"03_plot": "seaborn", "05_excel": "openpyxl", "07_sklearn_njobs": "sklearn", "09_statsmodels": "statsmodels"}
BEFORE = {
    "05_excel": "import pandas as pd; df = pd.DataFrame({'a': [1]})",
    "09_statsmodels": "import numpy as np; X = np.random.rand(80, 3); y = (X[:, 0] > .5).astype(int)",
    "11_sqlite_file": "import sqlite3",
    "17_shutil_copy": "import os",
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "data.csv").write_text("a,b\n1,2\n")
    return folder


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", "HOST_SECRET")
        limits = Limits(wall_s=1.5, memory_mb=1536)
        with Sandbox(limits, workspace_root=tmp_path_factory.mktemp("hostile")) as sandbox:
            yield sandbox


@pytest.fixture(scope="module")
def patient_sandbox(tmp_path_factory):
    with Sandbox(Limits(wall_s=60, memory_mb=1536), workspace_root=tmp_path_factory.mktemp("benign")) as sandbox:
        yield sandbox


def code_of(path: Path, data_dir: Path) -> str:
    return path.read_text().replace("{{DATA_DIR}}", str(data_dir))


@pytest.mark.parametrize("name", CONTAINED)
def test_an_attack_ends_as_expected_and_the_session_goes_on(name, sandbox, patient_sandbox, data_dir):
    expected = {case["file"]: case for case in json.loads((SHARED / "hostile" / "expected.json").read_text())["cases"]}
    case = expected[f"{name}.py"]
    # the first import of pyplot in a fresh environment scans the fonts
    chosen = patient_sandbox if name == "13_plt_show" else sandbox
    with chosen.session(data_dir) as session, chosen.session(data_dir) as other:
        session.run("canary = 41")
        other.run("theirs = 1")
        result = session.run(code_of(SHARED / "hostile" / f"{name}.py", data_dir))
        assert result.status.value in case["status_any_of"], result
        for word in case["stdout_must_not_contain"]:
            assert word not in result.stdout
        assert case.get("stdout_must_contain", "") in result.stdout
        assert result.wall_s < chosen.limits.wall_s + 2
        assert len(result.stdout) < (chosen.limits.output_kb << 10) + 4096
        assert session.run("print(1 + 1)").stdout == "2\n"
        assert session.run("canary").value == "41"
        assert other.run("theirs").value == "1"


@pytest.mark.parametrize("path", sorted((SHARED / "benign").glob("*.py")), ids=lambda path: path.stem)
def test_a_harmless_snippet_works(path, patient_sandbox, data_dir):
    if path.stem in NEEDED and importlib.util.find_spec(NEEDED[path.stem]) is None:
        pytest.skip(f"{NEEDED[path.stem]} is not installed")
    with patient_sandbox.session(data_dir) as session:
        if path.stem in BEFORE:
            assert session.run(BEFORE[path.stem]).status is StepStatus.OK
        result = session.run(code_of(path, data_dir))
        wanted = StepStatus.ERROR if path.stem == "19_traceback_line" else StepStatus.OK
        assert result.status is wanted, result
        if path.stem == "19_traceback_line":
            assert "return 1/0" in result.error
