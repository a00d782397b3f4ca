"""What the verdicts in result files cost, and what is missing in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from datapm_rl.tracking.jsonl import Row
from datapm_rl.verifier.release.results import MISSING


def statistics(rows: Sequence[Row]) -> str:
    """Counts over all rows, in lines for the terminal: verdicts, scores, missing ones by cause, tokens, seconds."""
    verdicts = [verdict for row in rows for verdict in row["samples"]]
    count = len(verdicts)
    scores = Counter(f"{v['prediction_score']:g}" for v in verdicts if v["prediction_score"] != MISSING)
    causes = Counter(v.get("missing_cause", "not said") for v in verdicts if v["prediction_score"] == MISSING)
    tokens = sum((v.get("token_usage") or {}).get("total_tokens", 0) for v in verdicts)
    seconds = sum(v.get("elapsed_seconds") or 0.0 for v in verdicts)
    lines = {
        "candidates": f"{len(rows)}, without a trajectory {sum(not row['samples'] for row in rows)}",
        "verdicts": str(count),
        "scores": ", ".join(f"{score}: {scores[score]}" for score in sorted(scores, key=float)) or "-",
        "missing": ", ".join(f"{cause}: {number}" for cause, number in sorted(causes.items())) or "0",
        "replay differs": str(sum(bool(v.get("replay_differs")) for v in verdicts)),
        "tampered": str(sum(bool(v.get("tampered")) for v in verdicts)),
        "tokens": f"{tokens}, {tokens / max(count, 1):.1f} per verdict",
        "seconds": f"{seconds:.1f}, {seconds / max(count, 1):.2f} per verdict",
    }
    return "\n".join(f"{name:15}{text}" for name, text in lines.items())
