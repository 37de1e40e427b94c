"""Trains a tiny model with a library that subclasses transformers' Trainer, on that Trainer or on ours.

``python ecosystem_script.py RUN... --with upstream|ours --output FOLDER`` does runs of ``RUNS``, each of which leaves
``FOLDER/RUN/outcome_<rank>.json``: the log history without times, a checksum of each weight, and the files of each
checkpoint. With ``--resume`` each goes on from the checkpoint of update step 2 that a run before has left, and leaves
``resumed_<rank>.json``. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch

import hf_compat
from tests.support.ecosystem import adapter_runs, gliner_runs, pieces, sentence_runs, trl_runs

FAMILIES = (trl_runs, sentence_runs, adapter_runs, gliner_runs)
"""The modules that enter runs into ``pieces.RUNS``."""
OURS = ("lightning.pt", "lightning.json")
"""The files of a checkpoint that upstream's have not."""


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def outcome(trainer: Any) -> dict[str, Any]:
    """Return what a trained Trainer holds that has to be equal."""
    timed = ("runtime", "per_second", "time")
    logs = trainer.state.log_history
    history = [{name: value for name, value in log.items() if not name.endswith(timed)} for log in logs]
    model = trainer.accelerator.unwrap_model(trainer.model)
    weights = {
        name: checksum(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        for name, value in model.state_dict().items()
    }
    bases = (kind.__module__.split(".")[0] for kind in type(trainer).__mro__)
    package = next(name for name in bases if name in ("transformers", "hf_compat"))
    return {"package": package, "log_history": history, "weights": weights}


def saved(output: Path) -> dict[str, str]:
    """Return the files of all checkpoints, with a checksum of those that hold a model's weights."""
    files = [path for path in sorted(output.glob("checkpoint-*/**/*")) if path.is_file() and path.name not in OURS]
    return {str(path.relative_to(output)): checksum(path.read_bytes()) if _is_weights(path) else "" for path in files}


def _is_weights(path: Path) -> bool:
    return path.suffix in (".safetensors", ".bin") and path.name != "training_args.bin"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", choices=pieces.RUNS)
    parser.add_argument("--with", dest="which", choices=["upstream", "ours"], required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.which == "ours":
        hf_compat.install()
    rank = os.environ.get("RANK", "0")
    # SetFit's arguments have no `use_cpu`, without which upstream's processes train each alone where there is no GPU.
    os.environ["ACCELERATE_USE_CPU"] = str(not pieces.ON_GPUS)
    pieces.save_models(given.output / given.runs[0] / rank)
    for name in given.runs:
        folder = given.output / name
        trainer = pieces.RUNS[name](folder / rank)
        trainer.train(resume_from_checkpoint=str(folder / "output" / "checkpoint-2") if given.resume else None)
        left = outcome(getattr(trainer, "st_trainer", trainer))
        left["saved"] = saved(folder / "output") if rank == "0" else {}  # the others do not wait for the last file
        (folder / f"{'resumed' if given.resume else 'outcome'}_{rank}.json").write_text(json.dumps(left))
    if given.which == "upstream" and torch.distributed.is_initialized():
        torch.distributed.barrier()
        os._exit(0)  # upstream leaves gloo's group open, whose threads now and then abort the ending interpreter


if __name__ == "__main__":
    main()
