"""Which verifier `prm.verifier` means."""

from __future__ import annotations

import importlib

from datapm_rl.errors import UserError
from datapm_rl.verifier.base import Verifier


def load_verifier(name: str) -> Verifier | None:
    """`reference`, `none` (None), or an object of a class of yours given as `package.module:Class`.

    UserError: not one of these, or the class cannot be imported or made without arguments.
    """
    if name == "none":
        return None
    if name == "reference":
        from datapm_rl.verifier.reference import ReferenceVerifier

        return ReferenceVerifier()
    module, _, attribute = name.partition(":")
    if not attribute:
        raise UserError(f"prm.verifier={name} is not known: give reference, none, or package.module:Class")
    try:
        verifier = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # a module of the user's raises what it likes when it is imported
        raise UserError(
            f"prm.verifier={name} cannot be made ({error}): is it on PYTHONPATH, and made without arguments?"
        ) from error
    if not hasattr(verifier, "verify") or not hasattr(verifier, "name"):
        raise UserError(f"prm.verifier={name} is no verifier: its class needs `name` and `async def verify(request)`")
    return verifier
