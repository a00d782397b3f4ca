"""`replay_compat="dataprm"`: what the official interpreter does, its documented defects included, in our sandbox."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from datapm_rl.errors import InfraError
from datapm_rl.sandbox import Limits, Sandbox
from datapm_rl.sandbox.replay import ReplaySession
from datapm_rl.sandbox.script import silenced
from datapm_rl.trajectory import StepStatus

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "x.csv").write_text("a,b\n1,2\n3,4\n")
    return folder


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(Limits(wall_s=10.0)) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox, data_dir):
    with ReplaySession(sandbox.session(data_dir)) as session:
        yield session


def shown(session, code):
    return ReplaySession.official_output(session.run(code))


def by_subprocess(codes):
    """What the release documents, with a plain interpreter: each code after what succeeded before, as a script."""
    history, texts = "", []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x.csv").write_text("a,b\n1,2\n3,4\n")
        for code in codes:
            source = f"{history}\n{code}" if history else code
            with tempfile.NamedTemporaryFile("w", suffix=".py", dir=folder) as script:
                script.write(source)
                script.flush()
                done = subprocess.run([sys.executable, script.name], cwd=folder, capture_output=True, text=True)
                text = done.stdout if done.returncode == 0 else done.stdout + done.stderr
                text = text.strip().replace(script.name, "<string>").replace(os.path.realpath(folder), "<WORKSPACE>")
            texts.append(text if done.returncode == 0 else f"[Error]:\n{text}")
            history = silenced(source) if done.returncode == 0 else history
    return texts


def test_every_text_is_what_a_plain_interpreter_shows(session):
    codes = [
        "import csv, json, os, sys, warnings\nrows = list(csv.DictReader(open('x.csv')))\nprint(rows)\nlen(rows)",
        "total = sum(int(row['b']) for row in rows)\nprint(f'total {total}')\nwarnings.warn('hidden')",
        "half = total / 2\nprint(half)\nwarnings.warn('seen')\nrows[7]",
        "print(half)",
        "json.loads('{')",
        "def f(:",
        "def f(row):\n    print(row)\n    return 1\n\n\n# a comment\nf(rows[0])",
        "print(os.getcwd(), __name__, __file__)\nraise ValueError(os.getcwd())",
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error",
        "print('partial', end='')\nprint('warned', end='', file=sys.stderr)\nsys.exit('over')",
        "os.write(1, b'raw')\nos.write(2, b'hidden')",
        "exit(3)",
        "text = '''a\n\nb'''\nprint(repr(text))",
        "print(repr(text), f(rows[1]))",
        "import subprocess\nsubprocess.run(['echo', 'child'], check=True)",
        "sys.exit(0)",
        "print('never reached')",
    ]
    assert [shown(session, code) for code in codes] == by_subprocess(codes)


def test_a_failed_snippet_is_forgotten_whole_but_its_files_stay(session):
    assert "ZeroDivisionError" in shown(session, "x = 1\nopen('made', 'w').write('y')\n1 / 0")
    assert "NameError" in shown(session, "print(x)")
    assert shown(session, "print(open('made').read())") == "y"


def test_appending_to_a_file_is_repeated_at_each_step(session):
    append = "with open('log', 'a') as log:\n    log.write('x')"
    assert shown(session, append) == ""
    assert shown(session, "print(open('log').read())") == "xx"
    assert shown(session, "print(open('log').read())") == "xxx"


def test_the_effect_of_a_removed_print_is_lost(session):
    assert shown(session, "d = [1, 2, 3]\nprint(d.pop())") == "3"
    assert shown(session, "print(d)") == "[1, 2, 3]"


def test_what_prints_otherwise_prints_again(session):
    shown(session, "import sys\nsys.stdout.write('again ')")
    assert shown(session, "print('new')") == "again new"


def test_the_time_limit_is_for_the_whole_history(data_dir):
    with Sandbox(Limits(wall_s=2.0)) as sandbox, ReplaySession(sandbox.session(data_dir)) as session:
        assert shown(session, "import time\ntime.sleep(1.2)") == ""
        result = session.run("print('so far')\ntime.sleep(1.2)")
        assert result.status is StepStatus.TIMEOUT
        assert result.stdout == "so far\n"
        text = ReplaySession.official_output(result)
        assert text.startswith("[Error]:\nCode execution timed out after 2 seconds. ")
        assert "so far" not in text
        assert shown(session, "print(2)") == "2"  # and the late snippet is forgotten


def test_a_step_that_ends_its_process_is_died_though_exit_code_0_was_a_success_there(session):
    result = session.run("x = 1\nimport os\nos._exit(0)")
    assert result.status is StepStatus.DIED
    assert ReplaySession.official_output(result).startswith("[Error]:\n")
    assert "NameError" in shown(session, "x")


def test_a_memory_error_has_its_own_status(session):
    assert session.run("raise MemoryError").status is StepStatus.MEMORY


def test_stderr_longer_than_the_limit_is_shortened_and_not_taken_for_forged(session):
    result = session.run("import sys\nsys.stderr.write('e' * 300_000)\n1 / 0")
    assert result.status is StepStatus.ERROR
    assert len(result.error) < 100_000
    assert result.error.endswith("ZeroDivisionError: division by zero\n")


def test_neither_pd_nor_the_state_of_the_last_script_is_there(session):
    assert "NameError" in shown(session, "pd")
    shown(session, "import builtins\nbuiltins.left = 1\nif False: del builtins.left\nprint(1)")
    assert shown(session, "import pandas as pd\nprint(pd.read_csv('x.csv').b.sum())") == "6"


def test_print_and_query_document_are_removed_wherever_they_are_statements():
    code = (
        "def f():\n    print(1)\n\nif x:\n    query_document('q', 'f')\ny = print(2)\no.print(3)\nquery_image('q', 'f')"
    )
    assert silenced(code) == (
        "def f():\n    pass\nif x:\n    pass\ny = print(2)\no.print(3)\nquery_image('q', 'f')"
    )  # fmt: skip


def test_lines_are_removed_when_the_tree_cannot_be_had():
    deep = "+".join("1" for _ in range(20_000))
    assert silenced(f"x = {deep}\nif x:\n    print(x); y = 1").endswith("\nif x:\n    pass")


def test_a_branch_of_the_newest_state_copies_it(session):
    shown(session, "x = 1\nopen('log', 'a').write('x')")
    with session.branch() as twin:
        assert shown(twin, "x = 5\nprint(open('log').read())") == "xx"
        assert shown(session, "print(x, open('log').read())") == "1 xx"
    with pytest.raises(ValueError, match="no step 5"):
        session.branch(5)


def test_a_branch_of_an_earlier_state_has_its_files_and_outlives_the_original(sandbox, data_dir):
    session = ReplaySession(sandbox.session(data_dir))
    shown(session, "x = 1\nopen('log', 'a').write('a')")
    shown(session, "x = 2\nopen('log', 'w').write('b')\nimport os\nos.remove('x.csv')")
    twin = session.branch(1)
    session.close()
    with twin, twin.branch(0) as third:
        assert shown(twin, "import os\nprint(x, open('log').read(), os.path.exists('x.csv'))") == "1 aa True"
        assert shown(third, "print(x, open('log').read())") == "1 aa"


def test_a_lost_sandbox_is_made_up_for_by_running_the_log_again(tmp_path, data_dir):
    with Sandbox(workspace_root=tmp_path) as sandbox, ReplaySession(sandbox.session(data_dir)) as session:
        shown(session, "x = 1\nopen('log', 'a').write('x')")
        os.kill(sandbox.health()["zygote_pid"], 9)
        assert shown(session, "print(x, open('log').read())") == "1 xx"


def test_after_close_a_run_is_ours_to_answer_for(session):
    session.close()
    result = session.run("1")
    assert (result.status, result.cause) == (StepStatus.INFRA_ERROR, "session_closed")
    with pytest.raises(InfraError):
        ReplaySession.official_output(result)


def test_each_run_leaves_nothing_of_the_one_before(session, sandbox):
    shown(session, "print(1)")
    before = sandbox.health()
    for _ in range(40):
        assert shown(session, "print(1)") == "1"
    assert sandbox.health()["sessions"] == before["sessions"]
    assert sandbox.health()["processes"] <= before["processes"] + 2
