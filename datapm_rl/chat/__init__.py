"""Calls of language models behind OpenAI-compatible endpoints: verifiers, their tools, graders that ask a model.

types     what a call takes and gives
client    one endpoint: bounded retries with back-off and jitter, a circuit breaker, causes for what fails
"""

from datapm_rl.chat.types import Chat, ChatReply, ChatSampling, Message

__all__ = ["Chat", "ChatReply", "ChatSampling", "Message"]
