"""A step whose process has replaced functions is marked, and the policy decides what a verifier gets and says."""

import pytest
from sandbox_remote import Remote

from datapm_rl.sandbox import Limits
from datapm_rl.sandbox.actor import SandboxActor
from datapm_rl.sandbox.client import RemoteSession
from datapm_rl.trajectory import Verdict
from datapm_rl.verifier.trust import CheckedBranches

pytestmark = pytest.mark.unit

PATCH = "pd.DataFrame.mean = lambda self, *a, **k: 42"
CHECK = "df.mean() if isinstance(df.mean(), int) else float(df.mean()['a'])"


@pytest.fixture
async def session(tmp_path):
    settings = {"limits": Limits(wall_s=20), "workspace_root": tmp_path / "root", "keep": "all"}
    actor = SandboxActor(settings, 2, 60.0)
    (tmp_path / "t.csv").write_text("a\n1\n2\n")
    session = await RemoteSession.open(Remote(actor), str(tmp_path), ["t.csv"])
    await session.run("df = pd.read_csv('t.csv'); f = open('t.csv')")
    await session.run(PATCH)
    yield session
    await actor.shutdown()


async def test_an_honest_state_is_not_marked(session):
    branches = CheckedBranches(session, 1, "clean_room")
    assert (await branches.probe(CHECK)).value == "1.5"
    verdict = Verdict(1.0)
    assert branches.judged(verdict) is verdict


@pytest.mark.parametrize(
    ("policy", "seen", "score"), [("mark", "42", 1.0), ("clean_room", "1.5", 1.0), ("zero", "42", 0.0)]
)
async def test_each_policy_marks_the_verdict_and_does_what_it_says(session, policy, seen, score):
    branches = CheckedBranches(session, 2, policy)
    assert (await branches.probe(CHECK)).value == seen
    async with branches.branch() as twin:
        assert (await twin.run(CHECK)).value == seen
        assert (await twin.run("import os; sorted(os.listdir())")).value == "['t.csv']"
    verdict = branches.judged(Verdict(1.0, "fine"))
    assert verdict.score == score
    assert verdict.tampered == ["pandas.DataFrame.mean"]


async def test_a_process_that_does_not_hand_over_its_data_scores_zero_and_is_not_missing(session):
    branches = CheckedBranches(session, 2, "clean_room")
    await branches.probe("1")
    verdict = branches.judged(Verdict(None, cause="export_failed"))
    assert (verdict.score, verdict.cause) == (0.0, None)
    other = branches.judged(Verdict(None, cause="deadline"))
    assert (other.score, other.cause) == (None, "deadline")
