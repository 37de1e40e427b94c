"""The Hugging Face ``Trainer``'s API, numbers and checkpoints on a ``lightning.Trainer``.

Names are resolved when first used: importing the package loads neither torch, lightning nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_compat.arguments import Seq2SeqTrainingArguments, TrainingArguments
    from hf_compat.arguments.enums import IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
    from hf_compat.callbacks import (
        DefaultFlowCallback,
        EarlyStoppingCallback,
        PrinterCallback,
        ProgressCallback,
        TrainerCallback,
    )
    from hf_compat.checkpoint.layout import get_last_checkpoint
    from hf_compat.data.collators import DataCollatorWithPadding, DefaultDataCollator, default_data_collator
    from hf_compat.errors import HFCompatError, HFCompatWarning
    from hf_compat.evaluation.results import EvalLoopOutput, EvalPrediction, PredictionOutput, TrainOutput
    from hf_compat.seeding import set_seed
    from hf_compat.state import ExportableState, TrainerControl, TrainerState
    from hf_compat.trainer import Seq2SeqTrainer, Trainer

_HOMES: dict[str, str] = {
    "DataCollatorWithPadding": "hf_compat.data.collators",
    "DefaultDataCollator": "hf_compat.data.collators",
    "DefaultFlowCallback": "hf_compat.callbacks",
    "EarlyStoppingCallback": "hf_compat.callbacks",
    "EvalLoopOutput": "hf_compat.evaluation.results",
    "EvalPrediction": "hf_compat.evaluation.results",
    "ExportableState": "hf_compat.state",
    "HFCompatError": "hf_compat.errors",
    "HFCompatWarning": "hf_compat.errors",
    "IntervalStrategy": "hf_compat.arguments.enums",
    "OptimizerNames": "hf_compat.arguments.enums",
    "PredictionOutput": "hf_compat.evaluation.results",
    "PrinterCallback": "hf_compat.callbacks",
    "ProgressCallback": "hf_compat.callbacks",
    "SaveStrategy": "hf_compat.arguments.enums",
    "SchedulerType": "hf_compat.arguments.enums",
    "Seq2SeqTrainer": "hf_compat.trainer",
    "Seq2SeqTrainingArguments": "hf_compat.arguments",
    "TrainOutput": "hf_compat.evaluation.results",
    "Trainer": "hf_compat.trainer",
    "TrainerCallback": "hf_compat.callbacks",
    "TrainerControl": "hf_compat.state",
    "TrainerState": "hf_compat.state",
    "TrainingArguments": "hf_compat.arguments",
    "default_data_collator": "hf_compat.data.collators",
    "get_last_checkpoint": "hf_compat.checkpoint.layout",
    "set_seed": "hf_compat.seeding",
}

__version__ = "0.1.0"

__all__ = [
    "DataCollatorWithPadding",
    "DefaultDataCollator",
    "DefaultFlowCallback",
    "EarlyStoppingCallback",
    "EvalLoopOutput",
    "EvalPrediction",
    "ExportableState",
    "HFCompatError",
    "HFCompatWarning",
    "IntervalStrategy",
    "OptimizerNames",
    "PredictionOutput",
    "PrinterCallback",
    "ProgressCallback",
    "SaveStrategy",
    "SchedulerType",
    "Seq2SeqTrainer",
    "Seq2SeqTrainingArguments",
    "TrainOutput",
    "Trainer",
    "TrainerCallback",
    "TrainerControl",
    "TrainerState",
    "TrainingArguments",
    "__version__",
    "default_data_collator",
    "get_last_checkpoint",
    "set_seed",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
