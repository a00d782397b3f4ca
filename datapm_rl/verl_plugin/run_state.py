"""How a run can end other than by finishing, as exceptions that travel from the trainer's actor to the driver."""

from __future__ import annotations


class RunStopped(Exception):
    """The user asked for it; a checkpoint is saved."""


class TooManyMissing(Exception):
    """More trajectories than allowed have no reward in one step; the state before that step is saved."""

    def __init__(self, step: int, missing: dict[str, float]):
        self.step, self.missing = step, missing
        causes = {name.removeprefix("missing/"): int(count) for name, count in missing.items()}
        causes.pop("share")
        listed = ", ".join(f"{count} x {cause}" for cause, count in sorted(causes.items(), key=lambda item: -item[1]))
        super().__init__(
            f"step {step}: {missing['missing/share']:.0%} of the trajectories have no reward ({listed}), more than "
            f"prm.max_missing_share allows"
        )

    def __reduce__(self) -> tuple:
        return (TooManyMissing, (self.step, self.missing))
