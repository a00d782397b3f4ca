"""The small policy that the project builds itself: a word-level Llama, cold-started by SFT on imperfect demonstrations.

idioms         what the demonstrator can say: thoughts, code templates, and the pieces they are made of
demonstrations a demonstrator that errs in known ways, so that RL has something to mend
tokenizer      a closed vocabulary in which every idiom, column and value is one token
rendering      conversations -> token ids and mask, in the form that the agent loop produces
drills         exercises in copying
model, sft     the network and its cold start
stand_in_prm   a verifier's model whose verdicts mean nothing
cache          `build_policy`: all of it as a Hugging Face folder, cached by content
"""

from datapm_rl.policy.cache import build_policy
from datapm_rl.policy.demonstrations import Noise
from datapm_rl.policy.model import ModelConfig
from datapm_rl.policy.sft import SftConfig

__all__ = ["ModelConfig", "Noise", "SftConfig", "build_policy"]
