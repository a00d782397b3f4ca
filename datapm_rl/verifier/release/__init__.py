"""Files of the official DataPRM release: candidates' trajectories read, scored step by step, and the best of N chosen.

reader       input files: one candidate per task and file
transcript   a flat transcript -> steps
score        candidates -> verdicts, through a verifier and a sandbox
results      result files of the release's form, ours and theirs
best_of_n    result files -> one answer per task
statistics   what the terminal shows
command      the command line
"""
