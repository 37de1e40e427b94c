"""Tells accelerate's state of a process whose arguments ask for DeepSpeed: ``<ours|upstream> <folder> <stage>``."""

import importlib
import json
import sys
from pathlib import Path

from accelerate.state import PartialState

which, folder, stage = sys.argv[1:]
library = importlib.import_module("hf_compat" if which == "ours" else "transformers")


def main():
    """Build arguments and write what the process state is afterwards."""
    args = library.TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        report_to="none",
        deepspeed={"zero_optimization": {"stage": int(stage)}, "train_micro_batch_size_per_gpu": "auto"},
    )
    told = {name: str(value) for name, value in PartialState._shared_state.items()}
    told |= {"device": args.device.type, "n_gpu": args.n_gpu}
    Path(folder, f"{which}-{args.process_index}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
