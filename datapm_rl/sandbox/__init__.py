"""Runs the agents' code: forked sessions with private workspaces, snapshots after each step, branches of them.

    from datapm_rl.sandbox import Sandbox
    with Sandbox() as sandbox:
        session = sandbox.session(data_dir="tables", seed=0)
        result = session.run("df = pd.read_csv('sales.csv'); df.shape")
        twin = session.branch()

Needs neither Ray nor verl (`actor` and `client` bring it into a Ray cluster). docs/sandbox.md says what it stops.
"""

from datapm_rl.sandbox.result import ExecutionResult, Limits
from datapm_rl.sandbox.sandbox import Sandbox
from datapm_rl.sandbox.session import Session

__all__ = ["ExecutionResult", "Limits", "Sandbox", "Session"]
