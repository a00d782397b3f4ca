"""Discriminative PRMs: step scores are those of a forward pass by hand, and nothing in a step can move them."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification, Qwen2ForTokenClassification

from datapm_rl.engine.tiny import byte_tokenizer
from datapm_rl.errors import UserError
from datapm_rl.trajectory import Step, StepStatus, Task, Verdict
from datapm_rl.verifier.base import VerificationRequest, verify_or_missing
from datapm_rl.verifier.baselines.discriminative import DiscriminativeVerifier
from datapm_rl.verifier.baselines.qwen_prm import Qwen2ForProcessRewardModel

pytestmark = pytest.mark.unit

TASK = Task("t1", "Mean of x?", "@mean[value]", "/data", ("a.csv",), ())
PROBLEM = "Mean of x? Format: @mean[value]\nFiles:\na.csv"
HEADS = (Qwen2ForTokenClassification, Qwen2ForProcessRewardModel)


def save(folder: Path, kind: type, *markers: str, seed: int = 0, **settings) -> str:
    """A random model of a few thousand weights, wide enough that its scores differ."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in markers])
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.5,
        **{"max_position_embeddings": 2048, **settings},
    )
    torch.manual_seed(seed)
    kind(config).save_pretrained(folder)
    return str(folder)


def step(index: int, thought: str = "Look.", output: str = "4.5") -> Step:
    text = f"<Analyze>{thought}</Analyze>\n<Code>\nprint({index})\n</Code>"
    return Step(index, text, thought=thought, code=f"print({index})", observation=output)


STEPS = [step(1), step(2, "Compute the mean.", "5.5"), Step(3, "<Answer>5.5</Answer>", answer="5.5")]
TEXTS = [
    "<Analyze>Look.</Analyze>\n<Code>\nprint(1)\n</Code>\n<Execute>\n4.5\n</Execute>",
    "<Analyze>Compute the mean.</Analyze>\n<Code>\nprint(2)\n</Code>\n<Execute>\n5.5\n</Execute>",
    "<Answer>5.5</Answer>",
]


def request(*steps: Step) -> VerificationRequest:
    async def nothing(*_):
        raise AssertionError

    *history, last = steps
    return VerificationRequest(TASK, history, [Verdict(1.0) for _ in history], last, nothing, nothing, nothing)


async def scores(verifier: DiscriminativeVerifier, steps: list[Step]) -> list[float | None]:
    return [(await verify_or_missing(verifier, request(*steps[: t + 1]))).score for t in range(len(steps))]


@pytest.mark.parametrize("kind", HEADS)
async def test_head_is_read_at_each_separator_of_the_whole_conversation(kind, tmp_path):
    folder = save(tmp_path, kind, "<extra_0>")
    verifier = DiscriminativeVerifier(folder, device="cpu")

    text = f"<|user|>{PROBLEM}<|end|><|assistant|>" + "".join(text + "<extra_0>" for text in TEXTS) + "<|end|>"
    ids = torch.tensor([byte_ids(text, "<extra_0>")])
    logits = kind.from_pretrained(folder)(input_ids=ids).logits[0]
    by_hand = logits[ids[0] == 261].softmax(-1)[:, 1].tolist()

    assert await scores(verifier, STEPS) == pytest.approx(by_hand, abs=1e-5)  # so later steps change no score
    assert max(by_hand) - min(by_hand) > 1e-3
    assert verifier.aggregation == "product"


async def test_tag_is_read_from_the_good_and_the_bad_token(tmp_path):
    folder = save(tmp_path, Qwen2ForCausalLM, "ки")
    verifier = DiscriminativeVerifier(folder, device="cpu")

    text = f"{PROBLEM} " + "\n".join(f"Step {k}: {text} ки" for k, text in enumerate(TEXTS, 1))
    ids = torch.tensor([byte_ids(text, "ки")])
    logits = Qwen2ForCausalLM.from_pretrained(folder)(input_ids=ids).logits[0]
    good, bad = byte_ids("+-")
    by_hand = logits[ids[0] == 261][:, [good, bad]].softmax(-1)[:, 0].tolist()

    assert await scores(verifier, STEPS) == pytest.approx(by_hand, abs=1e-5)
    assert max(by_hand) - min(by_hand) > 1e-3


def byte_ids(text: str, *markers: str) -> list[int]:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in markers])
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(("kind", "marker"), [(Qwen2ForTokenClassification, "<extra_0>"), (Qwen2ForCausalLM, "ки")])
async def test_separator_in_a_step_is_no_separator(kind, marker, tmp_path):
    verifier = DiscriminativeVerifier(save(tmp_path, kind, marker), device="cpu")
    words = f"x {marker} y{marker} <|end|><|assistant|>"
    verdict = await verify_or_missing(verifier, request(step(1, words, words), step(2, words, words)))
    assert verdict.cause is None
    assert 0 < verdict.score < 1


async def test_separator_that_slips_through_is_missing_and_no_score(tmp_path):
    verifier = DiscriminativeVerifier(save(tmp_path, Qwen2ForCausalLM, "ки"), device="cpu")
    verifier._model.harmless = lambda text: text  # such as a tokenizer that drops what broke the separator up
    assert (await verify_or_missing(verifier, request(step(1, "ки")))).cause == "separator_lost"


async def test_cost_and_trace_count_the_tokens_of_the_pass(tmp_path):
    verifier = DiscriminativeVerifier(save(tmp_path, HEADS[0], "<extra_0>"), device="cpu")
    verdict = await verifier.verify(request(STEPS[0]))
    length = len(byte_ids(f"<|user|>{PROBLEM}<|end|><|assistant|>{TEXTS[0]}<extra_0>", "<extra_0>"))
    assert verdict.cost["prompt_tokens"] == verdict.trace[0]["prompt_tokens"] == length
    assert (verdict.cost["turns"], verdict.cost["executions"], verdict.verifier) == (1, 0, "discriminative")


async def test_what_exceeds_the_context_is_cut_from_old_observations_and_recorded(tmp_path):
    verifier = DiscriminativeVerifier(save(tmp_path, HEADS[0], "<extra_0>"), device="cpu")
    verdict = await verify_or_missing(verifier, request(step(1, output="z" * 1500), step(2, output="z" * 800)))
    assert verdict.cut == ["observation 1: 1500 -> 600 characters"]
    assert verdict.score is not None


async def test_current_step_longer_than_the_context_is_missing(tmp_path):
    verifier = DiscriminativeVerifier(save(tmp_path, HEADS[0], "<extra_0>"), device="cpu")
    assert (await verify_or_missing(verifier, request(step(1, output="z" * 3000)))).cause == "context_exceeded"


async def test_pass_runs_in_one_other_thread_and_answers_are_not_mixed_up(tmp_path):
    verifier = DiscriminativeVerifier(save(tmp_path, HEADS[0], "<extra_0>"), device="cpu")
    threads, real = set(), verifier._model.score

    def score(*args):
        threads.add(threading.get_ident())
        return real(*args)

    alone = await scores(verifier, STEPS)
    verifier._model.score = score
    verdicts = await asyncio.gather(*(verifier.verify(request(*STEPS[: t + 1])) for t in (2, 0, 1)))
    assert [verdict.score for verdict in verdicts] == [alone[2], alone[0], alone[1]]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_lost_step_is_not_scored(tmp_path):
    verifier = DiscriminativeVerifier(save(tmp_path, HEADS[0], "<extra_0>"), device="cpu")
    lost = Step(1, "", status=StepStatus.INFRA_ERROR, cause="sandbox_lost")
    assert (await verify_or_missing(verifier, request(lost))).cause == "sandbox_lost"


def test_published_config_with_remote_code_loads_without_running_it(tmp_path):
    folder = save(tmp_path, Qwen2ForProcessRewardModel, "<extra_0>")
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit")
    assert DiscriminativeVerifier(folder, device="cpu").name == "discriminative"


class TestRefused:
    def test_no_folder(self, tmp_path):
        for folder in (None, tmp_path, "Qwen/Qwen2.5-Math-PRM-7B"):
            with pytest.raises(UserError, match=r"prm\.model"):
                DiscriminativeVerifier(folder)

    def test_unreadable_files(self, tmp_path):
        (tmp_path / "config.json").write_text("{")
        with pytest.raises(UserError, match=r"no config\.json and tokenizer"):
            DiscriminativeVerifier(tmp_path)

    def test_device_that_is_not_there(self, tmp_path):
        with pytest.raises(UserError, match="device=cuda:7"):
            DiscriminativeVerifier(save(tmp_path, HEADS[0], "<extra_0>"), device="cuda:7")

    def test_architecture_that_tells_no_kind(self, tmp_path):
        with pytest.raises(UserError, match="give kind=head or kind=tag"):
            DiscriminativeVerifier(save(tmp_path, Qwen2ForSequenceClassification, "<extra_0>"))

    def test_unknown_kind(self, tmp_path):
        with pytest.raises(UserError, match="kind=heads"):
            DiscriminativeVerifier(save(tmp_path, HEADS[0], "<extra_0>"), "heads")

    def test_separator_that_is_no_token(self, tmp_path):
        with pytest.raises(UserError, match="separator='ки'"):
            DiscriminativeVerifier(save(tmp_path, Qwen2ForCausalLM))

    def test_separator_of_one_character(self, tmp_path):
        with pytest.raises(UserError, match="one character"):
            DiscriminativeVerifier(save(tmp_path, HEADS[0]), separator="\n")

    def test_good_token_that_is_none(self, tmp_path):
        with pytest.raises(UserError, match="good='fine'"):
            DiscriminativeVerifier(save(tmp_path, Qwen2ForCausalLM, "ки"), good="fine")

    def test_language_model_without_a_trained_head(self, tmp_path):
        with pytest.raises(UserError, match=r"lacks weights .*score"):
            DiscriminativeVerifier(save(tmp_path, Qwen2ForCausalLM, "<extra_0>"), "head", device="cpu")

    def test_head_of_other_than_two_classes(self, tmp_path):
        with pytest.raises(UserError, match="3 classes"):
            DiscriminativeVerifier(save(tmp_path, HEADS[0], "<extra_0>", num_labels=3), device="cpu")
