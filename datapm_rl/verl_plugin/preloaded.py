"""What the Ray workers of a run on a CPU import when they start, before they are told what they will be.

verl takes seven seconds to import on one core, a fifth of them in the garbage collector, which finds that nothing
imported is garbage. See `ray_start.py` for when this is imported.
"""

# ruff: noqa: E402, F401
import gc

gc.disable()

import verl.trainer.main_ppo
import verl.trainer.ppo.v1

import datapm_rl.verl_plugin.agent_loop
import datapm_rl.verl_plugin.cpu_rollout
import datapm_rl.verl_plugin.reward_manager
import datapm_rl.verl_plugin.runner

gc.freeze()
gc.enable()
