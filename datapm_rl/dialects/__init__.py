"""How steps are written as text: one dialect for each family of policy models.

A dialect is data (tags, stop strings, a system prompt, how a result is worded) around the shared rules of
`base.py`: how a turn is parsed, how an observation is shortened and made harmless.
"""

from datapm_rl.dialects.base import Dialect, Turn
from datapm_rl.dialects.registry import DIALECTS, get_dialect

__all__ = ["DIALECTS", "Dialect", "Turn", "get_dialect"]
