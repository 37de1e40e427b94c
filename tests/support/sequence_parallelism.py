"""Arguments of runs that share sequences."""

from pathlib import Path
from typing import Any

from hf_compat import TrainingArguments
from tests.scripts.deepspeed_scenarios import config


def sequence_arguments(folder: Path, sizes: Any, **fields: Any) -> TrainingArguments:
    """Return the arguments of a run under ZeRO-1 whose ``parallelism_config`` is ``sizes``."""
    chosen = {"use_cpu": True, "report_to": "none", "deepspeed": config(1), **fields}
    return TrainingArguments(str(folder), parallelism_config=sizes, **chosen)
