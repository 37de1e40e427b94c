"""``TrainingArguments``: the configuration of a run, with every field since transformers 4.31.

The class is upstream's contract: its fields, properties and methods. What they do is in the modules beside this one.
"""

# No postponed annotations: parsers read the types of the fields at run time.
# ruff: noqa: RUF009  (option and listing return dataclass fields, which the rule cannot see)

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from hf_compat.arguments import process_facts, serialising
from hf_compat.arguments.checks import find_problems
from hf_compat.arguments.deepspeed import partition_from_now_on, use_deepspeed
from hf_compat.arguments.enums import (
    DebugOption,
    HubStrategy,
    IntervalStrategy,
    OptimizerNames,
    ParallelMode,
    SaveStrategy,
    SchedulerType,
)
from hf_compat.arguments.fields import Config, Folder, Fsdp, Listed, Settings, listing, option
from hf_compat.arguments.fsdp import prepare_loading
from hf_compat.arguments.problems import InitSignature, raise_all, refuse_unknown
from hf_compat.arguments.process_facts import allow_tf32, mixed_precision
from hf_compat.arguments.releases import (
    DDP_BACKENDS,
    HALF_PRECISION_BACKENDS,
    LOG_LEVELS,
    SAMPLING_STRATEGIES,
    SINCE,
    START_METHODS,
    default_optimizer,
    resolve_semantics,
    script_values_aside,
    warmup_update_steps,
)
from hf_compat.arguments.resolving import resolve, semantics_of
from hf_compat.arguments.setters import (
    EVALUATION,
    HUB,
    LOADERS,
    LOGGING,
    OPTIMIZER,
    SAVING,
    SCHEDULE,
    TESTING,
    TRAINING,
    set_fields,
)
from hf_compat.distributed.launch import Launch
from hf_compat.upstream_names import CountsCounterparts

if TYPE_CHECKING:
    import torch


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

    output_dir: Folder = option(None, "Folder for checkpoints and saved models. Default: trainer_output.")
    per_device_train_batch_size: int = option(8, "Samples per device in a training batch.")
    num_train_epochs: float = option(3.0, "Number of epochs; may be a fraction.")
    max_steps: int = option(-1, "Update steps of the run; if positive it overrides num_train_epochs.")
    learning_rate: float = option(5e-5, "Peak learning rate, reached after warmup.")
    lr_scheduler_type: SchedulerType | str = option("linear", "Learning-rate schedule.")
    lr_scheduler_kwargs: Config = option(None, "Keyword arguments of the schedule, as a dict or JSON.")
    warmup_steps: float = option(0, "Update steps of warmup; below 1 a fraction of all update steps.")
    optim: OptimizerNames | str = option(default_optim, "Optimizer.")
    optim_args: str | None = option(None, "Additional arguments of the optimizer, as 'name=value,name=value'.")
    weight_decay: float = option(0.0, "Weight decay of all parameters except biases and norms.")
    adam_beta1: float = option(0.9, "beta1 of Adam and its variants.")
    adam_beta2: float = option(0.999, "beta2 of Adam and its variants.")
    adam_epsilon: float = option(1e-8, "Epsilon of Adam and its variants.")
    optim_target_modules: Listed = option(None, "Modules that GaLore and APOLLO optimize.")
    gradient_accumulation_steps: int = option(1, "Batches per update step.")
    average_tokens_across_devices: bool = option(True, "Count the tokens of an update step over all devices.")
    max_grad_norm: float = option(1.0, "Maximum gradient norm for clipping; 0 turns clipping off.")
    label_smoothing_factor: float = option(0.0, "Label smoothing, 0 to 1; 0 turns it off.")

    bf16: bool = option(False, "Train in bfloat16 mixed precision.")
    fp16: bool = option(False, "Train in float16 mixed precision on a GPU, in float32 on the CPU.")
    bf16_full_eval: bool = option(False, "Evaluate with the whole model in bfloat16.")
    fp16_full_eval: bool = option(False, "Evaluate with the whole model in float16.")
    tf32: bool | None = option(None, "Use TF32 for float32 matrix products. Default: torch's setting.")
    activation_checkpointing: bool | None = option(
        None, "Recompute activations in the backward pass to save memory.", nargs="?", const=True
    )
    activation_checkpointing_kwargs: Settings = option(
        None, "Keyword arguments of activation checkpointing, as a dict or JSON."
    )
    gradient_checkpointing: bool | None = option(
        None, "The name of activation_checkpointing before 5.23.", nargs="?", const=True
    )
    gradient_checkpointing_kwargs: Settings = option(None, "The name of activation_checkpointing_kwargs before 5.23.")
    torch_compile: bool = option(False, "Compile the model with torch.compile.")
    torch_compile_backend: str | None = option(None, "Backend of torch.compile; turns it on. Default: inductor.")
    torch_compile_mode: str | None = option(None, "Mode of torch.compile; turns it on.")
    use_liger_kernel: bool = option(False, "Patch the model with Liger kernels.")
    liger_kernel_config: dict[str, bool] | None = option(None, "Which Liger kernels to use.")
    use_cache: bool = option(False, "Use the model's key-value cache in training.")
    neftune_noise_alpha: float | None = option(None, "Alpha of NEFTune's noise on the embeddings.")
    torch_empty_cache_steps: int | None = option(None, "Update steps between calls of torch's empty_cache.")
    auto_find_batch_size: bool = option(False, "Retry with a smaller batch size when memory runs out.")

    # ---- logging, evaluation, saving ----

    logging_strategy: IntervalStrategy | str = option("steps", "When to log.")
    logging_steps: float = option(500, "Update steps between logs; below 1 a fraction of all update steps.")
    logging_first_step: bool = option(False, "Log the first update step too.")
    log_on_each_node: bool = option(True, "Log on local rank 0 of every node instead of rank 0 only.")
    logging_nan_inf_filter: bool = option(True, "Exclude NaN and infinite losses from the logged mean.")
    include_num_input_tokens_seen: str | bool = option("no", "Count input tokens: 'all', 'non_padding' or 'no'.")
    log_level: str = option("passive", "Log level of the main process.", choices=list(LOG_LEVELS))
    log_level_replica: str = option("warning", "Log level of the other processes.", choices=list(LOG_LEVELS))
    disable_tqdm: bool | None = option(
        None, "Print logs instead of progress bars. Default: if the log level is above warning."
    )
    report_to: Listed = option(None, "Trackers to report to: 'tensorboard', 'all' or 'none'.")
    run_name: str | None = option(None, "Name of the run in trackers.")
    project: str = option("huggingface", "Project of the run in Trackio.")
    trackio_space_id: str | None = option(None, "Trackio Space to deploy to.")
    trackio_bucket_id: str | None = option(None, "Trackio bucket to store in.")
    trackio_static_space_id: str | None | Literal[False] = option(  # noqa: RUF036  (parsers take the first type)
        None, "Static Trackio Space to export to."
    )

    eval_strategy: IntervalStrategy | str = option("no", "When to evaluate.")
    eval_steps: float | None = option(None, "Update steps between evaluations, or a fraction. Default: logging_steps.")
    eval_delay: float = option(0, "Epochs or update steps before the first evaluation.")
    per_device_eval_batch_size: int = option(8, "Samples per device in an evaluation batch.")
    prediction_loss_only: bool = option(False, "Keep only the loss in evaluation.")
    eval_on_start: bool = option(False, "Evaluate before the first update step.")
    eval_do_concat_batches: bool = option(True, "Concatenate predictions over batches.")
    eval_use_gather_object: bool = option(False, "Gather predictions as objects instead of tensors.")
    eval_accumulation_steps: int | None = option(None, "Evaluation batches after which predictions move to the CPU.")
    include_for_metrics: list[str] = listing("Additional inputs of compute_metrics: 'inputs', 'loss'.")
    batch_eval_metrics: bool = option(False, "Call compute_metrics on each batch.")

    save_only_model: bool = option(False, "Save only the model; training resumes with a new optimizer state.")
    save_strategy: SaveStrategy | str = option("steps", "When to save a checkpoint.")
    save_steps: float = option(500, "Update steps between checkpoints; below 1 a fraction of all update steps.")
    save_on_each_node: bool = option(False, "Save on every node, for nodes without a shared file system.")
    save_total_limit: int | None = option(None, "Maximum number of checkpoints to keep; the best one is never deleted.")
    enable_jit_checkpoint: bool = option(False, "Save a checkpoint on SIGTERM.")
    push_to_hub: bool = option(False, "Push the model to the Hub at each save.")
    hub_token: str | None = option(None, "Token for the Hub.", shown=False)
    hub_private_repo: bool | None = option(None, "Whether the repository is private.")
    hub_model_id: str | None = option(None, "Repository to push to.")
    hub_strategy: HubStrategy | str = option("every_save", "What is pushed, and when.")
    hub_always_push: bool = option(False, "Push even if the previous push is not done.")
    hub_revision: str | None = option(None, "Branch to push to.")
    load_best_model_at_end: bool = option(False, "Load the best checkpoint when training ends.")
    metric_for_best_model: str | None = option(None, "Metric that determines the best checkpoint. Default: the loss.")
    greater_is_better: bool | None = option(
        None, "Whether a larger metric is better. Default: False for a loss, otherwise True."
    )
    ignore_data_skip: bool = option(False, "Resume at the first batch of the epoch instead of where it stopped.")
    restore_callback_states_from_checkpoint: bool = option(False, "Restore the callbacks' states from the checkpoint.")

    # ---- seeds, data, devices ----

    full_determinism: bool = option(False, "Use deterministic algorithms in torch.")
    seed: int = option(42, "Seed of all random generators, 0 to 2**32 - 1.")
    data_seed: int | None = option(None, "Seed of the order of samples. Default: seed.")
    use_cpu: bool = option(False, "Train on the CPU.")
    accelerator_config: Config = option(None, "Settings of data loaders: a dict, JSON or the path of a JSON file.")
    parallelism_config: Any | None = option(
        None, "accelerate's ParallelismConfig: tensor or sequence parallelism, replicas of shards."
    )
    dataloader_drop_last: bool = option(False, "Drop the last incomplete batch.")
    dataloader_num_workers: int = option(0, "Data loader workers per device; 0 loads in the main process.")
    dataloader_pin_memory: bool = option(True, "Load batches into pinned memory; off with use_cpu.")
    dataloader_persistent_workers: bool = option(False, "Keep data loader workers alive between epochs.")
    dataloader_prefetch_factor: int | None = option(None, "Batches that each data loader worker prefetches.")
    dataloader_multiprocessing_context: str | None = option(
        None, "Start method of data loader workers.", choices=list(START_METHODS)
    )
    dataloader_in_order: bool = option(True, "Return batches in order instead of as workers finish them.")
    remove_unused_columns: bool = option(True, "Remove columns that are not arguments of the model's forward.")
    label_names: list[str] | None = option(
        None, "Columns with labels. Default: from the arguments of the model's forward."
    )
    train_sampling_strategy: str = option("random", "Sampler of the training data.", choices=list(SAMPLING_STRATEGIES))
    length_column_name: str = option("length", "Column with the lengths for group_by_length.")
    ddp_find_unused_parameters: bool | None = option(None, "find_unused_parameters of DDP.")
    ddp_bucket_cap_mb: int | None = option(None, "bucket_cap_mb of DDP, in megabytes.")
    ddp_broadcast_buffers: bool | None = option(None, "broadcast_buffers of DDP.")
    ddp_static_graph: bool | None = option(None, "static_graph of DDP.")
    ddp_backend: str | None = option(
        None, "Backend of the process group. Default: nccl on GPUs, otherwise gloo.", choices=list(DDP_BACKENDS)
    )
    ddp_timeout: int = option(1800, "Timeout of collective operations, in seconds.")
    fsdp: Fsdp = option(None, "Shard the model with FSDP.", nargs="?", const=True)
    fsdp_config: Settings = option(None, "Settings of FSDP: a dict, JSON or the path of a JSON file.")
    deepspeed: Config = option(None, "DeepSpeed config: a dict, JSON or the path of a JSON file.")
    debug: str | list[DebugOption] = option("", "Debugging aids, separated by spaces.")
    skip_memory_metrics: bool = option(True, "Do not report memory use in the metrics.")
    do_train: bool = option(False, "Only read by scripts: train.")
    do_eval: bool = option(False, "Only read by scripts: evaluate.")
    do_predict: bool = option(False, "Only read by scripts: predict.")
    resume_from_checkpoint: str | None = option(None, "Only read by scripts: checkpoint to resume from.")
    local_rank: int = option(-1, "Local rank, set by launchers.")

    # ---- fields that 5.24.0 no longer has ----

    overwrite_output_dir: bool = option(False, "Only read by scripts: allow a non-empty output_dir.")
    evaluation_strategy: IntervalStrategy | str | None = option(None, "The name of eval_strategy before 4.41.")
    per_gpu_train_batch_size: int | None = option(None, "The old name of per_device_train_batch_size.")
    per_gpu_eval_batch_size: int | None = option(None, "The old name of per_device_eval_batch_size.")
    warmup_ratio: float | None = option(None, "Fraction of all update steps for warmup, 0 to 1.")
    logging_dir: str | None = option(None, "Folder for TensorBoard. Default: a new one in output_dir/runs.")
    save_safetensors: bool = option(True, "Save weights as safetensors instead of with torch.save.")
    no_cuda: bool = option(False, "The name of use_cpu before 4.32.")
    use_mps_device: bool = option(False, "Deprecated: MPS is used automatically.")
    jit_mode_eval: bool = option(False, "Trace the model with torch.jit for evaluation.")
    use_ipex: bool = option(False, "Use Intel's extension for PyTorch.")
    fp16_opt_level: str = option("O1", "Optimization level of apex, O0 to O3.")
    half_precision_backend: str = option("auto", "Backend of mixed precision.", choices=list(HALF_PRECISION_BACKENDS))
    tpu_num_cores: int | None = option(None, "Number of TPU cores.")
    tpu_metrics_debug: bool = option(False, "The old name of debug='tpu_metrics_debug'.")
    past_index: int = option(-1, "Index of the model output with the past state (mems); -1 for none.")
    sharded_ddp: str | None = option("", "Shard with FairScale.")
    fsdp_min_num_params: int = option(0, "The old name of fsdp_config['min_num_params'].")
    fsdp_transformer_layer_cls_to_wrap: str | None = option(
        None, "The old name of fsdp_config['transformer_layer_cls_to_wrap']."
    )
    adafactor: bool = option(False, "The old name of optim='adafactor'.")
    group_by_length: bool = option(False, "The name of train_sampling_strategy='group_by_length' before 5.2.")
    use_legacy_prediction_loop: bool = option(False, "Use the evaluation loop of transformers before 4.5.")
    include_inputs_for_metrics: bool = option(False, "The name of include_for_metrics=['inputs'] before 4.46.")
    fp16_backend: str = option("auto", "The old name of half_precision_backend.", choices=list(HALF_PRECISION_BACKENDS))
    push_to_hub_model_id: str | None = option(None, "The old name of hub_model_id.")
    push_to_hub_organization: str | None = option(None, "The old name of the organization in hub_model_id.")
    push_to_hub_token: str | None = option(None, "The old name of hub_token.", shown=False)
    _n_gpu: int = field(default=-1, init=False, repr=False, compare=False)
    mp_parameters: str = option("", "Set by SageMaker's launcher.")
    torchdynamo: str | None = option(None, "The old name of torch_compile_backend.")
    ray_scope: str | None = option("last", "How Ray selects the best trial.")
    xpu_backend: str | None = option(None, "The name of ddp_backend on XPUs in 4.31.")
    dispatch_batches: bool | None = option(None, "The name of accelerator_config['dispatch_batches'] before 4.38.")
    include_tokens_per_second: bool = option(
        False, "Log tokens per second; replaced by include_num_input_tokens_seen in 5.0."
    )
    split_batches: bool | None = option(None, "The name of accelerator_config['split_batches'] before 4.38.")
    tp_size: int | None = option(0, "Tensor-parallel size, in 4.50 and 4.51.")
    semantics: str | None = option(
        None, "The transformers release whose numbers to reproduce, or 'corrected'. Default: the installed one."
    )
    save_async: bool = option(False, "Save checkpoints in the background, from a copy in host memory.")
    on_save_error: str = option(
        "raise",
        "If a checkpoint cannot be saved: end the run, or warn and continue.",
        choices=["raise", "warn"],
    )
    preemption_timeout: float | None = option(
        20.0, "Seconds after SIGTERM until code that does not return is interrupted, to save and exit; None: never."
    )

    # ---- construction ----

    __signature__ = InitSignature()

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Return a new instance.

        Raises:
            UnknownArgumentError: If the constructor has no such keyword; it lists all other problems too.
        """
        refuse_unknown(cls, args, kwargs)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        semantics, problems = semantics_of(self)
        with script_values_aside(self, semantics.release):
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
    #
    # All raise ArgumentsError for invalid values and for `steps=0` with `strategy="steps"`, ValueError for an unknown
    # name, and UnsupportedArgumentsError for values that are not supported. Their defaults are upstream's, which are
    # not always those of the fields.

    def set_training(
        self,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3,
        max_steps: int = -1,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
        activation_checkpointing: bool = False,
        gradient_checkpointing: bool | None = None,
    ) -> Self:
        """Set ``do_train`` and the training fields.

        Args:
            learning_rate: Rate after the warm-up.
            batch_size: Samples of a batch, on each device.
            weight_decay: Of the optimizer.
            num_epochs: Passes over the data, if ``max_steps`` does not decide.
            max_steps: Update steps; -1 for ``num_epochs``.
            gradient_accumulation_steps: Batches of an update step, on each device.
            seed: Of the run.
            activation_checkpointing: Whether activations are computed again in the backward pass.
            gradient_checkpointing: The old name of its neighbour.

        Returns:
            These arguments.
        """
        return set_fields(self, TRAINING, locals())

    def set_evaluate(
        self,
        strategy: str | IntervalStrategy = "no",
        steps: int = 500,
        batch_size: int = 8,
        accumulation_steps: int | None = None,
        delay: float | None = None,
        loss_only: bool = False,
        jit_mode: bool = False,
    ) -> Self:
        """Set the fields of evaluation; ``do_eval`` follows from ``strategy``.

        Args:
            strategy: When: ``"no"``, ``"steps"`` or ``"epoch"``.
            steps: Update steps between evaluations.
            batch_size: Samples of a batch, on each device.
            accumulation_steps: Batches after which predictions move to the CPU; None for the end.
            delay: Epochs or update steps before the first evaluation.
            loss_only: Whether only the loss is returned.
            jit_mode: Whether ``torch.jit`` is used.

        Returns:
            These arguments.
        """
        return set_fields(self, EVALUATION, locals())

    def set_testing(self, batch_size: int = 8, loss_only: bool = False, jit_mode: bool = False) -> Self:
        """Set ``do_predict`` and the fields of prediction.

        Args:
            batch_size: Samples of a batch, on each device.
            loss_only: Whether only the loss is returned.
            jit_mode: Whether ``torch.jit`` is used.

        Returns:
            These arguments.
        """
        return set_fields(self, TESTING, locals())

    def set_save(
        self,
        strategy: str | IntervalStrategy = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> Self:
        """Set the fields of saving.

        Args:
            strategy: When: ``"no"``, ``"steps"``, ``"epoch"`` or ``"best"``.
            steps: Update steps between saves.
            total_limit: Checkpoints that are kept; None for all.
            on_each_node: Whether each node writes, for folders that nodes do not share.

        Returns:
            These arguments.
        """
        return set_fields(self, SAVING, locals())

    def set_logging(
        self,
        strategy: str | IntervalStrategy = "steps",
        steps: int = 500,
        report_to: str | list[str] = "none",
        level: str = "passive",
        first_step: bool = False,
        nan_inf_filter: bool = False,
        on_each_node: bool = False,
        replica_level: str = "passive",
    ) -> Self:
        """Set the fields of logging.

        Args:
            strategy: When: ``"no"``, ``"steps"`` or ``"epoch"``.
            steps: Update steps between logs.
            report_to: Trackers, by name.
            level: Level of the loggers on rank 0.
            first_step: Whether the first update step is logged.
            nan_inf_filter: Whether losses that are not finite are left out of the mean.
            on_each_node: Whether a process of each node uses ``level``.
            replica_level: Level of the loggers on other ranks.

        Returns:
            These arguments.
        """
        return set_fields(self, LOGGING, locals())

    def set_push_to_hub(
        self,
        model_id: str,
        strategy: str | HubStrategy = "every_save",
        token: str | None = None,
        private_repo: bool | None = None,
        always_push: bool = False,
        revision: str | None = None,
    ) -> Self:
        """Set ``push_to_hub`` and the fields of the Hub.

        Args:
            model_id: Repository.
            strategy: What is pushed, and when: ``"end"``, ``"every_save"``, ``"checkpoint"``, ``"all_checkpoints"``.
            token: Of the Hub; by default the one of the machine.
            private_repo: Whether a new repository is private.
            always_push: Whether a push begins while another one is not done.
            revision: Branch.

        Returns:
            These arguments.
        """
        return set_fields(self, HUB, locals())

    def set_optimizer(
        self,
        name: str | OptimizerNames = "adamw_torch",
        learning_rate: float = 5e-5,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        args: str | None = None,
    ) -> Self:
        """Set the fields of the optimizer.

        Args:
            name: As ``optim``.
            learning_rate: Rate after the warm-up.
            weight_decay: Of all parameters but biases and those of normalisation layers.
            beta1: Decay of the mean of gradients.
            beta2: Decay of the mean of their squares.
            epsilon: Added to the denominator.
            args: As ``optim_args``.

        Returns:
            These arguments.
        """
        return set_fields(self, OPTIMIZER, locals())

    def set_lr_scheduler(
        self,
        name: str | SchedulerType = "linear",
        num_epochs: float = 3.0,
        max_steps: int = -1,
        warmup_steps: float = 0,
        warmup_ratio: float | None = None,
    ) -> Self:
        """Set the fields of the learning-rate schedule and the length of the run.

        Args:
            name: As ``lr_scheduler_type``.
            num_epochs: Passes over the data, if ``max_steps`` does not decide.
            max_steps: Update steps; -1 for ``num_epochs``.
            warmup_steps: Update steps of the warm-up, or their share of the run if below 1.
            warmup_ratio: The share of the run, by its older name.

        Returns:
            These arguments.
        """
        return set_fields(self, SCHEDULE, locals())

    def set_dataloader(
        self,
        train_batch_size: int = 8,
        eval_batch_size: int = 8,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | None = None,
        in_order: bool = True,
        auto_find_batch_size: bool = False,
        ignore_data_skip: bool = False,
        sampler_seed: int | None = None,
    ) -> Self:
        """Set the fields of the data loaders and ``data_seed``.

        Args:
            train_batch_size: Samples of a training batch, on each device.
            eval_batch_size: Samples of an evaluation batch, on each device.
            drop_last: Whether a last batch that is not full is left out.
            num_workers: Processes that load; 0 for the process itself.
            pin_memory: Whether batches are copied into pinned memory.
            persistent_workers: Whether workers live on between epochs.
            prefetch_factor: Batches that each worker loads ahead.
            multiprocessing_context: How workers are started, such as ``"fork"``.
            in_order: Whether batches come in the order of the sampler.
            auto_find_batch_size: Whether a run starts again with smaller batches when memory runs out.
            ignore_data_skip: Whether a resumed run begins its epoch anew.
            sampler_seed: Of the order of samples, as ``data_seed``.

        Returns:
            These arguments.
        """
        return set_fields(self, LOADERS, locals())


@dataclass
class Seq2SeqTrainingArguments(TrainingArguments):
    """``TrainingArguments`` with five fields for generation in evaluation and prediction."""

    sortish_sampler: bool = option(False, "Without effect in every release.")
    predict_with_generate: bool = option(False, "Generate in evaluation and prediction.")
    generation_max_length: int | None = option(None, "Maximum length of generated sequences, in tokens.")
    generation_num_beams: int | None = option(None, "Number of beams; 1 is greedy search.")
    generation_config: str | Path | Any | None = option(None, "Generation config: a name, a path or an instance.")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-serializable values."""
        given = super().to_dict()
        return {name: value.to_dict() if hasattr(value, "to_dict") else value for name, value in given.items()}
