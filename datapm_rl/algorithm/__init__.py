"""Advantage estimators, one per file: torch in, torch out, no I/O and no verl types."""

from datapm_rl.algorithm.group_advantage import broadcast_to_tokens, group_normalised_advantage
from datapm_rl.algorithm.step_credit import step_credit_advantage

__all__ = ["broadcast_to_tokens", "group_normalised_advantage", "step_credit_advantage"]
