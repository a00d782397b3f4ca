"""The verifier's tools: functions in its code that ask a language model about a file of the workspace.

The function in the sandbox (`sandbox.inside.calls`) reads the file and calls; `ToolBox.answer` answers, out here,
where the keys are.
"""

from datapm_rl.verifier.tools.toolbox import ToolBox

__all__ = ["ToolBox"]
