"""The generative verifier on a state whose pandas the agent has patched: it checks in a clean room, tools included."""

from __future__ import annotations

import pytest

from datapm_rl.chat import ChatReply, ChatSampling
from datapm_rl.sandbox import Limits, Sandbox
from datapm_rl.trajectory import Step, Task
from datapm_rl.verifier.budget import Budget, estimate_tokens
from datapm_rl.verifier.local import verify_replayed
from datapm_rl.verifier.react import GenerativeVerifier
from datapm_rl.verifier.tools import ToolBox
from datapm_rl.verifier.tools.toolbox import ToolModel

pytestmark = pytest.mark.unit

CHECK = "<reasoning>r</reasoning><code>\n```python\nprint(df.a.mean())\nprint(query_document('what?', 't.csv'))\n```\n"


class Judge:
    """Asks for the mean, and says that it is right if it is 42."""

    async def complete(self, messages, sampling, deadline_s):
        last = messages[-1]["content"]
        if "<interpreter>" not in last:
            return ChatReply(CHECK, "stop", 1, 1, 0.0)
        score = 1 if "42" in last else 0
        assert "a table" in last, last
        return ChatReply(f"<score>{score}</score><summary>seen</summary>", "stop", 1, 1, 0.0)


class Reader:
    async def complete(self, messages, sampling, deadline_s):
        return ChatReply("a table", "stop", 1, 1, 0.0)


async def test_patched_pandas_does_not_speak_to_the_verifier(tmp_path):
    (tmp_path / "t.csv").write_text("a\n1\n3\n")
    task = Task("t", "Mean of a?", "", str(tmp_path), ("t.csv",), ())
    code = "import pandas as pd\ndf = pd.read_csv('t.csv')\npd.Series.mean = lambda self, *a, **k: 42"
    tools = ToolBox({"query_document": ToolModel(Reader(), "reader")})
    verifier = GenerativeVerifier(Judge(), ChatSampling(), Budget(20_000, estimate_tokens), tools)
    scores = {}
    with Sandbox(Limits(wall_s=20), workspace_root=tmp_path / "root") as sandbox:
        for policy in ("mark", "clean_room", "zero"):
            [verdict] = await verify_replayed(
                verifier,
                task,
                [Step(1, "", code=code)],
                sandbox,
                deadline_s=60,
                max_turns=10,
                tamper_policy=policy,
            )
            assert any("mean" in name for name in verdict.tampered)
            assert verdict.cost["tool_calls"] == 1
            scores[policy] = verdict.score
    assert scores == {"mark": 1.0, "clean_room": 0.0, "zero": 0.0}
