"""The judgement Yes or No at the end of a reply, and its probability."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from dataclasses import dataclass

from datapm_rl.chat import Chat, ChatReply, ChatSampling, Message
from datapm_rl.errors import InfraError

_LOG = logging.getLogger(__name__)
_TOP = 20  # alternatives per token: the most that vLLM, by default, and OpenAI give
_WORD = re.compile(r"\w")
_UNSEEN = 4  # tokens at a reply's end that its text does not show: the end of the turn, a stop string


@dataclass(frozen=True)
class Judgement:
    """Either `yes`, the probability of Yes in [0, 1], or `problem`: why there is none."""

    yes: float | None = None
    problem: str | None = None


class ChatWithTop:
    """A `Chat` whose replies have the alternatives of each token, if the endpoint gives them.

    An endpoint that refuses the request for them, or answers without them, is not asked for them again.
    """

    def __init__(self, chat: Chat):
        self._chat, self._gives_top = chat, True

    async def complete(self, messages: list[Message], sampling: ChatSampling, deadline_s: float) -> ChatReply:
        """As `Chat.complete`."""
        if self._gives_top:
            try:
                return await self._chat.complete(messages, dataclasses.replace(sampling, top_logprobs=_TOP), deadline_s)
            except InfraError as error:
                if error.cause not in ("endpoint_rejected", "endpoint_malformed"):
                    raise
                refusal = error
        reply = await self._chat.complete(messages, sampling, deadline_s)
        if self._gives_top:  # the same request without alternatives was answered: they were the reason
            self._gives_top = False
            _LOG.warning("The endpoint gives no log-probabilities (%s): scores are 0 or 1 from here on.", refusal)
        return reply


def read_judgement(reply: ChatReply, statement: str) -> Judgement:
    """The judgement that a reply ends with.

    `statement`: pattern of one judgement; its one group is the word Yes or No. It counts behind the last `</think>`
    and with nothing but punctuation after it. Other ones right before it, or in its line, must agree with it.
    """
    if reply.finish != "stop":
        return Judgement(problem="the reply was cut off")
    said = reply.text.rpartition("</think>")[2]
    found = list(re.finditer(statement, said, re.IGNORECASE))
    if not found or _WORD.search(said, found[-1].end()):
        return Judgement(problem="the reply does not end with a judgement")
    word = found[-1].group(1).lower()
    line = said.rfind("\n", 0, found[-1].start()) + 1
    for before, after in zip(found[-2::-1], found[::-1], strict=False):
        if before.end() < line and _WORD.search(said, before.end(), after.start()):
            break
        if before.group(1).lower() != word:
            return Judgement(problem="the reply ends with two different judgements")
    behind = len(said) - found[-1].end()
    probability = _probability_of_yes(reply.top[-(behind + 1 + _UNSEEN) :], word)
    return Judgement(yes=float(word == "yes") if probability is None else probability)


def _probability_of_yes(top: list[dict[str, float]], word: str) -> float | None:
    """P(Yes) / (P(Yes) + P(No)) at the token that is most surely one of the two; None if `word` can stand at none.

    A reply has candidates per token but not where each token begins, hence this choice among its last ones.
    """
    best: dict[str, float] = {}
    for candidates in top:
        shares = {"yes": 0.0, "no": 0.0}
        for token, logprob in candidates.items():
            plain = token.strip(" \n*{").lower()
            if plain in shares:
                shares[plain] += math.exp(logprob)
        if shares[word] > 0 and sum(shares.values()) >= sum(best.values()):
            best = shares
    return best["yes"] / sum(best.values()) if best else None
