"""The gate: how well a verifier finds known errors, measured before a training run trusts it.

labelled      the file format of a labelled set: trajectories, and for each step its right score and kind
templates     the right and wrong statements that a built set is made of
attempt       one trajectory over the builtin benchmark, each step's label checked by running code
construct     a whole set: scenarios in equal shares, and what was thrown away
metrics       confusion matrix, kappa, first wrong step, recall and false alarms, with intervals
run           a verifier over a set, resumable
report        the summary of a run, as JSON and as a table
check         what training asks of a summary
command       `python -m datapm_rl.evaluate prm`
"""
