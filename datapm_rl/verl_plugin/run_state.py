"""How a run can end other than by finishing, as exceptions that travel from the trainer's actor to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datapm_rl.verl_plugin.groups import StepGroups


class RunStopped(Exception):
    """The user asked for it; a checkpoint is saved."""


class StepFailed(Exception):
    """A step cannot be made; the state before it is saved."""


class TooManyMissing(StepFailed):
    """More trajectories than allowed have no reward in one step."""

    def __init__(self, step: int, share: float, causes: Mapping[str, int], verdict_causes: Mapping[str, int]):
        """`share` of the trajectories without a reward; counts of their causes, and of those of missing verdicts."""
        self.arguments = (step, share, dict(causes), dict(verdict_causes))
        verdicts = f"; verdicts: {_listed(verdict_causes)}" if verdict_causes else ""
        super().__init__(
            f"step {step}: {share:.0%} of the trajectories have no reward ({_listed(causes)}{verdicts}), more than "
            "prm.max_missing_share allows"
        )

    @classmethod
    def of(cls, step: int, groups: StepGroups) -> TooManyMissing:
        """For the groups of a step, those evicted included."""
        return cls(step, groups.missing_share(), groups.missing(), groups.missing_verdicts())

    def __reduce__(self) -> tuple:
        return (TooManyMissing, self.arguments)


class NothingToTrain(StepFailed):
    """No trajectory of a step is trained on, though not for want of rewards: a token budget cut all of them off."""

    def __init__(self, step: int):
        self.arguments = (step,)
        super().__init__(
            f"step {step}: overlong.policy=mask leaves no trajectory to train on: raise agent.turn_tokens or "
            "data.max_response_length, or set overlong.policy=shape"
        )

    def __reduce__(self) -> tuple:
        return (NothingToTrain, self.arguments)


class AllQuarantined(StepFailed):
    """No task is left to sample."""

    def __init__(self, tasks: int, path: str):
        self.arguments = (tasks, path)
        super().__init__(
            f"all {tasks} training tasks are quarantined, {path} says why: mend them or what scores them, and delete "
            "the file"
        )

    def __reduce__(self) -> tuple:
        return (AllQuarantined, self.arguments)


def _listed(causes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {cause}" for cause, count in sorted(causes.items(), key=lambda item: -item[1]))
