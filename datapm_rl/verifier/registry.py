"""Which verifier `prm.verifier` means, and who answers it."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Callable

from datapm_rl.chat import Chat, ChatSampling
from datapm_rl.chat.client import EndpointChat
from datapm_rl.config import PrmConfig
from datapm_rl.errors import UserError
from datapm_rl.verifier.base import Verifier
from datapm_rl.verifier.baselines.discriminative import DiscriminativeVerifier, check_folder
from datapm_rl.verifier.budget import Budget, estimate_tokens, tokenizer_count
from datapm_rl.verifier.tools import ToolBox

CHATTING = ("generative", "self_reward", "judge", "thinkprm", "genprm")
"""Verifiers that ask a language model."""
NAMES = ("reference", "none", *CHATTING, "discriminative")


def make_verifier(prm: PrmConfig, chat: Callable[[], Chat]) -> Verifier | None:
    """The verifier of these settings, or None for `none`. `chat` makes who answers it, if it asks a model.

    UserError: the name is not known, a class cannot be imported or made without arguments, a setting is impossible.
    """
    name = prm.verifier
    if name == "none":
        return None
    if name == "reference":
        from datapm_rl.verifier.reference import ReferenceVerifier

        return ReferenceVerifier()
    if name == "discriminative":
        return DiscriminativeVerifier(prm.model)
    if name not in CHATTING:
        return _of_class(name)
    sampling = ChatSampling(prm.temperature, prm.top_p, prm.top_k, prm.max_tokens)
    count = tokenizer_count(prm.tokenizer) if prm.tokenizer else estimate_tokens
    budget = Budget(prm.context_tokens - prm.max_tokens, count)
    if name in ("generative", "self_reward"):
        from datapm_rl.verifier.prompt import PromptForm
        from datapm_rl.verifier.react import GenerativeVerifier

        form = PromptForm(prm.environment, prm.multi_turn, prm.scores)
        return GenerativeVerifier(chat(), sampling, budget, ToolBox.from_environment(prm.tools), form, prm.rounds, name)
    from datapm_rl.verifier.baselines import BASELINES

    return BASELINES[name](chat(), sampling, budget)


@contextlib.asynccontextmanager
async def served_verifier(prm: PrmConfig) -> AsyncIterator[Verifier | None]:
    """`make_verifier` over the endpoints of the settings, whose connections are closed at the end of the block."""
    chats: list[EndpointChat] = []

    def chat() -> EndpointChat:
        chats.append(endpoint_chat(prm))
        return chats[-1]

    try:
        yield make_verifier(prm, chat)
    finally:
        for each in chats:
            await each.aclose()


def endpoint_chat(prm: PrmConfig) -> EndpointChat:
    """The endpoints that `prm.endpoint` or OPENAI_BASE_URL names. UserError: they name none."""
    addresses = prm.endpoint or os.environ.get("OPENAI_BASE_URL", "")
    urls = [url.strip() for url in addresses.split(",") if url.strip()]
    if not urls or not all(url.startswith(("http://", "https://")) for url in urls):
        raise UserError(
            f"prm.verifier={prm.verifier} asks a model and prm.endpoint={prm.endpoint} is no address of one: give "
            "prm.endpoint=http://host:port/v1, or set OPENAI_BASE_URL"
        )
    return EndpointChat(urls, model=prm.model, api_key=os.environ.get("OPENAI_API_KEY"))


def check_settings(prm: PrmConfig) -> None:
    """Settings that no verifier could be made of, without making it. UserError names the setting."""
    if prm.verifier not in NAMES:
        _of_class(prm.verifier)
    if prm.scores not in ("ternary", "binary"):
        raise UserError(f"prm.scores={prm.scores} is none of ternary, binary")
    for name in ("rounds", "max_tokens", "concurrency"):
        if getattr(prm, name) < 1:
            raise UserError(f"prm.{name}={getattr(prm, name)} must be at least 1")
    if prm.context_tokens <= prm.max_tokens:
        raise UserError(
            f"prm.context_tokens={prm.context_tokens} must be above prm.max_tokens={prm.max_tokens}: prompts need room"
        )
    for name, least, most in (("temperature", 0.0, 2.0), ("top_p", 0.0, 1.0)):
        if not least <= getattr(prm, name) <= most:
            raise UserError(f"prm.{name}={getattr(prm, name)} is outside [{least:g}, {most:g}]")
    ToolBox.from_environment(prm.tools)
    if prm.verifier in CHATTING and prm.tokenizer:
        tokenizer_count(prm.tokenizer)
    if prm.verifier == "discriminative":
        check_folder(prm.model)
    if not 0 < prm.deadline_s <= prm.trajectory_deadline_s:
        raise UserError(
            f"prm.deadline_s={prm.deadline_s} must be above 0 and at most "
            f"prm.trajectory_deadline_s={prm.trajectory_deadline_s}, which covers the wait for a turn as well"
        )


def _of_class(name: str) -> Verifier:
    module, _, attribute = name.partition(":")
    if not attribute:
        raise UserError(f"prm.verifier={name} is not known: give {', '.join(NAMES)}, or package.module:Class")
    try:
        verifier = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # a module of the user's raises what it likes when it is imported
        raise UserError(
            f"prm.verifier={name} cannot be made ({error}): is it on PYTHONPATH, and made without arguments?"
        ) from error
    if not hasattr(verifier, "verify") or not hasattr(verifier, "name"):
        raise UserError(f"prm.verifier={name} is no verifier: its class needs `name` and `async def verify(request)`")
    return verifier
