"""Fields of ``TrainingArguments`` for training: the first part, in upstream's order."""

# ruff: noqa: RUF009  (option and listing return dataclass fields, which the rule cannot see)

from dataclasses import dataclass

from hf_compat.arguments.enums import OptimizerNames, SchedulerType
from hf_compat.arguments.fields.options import Config, Folder, Listed, Settings, option
from hf_compat.arguments.releases.versions import default_optimizer

__all__ = ["TrainingFields"]


@dataclass
class TrainingFields:
    """Fields for batch size, length, optimizer, learning-rate schedule, precision and memory."""

    default_optim = default_optimizer()  # public upstream: scripts and subclasses read it

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
    fp16: bool = option(False, "Train in float16 mixed precision; needs a GPU.")
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
