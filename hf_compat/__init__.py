"""The Hugging Face ``Trainer``'s API, numbers and checkpoints on a ``lightning.Trainer``.

Names are resolved when first used: importing the package loads neither torch, lightning nor transformers. Models,
tokenizers and helpers of transformers can be imported from here too, if it is installed.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from hf_compat.logger_levels import follow_transformers
from hf_compat.shared_names import ModuleWithDefaults
from hf_compat.upstream_names import hand_on, is_handed_on
from hf_compat.version import __version__

if TYPE_CHECKING:
    from hf_compat.arguments import (
        AcceleratorConfig,
        HfArg,
        HfArgumentParser,
        Seq2SeqTrainingArguments,
        TrainingArguments,
    )
    from hf_compat.arguments.deepspeed.config import HfDeepSpeedConfig
    from hf_compat.arguments.enums import (
        DebugOption,
        EvaluationStrategy,
        ExplicitEnum,
        FSDPOption,
        HPSearchBackend,
        HubStrategy,
        IntervalStrategy,
        OptimizerNames,
        ParallelMode,
        SaveStrategy,
        SchedulerType,
    )
    from hf_compat.arguments.fields.types import string_to_bool
    from hf_compat.callbacks import (
        CallbackHandler,
        DefaultFlowCallback,
        EarlyStoppingCallback,
        NotebookProgressCallback,
        PrinterCallback,
        ProgressCallback,
        RichProgressCallback,
        TrainerCallback,
    )
    from hf_compat.callbacks.defaults import DEFAULT_CALLBACKS, DEFAULT_PROGRESS_CALLBACK
    from hf_compat.checkpoint.finding import get_last_checkpoint
    from hf_compat.checkpoint.names import (
        ADAPTER_SAFE_WEIGHTS_NAME,
        ADAPTER_WEIGHTS_NAME,
        OPTIMIZER_NAME,
        PREFIX_CHECKPOINT_DIR,
        SAFE_WEIGHTS_INDEX_NAME,
        SAFE_WEIGHTS_NAME,
        SCALER_NAME,
        SCHEDULER_NAME,
        TRAINER_STATE_NAME,
        TRAINING_ARGS_NAME,
        WEIGHTS_INDEX_NAME,
        WEIGHTS_NAME,
    )
    from hf_compat.data.balancing import BatchRebalanceSampler
    from hf_compat.data.collators import (
        DataCollatorWithPadding,
        DefaultDataCollator,
        default_data_collator,
        numpy_default_data_collator,
        torch_default_data_collator,
    )
    from hf_compat.data.columns import RemoveColumnsCollator
    from hf_compat.data.samplers import LengthGroupedSampler
    from hf_compat.distributed.ranks import is_main_process, total_processes_number
    from hf_compat.engine.checkpoint_io import HFCheckpointIO
    from hf_compat.engine.global_keywords import lightning_keywords
    from hf_compat.errors import HFCompatError, HFCompatWarning
    from hf_compat.evaluation.results import EvalLoopOutput, EvalPrediction, PredictionOutput, TrainOutput
    from hf_compat.installing import install, uninstall
    from hf_compat.metrics import denumpify_detensorize, has_length, speed_metrics
    from hf_compat.model_facts import number_of_arguments
    from hf_compat.optim.adafactor import Adafactor
    from hf_compat.optim.greedy import GreedyLR
    from hf_compat.optim.losses import LabelSmoother
    from hf_compat.optim.schedulers import get_scheduler
    from hf_compat.seeding import enable_full_determinism, seed_worker, set_seed
    from hf_compat.state import ExportableState, TrainerControl, TrainerState
    from hf_compat.trainer import Seq2SeqTrainer, Trainer
    from hf_compat.trainer.pieces import to_lightning
    from hf_compat.tuning.spaces import (
        BestRun,
        default_compute_objective,
        default_hp_space_optuna,
        default_hp_space_ray,
    )

_HOMES: dict[str, str] = {
    "ADAPTER_SAFE_WEIGHTS_NAME": "hf_compat.checkpoint.names",
    "ADAPTER_WEIGHTS_NAME": "hf_compat.checkpoint.names",
    "AcceleratorConfig": "hf_compat.arguments",
    "Adafactor": "hf_compat.optim.classes",
    "BestRun": "hf_compat.tuning.spaces",
    "CallbackHandler": "hf_compat.callbacks",
    "DEFAULT_CALLBACKS": "hf_compat.callbacks.defaults",
    "DEFAULT_PROGRESS_CALLBACK": "hf_compat.callbacks.defaults",
    "DataCollatorWithPadding": "hf_compat.data.collators",
    "DebugOption": "hf_compat.arguments.enums",
    "DefaultDataCollator": "hf_compat.data.collators",
    "DefaultFlowCallback": "hf_compat.callbacks",
    "EarlyStoppingCallback": "hf_compat.callbacks",
    "EvalLoopOutput": "hf_compat.evaluation.results",
    "EvalPrediction": "hf_compat.evaluation.results",
    "EvaluationStrategy": "hf_compat.arguments.enums",
    "ExplicitEnum": "hf_compat.arguments.enums",
    "ExportableState": "hf_compat.state",
    "FSDPOption": "hf_compat.arguments.enums",
    "GreedyLR": "hf_compat.optim.classes",
    "HFCheckpointIO": "hf_compat.engine.checkpoint_io",
    "HFCompatError": "hf_compat.errors",
    "HFCompatWarning": "hf_compat.errors",
    "HPSearchBackend": "hf_compat.arguments.enums",
    "HfArg": "hf_compat.arguments",
    "HfArgumentParser": "hf_compat.arguments",
    "HfDeepSpeedConfig": "hf_compat.arguments.deepspeed.config",
    "HubStrategy": "hf_compat.arguments.enums",
    "IntervalStrategy": "hf_compat.arguments.enums",
    "LabelSmoother": "hf_compat.optim.losses",
    "BatchRebalanceSampler": "hf_compat.data.balancing",
    "LengthGroupedSampler": "hf_compat.data.samplers",
    "NotebookProgressCallback": "hf_compat.callbacks",
    "OPTIMIZER_NAME": "hf_compat.checkpoint.names",
    "OptimizerNames": "hf_compat.arguments.enums",
    "PREFIX_CHECKPOINT_DIR": "hf_compat.checkpoint.names",
    "ParallelMode": "hf_compat.arguments.enums",
    "PredictionOutput": "hf_compat.evaluation.results",
    "PrinterCallback": "hf_compat.callbacks",
    "ProgressCallback": "hf_compat.callbacks",
    "RemoveColumnsCollator": "hf_compat.data.columns",
    "RichProgressCallback": "hf_compat.callbacks",
    "SAFE_WEIGHTS_INDEX_NAME": "hf_compat.checkpoint.names",
    "SAFE_WEIGHTS_NAME": "hf_compat.checkpoint.names",
    "SCALER_NAME": "hf_compat.checkpoint.names",
    "SCHEDULER_NAME": "hf_compat.checkpoint.names",
    "SaveStrategy": "hf_compat.arguments.enums",
    "SchedulerType": "hf_compat.arguments.enums",
    "Seq2SeqTrainer": "hf_compat.trainer",
    "Seq2SeqTrainingArguments": "hf_compat.arguments",
    "TRAINER_STATE_NAME": "hf_compat.checkpoint.names",
    "TRAINING_ARGS_NAME": "hf_compat.checkpoint.names",
    "TrainOutput": "hf_compat.evaluation.results",
    "Trainer": "hf_compat.trainer",
    "TrainerCallback": "hf_compat.callbacks",
    "TrainerControl": "hf_compat.state",
    "TrainerState": "hf_compat.state",
    "TrainingArguments": "hf_compat.arguments",
    "WEIGHTS_INDEX_NAME": "hf_compat.checkpoint.names",
    "WEIGHTS_NAME": "hf_compat.checkpoint.names",
    "default_compute_objective": "hf_compat.tuning.spaces",
    "default_data_collator": "hf_compat.data.collators",
    "default_hp_space_optuna": "hf_compat.tuning.spaces",
    "default_hp_space_ray": "hf_compat.tuning.spaces",
    "denumpify_detensorize": "hf_compat.metrics",
    "enable_full_determinism": "hf_compat.seeding",
    "get_last_checkpoint": "hf_compat.checkpoint.finding",
    "get_scheduler": "hf_compat.optim.schedulers",
    "has_length": "hf_compat.metrics",
    "install": "hf_compat.installing",
    "is_main_process": "hf_compat.distributed.ranks",
    "lightning_keywords": "hf_compat.engine.global_keywords",
    "number_of_arguments": "hf_compat.model_facts",
    "numpy_default_data_collator": "hf_compat.data.collators",
    "seed_worker": "hf_compat.seeding",
    "set_seed": "hf_compat.seeding",
    "speed_metrics": "hf_compat.metrics",
    "string_to_bool": "hf_compat.arguments.fields.types",
    "to_lightning": "hf_compat.trainer.pieces",
    "torch_default_data_collator": "hf_compat.data.collators",
    "total_processes_number": "hf_compat.distributed.ranks",
    "uninstall": "hf_compat.installing",
}


__all__ = [
    "ADAPTER_SAFE_WEIGHTS_NAME",
    "ADAPTER_WEIGHTS_NAME",
    "DEFAULT_CALLBACKS",
    "DEFAULT_PROGRESS_CALLBACK",
    "OPTIMIZER_NAME",
    "PREFIX_CHECKPOINT_DIR",
    "SAFE_WEIGHTS_INDEX_NAME",
    "SAFE_WEIGHTS_NAME",
    "SCALER_NAME",
    "SCHEDULER_NAME",
    "TRAINER_STATE_NAME",
    "TRAINING_ARGS_NAME",
    "WEIGHTS_INDEX_NAME",
    "WEIGHTS_NAME",
    "AcceleratorConfig",
    "Adafactor",
    "BatchRebalanceSampler",
    "BestRun",
    "CallbackHandler",
    "DataCollatorWithPadding",
    "DebugOption",
    "DefaultDataCollator",
    "DefaultFlowCallback",
    "EarlyStoppingCallback",
    "EvalLoopOutput",
    "EvalPrediction",
    "EvaluationStrategy",
    "ExplicitEnum",
    "ExportableState",
    "FSDPOption",
    "GreedyLR",
    "HFCheckpointIO",
    "HFCompatError",
    "HFCompatWarning",
    "HPSearchBackend",
    "HfArg",
    "HfArgumentParser",
    "HfDeepSpeedConfig",
    "HubStrategy",
    "IntervalStrategy",
    "LabelSmoother",
    "LengthGroupedSampler",
    "NotebookProgressCallback",
    "OptimizerNames",
    "ParallelMode",
    "PredictionOutput",
    "PrinterCallback",
    "ProgressCallback",
    "RemoveColumnsCollator",
    "RichProgressCallback",
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
    "default_compute_objective",
    "default_data_collator",
    "default_hp_space_optuna",
    "default_hp_space_ray",
    "denumpify_detensorize",
    "enable_full_determinism",
    "get_last_checkpoint",
    "get_scheduler",
    "has_length",
    "install",
    "is_main_process",
    "lightning_keywords",
    "number_of_arguments",
    "numpy_default_data_collator",
    "seed_worker",
    "set_seed",
    "speed_metrics",
    "string_to_bool",
    "to_lightning",
    "torch_default_data_collator",
    "total_processes_number",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name == "lightning":  # not in `__all__`: `import *` would hide Lightning's own package
        value = importlib.import_module("hf_compat.lightning")
    elif is_handed_on(name):
        value = hand_on(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


sys.modules[__name__].__class__ = ModuleWithDefaults
follow_transformers()  # here, so that it holds in each process, whichever module logs first
