"""datapm_rl: reinforcement learning of data-analysis agents with a process reward model that runs code."""

__version__ = "0.1.0"
