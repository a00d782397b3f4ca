"""Outcome + process -> r_total.

    eq. 10   the final step's score becomes r_outcome: no verifier may praise a wrong answer
    eq. 8    r_total = (1 - beta) * r_outcome + beta * mean_t r_prm(t)

A score that is *missing* (None) leaves the mean; it is never a zero. A reward that cannot be formed is missing
itself, with a cause:

    outcome missing                                              -> the outcome's cause
    beta > 0, several steps, none before the final one judged    -> "no_verdicts" (eq. 10 replaced the last one, so
                                                                    the mean would hold nothing of the verifier)
    beta > 0, no verdict at all                                  -> "no_verdicts"

Since eq. 10 replaces the final score whatever it is, a final answer need not be verified (a *skipped* verdict): no
reward depends on it, only `overridden` does.

A trajectory of one step needs no verifier: by eq. 10 its reward is the outcome. With beta = 0 the reward is the
outcome itself, bit for bit, whatever the verifier says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from datapm_rl.errors import UserError
from datapm_rl.trajectory import Outcome, Verdict


@dataclass(frozen=True)
class TrajectoryReward:
    """The reward of one trajectory and what it was formed from. `total` is None exactly when `cause` is set."""

    total: float | None
    cause: str | None
    outcome: float | None
    process: float | None  # mean of `step_scores`, missing ones left out; None if there are none
    step_scores: list[float | None]  # after eq. 10
    overridden: bool | None  # whether eq. 10 changed the final score; None: there was none to change
    n_missing: int  # missing verdicts, the final one included; a skipped one is not missing


def override_final_step(scores: Sequence[float | None], outcome: float) -> list[float | None]:
    """Eq. 10: the scores with the last one replaced by the outcome; [] stays []."""
    return [*scores[:-1], outcome] if scores else []


def total_reward(outcome: float, step_scores: Sequence[float | None], beta: float) -> float:
    """Eq. 8 over the scores that are there. With beta = 0, exactly `outcome`. ValueError: beta > 0 and no score."""
    _check(beta)
    if beta == 0:
        return outcome
    process = _mean(step_scores)
    if process is None:
        raise ValueError("beta > 0 and no step score: the trajectory's reward is missing")
    return (1 - beta) * outcome + beta * process


def trajectory_reward(outcome: Outcome, verdicts: Sequence[Verdict], beta: float) -> TrajectoryReward:
    """r_total of a trajectory whose step t has `verdicts[t - 1]`. UserError: beta outside [0, 1]."""
    _check(beta)
    scores: list[float | None] = [verdict.score for verdict in verdicts]
    n_missing = sum(verdict.cause is not None for verdict in verdicts)
    if outcome.score is None:
        return TrajectoryReward(None, outcome.cause, None, _mean(scores), scores, None, n_missing)
    overridden = scores[-1] != outcome.score if scores and scores[-1] is not None else None
    scores = override_final_step(scores, outcome.score)
    process = _mean(scores)
    if beta > 0 and not _judged(scores):
        return TrajectoryReward(None, "no_verdicts", outcome.score, process, scores, overridden, n_missing)
    total = total_reward(outcome.score, scores, beta)
    return TrajectoryReward(total, None, outcome.score, process, scores, overridden, n_missing)


def step_rewards(reward: TrajectoryReward, n_steps: int, beta: float) -> list[float]:
    """The terms of eq. 8, each where it was earned; their sum is `reward.total`. Length `n_steps`.

    Step t gets beta * r_t / (number of scored steps), a missing one 0; the last step gets (1 - beta) * r_outcome on
    top. ValueError: the reward is missing, or there are scores for another number of steps.
    """
    if reward.total is None or reward.outcome is None:
        raise ValueError(f"the reward is missing ({reward.cause}): it has no terms")
    if n_steps == 0:
        return []
    if beta == 0:
        return [0.0] * (n_steps - 1) + [reward.outcome]
    if len(reward.step_scores) != n_steps:
        raise ValueError(f"{len(reward.step_scores)} step scores for {n_steps} steps")
    scored = n_steps - reward.step_scores.count(None)
    terms = [0.0 if score is None else beta * score / scored for score in reward.step_scores]
    terms[-1] += (1 - beta) * reward.outcome
    return terms


def _judged(scores: Sequence[float | None]) -> bool:
    """Whether the mean of eq. 8 holds something besides eq. 10's outcome, or needs nothing besides it."""
    return len(scores) == 1 or any(score is not None for score in scores[:-1])


def _mean(scores: Sequence[float | None]) -> float | None:
    present = [score for score in scores if score is not None]
    return sum(present) / len(present) if present else None


def _check(beta: float) -> None:
    if not 0.0 <= beta <= 1.0:  # also refuses NaN
        raise UserError(f"beta={beta} is outside [0, 1]: it weighs process against outcome reward (eq. 8)")
