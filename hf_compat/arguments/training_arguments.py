"""``TrainingArguments``: the configuration of a run, with every field since transformers 4.31.

The class is upstream's contract: its fields, properties and methods. What they do is in the modules beside this one.
Of a field `option` says default, help, what is valid, and which releases have it if not all do; the method called on it
what becomes of its value, and the effect in a sentence.
"""

# No postponed annotations: parsers read the types of the fields at run time.
# ruff: noqa: RUF009  (option returns a dataclass field, which the rule cannot see)

import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from hf_compat.arguments import process_facts, serialising, setters
from hf_compat.arguments.checks import find_problems
from hf_compat.arguments.deepspeed import partition_from_now_on, use_deepspeed
from hf_compat.arguments.derived import warmup_update_steps
from hf_compat.arguments.enums import (
    DebugOption,
    HubStrategy,
    IntervalStrategy,
    OptimizerNames,
    ParallelMode,
    SaveStrategy,
    SchedulerType,
)
from hf_compat.arguments.fields import Config, Folder, Fsdp, Listed, Settings, fields_of_the_script, option
from hf_compat.arguments.fsdp import prepare_loading
from hf_compat.arguments.problems import InitSignature, Integer, Names, Number, OneOf, Word, raise_all, refuse_unknown
from hf_compat.arguments.process_facts import allow_tf32, mixed_precision
from hf_compat.arguments.releases import (
    LOG_LEVELS,
    SINCE,
    default_optimizer,
    resolve_semantics,
    script_values_aside,
)
from hf_compat.arguments.resolving import resolve, semantics_of
from hf_compat.distributed.launch import Launch
from hf_compat.upstream_names import CountsCounterparts

if TYPE_CHECKING:
    import torch

_LEVEL = OneOf(tuple(LOG_LEVELS), also=(KeyError, TypeError))
_LONGEST = timedelta.max.total_seconds() // 1
_MIXED_PRECISION = ("auto", "cuda_amp", "apex", "cpu_amp")


@dataclass
class TrainingArguments(metaclass=CountsCounterparts):
    """The configuration of a run; ``hf-compat explain --all`` says what each field does.

    Names, order, defaults and behaviour are those of transformers 5.24.0; the fields of older releases follow and work
    too. Fields may be assigned after construction.

    Attributes:
        mixed_precision: ``"no"``, ``"fp16"`` or ``"bf16"``.
        hf_deepspeed_config: The DeepSpeed config, its ``"auto"`` values filled in from the arguments; None without it.
        deepspeed_plugin: accelerate's view of that config; None without DeepSpeed.

    Raises:
        ArgumentsError: If fields contradict each other or have invalid values; it lists all problems.
        UnsupportedArgumentsError: If the only problems are values that are not supported.
        UnknownArgumentError: If no release of transformers has a field of that name.
        MissingPackageError: If ``deepspeed`` is set and not installed.
    """

    framework = "pt"
    default_optim = default_optimizer()  # public upstream: scripts and subclasses read it
    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        "accelerator_config",
        "fsdp_config",
        "deepspeed",
        "activation_checkpointing_kwargs",
        "gradient_checkpointing_kwargs",
        "lr_scheduler_kwargs",
    ]

    # ---- training ----

    output_dir: Folder = option(None, "Folder for checkpoints and saved models. Default: trainer_output.").passed_on(
        "default_root_dir", "Lightning's root folder; checkpoints are saved in it as `checkpoint-<update step>`."
    )
    per_device_train_batch_size: int = option(8, "Samples per device in a training batch.", Integer(1)).done_in(
        "arguments/training_arguments.py", "Batch size of the training data loader, per device."
    )
    num_train_epochs: float = option(3.0, "Number of epochs; may be a fraction.", Number()).passed_on(
        "max_epochs", "Number of epochs; with a fraction, training stops within the last epoch."
    )
    max_steps: int = option(
        -1, "Update steps of the run; if positive it overrides num_train_epochs.", Integer()
    ).passed_on("max_steps", "Lightning's limit of update steps, its global steps.")
    learning_rate: float = option(5e-5, "Peak learning rate, reached after warmup.", Number(0)).done_in(
        "optim/optimizers.py", "`lr` of the optimizer, scaled by the learning-rate schedule."
    )
    lr_scheduler_type: SchedulerType | str = option("linear", "Learning-rate schedule.", enum=SchedulerType).done_in(
        "trainer/optimization.py", "The learning-rate schedule, stepped after each update step or each evaluation."
    )
    lr_scheduler_kwargs: Config = option(None, "Keyword arguments of the schedule, as a dict or JSON.").done_in(
        "trainer/optimization.py", "Keyword arguments of the learning-rate schedule."
    )
    warmup_steps: float = option(
        0, "Update steps of warmup; below 1 a fraction of all update steps.", Number(0)
    ).done_in("arguments/derived.py", "Update steps of warmup in the learning-rate schedule.")
    optim: OptimizerNames | str = option(default_optim, "Optimizer.", enum=OptimizerNames).done_in(
        "optim/optimizers.py", "The optimizer: from torch, from hf_compat or from an optional package."
    )
    optim_args: str | None = option(
        None,
        "Additional arguments of the optimizer, as 'name=value,name=value'.",
        Word("'name=value,name=value'", may_be_empty=True),
    ).done_in("optim/optimizers.py", "Additional keyword arguments of optimizers that take them.")
    weight_decay: float = option(
        0.0, "Weight decay of all parameters except biases and norms.", Number(most=math.inf)
    ).done_in("trainer/optimization.py", "`weight_decay` of all parameters except biases and norms.")
    adam_beta1: float = option(0.9, "beta1 of Adam and its variants.", Number(0, 1)).done_in(
        "optim/optimizers.py", "The first of the `betas` of Adam and its variants."
    )
    adam_beta2: float = option(0.999, "beta2 of Adam and its variants.", Number(0, 1)).done_in(
        "optim/optimizers.py", "The second of the `betas` of Adam and its variants."
    )
    adam_epsilon: float = option(1e-8, "Epsilon of Adam and its variants.", Number(0)).done_in(
        "optim/optimizers.py", "`eps` of Adam and its variants."
    )
    optim_target_modules: Listed = option(None, "Modules that GaLore and APOLLO optimize.").done_in(
        "optim/optimizers.py", "The modules whose gradients GaLore or APOLLO project."
    )
    gradient_accumulation_steps: int = option(1, "Batches per update step.", Integer(1)).done_in(
        "plan/plan.py", "Batches per update step; together they are one Lightning batch."
    )
    average_tokens_across_devices: bool = option(True, "Count the tokens of an update step over all devices.").done_in(
        "trainer/loss.py", "The tokens of an update step are counted over all ranks."
    )
    max_grad_norm: float = option(
        1.0, "Maximum gradient norm for clipping; 0 turns clipping off.", Number(takes_none=True)
    ).done_in("trainer/optimization.py", "The norm to which gradients are clipped, once per update step.")
    label_smoothing_factor: float = option(0.0, "Label smoothing, 0 to 1; 0 turns it off.", Number(most=1)).done_in(
        "trainer/construction.py", "The loss is computed with label smoothing instead of by the model."
    )

    bf16: bool = option(False, "Train in bfloat16 mixed precision.").passed_on(
        "plugins", "A Lightning precision plugin: autocast in bfloat16 around the model's forward pass."
    )
    fp16: bool = option(False, "Train in float16 mixed precision on a GPU, in float32 on the CPU.").passed_on(
        "plugins",
        "A Lightning precision plugin: autocast in float16 around the model's forward pass, "
        "with a gradient scaler; float32 on the CPU.",
    )
    bf16_full_eval: bool = option(False, "Evaluate with the whole model in bfloat16.").done_in(
        "arguments/process_facts.py", "The whole model is cast to bfloat16 for evaluation and prediction."
    )
    fp16_full_eval: bool = option(False, "Evaluate with the whole model in float16.").done_in(
        "arguments/process_facts.py", "The whole model is cast to float16 for evaluation and prediction."
    )
    tf32: bool | None = option(None, "Use TF32 for float32 matrix products. Default: torch's setting.").done_in(
        "arguments/process_facts.py", "Turns TF32 on or off in torch for the whole process."
    )
    activation_checkpointing: bool | None = option(
        None, "Recompute activations in the backward pass to save memory.", nargs="?", const=True, since="5.23"
    ).done_in("arguments/fields.py", "The model's activation checkpointing is enabled when training starts.")
    activation_checkpointing_kwargs: Settings = option(
        None, "Keyword arguments of activation checkpointing, as a dict or JSON.", since="5.23"
    ).done_in("arguments/fields.py", "Keyword arguments of the model's activation checkpointing.")
    gradient_checkpointing: bool | None = option(
        None, "The name of activation_checkpointing before 5.23.", nargs="?", const=True
    ).renamed("activation_checkpointing")
    gradient_checkpointing_kwargs: Settings = option(
        None, "The name of activation_checkpointing_kwargs before 5.23."
    ).renamed("activation_checkpointing_kwargs")
    torch_compile: bool = option(False, "Compile the model with torch.compile.").done_in(
        "arguments/derived.py", "The model is wrapped in `torch.compile`."
    )
    torch_compile_backend: str | None = option(
        None, "Backend of torch.compile; turns it on. Default: inductor.", Word("the name of a backend")
    ).done_in("arguments/derived.py", "`backend` of `torch.compile`, which it enables.")
    torch_compile_mode: str | None = option(
        None, "Mode of torch.compile; turns it on.", Word("the name of a mode")
    ).done_in("arguments/derived.py", "`mode` of `torch.compile`, which it enables.")
    use_liger_kernel: bool = option(False, "Patch the model with Liger kernels.").done_in(
        "optim/model_patches.py", "Liger kernels are applied to the model before training."
    )
    liger_kernel_config: dict[str, bool] | None = option(None, "Which Liger kernels to use.").done_in(
        "optim/model_patches.py", "Liger kernels are applied to the model as selected here."
    )
    use_cache: bool = option(False, "Use the model's key-value cache in training.", since="5.0").done_in(
        "trainer/trainer.py", "Sets `model.config.use_cache`, in releases that do so."
    )
    neftune_noise_alpha: float | None = option(None, "Alpha of NEFTune's noise on the embeddings.", Number()).done_in(
        "trainer/trainer.py", "A hook adds noise to the embeddings during training."
    )
    torch_empty_cache_steps: int | None = option(
        None, "Update steps between calls of torch's empty_cache.", Integer(1)
    ).done_in("trainer/trainer.py", "Empties the device's memory cache every N update steps.")
    auto_find_batch_size: bool = option(False, "Retry with a smaller batch size when memory runs out.").done_in(
        "trainer/run.py", "When memory runs out, training restarts with a smaller batch size, on all ranks."
    )

    # ---- logging, evaluation, saving ----

    logging_strategy: IntervalStrategy | str = option("steps", "When to log.", enum=IntervalStrategy).done_in(
        "callbacks/default_callbacks.py", "Whether to log every N update steps, every epoch, or not at all."
    )
    logging_steps: float = option(
        500, "Update steps between logs; below 1 a fraction of all update steps.", Number()
    ).done_in("state.py", "Update steps between two logs.")
    logging_first_step: bool = option(False, "Log the first update step too.").done_in(
        "callbacks/default_callbacks.py", "The first update step is logged too."
    )
    log_on_each_node: bool = option(True, "Log on local rank 0 of every node instead of rank 0 only.").done_in(
        "arguments/training_arguments.py", "Which ranks log: local rank 0 of every node, or only rank 0."
    )
    logging_nan_inf_filter: bool = option(True, "Exclude NaN and infinite losses from the logged mean.").done_in(
        "trainer/progress.py", "A NaN or infinite loss is logged as the mean since the last log."
    )
    include_num_input_tokens_seen: str | bool = option(
        "no",
        "Count input tokens: 'all', 'non_padding' or 'no'.",
        OneOf(("no", "all", "non_padding"), on_command_line=False),
    ).done_in("trainer/progress.py", "Input tokens are counted in the trainer state and logged.")
    log_level: str = option("passive", "Log level of the main process.", _LEVEL).done_in(
        "arguments/process_facts.py", "Level of the loggers of hf_compat and transformers on the main process."
    )
    log_level_replica: str = option("warning", "Log level of the other processes.", _LEVEL).done_in(
        "arguments/process_facts.py", "Level of the loggers of hf_compat and transformers on the other processes."
    )
    disable_tqdm: bool | None = option(
        None, "Print logs instead of progress bars. Default: if the log level is above warning."
    ).done_in("trainer/construction.py", "Replaces the `ProgressCallback` with a `PrinterCallback`.")
    report_to: Listed = option(None, "Trackers to report to: 'tensorboard', 'all' or 'none'.").passed_on(
        "logger", "Comet, MLflow, TensorBoard and wandb by Lightning's loggers, others by transformers' callbacks."
    )
    run_name: str | None = option(None, "Name of the run in trackers.").done_in(
        "engine/loggers/wandb.py", "Name of the run in trackers."
    )
    project: str = option("huggingface", "Project of the run in Trackio.").left_to_scripts(
        "Used by transformers' callback for Trackio: `report_to='trackio'`."
    )
    trackio_space_id: str | None = option(None, "Trackio Space to deploy to.").left_to_scripts(
        "Used by transformers' callback for Trackio: `report_to='trackio'`."
    )
    trackio_bucket_id: str | None = option(None, "Trackio bucket to store in.", since="5.6").left_to_scripts(
        "Used by transformers' callback for Trackio: `report_to='trackio'`."
    )
    trackio_static_space_id: str | None | Literal[False] = option(  # noqa: RUF036  (parsers take the first type)
        None, "Static Trackio Space to export to.", since="5.6"
    ).left_to_scripts("Used by transformers' callback for Trackio: `report_to='trackio'`.")

    eval_strategy: IntervalStrategy | str = option("no", "When to evaluate.", enum=IntervalStrategy).done_in(
        "arguments/derived.py",
        "Whether to evaluate every N update steps, every epoch, or not at all; inside Lightning's fit.",
    )
    eval_steps: float | None = option(
        None, "Update steps between evaluations, or a fraction. Default: logging_steps.", Number()
    ).done_in("state.py", "Update steps between two evaluations.")
    eval_delay: float = option(0, "Epochs or update steps before the first evaluation.", Number()).done_in(
        "callbacks/default_callbacks.py", "No evaluation before this epoch or update step."
    )
    per_device_eval_batch_size: int = option(8, "Samples per device in an evaluation batch.", Integer(1)).done_in(
        "arguments/training_arguments.py", "Batch size of the evaluation and test data loaders, per device."
    )
    prediction_loss_only: bool = option(False, "Keep only the loss in evaluation.").done_in(
        "trainer/evaluation.py", "Evaluation keeps only the losses, not logits and labels."
    )
    eval_on_start: bool = option(False, "Evaluate before the first update step.").done_in(
        "trainer/loop.py", "One evaluation before the first update step."
    )
    eval_do_concat_batches: bool = option(True, "Concatenate predictions over batches.").done_in(
        "trainer/evaluation.py",
        "Whether predictions are concatenated over batches, or kept as a list per batch.",
    )
    eval_use_gather_object: bool = option(False, "Gather predictions as objects instead of tensors.").done_in(
        "trainer/trainer.py", "Predictions are gathered over ranks as Python objects."
    )
    eval_accumulation_steps: int | None = option(
        None, "Evaluation batches after which predictions move to the CPU.", Number()
    ).done_in("trainer/evaluation.py", "Moves predictions to the CPU every N batches.")
    include_for_metrics: list[str] = option(
        [], "Additional inputs of compute_metrics: 'inputs', 'loss'.", Names(excluded=(Mapping, NoneType))
    ).done_in("trainer/evaluation.py", "`compute_metrics` also gets the inputs or the losses.")
    batch_eval_metrics: bool = option(False, "Call compute_metrics on each batch.").done_in(
        "trainer/evaluation.py", "`compute_metrics` is called on each batch; predictions are not stored."
    )

    save_only_model: bool = option(False, "Save only the model; training resumes with a new optimizer state.").done_in(
        "trainer/saving.py", "Checkpoints contain no optimizer, scheduler or random state."
    )
    save_strategy: SaveStrategy | str = option("steps", "When to save a checkpoint.", enum=SaveStrategy).done_in(
        "arguments/derived.py",
        "Whether to save every N update steps, every epoch, whenever the metric improves, or not at all.",
    )
    save_steps: float = option(
        500, "Update steps between checkpoints; below 1 a fraction of all update steps.", Number()
    ).done_in("state.py", "Update steps between two checkpoints.")
    save_on_each_node: bool = option(False, "Save on every node, for nodes without a shared file system.").done_in(
        "arguments/training_arguments.py", "Which ranks write files: local rank 0 of every node, or only rank 0."
    )
    save_total_limit: int | None = option(
        None, "Maximum number of checkpoints to keep; the best one is never deleted.", Integer()
    ).done_in("arguments/derived.py", "Older complete checkpoints of the run are deleted, never the best one.")
    enable_jit_checkpoint: bool = option(False, "Save a checkpoint on SIGTERM.", since="5.0").done_in(
        "trainer/run.py", "On SIGTERM a checkpoint is saved at the end of the update step, then training stops."
    )
    push_to_hub: bool = option(False, "Push the model to the Hub at each save.").done_in(
        "trainer/trainer.py", "Checkpoints and the model are pushed to the Hub in the background."
    )
    hub_token: str | None = option(None, "Token for the Hub.", shown=False).done_in(
        "arguments/derived.py", "Token for `push_to_hub`."
    )
    hub_private_repo: bool | None = option(None, "Whether the repository is private.").done_in(
        "arguments/derived.py", "Whether the repository that `push_to_hub` creates is private."
    )
    hub_model_id: str | None = option(None, "Repository to push to.").done_in(
        "arguments/derived.py", "Repository that `push_to_hub` pushes to."
    )
    hub_strategy: HubStrategy | str = option("every_save", "What is pushed, and when.", enum=HubStrategy).done_in(
        "arguments/derived.py", "What `push_to_hub` pushes, and when."
    )
    hub_always_push: bool = option(False, "Push even if the previous push is not done.").done_in(
        "arguments/derived.py", "`push_to_hub` pushes even if an earlier push is not done."
    )
    hub_revision: str | None = option(None, "Branch to push to.").done_in(
        "arguments/derived.py", "Branch that `push_to_hub` pushes to."
    )
    load_best_model_at_end: bool = option(False, "Load the best checkpoint when training ends.").done_in(
        "trainer/run.py", "The weights of the best checkpoint are loaded when training ends."
    )
    metric_for_best_model: str | None = option(
        None,
        "Metric that determines the best checkpoint. Default: the loss.",
        Word("the name of a metric", may_be_empty=True),
    ).done_in("arguments/derived.py", "The metric that determines the best checkpoint.")
    greater_is_better: bool | None = option(
        None, "Whether a larger metric is better. Default: False for a loss, otherwise True."
    ).done_in("arguments/derived.py", "Whether a larger metric is better.")
    ignore_data_skip: bool = option(
        False, "Resume at the first batch of the epoch instead of where it stopped."
    ).done_in("trainer/resume.py", "A resumed run starts its epoch from the first batch.")
    restore_callback_states_from_checkpoint: bool = option(
        False, "Restore the callbacks' states from the checkpoint."
    ).done_in("trainer/trainer.py", "A resumed run restores the callbacks' states from the checkpoint.")

    # ---- seeds, data, devices ----

    full_determinism: bool = option(False, "Use deterministic algorithms in torch.").done_in(
        "seeding.py", "Makes torch use deterministic algorithms; set before the model is created."
    )
    seed: int = option(42, "Seed of all random generators, 0 to 2**32 - 1.", Integer(0, 2**32 - 1)).done_in(
        "seeding.py", "Seed of Python's, numpy's and torch's random generators."
    )
    data_seed: int | None = option(None, "Seed of the order of samples. Default: seed.", Integer()).done_in(
        "arguments/derived.py", "Seed of the order of samples."
    )
    use_cpu: bool = option(False, "Train on the CPU.").passed_on("accelerator", 'Lightning\'s `accelerator="cpu"`.')
    accelerator_config: Config = option(
        None, "Settings of data loaders: a dict, JSON or the path of a JSON file."
    ).done_in(
        "trainer/construction.py",
        "How batches are distributed: `even_batches`, `split_batches`, `use_seedable_sampler`, ...",
    )
    parallelism_config: Any | None = option(
        None, "accelerate's ParallelismConfig: tensor or sequence parallelism, replicas of shards."
    ).done_in(
        "arguments/parallelism.py",
        "Consecutive ranks share matrices (`tp_size`), or sequences with FSDP 2 (`cp_size`) or DeepSpeed (`sp_size`); "
        "with `fsdp`, `dp_replicate_size` replicas of `dp_shard_size` shards.",
    )
    dataloader_drop_last: bool = option(False, "Drop the last incomplete batch.").done_in(
        "trainer/trainer.py", "`drop_last` of the data loaders, also in evaluations, which warn of what they leave out."
    )
    dataloader_num_workers: int = option(
        0, "Data loader workers per device; 0 loads in the main process.", Integer(0)
    ).done_in("arguments/derived.py", "`num_workers` of the data loaders.")
    dataloader_pin_memory: bool = option(True, "Load batches into pinned memory; off with use_cpu.").done_in(
        "arguments/derived.py", "`pin_memory` of the data loaders."
    )
    dataloader_persistent_workers: bool = option(False, "Keep data loader workers alive between epochs.").done_in(
        "arguments/derived.py", "`persistent_workers` of the data loaders."
    )
    dataloader_prefetch_factor: int | None = option(None, "Batches that each data loader worker prefetches.").done_in(
        "arguments/derived.py", "`prefetch_factor` of the data loaders."
    )
    dataloader_multiprocessing_context: str | None = option(
        None, "Start method of data loader workers.", OneOf(("fork", "spawn", "forkserver")), since="5.15"
    ).done_in("arguments/derived.py", "`multiprocessing_context` of the data loaders.")
    dataloader_in_order: bool = option(
        True, "Return batches in order instead of as workers finish them.", since="5.15"
    ).done_in("arguments/derived.py", "`in_order` of the data loaders.")
    remove_unused_columns: bool = option(True, "Remove columns that are not arguments of the model's forward.").done_in(
        "trainer/trainer.py", "Columns that are not arguments of the model's forward are removed."
    )
    label_names: list[str] | None = option(
        None, "Columns with labels. Default: from the arguments of the model's forward.", Names(excluded=(Mapping, str))
    ).done_in("trainer/construction.py", "The columns that are used as labels in evaluation.")
    train_sampling_strategy: str = option(
        "random",
        "Sampler of the training data.",
        OneOf(("random", "sequential", "group_by_length", "batch_rebalance"), since={"batch_rebalance": "5.17"}),
        since="5.2",
    ).done_in(
        "trainer/trainer.py", "The sampler of the training data loader; `group_by_length` also applies to evaluation."
    )
    length_column_name: str = option("length", "Column with the lengths for group_by_length.").done_in(
        "trainer/loaders.py", "The column with the lengths for `group_by_length`."
    )
    ddp_find_unused_parameters: bool | None = option(None, "find_unused_parameters of DDP.").done_in(
        "engine/strategies/ddp.py", "`find_unused_parameters` of `DistributedDataParallel`."
    )
    ddp_bucket_cap_mb: int | None = option(None, "bucket_cap_mb of DDP, in megabytes.").done_in(
        "engine/strategies/ddp.py", "`bucket_cap_mb` of `DistributedDataParallel`."
    )
    ddp_broadcast_buffers: bool | None = option(None, "broadcast_buffers of DDP.").done_in(
        "engine/strategies/ddp.py", "`broadcast_buffers` of `DistributedDataParallel`."
    )
    ddp_static_graph: bool | None = option(None, "static_graph of DDP.", since="5.6").done_in(
        "engine/strategies/ddp.py", "`static_graph` of `DistributedDataParallel`."
    )
    ddp_backend: str | None = option(
        None,
        "Backend of the process group. Default: nccl on GPUs, otherwise gloo.",
        Word("the name of a backend"),
        choices=["nccl", "gloo", "mpi", "ccl", "xccl", "hccl", "cncl", "mccl"],
    ).done_in("arguments/process_facts.py", "The backend of the process group.")
    ddp_timeout: int = option(
        1800,
        "Timeout of collective operations, in seconds.",
        Number(-_LONGEST, _LONGEST, "must be a number of seconds."),
    ).done_in("arguments/training_arguments.py", "The timeout of collective operations, in seconds.")
    fsdp: Fsdp = option(None, "Shard the model with FSDP.", nargs="?", const=True).done_in(
        "arguments/fsdp.py",
        "The model is sharded over all ranks by torch's `fully_shard` or `FullyShardedDataParallel`.",
    )
    fsdp_config: Settings = option(None, "Settings of FSDP: a dict, JSON or the path of a JSON file.").done_in(
        "arguments/fsdp.py", "FSDP version, FSDP units, sharding strategy and the state dict in checkpoints."
    )
    deepspeed: Config = option(None, "DeepSpeed config: a dict, JSON or the path of a JSON file.").done_in(
        "arguments/deepspeed.py",
        "DeepSpeed's config; `auto` values follow the arguments. ZeRO-3 partitions models while loading.",
    )
    debug: str | list[DebugOption] = option("", "Debugging aids, separated by spaces.").done_in(
        "trainer/loop.py", "`underflow_overflow` checks the outputs of every module for NaN and infinite values."
    )
    skip_memory_metrics: bool = option(True, "Do not report memory use in the metrics.").done_in(
        "trainer/trainer.py", "With False, metrics include the memory that each stage used."
    )
    do_train: bool = option(False, "Only read by scripts: train.").left_to_scripts(
        "Only read by scripts; before 5.2 also where full half-precision evaluation delays placing the model."
    )
    do_eval: bool = option(False, "Only read by scripts: evaluate.").left_to_scripts(
        "Only read by scripts, and by a search whose Ray scheduler needs evaluations."
    )
    do_predict: bool = option(False, "Only read by scripts: predict.").left_to_scripts()
    resume_from_checkpoint: str | None = option(
        None, "Only read by scripts: checkpoint to resume from."
    ).left_to_scripts("Only read by scripts, which pass it to `Trainer.train`, and by `HFLightningCLI`.")
    local_rank: int = option(-1, "Local rank, set by launchers.").left_to_scripts(
        "Only set by launchers; the local rank is read from the environment."
    )

    # ---- fields that 5.24.0 no longer has ----

    overwrite_output_dir: bool = option(
        False, "Only read by scripts: allow a non-empty output_dir.", until="5.0"
    ).left_to_scripts()
    evaluation_strategy: IntervalStrategy | str | None = option(
        None, "The name of eval_strategy before 4.41.", until="4.57"
    ).renamed("eval_strategy")
    per_gpu_train_batch_size: int | None = option(
        None, "The old name of per_device_train_batch_size.", until="5.0"
    ).renamed("per_device_train_batch_size")
    per_gpu_eval_batch_size: int | None = option(
        None, "The old name of per_device_eval_batch_size.", until="5.0"
    ).renamed("per_device_eval_batch_size")
    warmup_ratio: float | None = option(
        None,
        "Fraction of all update steps for warmup, 0 to 1.",
        Number(0, 1, "warmup_ratio must lie in range [0,1], a fraction of all update steps."),
        until="5.15",
    ).renamed(
        "warmup_steps",
        "Fraction of all update steps for warmup, 1.0 for the whole run; `warmup_steps` takes precedence.",
    )
    logging_dir: str | None = option(
        None, "Folder for TensorBoard. Default: a new one in output_dir/runs.", until="5.15"
    ).done_in("arguments/derived.py", "Folder of Lightning's `TensorBoardLogger`.")
    save_safetensors: bool = option(
        True, "Save weights as safetensors instead of with torch.save.", until="5.0"
    ).done_in("trainer/model_files.py", "With False, weights are saved with `torch.save`, if the release supports it.")
    no_cuda: bool = option(False, "The name of use_cpu before 4.32.", until="5.0").renamed("use_cpu")
    use_mps_device: bool = option(False, "Deprecated: MPS is used automatically.", until="5.0").done_in(
        "arguments/checks.py", "Checks that there is an MPS device, which is used automatically."
    )
    jit_mode_eval: bool = option(False, "Trace the model with torch.jit for evaluation.", until="5.0").done_in(
        "trainer/evaluation.py", "Evaluation runs a traced model (`torch.jit.trace`)."
    )
    use_ipex: bool = option(False, "Use Intel's extension for PyTorch.", until="4.57").refused(
        "IPEX is not supported; remove it, or set `bf16=True`"
    )
    fp16_opt_level: str = option("O1", "Optimization level of apex, O0 to O3.", until="5.0").refused(
        "apex is not supported; remove it, torch's automatic mixed precision is used"
    )
    half_precision_backend: str = option(
        "auto", "Backend of mixed precision.", OneOf(_MIXED_PRECISION), until="5.0"
    ).done_in(
        "arguments/process_facts.py",
        "With 4.57, whether mixed precision on the CPU covers the loss too; 'apex' is not supported.",
    )
    tpu_num_cores: int | None = option(None, "Number of TPU cores.", until="5.0").refused(
        "TPUs are not supported; remove it"
    )
    tpu_metrics_debug: bool = option(False, "The old name of debug='tpu_metrics_debug'.", until="5.0").refused(
        "TPUs are not supported; remove it"
    )
    past_index: int = option(
        -1, "Index of the model output with the past state (mems); -1 for none.", Integer(), until="5.0"
    ).done_in("trainer/loss.py", "The model output with this index is passed to the next batch as `mems`.")
    sharded_ddp: str | None = option("", "Shard with FairScale.", until="4.57").refused(
        "FairScale is not supported; remove it", harmless=(None, [], False)
    )
    fsdp_min_num_params: int = option(
        0, "The old name of fsdp_config['min_num_params'].", Integer(), until="5.0"
    ).renamed("fsdp_config", "Old name of `min_num_params` in `fsdp_config`.")
    fsdp_transformer_layer_cls_to_wrap: str | None = option(
        None, "The old name of fsdp_config['transformer_layer_cls_to_wrap'].", until="5.0"
    ).renamed("fsdp_config", "Old name of `transformer_layer_cls_to_wrap` in `fsdp_config`.")
    adafactor: bool = option(False, "The old name of optim='adafactor'.", until="5.0").renamed(
        "optim", "Sets `optim='adafactor'`."
    )
    group_by_length: bool = option(
        False, "The name of train_sampling_strategy='group_by_length' before 5.2.", until="5.2"
    ).renamed("train_sampling_strategy", "Sets `train_sampling_strategy='group_by_length'`.")
    use_legacy_prediction_loop: bool = option(
        False, "Use the evaluation loop of transformers before 4.5.", until="5.0"
    ).done_in("trainer/evaluation.py", "Evaluation uses the loop of transformers before 4.5.")
    include_inputs_for_metrics: bool = option(
        False, "The name of include_for_metrics=['inputs'] before 4.46.", until="5.0"
    ).renamed("include_for_metrics", "Sets `include_for_metrics=['inputs']`.")
    fp16_backend: str = option(
        "auto", "The old name of half_precision_backend.", choices=list(_MIXED_PRECISION), until="5.0"
    ).renamed("half_precision_backend")
    push_to_hub_model_id: str | None = option(None, "The old name of hub_model_id.", until="5.0").renamed(
        "hub_model_id"
    )
    push_to_hub_organization: str | None = option(
        None, "The old name of the organization in hub_model_id.", until="5.0"
    ).renamed("hub_model_id", "Old name of the organization in `hub_model_id`.")
    push_to_hub_token: str | None = option(None, "The old name of hub_token.", shown=False, until="5.0").renamed(
        "hub_token"
    )
    _n_gpu: int = option(-1, internal=True, until="5.0").done_in(
        "arguments/process_facts.py", "Number of GPUs of this process."
    )
    mp_parameters: str = option("", "Set by SageMaker's launcher.", until="5.0").refused(
        "SageMaker's model parallelism is not supported; remove it"
    )
    torchdynamo: str | None = option(None, "The old name of torch_compile_backend.", until="5.0").renamed(
        "torch_compile_backend"
    )
    ray_scope: str | None = option("last", "How Ray selects the best trial.", until="5.0").done_in(
        "trainer/searching.py", "Which result of a trial Ray Tune uses to compare trials."
    )
    xpu_backend: str | None = option(None, "The name of ddp_backend on XPUs in 4.31.", until="4.57").refused(
        "it is the old name of `ddp_backend`; set that"
    )
    dispatch_batches: bool | None = option(
        None, "The name of accelerator_config['dispatch_batches'] before 4.38.", until="4.57"
    ).renamed("accelerator_config", "Sets `accelerator_config={'dispatch_batches': ...}`.")
    include_tokens_per_second: bool = option(
        False, "Log tokens per second; replaced by include_num_input_tokens_seen in 5.0.", until="5.0"
    ).renamed(
        "include_num_input_tokens_seen",
        "From 5.0 sets `include_num_input_tokens_seen='all'`; before, counts the train loader's tokens ahead of "
        "training, for `train_tokens_per_second`.",
    )
    split_batches: bool | None = option(
        None, "The name of accelerator_config['split_batches'] before 4.38.", until="4.57"
    ).renamed("accelerator_config", "Sets `accelerator_config={'split_batches': ...}`.")
    tp_size: int | None = option(0, "Tensor-parallel size, in 4.50 and 4.51.", until="4.57").refused(
        "remove it; set `tp_size` in `parallelism_config` for tensor parallelism", harmless=(None, 1)
    )
    semantics: str | None = option(
        None,
        "The transformers release whose numbers to reproduce, or 'corrected'. Default: the installed one.",
        ours=True,
    ).done_in("trainer/trainer.py", "The transformers release whose numbers are reproduced, or `corrected`.")
    save_async: bool = option(
        False, "Save checkpoints in the background, from a copy in host memory.", ours=True
    ).done_in("checkpoint/background.py", "Checkpoints are copied to host memory and saved in the background.")
    on_save_error: str = option(
        "raise",
        "If a checkpoint cannot be saved: end the run, or warn and continue.",
        OneOf(("raise", "warn")),
        ours=True,
    ).done_in("trainer/saving.py", "Whether a failed save ends the run or is logged as a warning.")
    preemption_timeout: float | None = option(
        20.0,
        "Seconds after SIGTERM until code that does not return is interrupted, to save and exit; None: never.",
        Number(0, text="must be a number of seconds, or None to wait.", takes_none=True),
        ours=True,
    ).done_in(
        "trainer/run.py",
        "Seconds after SIGTERM until code that does not return is interrupted, so that the run saves and exits.",
    )

    # ---- construction ----

    __signature__ = InitSignature()

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Return a new instance.

        Raises:
            UnknownArgumentError: If the constructor has no such keyword; it lists all other problems too.
        """
        if args or kwargs:  # not as one is copied
            refuse_unknown(cls, args, kwargs)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        semantics, problems = semantics_of(self)
        with script_values_aside(self, fields_of_the_script(type(self), semantics.release)):
            raise_all([*problems, *resolve(self, semantics), *find_problems(self, semantics)])
            self.mixed_precision = mixed_precision(self, semantics)
            allow_tf32(self)
            self.hf_deepspeed_config, self.deepspeed_plugin = use_deepspeed(self)
            partition_from_now_on(self)
            prepare_loading(self)
        process_facts.share_early(self)

    # ---- device and processes ----

    @property
    def device(self) -> "torch.device":
        """The device of this process, chosen on first access."""
        return self._setup_devices

    @cached_property
    def _setup_devices(self) -> "torch.device":
        return process_facts.set_up_device(self)

    @property
    def distributed_state(self) -> Any:
        """Accelerate's ``PartialState`` of this process; without accelerate an object with the same members."""
        return process_facts.distributed_state(self)

    def choose_device_again(self) -> None:
        """Clear the cached device: a newly started process may have another one."""
        vars(self).pop("_setup_devices", None)
        self._n_gpu = -1

    def use_one_gpu(self) -> None:
        """Use the GPU of ``device`` alone, though this process may see others."""
        self._n_gpu = min(self.n_gpu, 1)

    def join_processes(self, device: "torch.device") -> None:
        """Initialize the process group with ``ddp_backend``, if that has not been done.

        Args:
            device: The device of this process; a GPU becomes the current CUDA device.

        Raises:
            TrainerSetupError: If the launcher's variables are inconsistent, or the backend fails.
        """
        process_facts.join_processes(self, device)

    @property
    def place_model_on_device(self) -> bool | None:
        """Whether the Trainer moves the model to the device; None for its default. Subclasses may override it."""
        return None if resolve_semantics(self.semantics).release >= SINCE["leaves_model_placement_open"] else True

    @property
    def n_gpu(self) -> int:
        """GPUs of this process: 0 on the CPU, 1 if a launcher has started it, else all that are visible."""
        if self._n_gpu == -1:
            _ = self.device  # which counts them
        return self._n_gpu

    @property
    def train_batch_size(self) -> int:
        """Samples in a training batch of this process."""
        return self.per_device_train_batch_size * max(1, self.n_gpu)

    @property
    def eval_batch_size(self) -> int:
        """Samples in an evaluation batch of this process."""
        return self.per_device_eval_batch_size * max(1, self.n_gpu)

    @property
    def launch(self) -> Launch:
        """The launcher, the ranks and world sizes of this process.

        A process group that the script initialized itself counts as one node.
        """
        return process_facts.find_launch()

    @property
    def world_size(self) -> int:
        """The world size."""
        return self.launch.world_size

    @property
    def process_index(self) -> int:
        """The rank of this process."""
        return self.launch.rank

    @property
    def local_process_index(self) -> int:
        """The local rank of this process; equal to the rank on one node."""
        return self.launch.local_rank

    @property
    def parallel_mode(self) -> ParallelMode:
        """``DISTRIBUTED`` if a launcher started the processes, ``NOT_DISTRIBUTED`` with several GPUs in one process.

        Else ``NOT_PARALLEL``, and for a single launched process on the CPU.
        """
        if self.world_size > 1 or (process_facts.is_single_rank(self) and self.device.type not in ("cpu", "mps")):
            return ParallelMode.DISTRIBUTED
        return ParallelMode.NOT_DISTRIBUTED if self.n_gpu > 1 else ParallelMode.NOT_PARALLEL

    @property
    def should_log(self) -> bool:
        """Whether this process logs."""
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    @property
    def should_save(self) -> bool:
        """Whether this process writes files."""
        return (self.local_process_index if self.save_on_each_node else self.process_index) == 0

    @property
    def ddp_timeout_delta(self) -> timedelta:
        """``ddp_timeout`` as a duration."""
        return timedelta(seconds=float(self.ddp_timeout))

    @property
    def _no_sync_in_gradient_accumulation(self) -> bool:
        return True

    def get_process_log_level(self) -> int:
        """Return the log level of this process."""
        return process_facts.process_log_level(self)

    def main_process_first(self, local: bool = True, desc: str = "work") -> AbstractContextManager[None]:
        """Return a context whose block the main process runs first, while the others wait.

        Args:
            local: Whether the main process is that of each node, or of the whole run.
            desc: What the block does, for debug logs.
        """
        return process_facts.main_process_first(self, local=local, desc=desc)

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Return the number of warmup steps in a run of ``num_training_steps`` update steps."""
        return warmup_update_steps(self, num_training_steps)

    # ---- as text ----

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-serializable values; tokens are masked."""
        return serialising.plain_fields(self)

    def to_json_string(self) -> str:
        """Return ``to_dict`` as indented JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Return ``to_dict`` with the batch sizes; all but numbers, strings and tensors as strings."""
        return serialising.sanitized_fields(self)

    def __str__(self) -> str:
        return serialising.as_text(self)

    __repr__ = __str__

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give a subclass the ``repr`` that ``dataclass`` would, without the fields of other releases."""
        super().__init_subclass__(**kwargs)
        if "__repr__" not in vars(cls):
            type.__setattr__(cls, "__repr__", serialising.repr_of(cls))

    # ---- the fields of one topic ----

    set_training = setters.set_training
    set_evaluate = setters.set_evaluate
    set_testing = setters.set_testing
    set_save = setters.set_save
    set_logging = setters.set_logging
    set_push_to_hub = setters.set_push_to_hub
    set_optimizer = setters.set_optimizer
    set_lr_scheduler = setters.set_lr_scheduler
    set_dataloader = setters.set_dataloader


@dataclass
class Seq2SeqTrainingArguments(TrainingArguments):
    """``TrainingArguments`` with five fields for generation in evaluation and prediction."""

    sortish_sampler: bool = option(False, "Without effect in every release.").left_to_scripts(
        "No effect, as in every release of transformers."
    )
    predict_with_generate: bool = option(False, "Generate in evaluation and prediction.").done_in(
        "trainer/seq2seq_trainer.py", "`Seq2SeqTrainer` generates text in evaluation and prediction."
    )
    generation_max_length: int | None = option(None, "Maximum length of generated sequences, in tokens.").done_in(
        "trainer/seq2seq_trainer.py", "`max_length` of the generation."
    )
    generation_num_beams: int | None = option(None, "Number of beams; 1 is greedy search.").done_in(
        "trainer/seq2seq_trainer.py", "`num_beams` of the generation."
    )
    generation_config: str | Path | Any | None = option(
        None, "Generation config: a name, a path or an instance."
    ).done_in("trainer/seq2seq_trainer.py", "The model's generation config.")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-serializable values."""
        given = super().to_dict()
        return {name: value.to_dict() if hasattr(value, "to_dict") else value for name, value in given.items()}
