"""What runs inside the sandbox: zygote, parked snapshots, the execution of code.

The zygote is started with this folder as a top-level package of its own, so these modules import the standard
library and each other only: nothing of the trainer is in the memory that agent code can read.
"""
