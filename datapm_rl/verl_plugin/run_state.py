"""How a run can end other than by finishing, as exceptions that travel from the trainer's actor to the driver."""

from __future__ import annotations


class RunStopped(Exception):
    """The user asked for it; a checkpoint is saved."""


class TooManyMissing(Exception):
    """More trajectories than allowed have no reward in one step; the state before that step is saved."""

    def __init__(self, step: int, share: float, causes: dict[str, int], verdict_causes: dict[str, int]):
        """`share` of the trajectories without a reward; counts of their causes, and of those of missing verdicts."""
        self.arguments = (step, share, causes, verdict_causes)
        verdicts = f"; verdicts: {_listed(verdict_causes)}" if verdict_causes else ""
        super().__init__(
            f"step {step}: {share:.0%} of the trajectories have no reward ({_listed(causes)}{verdicts}), more than "
            "prm.max_missing_share allows"
        )

    def __reduce__(self) -> tuple:
        return (TooManyMissing, self.arguments)


def _listed(causes: dict[str, int]) -> str:
    return ", ".join(f"{count} x {cause}" for cause, count in sorted(causes.items(), key=lambda item: -item[1]))
