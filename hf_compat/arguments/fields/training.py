"""Fields of ``TrainingArguments``: how the model is trained. The first part of transformers 5.23.0's order."""

# ruff: noqa: RUF009  (option and listing return dataclass fields, which the rule cannot see)

from dataclasses import dataclass

from hf_compat.arguments.enums import OptimizerNames, SchedulerType
from hf_compat.arguments.fields.options import Config, Folder, Listed, Settings, option
from hf_compat.arguments.releases.versions import default_optimizer

__all__ = ["TrainingFields"]


@dataclass
class TrainingFields:
    """Batches, length, optimizer, schedule, precision, memory."""

    default_optim = default_optimizer()  # public upstream: scripts and subclasses read it

    output_dir: Folder = option(None, "Folder for checkpoints and saved models. Default: trainer_output.")
    per_device_train_batch_size: int = option(8, "Samples per device in a training batch.")
    num_train_epochs: float = option(3.0, "Passes over the training set; a fraction ends within a pass.")
    max_steps: int = option(-1, "Update steps of the run; if positive it wins over num_train_epochs.")
    learning_rate: float = option(5e-5, "Learning rate at the end of the warmup.")
    lr_scheduler_type: SchedulerType | str = option("linear", "Learning-rate schedule.")
    lr_scheduler_kwargs: Config = option(None, "Keywords of the schedule, as a dict or JSON.")
    warmup_steps: float = option(0, "Update steps of warmup; below 1 a share of all update steps.")
    optim: OptimizerNames | str = option(default_optim, "Optimizer.")
    optim_args: str | None = option(None, "Extra settings of some optimizers, as 'name=value,name=value'.")
    weight_decay: float = option(0.0, "Decay of all weights but biases and norms, per update step.")
    adam_beta1: float = option(0.9, "First beta of Adam's relatives.")
    adam_beta2: float = option(0.999, "Second beta of Adam's relatives.")
    adam_epsilon: float = option(1e-8, "Epsilon of Adam's relatives.")
    optim_target_modules: Listed = option(None, "Modules that GaLore and APOLLO optimize.")
    gradient_accumulation_steps: int = option(1, "Batches whose gradients make one update step.")
    average_tokens_across_devices: bool = option(True, "Count a window's tokens over all devices.")
    max_grad_norm: float = option(1.0, "Norm that gradients are clipped to; 0 for none.")
    label_smoothing_factor: float = option(0.0, "Share of the probability spread over wrong labels, 0 to 1.")

    bf16: bool = option(False, "Train in bfloat16 mixed precision.")
    fp16: bool = option(False, "Train in float16 mixed precision; needs a GPU.")
    bf16_full_eval: bool = option(False, "Evaluate the whole model in bfloat16.")
    fp16_full_eval: bool = option(False, "Evaluate the whole model in float16.")
    tf32: bool | None = option(None, "Whether matrix products of float32 may use TF32. Default: as torch is set.")
    activation_checkpointing: bool | None = option(
        None, "Compute activations again in the backward pass instead of keeping them.", nargs="?", const=True
    )
    activation_checkpointing_kwargs: Settings = option(None, "Keywords of activation checkpointing, as a dict or JSON.")
    gradient_checkpointing: bool | None = option(
        None, "The name of activation_checkpointing before 5.23.", nargs="?", const=True
    )
    gradient_checkpointing_kwargs: Settings = option(None, "The name of activation_checkpointing_kwargs before 5.23.")
    torch_compile: bool = option(False, "Compile the model with torch.compile.")
    torch_compile_backend: str | None = option(None, "Backend of torch.compile; turns it on. Default: inductor.")
    torch_compile_mode: str | None = option(None, "Mode of torch.compile; turns it on.")
    use_liger_kernel: bool = option(False, "Patch the model with Liger kernels.")
    liger_kernel_config: dict[str, bool] | None = option(None, "Which Liger kernels to use.")
    use_cache: bool = option(False, "Whether the model's key-value cache stays on in training.")
    neftune_noise_alpha: float | None = option(None, "Strength of NEFTune's noise on the embeddings.")
    torch_empty_cache_steps: int | None = option(None, "Batches between calls of torch's empty_cache.")
    auto_find_batch_size: bool = option(False, "Retry with a smaller batch when memory runs out.")
