"""Advantage estimators, one per file: torch in, torch out, no I/O and no verl types."""

from datapm_rl.algorithm.group_advantage import broadcast_to_tokens, group_normalised_advantage, has_no_signal
from datapm_rl.algorithm.step_credit import step_credit_advantage

__all__ = ["broadcast_to_tokens", "group_normalised_advantage", "has_no_signal", "step_credit_advantage"]
