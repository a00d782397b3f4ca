"""The doctor's look at the sandbox: level, kernel, and what became of each attack."""

from __future__ import annotations

import json

from datapm_rl.errors import InfraError
from datapm_rl.sandbox import Sandbox


def report(min_level: int, max_level: int, as_json: bool) -> str:
    """Start a sandbox as a run does and describe it. Raises UserError when no level from `min_level` on holds."""
    with Sandbox(min_level=min_level, max_level=max_level) as sandbox:
        proof = sandbox.isolation
        with sandbox.session(".", files=[]) as session:
            works = session.run("import pandas as pd; int(pd.Series([1, 2]).sum())").value == "3"
    if not works:
        raise InfraError("sandbox_useless", "a step with pandas does not work in the sandbox")
    if as_json:
        return json.dumps({**proof.as_dict(), "works": works}, indent=1)
    lines = [
        f"sandbox: level {proof.level} of 4; Linux {proof.kernel}; Landlock ABI {proof.landlock_abi}; uid {proof.uid}"
    ]
    lines += [f"  level {level} lacks {what}" for level, what in proof.refused.items()]
    lines += [f"  {name:20} {outcome}" for name, outcome in proof.probes.items()]
    lines += [f"  {'a pandas step':20} works"]
    return "\n".join(lines)
