"""The ReAct policy loop: dialect, tokens and sandbox put together, without any engine or trainer."""

from datapm_rl.agent.loop import AgentLimits, Generation, Rollout, run_agent
from datapm_rl.agent.tokens import ChatTokens

__all__ = ["AgentLimits", "ChatTokens", "Generation", "Rollout", "run_agent"]
