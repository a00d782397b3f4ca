"""Calls of language models behind OpenAI-compatible endpoints: verifiers, their tools, graders that ask a model.

types     what a call takes and gives
client    EndpointChat: a call within its deadline, retries included
retry     how often and how soon a failed request is sent again
pool      who is asked, and when: a bounded number of requests in flight over several endpoints
breaker   an endpoint that keeps failing is left alone for a while
endpoint  one request to one endpoint
reply     what the endpoint answered, if that is a reply
failure   the causes of what is not
"""

from datapm_rl.chat.types import Chat, ChatReply, ChatSampling, Message

__all__ = ["Chat", "ChatReply", "ChatSampling", "Message"]
