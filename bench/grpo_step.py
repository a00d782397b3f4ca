"""One GRPO update by our path beside one by TRL's GRPOTrainer, in one run: python -m bench.grpo_step --trl FOLDER

Both get the same model, ids, masks and rewards, and compute in float32 on one thread: log-probs of the batch, group
advantages, and two optimizer steps on half of the batch each, under clip-higher, dual clip, the mean over the
mini-batch's tokens, no KL, AdamW and gradient clipping. Each trainer is a process of its own; updates alternate, so
that both see the same load of the machine. Not in it: generation, and what carries a batch to the trainer
(TransferQueue, Ray).

FOLDER holds TRL alone, since verl 0.9.1 fails to load a model where this release of TRL is installed:

    pip install --no-deps --target FOLDER trl==1.16.0
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.grpo_step_batch import SHAPES, Shape, make_batch, write_model
from bench.grpo_step_child import MARK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", type=Path, metavar="FOLDER", required=True, help="a folder that TRL is installed in")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, few updates: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there, too")
    args = parser.parse_args()
    if not (args.trl / "trl").is_dir():
        parser.error(f"{args.trl} has no TRL in it: pip install --no-deps --target {args.trl} trl==1.16.0")
    names, repeats = (["quick"], 3) if args.quick else (["quickstart", "larger"], 7)
    found = {name: compare(name, args.trl, repeats) for name in names}
    for name, result in found.items():
        show(name, SHAPES[name], result)
    if args.json:
        temporary = args.json.with_name(args.json.name + ".tmp")
        temporary.write_text(json.dumps(found, indent=1) + "\n")
        temporary.replace(args.json)


def compare(name: str, trl: Path, repeats: int) -> dict[str, Any]:
    """`repeats` updates of each, in turn, after one that is compared and not timed."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-grpo-step-") as folder:
        model = Path(folder) / "model"
        write_model(SHAPES[name], model)
        with (
            Trainer("bench.grpo_step_ours", name, str(model), str(_free_port())) as ours,
            Trainer("bench.grpo_step_trl", name, str(model), str(trl)) as theirs,
        ):
            first = {"ours": ours.ask("update"), "trl": theirs.ask("update")}
            files = [f"{folder}/ours.pt", f"{folder}/trl.pt"]
            ours.ask(f"save {files[0]}"), theirs.ask(f"save {files[1]}")
            cosine = _same_direction(model, *files)
            pairs = [(ours.ask("update"), theirs.ask("update")) for _ in range(repeats)]
    ratios = [their["seconds"] / our["seconds"] for our, their in pairs]
    return {
        "ours_s": statistics.median(our["seconds"] for our, _ in pairs),
        "trl_s": statistics.median(their["seconds"] for _, their in pairs),
        "ratio": statistics.median(ratios),
        "ratios": sorted(ratios),
        "parts_s": {part: statistics.median(our["parts"][part] for our, _ in pairs) for part in pairs[0][0]["parts"]},
        "first_grad_norms": [first["ours"]["grad_norms"], first["trl"]["grad_norms"]],
        "cosine_of_first_update": cosine,
        "load": [load, os.getloadavg()[0]],
    }


def show(name: str, shape: Shape, result: dict[str, Any]) -> None:
    """A paragraph per shape."""
    batch = make_batch(shape)
    tokens = sum(map(len, batch.prompts)) + sum(map(len, batch.responses))
    print(f"{name}: {shape.rows} rows, {tokens} tokens, hidden {shape.hidden}, {shape.layers} layers, "
          f"{shape.vocabulary} words; load {result['load'][0]:.1f} to {result['load'][1]:.1f}")  # fmt: skip
    low, high = result["ratios"][0], result["ratios"][-1]
    print(f"  ours {result['ours_s']:.3f} s, TRL {result['trl_s']:.3f} s: "
          f"TRL / ours {result['ratio']:.2f} ({low:.2f} to {high:.2f})")  # fmt: skip
    whole = sum(result["parts_s"].values())
    print("  ours: " + ", ".join(f"{part} {seconds / whole:.0%}" for part, seconds in result["parts_s"].items()))
    ours, theirs = (", ".join(f"{norm:.5f}" for norm in norms) for norms in result["first_grad_norms"])
    print(f"  gradient norms of the first update: ours {ours}; TRL {theirs}; "
          f"cosine of the changes of all parameters {result['cosine_of_first_update']:.5f}")  # fmt: skip


class Trainer:
    """One of the two, in a process that does an update when asked."""

    def __init__(self, module: str, *arguments: str):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[1],
        )

    def __enter__(self) -> Trainer:
        self._answer()
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, line: str) -> Any:
        """The answer to one request. RuntimeError: the process has ended, with the end of what it wrote."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        self._log.seek(0)
        raise RuntimeError(f"{self._process.args} ended:\n{self._log.read()[-3000:]}")


def _same_direction(model: Path, ours: str, theirs: str) -> float:
    """Cosine between the two changes of all parameters."""
    import torch
    from safetensors.torch import load_file

    before = load_file(model / "model.safetensors")
    changes = []
    for file in (ours, theirs):
        after = torch.load(file)
        changes.append(torch.cat([(after[name] - before[name]).flatten().double() for name in sorted(before)]))
    return torch.nn.functional.cosine_similarity(*changes, dim=0).item()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
