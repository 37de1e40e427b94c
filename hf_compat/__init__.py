"""The Hugging Face ``Trainer``'s API, numbers and checkpoints on a ``lightning.Trainer``.

Names are resolved when first used: importing the package loads neither torch, lightning nor transformers. Models,
tokenizers and helpers of transformers can be imported from here too, if it is installed.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from hf_compat.log_files import follow_transformers
from hf_compat.upstream_names import ModuleWithDefaults, hand_on, is_handed_on
from hf_compat.version import __version__ as __version__

if TYPE_CHECKING:
    from hf_compat.arguments import (
        AcceleratorConfig as AcceleratorConfig,
        HfArg as HfArg,
        HfArgumentParser as HfArgumentParser,
        Seq2SeqTrainingArguments as Seq2SeqTrainingArguments,
        TrainingArguments as TrainingArguments,
    )
    from hf_compat.arguments.deepspeed import HfDeepSpeedConfig as HfDeepSpeedConfig
    from hf_compat.arguments.enums import (
        DebugOption as DebugOption,
        EvaluationStrategy as EvaluationStrategy,
        ExplicitEnum as ExplicitEnum,
        FSDPOption as FSDPOption,
        HPSearchBackend as HPSearchBackend,
        HubStrategy as HubStrategy,
        IntervalStrategy as IntervalStrategy,
        OptimizerNames as OptimizerNames,
        ParallelMode as ParallelMode,
        SaveStrategy as SaveStrategy,
        SchedulerType as SchedulerType,
    )
    from hf_compat.arguments.parser import string_to_bool as string_to_bool
    from hf_compat.callbacks import (
        CallbackHandler as CallbackHandler,
        DefaultFlowCallback as DefaultFlowCallback,
        EarlyStoppingCallback as EarlyStoppingCallback,
        NotebookProgressCallback as NotebookProgressCallback,
        PrinterCallback as PrinterCallback,
        ProgressCallback as ProgressCallback,
        RichProgressCallback as RichProgressCallback,
        TrainerCallback as TrainerCallback,
    )
    from hf_compat.callbacks.default_callbacks import (
        DEFAULT_CALLBACKS as DEFAULT_CALLBACKS,
        DEFAULT_PROGRESS_CALLBACK as DEFAULT_PROGRESS_CALLBACK,
    )
    from hf_compat.checkpoint.finding import get_last_checkpoint as get_last_checkpoint
    from hf_compat.checkpoint.names import (
        ADAPTER_SAFE_WEIGHTS_NAME as ADAPTER_SAFE_WEIGHTS_NAME,
        ADAPTER_WEIGHTS_NAME as ADAPTER_WEIGHTS_NAME,
        OPTIMIZER_NAME as OPTIMIZER_NAME,
        PREFIX_CHECKPOINT_DIR as PREFIX_CHECKPOINT_DIR,
        SAFE_WEIGHTS_INDEX_NAME as SAFE_WEIGHTS_INDEX_NAME,
        SAFE_WEIGHTS_NAME as SAFE_WEIGHTS_NAME,
        SCALER_NAME as SCALER_NAME,
        SCHEDULER_NAME as SCHEDULER_NAME,
        TRAINER_STATE_NAME as TRAINER_STATE_NAME,
        TRAINING_ARGS_NAME as TRAINING_ARGS_NAME,
        WEIGHTS_INDEX_NAME as WEIGHTS_INDEX_NAME,
        WEIGHTS_NAME as WEIGHTS_NAME,
    )
    from hf_compat.data.collators import (
        DataCollatorWithPadding as DataCollatorWithPadding,
        DefaultDataCollator as DefaultDataCollator,
        RemoveColumnsCollator as RemoveColumnsCollator,
        default_data_collator as default_data_collator,
        numpy_default_data_collator as numpy_default_data_collator,
        torch_default_data_collator as torch_default_data_collator,
    )
    from hf_compat.data.samplers import (
        BatchRebalanceSampler as BatchRebalanceSampler,
        LengthGroupedSampler as LengthGroupedSampler,
    )
    from hf_compat.distributed.launch import (
        is_main_process as is_main_process,
        total_processes_number as total_processes_number,
    )
    from hf_compat.engine.checkpoint_io import HFCheckpointIO as HFCheckpointIO
    from hf_compat.engine.keywords import lightning_keywords as lightning_keywords
    from hf_compat.errors import HFCompatError as HFCompatError, HFCompatWarning as HFCompatWarning
    from hf_compat.installing import install as install, uninstall as uninstall
    from hf_compat.metrics import (
        denumpify_detensorize as denumpify_detensorize,
        has_length as has_length,
        speed_metrics as speed_metrics,
    )
    from hf_compat.model_facts import number_of_arguments as number_of_arguments
    from hf_compat.optim.adafactor import Adafactor as Adafactor
    from hf_compat.optim.greedy import GreedyLR as GreedyLR
    from hf_compat.optim.losses import LabelSmoother as LabelSmoother
    from hf_compat.optim.schedulers import get_scheduler as get_scheduler
    from hf_compat.seeding import (
        enable_full_determinism as enable_full_determinism,
        seed_worker as seed_worker,
        set_seed as set_seed,
    )
    from hf_compat.state import (
        ExportableState as ExportableState,
        TrainerControl as TrainerControl,
        TrainerState as TrainerState,
    )
    from hf_compat.trainer import Seq2SeqTrainer as Seq2SeqTrainer, Trainer as Trainer
    from hf_compat.trainer.outputs import (
        EvalLoopOutput as EvalLoopOutput,
        EvalPrediction as EvalPrediction,
        PredictionOutput as PredictionOutput,
        TrainOutput as TrainOutput,
    )
    from hf_compat.trainer.pieces import to_lightning as to_lightning
    from hf_compat.trainer.searching import (
        BestRun as BestRun,
        default_compute_objective as default_compute_objective,
        default_hp_space_optuna as default_hp_space_optuna,
        default_hp_space_ray as default_hp_space_ray,
    )

_NAMES: dict[str, str] = {
    "arguments": "AcceleratorConfig HfArg HfArgumentParser Seq2SeqTrainingArguments TrainingArguments",
    "arguments.deepspeed": "HfDeepSpeedConfig",
    "arguments.enums": """
        DebugOption EvaluationStrategy ExplicitEnum FSDPOption HPSearchBackend HubStrategy IntervalStrategy
        OptimizerNames ParallelMode SaveStrategy SchedulerType
    """,
    "arguments.parser": "string_to_bool",
    "callbacks": """
        CallbackHandler DefaultFlowCallback EarlyStoppingCallback NotebookProgressCallback PrinterCallback
        ProgressCallback RichProgressCallback TrainerCallback
    """,
    "callbacks.default_callbacks": "DEFAULT_CALLBACKS DEFAULT_PROGRESS_CALLBACK",
    "checkpoint.finding": "get_last_checkpoint",
    "checkpoint.names": """
        ADAPTER_SAFE_WEIGHTS_NAME ADAPTER_WEIGHTS_NAME OPTIMIZER_NAME PREFIX_CHECKPOINT_DIR SAFE_WEIGHTS_INDEX_NAME
        SAFE_WEIGHTS_NAME SCALER_NAME SCHEDULER_NAME TRAINER_STATE_NAME TRAINING_ARGS_NAME WEIGHTS_INDEX_NAME
        WEIGHTS_NAME
    """,
    "data.collators": """
        DataCollatorWithPadding DefaultDataCollator RemoveColumnsCollator default_data_collator
        numpy_default_data_collator torch_default_data_collator
    """,
    "data.samplers": "BatchRebalanceSampler LengthGroupedSampler",
    "distributed.launch": "is_main_process total_processes_number",
    "engine.checkpoint_io": "HFCheckpointIO",
    "engine.keywords": "lightning_keywords",
    "errors": "HFCompatError HFCompatWarning",
    "installing": "install uninstall",
    "metrics": "denumpify_detensorize has_length speed_metrics",
    "model_facts": "number_of_arguments",
    "optim.classes": "Adafactor GreedyLR",
    "optim.losses": "LabelSmoother",
    "optim.schedulers": "get_scheduler",
    "seeding": "enable_full_determinism seed_worker set_seed",
    "state": "ExportableState TrainerControl TrainerState",
    "trainer": "Seq2SeqTrainer Trainer",
    "trainer.outputs": "EvalLoopOutput EvalPrediction PredictionOutput TrainOutput",
    "trainer.pieces": "to_lightning",
    "trainer.searching": "BestRun default_compute_objective default_hp_space_optuna default_hp_space_ray",
}
"""Module of the package to the public names in it."""
_HOMES = {name: f"hf_compat.{module}" for module, names in _NAMES.items() for name in names.split()}


__all__ = sorted([*_HOMES, "__version__"], key=lambda name: (not name.isupper(), name))  # constants first


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
