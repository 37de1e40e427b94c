"""Running scripts for transformers' Trainer as they are, and reading what they leave."""

import json
import re
import sys
from pathlib import Path

from tests.support import processes
from tests.support.paths import SCRIPTS

FOLDER = SCRIPTS / "unmodified"
OURS = ("-m", "hf_compat", "run")
TIMES = re.compile(r"_(runtime|per_second|flos)$")


def run_unmodified(*words, folder, **variables):
    """Run Python with ``words`` in ``folder``."""
    ended = processes.finish([processes.start([sys.executable, *words], folder, **variables)])[0]
    assert ended.code == 0, ended.output
    return ended.output


def outcome(folder):
    """Return what a run left: log history, the names of its files, weights, and files of results."""
    state = json.loads((folder / "trainer_state.json").read_text())
    history = [{name: value for name, value in log.items() if not TIMES.search(name)} for log in state["log_history"]]
    assert len(history) > 5
    # What hf_compat adds to a checkpoint for itself.
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.startswith("lightning.")}
    results = {name: (folder / name).read_text() for name in ("predictions.json",) if (folder / name).exists()}
    weights = {name: (folder / name).read_bytes() for name in sorted(files) if name.endswith(".safetensors")}
    best = state["best_model_checkpoint"] and Path(state["best_model_checkpoint"]).name
    return {"log": history, "files": files, "results": results, "weights": weights, "best": best}
