"""Which verifier `prm.verifier` means."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

from datapm_rl.chat import Chat, ChatSampling
from datapm_rl.chat.client import EndpointChat
from datapm_rl.config import PrmConfig
from datapm_rl.errors import UserError
from datapm_rl.verifier.base import Verifier

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
    if name in ("generative", "self_reward"):
        return _generative(prm, chat())
    if name == "judge":
        from datapm_rl.verifier.baselines.judge import JudgeVerifier

        return JudgeVerifier(chat(), sampling(prm), _budget(prm))
    if name == "thinkprm":
        from datapm_rl.verifier.baselines.thinkprm import ThinkPrmVerifier

        return ThinkPrmVerifier(chat(), sampling(prm), _budget(prm))
    if name == "genprm":
        from datapm_rl.verifier.baselines.genprm import GenPrmVerifier

        return GenPrmVerifier(chat(), sampling(prm), _budget(prm))
    if name == "discriminative":
        from datapm_rl.verifier.baselines.discriminative import DiscriminativeVerifier

        return DiscriminativeVerifier(prm.model)
    return _of_class(name)


def endpoint_chat(prm: PrmConfig) -> EndpointChat:
    """The endpoints that `prm.endpoint` or OPENAI_BASE_URL names. UserError: there is none."""
    addresses = prm.endpoint or os.environ.get("OPENAI_BASE_URL", "")
    urls = [url.strip() for url in addresses.split(",") if url.strip()]
    if not urls or not all(url.startswith(("http://", "https://")) for url in urls):
        raise UserError(
            f"prm.verifier={prm.verifier} asks a model and prm.endpoint={prm.endpoint} is no address: give "
            "http://host:port/v1 (or set OPENAI_BASE_URL)"
        )
    return EndpointChat(urls, model=prm.model, api_key=os.environ.get("OPENAI_API_KEY"))
