"""Fields of ``TrainingArguments`` in releases from 4.31 to 5.14 that 5.23.0 no longer has."""

# ruff: noqa: RUF009  (option and listing return dataclass fields, which the rule cannot see)

from dataclasses import dataclass, field
from typing import ClassVar

from hf_compat.arguments.enums import IntervalStrategy
from hf_compat.arguments.fields.options import option
from hf_compat.arguments.fields.running import RunningFields

__all__ = ["AllFields"]

HALF_PRECISION_BACKENDS = ("auto", "cuda_amp", "apex", "cpu_amp")


@dataclass
class AllFields(RunningFields):
    """Every field of every supported transformers release, and three of our own, the last three."""

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        "accelerator_config",
        "fsdp_config",
        "deepspeed",
        "activation_checkpointing_kwargs",
        "gradient_checkpointing_kwargs",
        "lr_scheduler_kwargs",
    ]

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
