"""The sandbox actor's class as its client sees it, without Ray."""

from __future__ import annotations

import asyncio


class Remote:
    """What Ray makes of an actor, as far as the client sees it."""

    def __init__(self, actor):
        self._actor = actor

    def __getattr__(self, name):
        method = getattr(self._actor, name)
        return type("M", (), {"remote": staticmethod(lambda *arguments: asyncio.ensure_future(method(*arguments)))})
