"""The closed sets of names that fields of ``TrainingArguments`` take.

Members equal the member of transformers' own enum that has the same value; all but those of ``ParallelMode`` are
strings, and equal their value.
"""

from __future__ import annotations

from enum import Enum

from hf_compat.arguments.releases import SINCE, installed_release


class ExplicitEnum(str, Enum):  # noqa: UP042  (a StrEnum prints its value; upstream prints the member)
    """Base class of the enums: the error for an invalid value lists the valid ones."""

    @classmethod
    def _missing_(cls, value: object) -> ExplicitEnum:
        # Another library's member of the same value equals it but hashes by its name, so the lookup by value missed it.
        plain = value.value if isinstance(value, Enum) else value
        for member in cls:
            if member.value == plain:
                return member
        names = ", ".join(repr(member.value) for member in cls)
        raise ValueError(f"{plain!r} is not a valid {cls.__name__}; choose one of {names}.")

    __hash__ = str.__hash__  # equal to its string, so found where the string is


class IntervalStrategy(ExplicitEnum):
    """Times of logs and evaluations."""

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"


class SaveStrategy(ExplicitEnum):
    """Times of saves; ``best`` is whenever the tracked metric improves."""

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"
    BEST = "best"


class EvaluationStrategy(ExplicitEnum):
    """The old name of ``IntervalStrategy``, before transformers 5."""

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"


class SchedulerType(ExplicitEnum):
    """Learning-rate schedules."""

    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    INVERSE_SQRT = "inverse_sqrt"
    REDUCE_ON_PLATEAU = "reduce_lr_on_plateau"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WARMUP_WITH_MIN_LR = "cosine_warmup_with_min_lr"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"
    GREEDY = "greedy"


class OptimizerNames(ExplicitEnum):
    """Optimizers, including those that need an optional package."""

    ADAMW_HF = "adamw_hf"
    ADAMW_TORCH = "adamw_torch"
    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    ADAMW_TORCH_XLA = "adamw_torch_xla"
    ADAMW_TORCH_NPU_FUSED = "adamw_torch_npu_fused"
    ADAMW_APEX_FUSED = "adamw_apex_fused"
    ADAFACTOR = "adafactor"
    ADAMW_ANYPRECISION = "adamw_anyprecision"
    ADAMW_TORCH_4BIT = "adamw_torch_4bit"
    ADAMW_TORCH_8BIT = "adamw_torch_8bit"
    ADEMAMIX = "ademamix"
    SGD = "sgd"
    ADAGRAD = "adagrad"
    ADAMW_BNB = "adamw_bnb_8bit"
    ADAMW_8BIT = "adamw_8bit"
    ADEMAMIX_8BIT = "ademamix_8bit"
    LION_8BIT = "lion_8bit"
    LION = "lion_32bit"
    PAGED_ADAMW = "paged_adamw_32bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    PAGED_ADEMAMIX = "paged_ademamix_32bit"
    PAGED_ADEMAMIX_8BIT = "paged_ademamix_8bit"
    PAGED_LION = "paged_lion_32bit"
    PAGED_LION_8BIT = "paged_lion_8bit"
    RMSPROP = "rmsprop"
    RMSPROP_BNB = "rmsprop_bnb"
    RMSPROP_8BIT = "rmsprop_bnb_8bit"
    RMSPROP_32BIT = "rmsprop_bnb_32bit"
    GALORE_ADAMW = "galore_adamw"
    GALORE_ADAMW_8BIT = "galore_adamw_8bit"
    GALORE_ADAFACTOR = "galore_adafactor"
    GALORE_ADAMW_LAYERWISE = "galore_adamw_layerwise"
    GALORE_ADAMW_8BIT_LAYERWISE = "galore_adamw_8bit_layerwise"
    GALORE_ADAFACTOR_LAYERWISE = "galore_adafactor_layerwise"
    LOMO = "lomo"
    ADALOMO = "adalomo"
    GROKADAMW = "grokadamw"
    SCHEDULE_FREE_RADAM = "schedule_free_radam"
    SCHEDULE_FREE_ADAMW = "schedule_free_adamw"
    SCHEDULE_FREE_SGD = "schedule_free_sgd"
    APOLLO_ADAMW = "apollo_adamw"
    APOLLO_ADAMW_LAYERWISE = "apollo_adamw_layerwise"
    STABLE_ADAMW = "stable_adamw"


class HubStrategy(ExplicitEnum):
    """Contents and times of pushes to the Hub."""

    END = "end"
    EVERY_SAVE = "every_save"
    CHECKPOINT = "checkpoint"
    ALL_CHECKPOINTS = "all_checkpoints"


class DebugOption(ExplicitEnum):
    """Debugging aids."""

    UNDERFLOW_OVERFLOW = "underflow_overflow"
    TPU_METRICS_DEBUG = "tpu_metrics_debug"


class ParallelMode(Enum):
    """Ways of using several devices; its members are no strings, as transformers' are not."""

    NOT_PARALLEL = "not_parallel"
    NOT_DISTRIBUTED = "not_distributed"
    DISTRIBUTED = "distributed"
    SAGEMAKER_MODEL_PARALLEL = "sagemaker_model_parallel"
    SAGEMAKER_DATA_PARALLEL = "sagemaker_data_parallel"
    TPU = "tpu"

    @classmethod
    def _missing_(cls, value: object) -> ParallelMode | None:
        return next((member for member in cls if member == value), None)  # transformers' member

    def __eq__(self, other: object) -> bool:
        """Return whether ``other`` is the member of that name here or in transformers, which libraries compare with."""
        return isinstance(other, Enum) and (type(other).__name__, other.value) == (type(self).__name__, self.value)

    __hash__ = Enum.__hash__  # by the name


class FSDPOption(ExplicitEnum):
    """Options of the field ``fsdp``."""

    FULL_SHARD = "full_shard"
    SHARD_GRAD_OP = "shard_grad_op"
    NO_SHARD = "no_shard"
    HYBRID_SHARD = "hybrid_shard"
    HYBRID_SHARD_ZERO2 = "hybrid_shard_zero2"
    OFFLOAD = "offload"
    AUTO_WRAP = "auto_wrap"


class ShardedDDPOption(ExplicitEnum):
    """Options of the field ``sharded_ddp`` of transformers up to 4.34."""

    SIMPLE = "simple"
    ZERO_DP_2 = "zero_dp_2"
    ZERO_DP_3 = "zero_dp_3"
    OFFLOAD = "offload"
    AUTO_WRAP = "auto_wrap"


class HPSearchBackend(ExplicitEnum):
    """Libraries for hyperparameter search, those of the installed transformers."""

    OPTUNA = "optuna"
    RAY = "ray"
    if installed_release() < SINCE["drops_sigopt"]:
        SIGOPT = "sigopt"
    WANDB = "wandb"
