"""The effect of each field of ``TrainingArguments``: one row per field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hf_compat.arguments.problems import Problem
from hf_compat.arguments.releases import defaults

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

Handling = Literal["trainer", "plan", "script", "alias", "unsupported"]


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The effect of one field."""

    field: str
    handling: Handling
    """A keyword of ``lightning.Trainer``; used by hf_compat; only read by scripts; an old name; or not supported."""
    target: str
    """The keyword; the file that does the main work; who reads it; the new name; or the reason and the remedy."""
    sentence: str = ""
    """Its effect, unless it is not supported."""
    harmless: tuple[Any, ...] = ()
    """Values besides the default that have no effect, so are accepted."""

    @property
    def effect(self) -> str:
        """One sentence on the effect of the field, or why it is not supported and what to do."""
        return f"{self.target[0].upper()}{self.target[1:]}." if self.handling == "unsupported" else self.sentence


_APEX = "apex is not supported; remove it, torch's automatic mixed precision is used"
_TPU = "TPUs are not supported; remove it"
_TRACKERS = "transformers' callback for Trackio"
_TRACKIO = "Used by transformers' callback for Trackio: `report_to='trackio'`."
_MIXED = "A Lightning precision plugin: autocast in {} around the model's forward pass"
_DDP = "`{}` of `DistributedDataParallel`."
_LIGER = "Liger kernels are applied to the model"
_FULL = "The whole model is cast to {} for evaluation and prediction."
_SCRIPT = "Only read by scripts; the Trainer does not use it."

FIELD_RULES: tuple[FieldRule, ...] = (
    FieldRule(
        "output_dir",
        "trainer",
        "default_root_dir",
        "Lightning's root folder; checkpoints are saved in it as `checkpoint-<update step>`.",
    ),
    FieldRule(
        "per_device_train_batch_size",
        "plan",
        "arguments/training_arguments.py",
        "Batch size of the training data loader, per device.",
    ),
    FieldRule(
        "num_train_epochs",
        "trainer",
        "max_epochs",
        "Number of epochs; with a fraction, training stops within the last epoch.",
    ),
    FieldRule("max_steps", "trainer", "max_steps", "Lightning's limit of update steps, its global steps."),
    FieldRule(
        "learning_rate", "plan", "optim/optimizers.py", "`lr` of the optimizer, scaled by the learning-rate schedule."
    ),
    FieldRule(
        "lr_scheduler_type",
        "plan",
        "trainer/optimization.py",
        "The learning-rate schedule, stepped after each update step or each evaluation.",
    ),
    FieldRule(
        "lr_scheduler_kwargs",
        "plan",
        "trainer/optimization.py",
        "Keyword arguments of the learning-rate schedule.",
    ),
    FieldRule(
        "warmup_steps",
        "plan",
        "arguments/releases.py",
        "Update steps of warmup in the learning-rate schedule.",
    ),
    FieldRule(
        "optim", "plan", "optim/optimizers.py", "The optimizer: from torch, from hf_compat or from an optional package."
    ),
    FieldRule(
        "optim_args", "plan", "optim/optimizers.py", "Additional keyword arguments of optimizers that take them."
    ),
    FieldRule(
        "weight_decay",
        "plan",
        "trainer/optimization.py",
        "`weight_decay` of all parameters except biases and norms.",
    ),
    FieldRule("adam_beta1", "plan", "optim/optimizers.py", "The first of the `betas` of Adam and its variants."),
    FieldRule("adam_beta2", "plan", "optim/optimizers.py", "The second of the `betas` of Adam and its variants."),
    FieldRule("adam_epsilon", "plan", "optim/optimizers.py", "`eps` of Adam and its variants."),
    FieldRule(
        "optim_target_modules", "plan", "optim/optimizers.py", "The modules whose gradients GaLore or APOLLO project."
    ),
    FieldRule(
        "gradient_accumulation_steps",
        "plan",
        "plan/plan.py",
        "Batches per update step; together they are one Lightning batch.",
    ),
    FieldRule(
        "average_tokens_across_devices",
        "plan",
        "trainer/loss.py",
        "The tokens of an update step are counted over all ranks.",
    ),
    FieldRule(
        "max_grad_norm",
        "plan",
        "trainer/optimization.py",
        "The norm to which gradients are clipped, once per update step.",
    ),
    FieldRule(
        "label_smoothing_factor",
        "plan",
        "trainer/construction.py",
        "The loss is computed with label smoothing instead of by the model.",
    ),
    FieldRule("bf16", "trainer", "plugins", f"{_MIXED.format('bfloat16')}."),
    FieldRule("fp16", "trainer", "plugins", f"{_MIXED.format('float16')}, with a gradient scaler; float32 on the CPU."),
    FieldRule("bf16_full_eval", "plan", "arguments/process_facts.py", _FULL.format("bfloat16")),
    FieldRule("fp16_full_eval", "plan", "arguments/process_facts.py", _FULL.format("float16")),
    FieldRule("tf32", "plan", "arguments/process_facts.py", "Turns TF32 on or off in torch for the whole process."),
    FieldRule(
        "activation_checkpointing",
        "plan",
        "arguments/fields.py",
        "The model's activation checkpointing is enabled when training starts.",
    ),
    FieldRule(
        "activation_checkpointing_kwargs",
        "plan",
        "arguments/fields.py",
        "Keyword arguments of the model's activation checkpointing.",
    ),
    FieldRule("gradient_checkpointing", "alias", "activation_checkpointing", "Old name of `activation_checkpointing`."),
    FieldRule(
        "gradient_checkpointing_kwargs",
        "alias",
        "activation_checkpointing_kwargs",
        "Old name of `activation_checkpointing_kwargs`.",
    ),
    FieldRule("torch_compile", "plan", "arguments/derived.py", "The model is wrapped in `torch.compile`."),
    FieldRule(
        "torch_compile_backend", "plan", "arguments/derived.py", "`backend` of `torch.compile`, which it enables."
    ),
    FieldRule("torch_compile_mode", "plan", "arguments/derived.py", "`mode` of `torch.compile`, which it enables."),
    FieldRule("use_liger_kernel", "plan", "optim/model_patches.py", f"{_LIGER} before training."),
    FieldRule("liger_kernel_config", "plan", "optim/model_patches.py", f"{_LIGER} as selected here."),
    FieldRule("use_cache", "plan", "trainer/trainer.py", "Sets `model.config.use_cache`, in releases that do so."),
    FieldRule(
        "neftune_noise_alpha", "plan", "trainer/trainer.py", "A hook adds noise to the embeddings during training."
    ),
    FieldRule(
        "torch_empty_cache_steps",
        "plan",
        "trainer/trainer.py",
        "Empties the device's memory cache every N update steps.",
    ),
    FieldRule(
        "auto_find_batch_size",
        "plan",
        "trainer/run.py",
        "When memory runs out, training restarts with a smaller batch size, on all ranks.",
    ),
    FieldRule(
        "logging_strategy",
        "plan",
        "arguments/derived.py",
        "Whether to log every N update steps, every epoch, or not at all.",
    ),
    FieldRule("logging_steps", "plan", "state.py", "Update steps between two logs."),
    FieldRule("logging_first_step", "plan", "callbacks/default_callbacks.py", "The first update step is logged too."),
    FieldRule(
        "log_on_each_node",
        "plan",
        "arguments/training_arguments.py",
        "Which ranks log: local rank 0 of every node, or only rank 0.",
    ),
    FieldRule(
        "logging_nan_inf_filter",
        "plan",
        "trainer/progress.py",
        "A NaN or infinite loss is logged as the mean since the last log.",
    ),
    FieldRule(
        "include_num_input_tokens_seen",
        "plan",
        "trainer/progress.py",
        "Input tokens are counted in the trainer state and logged.",
    ),
    FieldRule(
        "log_level",
        "plan",
        "arguments/process_facts.py",
        "Level of the loggers of hf_compat and transformers on the main process.",
    ),
    FieldRule(
        "log_level_replica",
        "plan",
        "arguments/process_facts.py",
        "Level of the loggers of hf_compat and transformers on the other processes.",
    ),
    FieldRule(
        "disable_tqdm", "plan", "trainer/construction.py", "Replaces the `ProgressCallback` with a `PrinterCallback`."
    ),
    FieldRule(
        "report_to",
        "trainer",
        "logger",
        "Comet, MLflow, TensorBoard and wandb by Lightning's loggers, others by transformers' callbacks.",
    ),
    FieldRule("run_name", "plan", "engine/loggers/wandb.py", "Name of the run in trackers."),
    FieldRule("project", "script", _TRACKERS, _TRACKIO),
    FieldRule("trackio_space_id", "script", _TRACKERS, _TRACKIO),
    FieldRule("trackio_bucket_id", "script", _TRACKERS, _TRACKIO),
    FieldRule("trackio_static_space_id", "script", _TRACKERS, _TRACKIO),
    FieldRule(
        "eval_strategy",
        "plan",
        "arguments/derived.py",
        "Whether to evaluate every N update steps, every epoch, or not at all; inside Lightning's fit.",
    ),
    FieldRule("eval_steps", "plan", "state.py", "Update steps between two evaluations."),
    FieldRule("eval_delay", "plan", "arguments/derived.py", "No evaluation before this epoch or update step."),
    FieldRule(
        "per_device_eval_batch_size",
        "plan",
        "arguments/training_arguments.py",
        "Batch size of the evaluation and test data loaders, per device.",
    ),
    FieldRule(
        "prediction_loss_only",
        "plan",
        "trainer/evaluation.py",
        "Evaluation keeps only the losses, not logits and labels.",
    ),
    FieldRule("eval_on_start", "plan", "trainer/loop.py", "One evaluation before the first update step."),
    FieldRule(
        "eval_do_concat_batches",
        "plan",
        "trainer/evaluation_session.py",
        "Whether predictions are concatenated over batches, or kept as a list per batch.",
    ),
    FieldRule(
        "eval_use_gather_object", "plan", "trainer/trainer.py", "Predictions are gathered over ranks as Python objects."
    ),
    FieldRule(
        "eval_accumulation_steps",
        "plan",
        "trainer/evaluation_session.py",
        "Moves predictions to the CPU every N batches.",
    ),
    FieldRule(
        "include_for_metrics",
        "plan",
        "trainer/evaluation_session.py",
        "`compute_metrics` also gets the inputs or the losses.",
    ),
    FieldRule(
        "batch_eval_metrics",
        "plan",
        "trainer/evaluation_session.py",
        "`compute_metrics` is called on each batch; predictions are not stored.",
    ),
    FieldRule(
        "save_only_model", "plan", "trainer/saving.py", "Checkpoints contain no optimizer, scheduler or random state."
    ),
    FieldRule(
        "save_strategy",
        "plan",
        "arguments/derived.py",
        "Whether to save every N update steps, every epoch, whenever the metric improves, or not at all.",
    ),
    FieldRule("save_steps", "plan", "state.py", "Update steps between two checkpoints."),
    FieldRule(
        "save_on_each_node",
        "plan",
        "arguments/training_arguments.py",
        "Which ranks write files: local rank 0 of every node, or only rank 0.",
    ),
    FieldRule(
        "save_total_limit",
        "plan",
        "arguments/derived.py",
        "Older complete checkpoints of the run are deleted, never the best one.",
    ),
    FieldRule(
        "enable_jit_checkpoint",
        "plan",
        "trainer/run.py",
        "On SIGTERM a checkpoint is saved at the end of the update step, then training stops.",
    ),
    FieldRule(
        "push_to_hub",
        "plan",
        "trainer/trainer.py",
        "Checkpoints and the model are pushed to the Hub in the background.",
    ),
    FieldRule("hub_token", "plan", "arguments/derived.py", "Token for `push_to_hub`."),
    FieldRule(
        "hub_private_repo",
        "plan",
        "arguments/derived.py",
        "Whether the repository that `push_to_hub` creates is private.",
    ),
    FieldRule("hub_model_id", "plan", "arguments/derived.py", "Repository that `push_to_hub` pushes to."),
    FieldRule("hub_strategy", "plan", "arguments/derived.py", "What `push_to_hub` pushes, and when."),
    FieldRule(
        "hub_always_push",
        "plan",
        "arguments/derived.py",
        "`push_to_hub` pushes even if an earlier push is not done.",
    ),
    FieldRule("hub_revision", "plan", "arguments/derived.py", "Branch that `push_to_hub` pushes to."),
    FieldRule(
        "load_best_model_at_end",
        "plan",
        "trainer/saving.py",
        "The weights of the best checkpoint are loaded when training ends.",
    ),
    FieldRule("metric_for_best_model", "plan", "trainer/saving.py", "The metric that determines the best checkpoint."),
    FieldRule("greater_is_better", "plan", "arguments/derived.py", "Whether a larger metric is better."),
    FieldRule("ignore_data_skip", "plan", "trainer/resume.py", "A resumed run starts its epoch from the first batch."),
    FieldRule(
        "restore_callback_states_from_checkpoint",
        "plan",
        "trainer/trainer.py",
        "A resumed run restores the callbacks' states from the checkpoint.",
    ),
    FieldRule(
        "full_determinism",
        "plan",
        "seeding.py",
        "Makes torch use deterministic algorithms; set before the model is created.",
    ),
    FieldRule("seed", "plan", "seeding.py", "Seed of Python's, numpy's and torch's random generators."),
    FieldRule("data_seed", "plan", "arguments/derived.py", "Seed of the order of samples."),
    FieldRule("use_cpu", "trainer", "accelerator", 'Lightning\'s `accelerator="cpu"`.'),
    FieldRule(
        "accelerator_config",
        "plan",
        "trainer/construction.py",
        "How batches are distributed: `even_batches`, `split_batches`, `use_seedable_sampler`, ...",
    ),
    FieldRule(
        "parallelism_config",
        "plan",
        "arguments/parallelism.py",
        "Consecutive ranks share matrices (`tp_size`), or sequences with FSDP 2 (`cp_size`) or DeepSpeed (`sp_size`); "
        "with `fsdp`, `dp_replicate_size` replicas of `dp_shard_size` shards.",
    ),
    FieldRule("dataloader_drop_last", "plan", "trainer/trainer.py", "`drop_last` of the data loaders."),
    FieldRule("dataloader_num_workers", "plan", "arguments/derived.py", "`num_workers` of the data loaders."),
    FieldRule("dataloader_pin_memory", "plan", "arguments/derived.py", "`pin_memory` of the data loaders."),
    FieldRule(
        "dataloader_persistent_workers",
        "plan",
        "arguments/derived.py",
        "`persistent_workers` of the data loaders.",
    ),
    FieldRule("dataloader_prefetch_factor", "plan", "arguments/derived.py", "`prefetch_factor` of the data loaders."),
    FieldRule(
        "dataloader_multiprocessing_context",
        "plan",
        "arguments/derived.py",
        "`multiprocessing_context` of the data loaders.",
    ),
    FieldRule("dataloader_in_order", "plan", "arguments/derived.py", "`in_order` of the data loaders."),
    FieldRule(
        "remove_unused_columns",
        "plan",
        "trainer/trainer.py",
        "Columns that are not arguments of the model's forward are removed.",
    ),
    FieldRule("label_names", "plan", "trainer/construction.py", "The columns that are used as labels in evaluation."),
    FieldRule(
        "train_sampling_strategy",
        "plan",
        "trainer/trainer.py",
        "The sampler of the training data loader; `group_by_length` also applies to evaluation.",
    ),
    FieldRule("length_column_name", "plan", "trainer/loaders.py", "The column with the lengths for `group_by_length`."),
    FieldRule("ddp_find_unused_parameters", "plan", "engine/strategies/ddp.py", _DDP.format("find_unused_parameters")),
    FieldRule("ddp_bucket_cap_mb", "plan", "engine/strategies/ddp.py", _DDP.format("bucket_cap_mb")),
    FieldRule("ddp_broadcast_buffers", "plan", "engine/strategies/ddp.py", _DDP.format("broadcast_buffers")),
    FieldRule("ddp_static_graph", "plan", "engine/strategies/ddp.py", _DDP.format("static_graph")),
    FieldRule("ddp_backend", "plan", "arguments/process_facts.py", "The backend of the process group."),
    FieldRule(
        "ddp_timeout", "plan", "arguments/training_arguments.py", "The timeout of collective operations, in seconds."
    ),
    FieldRule(
        "fsdp",
        "plan",
        "arguments/fsdp.py",
        "The model is sharded over all ranks by torch's `fully_shard` or `FullyShardedDataParallel`.",
    ),
    FieldRule(
        "fsdp_config",
        "plan",
        "arguments/fsdp.py",
        "FSDP version, FSDP units, sharding strategy and the state dict in checkpoints.",
    ),
    FieldRule(
        "deepspeed",
        "plan",
        "arguments/deepspeed.py",
        "DeepSpeed's config; `auto` values follow the arguments. ZeRO-3 partitions models while loading.",
    ),
    FieldRule(
        "debug",
        "plan",
        "trainer/loop.py",
        "`underflow_overflow` checks the outputs of every module for NaN and infinite values.",
    ),
    FieldRule(
        "skip_memory_metrics",
        "plan",
        "trainer/trainer.py",
        "With False, metrics include the memory that each stage used.",
    ),
    FieldRule(
        "do_train",
        "script",
        "the script",
        "Only read by scripts; before 5.2 also where full half-precision evaluation delays placing the model.",
    ),
    FieldRule(
        "do_eval",
        "script",
        "the script",
        "Only read by scripts, and by a search whose Ray scheduler needs evaluations.",
    ),
    FieldRule("do_predict", "script", "the script", _SCRIPT),
    FieldRule(
        "resume_from_checkpoint",
        "script",
        "the script",
        "Only read by scripts, which pass it to `Trainer.train`, and by `HFLightningCLI`.",
    ),
    FieldRule(
        "local_rank", "script", "launchers", "Only set by launchers; the local rank is read from the environment."
    ),
    FieldRule("overwrite_output_dir", "script", "the script", _SCRIPT),
    FieldRule("evaluation_strategy", "alias", "eval_strategy", "Old name of `eval_strategy`."),
    FieldRule(
        "per_gpu_train_batch_size", "alias", "per_device_train_batch_size", "Old name of `per_device_train_batch_size`."
    ),
    FieldRule(
        "per_gpu_eval_batch_size", "alias", "per_device_eval_batch_size", "Old name of `per_device_eval_batch_size`."
    ),
    FieldRule(
        "warmup_ratio",
        "alias",
        "warmup_steps",
        "Fraction of all update steps for warmup, 1.0 for the whole run; `warmup_steps` takes precedence.",
    ),
    FieldRule("logging_dir", "plan", "arguments/derived.py", "Folder of Lightning's `TensorBoardLogger`."),
    FieldRule(
        "save_safetensors",
        "plan",
        "trainer/model_files.py",
        "With False, weights are saved with `torch.save`, if the release supports it.",
    ),
    FieldRule("no_cuda", "alias", "use_cpu", "Old name of `use_cpu`."),
    FieldRule(
        "use_mps_device",
        "plan",
        "arguments/checks.py",
        "Checks that there is an MPS device, which is used automatically.",
    ),
    FieldRule("jit_mode_eval", "plan", "trainer/evaluation.py", "Evaluation runs a traced model (`torch.jit.trace`)."),
    FieldRule("use_ipex", "unsupported", "IPEX is not supported; remove it, or set `bf16=True`"),
    FieldRule("fp16_opt_level", "unsupported", _APEX),
    FieldRule(
        "half_precision_backend",
        "plan",
        "arguments/process_facts.py",
        "With 4.57, whether mixed precision on the CPU covers the loss too; 'apex' is not supported.",
    ),
    FieldRule("tpu_num_cores", "unsupported", _TPU),
    FieldRule("tpu_metrics_debug", "unsupported", _TPU),
    FieldRule(
        "past_index",
        "plan",
        "trainer/loss.py",
        "The model output with this index is passed to the next batch as `mems`.",
    ),
    FieldRule("sharded_ddp", "unsupported", "FairScale is not supported; remove it", harmless=(None, [], False)),
    FieldRule("fsdp_min_num_params", "alias", "fsdp_config", "Old name of `min_num_params` in `fsdp_config`."),
    FieldRule(
        "fsdp_transformer_layer_cls_to_wrap",
        "alias",
        "fsdp_config",
        "Old name of `transformer_layer_cls_to_wrap` in `fsdp_config`.",
    ),
    FieldRule("adafactor", "alias", "optim", "Sets `optim='adafactor'`."),
    FieldRule(
        "group_by_length", "alias", "train_sampling_strategy", "Sets `train_sampling_strategy='group_by_length'`."
    ),
    FieldRule(
        "use_legacy_prediction_loop",
        "plan",
        "trainer/evaluation.py",
        "Evaluation uses the loop of transformers before 4.5.",
    ),
    FieldRule("include_inputs_for_metrics", "alias", "include_for_metrics", "Sets `include_for_metrics=['inputs']`."),
    FieldRule("fp16_backend", "alias", "half_precision_backend", "Old name of `half_precision_backend`."),
    FieldRule("push_to_hub_model_id", "alias", "hub_model_id", "Old name of `hub_model_id`."),
    FieldRule("push_to_hub_organization", "alias", "hub_model_id", "Old name of the organization in `hub_model_id`."),
    FieldRule("push_to_hub_token", "alias", "hub_token", "Old name of `hub_token`."),
    FieldRule("_n_gpu", "plan", "arguments/process_facts.py", "Number of GPUs of this process."),
    FieldRule("mp_parameters", "unsupported", "SageMaker's model parallelism is not supported; remove it"),
    FieldRule("torchdynamo", "alias", "torch_compile_backend", "Old name of `torch_compile_backend`."),
    FieldRule("ray_scope", "plan", "trainer/searching.py", "Which result of a trial Ray Tune uses to compare trials."),
    FieldRule("xpu_backend", "unsupported", "it is the old name of `ddp_backend`; set that"),
    FieldRule(
        "dispatch_batches", "alias", "accelerator_config", "Sets `accelerator_config={'dispatch_batches': ...}`."
    ),
    FieldRule(
        "include_tokens_per_second",
        "alias",
        "include_num_input_tokens_seen",
        (
            "From 5.0 sets `include_num_input_tokens_seen='all'`; before, counts the train loader's tokens ahead of "
            "training, for `train_tokens_per_second`."
        ),
    ),
    FieldRule("split_batches", "alias", "accelerator_config", "Sets `accelerator_config={'split_batches': ...}`."),
    FieldRule(
        "tp_size",
        "unsupported",
        "remove it; set `tp_size` in `parallelism_config` for tensor parallelism",
        harmless=(None, 1),
    ),
    FieldRule(
        "semantics",
        "plan",
        "trainer/trainer.py",
        "The transformers release whose numbers are reproduced, or `corrected`.",
    ),
    FieldRule(
        "save_async",
        "plan",
        "checkpoint/background.py",
        "Checkpoints are copied to host memory and saved in the background.",
    ),
    FieldRule(
        "on_save_error", "plan", "trainer/saving.py", "Whether a failed save ends the run or is logged as a warning."
    ),
    FieldRule(
        "preemption_timeout",
        "plan",
        "trainer/run.py",
        "Seconds after SIGTERM until code that does not return is interrupted, so that the run saves and exits.",
    ),
    FieldRule("sortish_sampler", "script", "nothing", "No effect, as in every release of transformers."),
    FieldRule(
        "predict_with_generate",
        "plan",
        "trainer/seq2seq_trainer.py",
        "`Seq2SeqTrainer` generates text in evaluation and prediction.",
    ),
    FieldRule("generation_max_length", "plan", "trainer/seq2seq_trainer.py", "`max_length` of the generation."),
    FieldRule("generation_num_beams", "plan", "trainer/seq2seq_trainer.py", "`num_beams` of the generation."),
    FieldRule("generation_config", "plan", "trainer/seq2seq_trainer.py", "The model's generation config."),
)
"""Every field of ``TrainingArguments`` and ``Seq2SeqTrainingArguments``, in the order of declaration."""


def unsupported_problems(args: TrainingArguments) -> Iterator[Problem]:
    """Yield a problem for each field of ``args`` whose value is not supported."""
    for rule in FIELD_RULES:
        if rule.handling != "unsupported":
            continue
        value = getattr(args, rule.field)
        if value != defaults()[rule.field] and value not in rule.harmless:
            yield Problem(rule.field, value, f"{rule.target}.", unsupported=True)
