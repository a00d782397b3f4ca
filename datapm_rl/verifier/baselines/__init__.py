"""The baselines of DataPRM's Table 2 as verifiers: how each scores, and how its scores rank trajectories.

    judge            an LLM scores each step in one reply                                 mean
    thinkprm         a chain of thought over all steps so far ends with Yes or No         last
    genprm           analysis and code per step, then Yes or No                           last
    discriminative   a model in this process, read at the separator behind each step      product

Each has an attribute `aggregation`, the rule by which the paper makes one score of its step scores in Best-of-N
(`verifier.aggregate`). Self-rewarding is the generative verifier served by the policy itself.
"""

from __future__ import annotations

from datapm_rl.verifier.baselines.genprm import GenPrmVerifier
from datapm_rl.verifier.baselines.judge import JudgeVerifier
from datapm_rl.verifier.baselines.thinkprm import ThinkPrmVerifier

BASELINES = {verifier.name: verifier for verifier in (JudgeVerifier, ThinkPrmVerifier, GenPrmVerifier)}
"""Those that ask a language model, by name; made from (chat, sampling, budget)."""

__all__ = ["BASELINES", "GenPrmVerifier", "JudgeVerifier", "ThinkPrmVerifier"]
