"""What a run leaves behind and shows: its directory, metrics, progress lines, curves, summary. No Ray, no verl.

`metrics.jsonl` is the record; everything else (progress line, curves, summary, TensorBoard, W&B) is a view of it.
Metric names: docs/metrics.md.
"""
