"""A session is a notebook that can go back: what stays, what rolls back, what a branch shares (nothing)."""

import pytest

from datapm_rl.errors import UserError
from datapm_rl.sandbox import Limits, Sandbox
from datapm_rl.trajectory import StepStatus

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "x.csv").write_text("a,b\n1,2\n3,4\n")
    (folder / "deep").mkdir()
    (folder / "deep" / "y.csv").write_text("c\n9\n")
    return folder


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    with Sandbox(Limits(wall_s=1.0), workspace_root=tmp_path_factory.mktemp("root")) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox, data_dir):
    with sandbox.session(data_dir) as session:
        yield session


def value(session, code):
    result = session.run(code)
    assert result.status is StepStatus.OK, result
    return result.value


def test_a_table_read_in_one_step_is_there_in_the_next(session):
    assert session.run("df = pd.read_csv('x.csv')").status is StepStatus.OK
    assert value(session, "df.b.sum()") == "np.int64(6)"


def test_what_ran_before_an_exception_stays(session):
    result = session.run("before = 1\nraise KeyError('q')\nafter = 1")
    assert result.status is StepStatus.ERROR
    assert value(session, "before") == "1"
    assert value(session, "'after' in globals()") == "False"


def test_a_time_limit_rolls_variables_back_and_the_session_goes_on(session):
    value(session, "x = 1; x")
    result = session.run("x = 2\nwhile True: pass")
    assert result.status is StepStatus.TIMEOUT
    assert 1.0 <= result.wall_s < 3.0
    assert value(session, "x") == "1"


def test_output_before_a_time_limit_is_seen(session):
    assert session.run("print('so far')\nwhile True: pass").stdout == "so far\n"


@pytest.mark.parametrize(
    "code", ["import os; os._exit(0)", "import ctypes; ctypes.string_at(0)", "import os; os.abort()"]
)
def test_a_process_that_ends_itself_has_died_even_with_code_0(session, code):
    value(session, "x = 1; x")
    assert session.run(f"x = 2\n{code}").status is StepStatus.DIED
    assert value(session, "x") == "1"


def test_signals_to_itself_its_group_and_its_parked_state_are_refused(session):
    for code in ("os.kill(os.getpid(), 9)", "os.killpg(0, 9)", "os.kill(os.getppid(), 9)"):
        assert "PermissionError" in session.run(f"import os; {code}").error


def test_sys_exit_is_an_error_of_the_step(session):
    result = session.run("x = 5\nimport sys; sys.exit(0)")
    assert result.status is StepStatus.ERROR
    assert "SystemExit" in result.error
    assert value(session, "x") == "5"


def test_a_traceback_shows_the_agents_lines_and_no_library_frames(session):
    session.run("def pick(frame):\n    return frame['nope']")
    error = session.run("df = pd.read_csv('x.csv')\npick(df)").error
    assert "return frame['nope']" in error
    assert error.rstrip().endswith("KeyError: 'nope'")
    assert "site-packages" not in error
    assert "sandbox/inside" not in error


@pytest.mark.parametrize(
    "code", ["def f(:", "x = '\0'", "  x", "(" * 500, "x = '\ud800'\nprint(x); raise ValueError(x)"]
)
def test_code_that_does_not_compile_is_an_error_of_the_step(session, code):
    result = session.run(code)
    assert result.status is StepStatus.ERROR
    assert result.error
    assert value(session, "1") == "1"


def test_lone_surrogates_in_output_are_made_printable(session):
    result = session.run("print('\\ud800'); '\\udfff'")
    (result.stdout + result.value).encode("utf-8")
    assert session.run("raise ValueError('\\ud800')").error.encode("utf-8")


def test_only_the_last_expression_is_the_value(session):
    assert session.run("1; 2").value == "2"
    assert session.run("x = 1").value is None
    assert session.run("None").value is None
    assert session.run("").status is StepStatus.OK


def test_input_does_not_block(session):
    result = session.run("input('name? ')")
    assert "EOFError" in result.error
    assert result.wall_s < 0.9


def test_user_classes_can_be_pickled(session):
    value(session, "class P:\n    x = 1\nimport pickle; p = pickle.loads(pickle.dumps(P())); p.x")


def test_a_stdout_that_the_agent_closed_or_replaced_is_back_in_the_next_step(session):
    session.run("import sys, io; sys.stdout = io.StringIO()")
    assert session.run("print('a')").stdout == "a\n"
    session.run("sys.stdout.close()")
    assert session.run("print('b')").stdout == "b\n"


def test_a_branch_shares_neither_variables_nor_files(session):
    session.run("x = [1]; open('f.txt', 'w').write('one')")
    with session.branch() as twin:
        value(twin, "x.append(2); open('f.txt', 'w').write('twin'); open('new.txt', 'w').write('')")
        assert (
            value(session, "(x, open('f.txt').read(), __import__('os').path.exists('new.txt'))")
            == "([1], 'one', False)"
        )
        session.run("x = 'session'")
        assert value(twin, "(x, open('f.txt').read())") == "([1, 2], 'twin')"


def test_a_branch_outlives_its_session_and_survives_its_own_time_limits(sandbox, data_dir):
    session = sandbox.session(data_dir)
    session.run("x = 1")
    twin = session.branch()
    session.close()
    assert value(twin, "x") == "1"
    assert twin.run("x = 2\nwhile True: pass").status is StepStatus.TIMEOUT
    assert value(twin, "x") == "1"
    with twin.branch() as grandchild:
        twin.close()
        assert value(grandchild, "x") == "1"


def test_a_time_limit_in_the_session_spares_its_branches(session):
    session.run("x = 1")
    with session.branch() as twin:
        session.run("x = 2")  # drops the snapshot that the branch came from
        session.run("while True: pass")
        session.run("while True: pass")
        assert value(twin, "x") == "1"


def test_a_link_out_of_the_workspace_is_not_copied_into_a_branch(session, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    session.run(
        f"import os; os.symlink({str(tmp_path / 'secret.txt')!r}, 'link'); os.symlink({str(tmp_path)!r}, 'dir')"
    )
    session.run("os.mkfifo('pipe'); os.makedirs('sub/deep'); open('sub/deep/f', 'w').write('kept')")
    with session.branch() as twin:
        assert value(twin, "sorted(os.listdir())") == "['sub', 'x.csv']"
        assert value(twin, "open('sub/deep/f').read()") == "'kept'"


def test_a_branch_made_before_a_later_step_still_starts_from_its_own_state(session):
    session.run("x = 1")
    with session.branch() as twin:
        session.run("x = 2")
        session.run("x = 3")
        assert value(twin, "x") == "1"
        assert value(twin, "x += 10; x") == "11"
        assert value(session, "x") == "3"


def test_retention_last_has_the_start_and_the_newest(session):
    for number in range(3):
        session.run(f"x = {number}")
    with session.branch(3) as twin:
        assert value(twin, "x") == "2"
    with session.branch(0) as twin:
        assert "NameError" in twin.run("x").error
    with session.branch(1) as twin:  # dropped, so rebuilt from the code log
        assert twin.run("x").value == "0"
    with pytest.raises(ValueError, match="no step 4"):
        session.branch(4)


def test_retention_all_has_every_state_and_a_stopped_run_repeats_the_one_before(data_dir, tmp_path):
    with Sandbox(Limits(wall_s=0.5), preload=(), workspace_root=tmp_path, keep="all") as sandbox:
        session = sandbox.session(data_dir)
        for code in ("x = 1", "x = 2\nwhile True: pass", "x = 3"):
            session.run(code)
        states = []
        for step in range(1, 4):
            with session.branch(step) as twin:
                states.append(twin.run("x").value)
        assert states == ["1", "1", "3"]


def test_retention_lru_bounds_the_kept_states_and_rebuilds_the_others(data_dir, tmp_path):
    with Sandbox(preload=(), workspace_root=tmp_path, keep="lru", max_snapshots=3) as sandbox:
        sessions = [sandbox.session(data_dir, seed=seed) for seed in range(2)]
        for number in range(5):
            for session in sessions:
                session.run(f"x = {number}")
        assert sandbox.health()["processes"] == 2 * 2 + 3
        for session in sessions:
            assert [session.branch(step).run("x").value for step in range(1, 6)] == ["0", "1", "2", "3", "4"]
            session.close()
        assert not [chain for chain, _step in sandbox.retention._used if chain in {each._chain for each in sessions}]


def test_a_branch_has_the_files_of_its_step_not_later_ones(data_dir, tmp_path):
    with Sandbox(preload=(), workspace_root=tmp_path, keep="all") as sandbox:
        session = sandbox.session(data_dir)
        for text in ("one", "two"):
            session.run(f"open('f', 'w').write({text!r})")
        session.run("import os; os.remove('x.csv')")
        look = "import os; (open('f').read(), sorted(os.listdir()))"
        assert session.branch(1).run(look).value == "('one', ['f', 'x.csv'])"
        assert session.branch(2).run(look).value == "('two', ['f', 'x.csv'])"
        assert session.branch().run(look).value == "('two', ['f'])"


def test_a_stopped_step_leaves_neither_variables_nor_files_and_says_so(session):
    session.run("x = 1; open('f', 'w').write('before')")
    result = session.run("x = 2; open('f', 'w').write('during'); open('g', 'w').close()\nwhile True: pass")
    assert (result.status, result.rolled_back) == (StepStatus.TIMEOUT, True)
    assert "as they were before" in result.error
    assert value(session, "import os; (x, open('f').read(), os.path.exists('g'))") == "(1, 'before', False)"


def test_branches_of_branches_and_more_than_there_are_workspaces(session):
    value(session, "x = 0; x")
    twin, twins = session, []
    for number in range(18):
        twin = twin.branch()
        twins.append(twin)
        assert value(twin, f"x += 1; open('{number}', 'w').close(); x") == str(number + 1)
    twins += [session.branch() for _ in range(40)]
    assert value(twins[-1], "x") == "0"
    for twin in twins:
        twin.close()


def test_threads_of_a_step_end_with_it(session):
    code = "import threading, time\ndef work():\n    while True: time.sleep(0.01); open('tick', 'a').write('.')\n"
    session.run(code + "threading.Thread(target=work, daemon=True).start(); time.sleep(0.05); x = 1")
    size = value(session, "import os, time; before = os.path.getsize('tick'); time.sleep(0.2); before")
    assert value(session, "os.path.getsize('tick')") == size
    assert value(session, "x") == "1"


def test_seeds_are_equal_when_a_trajectory_is_replayed_and_differ_between_trajectories(sandbox, data_dir):
    steps = ["import random; random.random()", "np.random.rand()", "random.random()", "list({'a', 'b', 'c'})"]

    def play(seed):
        with sandbox.session(data_dir, seed=seed) as session:
            return [session.run(code).value for code in steps]

    assert play(7) == play(7)
    assert play(7)[:3] != play(8)[:3]


def test_a_seed_that_the_agent_sets_survives_the_step(session):
    session.run("import random; random.seed(1); first = [random.random() for _ in range(3)]; random.seed(1)")
    drawn = [value(session, "random.random()") for _ in range(3)]
    assert value(session, "first") == f"[{', '.join(drawn)}]"


def test_files_are_copies_under_their_base_names(sandbox, data_dir):
    with sandbox.session(data_dir, files=["deep/y.csv"]) as session:
        assert value(session, "import os; os.listdir()") == "['y.csv']"
        session.run("open('y.csv', 'w').write('spoiled')")
    assert (data_dir / "deep" / "y.csv").read_text() == "c\n9\n"


@pytest.mark.parametrize(
    ("folder", "files", "sentence"),
    [
        ("nowhere", None, "does not exist"),
        (".", ["z.csv"], "z.csv does not exist"),
        (".", ["../x.csv"], "not below"),
        (".", ["x.csv", "./x.csv"], "two data files"),
    ],
)
def test_data_that_is_not_there_is_one_sentence(sandbox, data_dir, folder, files, sentence):
    with pytest.raises(UserError, match=sentence):
        sandbox.session(data_dir / folder, files)


def test_a_module_to_preload_that_is_not_installed_is_one_sentence():
    with pytest.raises(UserError, match="no_such_module"):
        Sandbox(preload=("no_such_module",))
