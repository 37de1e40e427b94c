"""The effect of each field of ``TrainingArguments``: one row per field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hf_compat.arguments.checking.problems import Problem
from hf_compat.arguments.fields.defaults import defaults
from hf_compat.arguments.fields.effects import EFFECTS

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments


__all__ = ["FIELD_RULES", "FieldRule", "unsupported_problems"]

Fate = Literal["trainer", "plan", "script", "alias", "unsupported"]


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The effect of one field."""

    field: str
    fate: Fate
    """A keyword of ``lightning.Trainer``; used by hf_compat; only read by scripts; an old name; or not supported."""
    target: str
    """The keyword; the file that does the main work; who reads it; the new name; or the reason and the remedy."""
    harmless: tuple[Any, ...] = ()
    """Values besides the default that have no effect, so are accepted."""
    also_in: tuple[str, ...] = ()
    """The files outside ``arguments/`` that read the field, sorted; without ``target``."""

    @property
    def read_in(self) -> tuple[str, ...]:
        """Every file outside ``arguments/`` that reads the field, sorted."""
        main = {self.target} if self.fate == "plan" and not self.target.startswith("arguments/") else set()
        return tuple(sorted({*main, *self.also_in}))

    @property
    def effect(self) -> str:
        """One sentence on the effect of the field, or why it is not supported and what to do."""
        return f"{self.target[0].upper()}{self.target[1:]}." if self.fate == "unsupported" else EFFECTS[self.field]


_APEX = "apex is not supported; remove it, torch's automatic mixed precision is used"
_TPU = "TPUs are not supported; remove it"
_TRACKERS = "transformers' callback for Trackio"

FIELD_RULES: tuple[FieldRule, ...] = (
    FieldRule(
        "output_dir",
        "trainer",
        "default_root_dir",
        also_in=(
            *("engine/loggers/comet.py", "engine/loggers/mlflow.py", "engine/loggers/tensorboard.py"),
            *("engine/loggers/wandb.py", "engine/runtime.py", "lightning/cli.py", "metrics.py"),
            *("model_card/summary.py", "run/run.py", "trainer/model_saving.py", "trainer/pushing.py"),
            *("trainer/searching.py", "trainer/setup_log.py", "trainer/trainer.py"),
        ),
    ),
    FieldRule(
        "per_device_train_batch_size",
        "plan",
        "arguments/training_arguments.py",
        also_in=("run/preparing.py", "run/resume.py", "run/start_log.py", "trainer/trainer.py"),
    ),
    FieldRule(
        "num_train_epochs",
        "trainer",
        "max_epochs",
        also_in=(
            *("engine/run_settings.py", "model_card/eval_results.py", "plan/plan.py", "run/resume.py", "run/run.py"),
            *("run/tokens.py", "trainer/setup_log.py"),
        ),
    ),
    FieldRule(
        "max_steps",
        "trainer",
        "max_steps",
        also_in=(
            *("engine/run_settings.py", "model_card/eval_results.py", "plan/plan.py", "run/resume.py", "run/run.py"),
            *("run/tokens.py", "trainer/setup_log.py", "trainer/trainer.py"),
            "trainer/validation.py",
        ),
    ),
    FieldRule(
        "learning_rate", "plan", "optim/optimizers.py", also_in=("model_card/eval_results.py", "optim/low_rank.py")
    ),
    FieldRule(
        "lr_scheduler_type",
        "plan",
        "trainer/optimizers.py",
        also_in=("model_card/eval_results.py", "trainer/validation.py"),
    ),
    FieldRule("lr_scheduler_kwargs", "plan", "trainer/optimizers.py", also_in=("trainer/validation.py",)),
    FieldRule(
        "warmup_steps", "plan", "arguments/warmup.py", also_in=("model_card/eval_results.py", "optim/external.py")
    ),
    FieldRule(
        "optim",
        "plan",
        "optim/optimizers.py",
        also_in=(
            *("engine/strategies/deepspeed/limits.py", "model_card/eval_results.py"),
            *("optim/in_backward.py", "trainer/loss.py"),
        ),
    ),
    FieldRule(
        "optim_args", "plan", "optim/optimizers.py", also_in=("model_card/eval_results.py", "trainer/validation.py")
    ),
    FieldRule("weight_decay", "plan", "trainer/optimizers.py", also_in=("optim/external.py",)),
    FieldRule("adam_beta1", "plan", "optim/settings.py", also_in=("model_card/eval_results.py", "optim/external.py")),
    FieldRule("adam_beta2", "plan", "optim/settings.py", also_in=("model_card/eval_results.py", "optim/external.py")),
    FieldRule("adam_epsilon", "plan", "optim/settings.py", also_in=("model_card/eval_results.py", "optim/external.py")),
    FieldRule("optim_target_modules", "plan", "optim/low_rank.py"),
    FieldRule(
        "gradient_accumulation_steps",
        "plan",
        "plan/plan.py",
        also_in=(
            *("callbacks/figures.py", "model_card/eval_results.py", "optim/in_backward.py", "optim/low_rank.py"),
            *("run/accumulation.py", "run/preparing.py", "run/resume.py", "run/run.py", "run/tokens.py"),
            *("trainer/loaders.py", "trainer/loss.py", "trainer/trainer.py", "trainer/validation.py"),
        ),
    ),
    FieldRule("average_tokens_across_devices", "plan", "trainer/loss.py"),
    FieldRule("max_grad_norm", "plan", "run/clipping.py", also_in=("optim/in_backward.py", "trainer/trainer.py")),
    FieldRule("label_smoothing_factor", "plan", "trainer/construction.py", also_in=("model_card/eval_results.py",)),
    FieldRule(
        "bf16",
        "trainer",
        "plugins",
        also_in=("engine/run_settings.py", "run/preparing.py", "trainer/loss.py", "trainer/setup_log.py"),
    ),
    FieldRule(
        "fp16",
        "trainer",
        "plugins",
        also_in=(
            "engine/run_settings.py",
            "model_card/eval_results.py",
            "run/preparing.py",
            "trainer/loss.py",
            "trainer/setup_log.py",
        ),
    ),
    FieldRule(
        "bf16_full_eval", "plan", "trainer/evaluation.py", also_in=("run/preparing.py", "trainer/construction.py")
    ),
    FieldRule(
        "fp16_full_eval", "plan", "trainer/evaluation.py", also_in=("run/preparing.py", "trainer/construction.py")
    ),
    FieldRule("tf32", "plan", "arguments/precision.py"),
    FieldRule("activation_checkpointing", "plan", "run/preparing.py", also_in=("engine/strategies/ddp/strategy.py",)),
    FieldRule("activation_checkpointing_kwargs", "plan", "run/preparing.py"),
    FieldRule(
        "gradient_checkpointing",
        "alias",
        "activation_checkpointing",
        also_in=("engine/strategies/ddp/strategy.py", "run/preparing.py"),
    ),
    FieldRule(
        "gradient_checkpointing_kwargs", "alias", "activation_checkpointing_kwargs", also_in=("run/preparing.py",)
    ),
    FieldRule("torch_compile", "plan", "run/preparing.py", also_in=("trainer/construction.py",)),
    FieldRule("torch_compile_backend", "plan", "run/preparing.py", also_in=("trainer/construction.py",)),
    FieldRule("torch_compile_mode", "plan", "run/preparing.py", also_in=("trainer/construction.py",)),
    FieldRule("use_liger_kernel", "plan", "run/preparing.py", also_in=("trainer/evaluation.py", "trainer/trainer.py")),
    FieldRule("liger_kernel_config", "plan", "run/preparing.py", also_in=("trainer/trainer.py",)),
    FieldRule("use_cache", "plan", "trainer/trainer.py"),
    FieldRule("neftune_noise_alpha", "plan", "trainer/trainer.py"),
    FieldRule("torch_empty_cache_steps", "plan", "trainer/loss.py"),
    FieldRule(
        "auto_find_batch_size",
        "plan",
        "run/run.py",
        also_in=(
            "engine/strategies/deepspeed/limits.py",
            "run/training_evaluation.py",
            "trainer/loaders.py",
            "trainer/validation.py",
        ),
    ),
    FieldRule("logging_strategy", "plan", "callbacks/default_flow.py", also_in=("run/resume.py",)),
    FieldRule("logging_steps", "plan", "state.py", also_in=("run/resume.py",)),
    FieldRule("logging_first_step", "plan", "callbacks/default_flow.py"),
    FieldRule("log_on_each_node", "plan", "arguments/training_arguments.py"),
    FieldRule("logging_nan_inf_filter", "plan", "run/progress.py", also_in=("evaluation/session.py",)),
    FieldRule("include_num_input_tokens_seen", "plan", "run/tokens.py", also_in=("run/assembly.py",)),
    FieldRule("log_level", "plan", "trainer/construction.py"),
    FieldRule("log_level_replica", "plan", "trainer/construction.py"),
    FieldRule("disable_tqdm", "plan", "trainer/construction.py", also_in=("engine/run_settings.py",)),
    FieldRule("report_to", "trainer", "logger", also_in=("engine/loggers/reporters.py", "engine/run_settings.py")),
    FieldRule(
        "run_name", "plan", "engine/loggers/wandb.py", also_in=("engine/loggers/comet.py", "engine/loggers/mlflow.py")
    ),
    FieldRule("project", "script", _TRACKERS),
    FieldRule("trackio_space_id", "script", _TRACKERS),
    FieldRule("trackio_bucket_id", "script", _TRACKERS),
    FieldRule("trackio_static_space_id", "script", _TRACKERS),
    FieldRule(
        "eval_strategy",
        "plan",
        "callbacks/default_flow.py",
        also_in=(
            *("callbacks/early_stopping.py", "callbacks/notebook.py", "engine/lightning_callbacks.py"),
            *("engine/run_settings.py", "run/resume.py", "trainer/validation.py", "tuning/ray_tune.py"),
        ),
    ),
    FieldRule("eval_steps", "plan", "state.py", also_in=("run/resume.py",)),
    FieldRule("eval_delay", "plan", "callbacks/default_flow.py", also_in=("engine/run_settings.py",)),
    FieldRule(
        "per_device_eval_batch_size", "plan", "arguments/training_arguments.py", also_in=("run/training_evaluation.py",)
    ),
    FieldRule("prediction_loss_only", "plan", "trainer/evaluation.py", also_in=("trainer/seq2seq_trainer.py",)),
    FieldRule("eval_on_start", "plan", "run/training_evaluation.py"),
    FieldRule("eval_do_concat_batches", "plan", "evaluation/session.py"),
    FieldRule("eval_use_gather_object", "plan", "trainer/trainer.py"),
    FieldRule("eval_accumulation_steps", "plan", "evaluation/session.py"),
    FieldRule("include_for_metrics", "plan", "evaluation/session.py", also_in=("trainer/validation.py",)),
    FieldRule("batch_eval_metrics", "plan", "evaluation/session.py", also_in=("trainer/validation.py",)),
    FieldRule("save_only_model", "plan", "run/saving.py", also_in=("engine/strategies/deepspeed/limits.py",)),
    FieldRule(
        "save_strategy",
        "plan",
        "callbacks/default_flow.py",
        also_in=(
            *("engine/lightning_callbacks.py", "engine/run_settings.py", "run/best_model.py", "run/flow.py"),
            *("run/run.py", "trainer/pushing.py", "trainer/validation.py"),
        ),
    ),
    FieldRule("save_steps", "plan", "state.py", also_in=("run/resume.py",)),
    FieldRule(
        "save_on_each_node", "plan", "arguments/training_arguments.py", also_in=("engine/strategies/fsdp/limits.py",)
    ),
    FieldRule("save_total_limit", "plan", "trainer/model_saving.py", also_in=("run/saving.py",)),
    FieldRule("enable_jit_checkpoint", "plan", "run/run.py"),
    FieldRule("push_to_hub", "plan", "trainer/trainer.py", also_in=("run/run.py", "run/saving.py")),
    FieldRule("hub_token", "plan", "trainer/pushing.py"),
    FieldRule("hub_private_repo", "plan", "trainer/pushing.py"),
    FieldRule("hub_model_id", "plan", "trainer/pushing.py"),
    FieldRule("hub_strategy", "plan", "trainer/pushing.py"),
    FieldRule("hub_always_push", "plan", "trainer/pushing.py"),
    FieldRule("hub_revision", "plan", "trainer/pushing.py", also_in=("trainer/trainer.py",)),
    FieldRule(
        "load_best_model_at_end",
        "plan",
        "run/finishing.py",
        also_in=(
            *("callbacks/early_stopping.py", "engine/loggers/wandb.py", "engine/run_settings.py"),
            *("engine/strategies/deepspeed/limits.py", "trainer/validation.py"),
        ),
    ),
    FieldRule(
        "metric_for_best_model",
        "plan",
        "run/best_model.py",
        also_in=("callbacks/early_stopping.py", "engine/loggers/wandb.py", "trainer/validation.py"),
    ),
    FieldRule("greater_is_better", "plan", "run/best_model.py", also_in=("callbacks/early_stopping.py",)),
    FieldRule("ignore_data_skip", "plan", "run/resume.py", also_in=("run/start_log.py",)),
    FieldRule("restore_callback_states_from_checkpoint", "plan", "trainer/trainer.py"),
    FieldRule("full_determinism", "plan", "trainer/trainer.py", also_in=("run/preparing.py",)),
    FieldRule(
        "seed",
        "plan",
        "trainer/trainer.py",
        also_in=("lightning/cli.py", "model_card/eval_results.py", "run/preparing.py", "trainer/loaders.py"),
    ),
    FieldRule("data_seed", "plan", "trainer/loaders.py", also_in=("trainer/construction.py",)),
    FieldRule("use_cpu", "trainer", "accelerator", also_in=("engine/placement.py",)),
    FieldRule(
        "accelerator_config",
        "plan",
        "trainer/construction.py",
        also_in=(
            "engine/strategies/fsdp/limits.py",
            "engine/strategies/kinds.py",
            "trainer/setup_log.py",
            "trainer/validation.py",
        ),
    ),
    FieldRule(
        "parallelism_config",
        "plan",
        "arguments/parallelism.py",
        also_in=("accelerator/plugins.py", "engine/strategies/choice.py"),
    ),
    FieldRule("dataloader_drop_last", "plan", "trainer/loaders.py"),
    FieldRule("dataloader_num_workers", "plan", "trainer/loaders.py"),
    FieldRule("dataloader_pin_memory", "plan", "trainer/loaders.py", also_in=("trainer/setup_log.py",)),
    FieldRule("dataloader_persistent_workers", "plan", "trainer/loaders.py"),
    FieldRule("dataloader_prefetch_factor", "plan", "trainer/loaders.py"),
    FieldRule("dataloader_multiprocessing_context", "plan", "trainer/loaders.py"),
    FieldRule("dataloader_in_order", "plan", "trainer/loaders.py"),
    FieldRule("remove_unused_columns", "plan", "trainer/trainer.py"),
    FieldRule("label_names", "plan", "trainer/construction.py"),
    FieldRule(
        "train_sampling_strategy",
        "plan",
        "trainer/loaders.py",
        also_in=("trainer/setup_log.py", "trainer/validation.py"),
    ),
    FieldRule("length_column_name", "plan", "trainer/loaders.py"),
    FieldRule(
        "ddp_find_unused_parameters",
        "plan",
        "engine/strategies/ddp/strategy.py",
        also_in=("engine/strategies/choice.py",),
    ),
    FieldRule("ddp_bucket_cap_mb", "plan", "engine/strategies/ddp/strategy.py"),
    FieldRule("ddp_broadcast_buffers", "plan", "engine/strategies/ddp/strategy.py"),
    FieldRule("ddp_static_graph", "plan", "engine/strategies/ddp/strategy.py"),
    FieldRule("ddp_backend", "plan", "arguments/process_facts.py", also_in=("engine/placement.py",)),
    FieldRule("ddp_timeout", "plan", "arguments/training_arguments.py"),
    FieldRule("fsdp", "plan", "arguments/fsdp/settings.py"),
    FieldRule("fsdp_config", "plan", "arguments/fsdp/settings.py"),
    FieldRule("deepspeed", "plan", "arguments/deepspeed/requested.py"),
    FieldRule("debug", "plan", "run/assembly.py", also_in=("engine/strategies/data_parallel/limits.py",)),
    FieldRule("skip_memory_metrics", "plan", "trainer/trainer.py"),
    FieldRule("do_train", "script", "the script", also_in=("trainer/construction.py",)),
    FieldRule("do_eval", "script", "the script", also_in=("engine/run_settings.py", "tuning/ray_tune.py")),
    FieldRule("do_predict", "script", "the script"),
    FieldRule("resume_from_checkpoint", "script", "the script", also_in=("lightning/cli.py",)),
    FieldRule("local_rank", "script", "launchers"),
    FieldRule("overwrite_output_dir", "script", "the script"),
    FieldRule("evaluation_strategy", "alias", "eval_strategy"),
    FieldRule("per_gpu_train_batch_size", "alias", "per_device_train_batch_size"),
    FieldRule("per_gpu_eval_batch_size", "alias", "per_device_eval_batch_size"),
    FieldRule("warmup_ratio", "alias", "warmup_steps", also_in=("model_card/eval_results.py",)),
    FieldRule("logging_dir", "plan", "engine/loggers/tensorboard.py"),
    FieldRule("save_safetensors", "plan", "trainer/model_saving.py"),
    FieldRule("no_cuda", "alias", "use_cpu"),
    FieldRule("use_mps_device", "plan", "arguments/checking/checks.py"),
    FieldRule("jit_mode_eval", "plan", "trainer/evaluation.py"),
    FieldRule("use_ipex", "unsupported", "IPEX is not supported; remove it, or set `bf16=True`"),
    FieldRule("fp16_opt_level", "unsupported", _APEX),
    FieldRule("half_precision_backend", "plan", "trainer/loss.py", also_in=("trainer/setup_log.py",)),
    FieldRule("tpu_num_cores", "unsupported", _TPU),
    FieldRule("tpu_metrics_debug", "unsupported", _TPU),
    FieldRule("past_index", "plan", "trainer/loss.py"),
    FieldRule("sharded_ddp", "unsupported", "FairScale is not supported; remove it", (None, [], False)),
    FieldRule("fsdp_min_num_params", "alias", "fsdp_config"),
    FieldRule("fsdp_transformer_layer_cls_to_wrap", "alias", "fsdp_config"),
    FieldRule("adafactor", "alias", "optim"),
    FieldRule("group_by_length", "alias", "train_sampling_strategy"),
    FieldRule("use_legacy_prediction_loop", "plan", "trainer/evaluation.py"),
    FieldRule("include_inputs_for_metrics", "alias", "include_for_metrics"),
    FieldRule("fp16_backend", "alias", "half_precision_backend"),
    FieldRule("push_to_hub_model_id", "alias", "hub_model_id"),
    FieldRule("push_to_hub_organization", "alias", "hub_model_id"),
    FieldRule("push_to_hub_token", "alias", "hub_token"),
    FieldRule("_n_gpu", "plan", "arguments/process_facts.py"),
    FieldRule("mp_parameters", "unsupported", "SageMaker's model parallelism is not supported; remove it"),
    FieldRule("torchdynamo", "alias", "torch_compile_backend"),
    FieldRule("ray_scope", "plan", "tuning/ray_tune.py"),
    FieldRule("xpu_backend", "unsupported", "it is the old name of `ddp_backend`; set that"),
    FieldRule("dispatch_batches", "alias", "accelerator_config"),
    FieldRule("include_tokens_per_second", "alias", "include_num_input_tokens_seen", also_in=("run/tokens.py",)),
    FieldRule("split_batches", "alias", "accelerator_config"),
    FieldRule(
        "tp_size", "unsupported", "remove it; set `tp_size` in `parallelism_config` for tensor parallelism", (None, 1)
    ),
    FieldRule(
        "semantics",
        "plan",
        "trainer/trainer.py",
        also_in=("callbacks/default_flow.py", "callbacks/log_lines.py", "engine/run_settings.py"),
    ),
    FieldRule("save_async", "plan", "checkpoint/background.py", also_in=("engine/strategies/deepspeed/limits.py",)),
    FieldRule("on_save_error", "plan", "run/saving.py"),
    FieldRule("sortish_sampler", "script", "nothing"),
    FieldRule("predict_with_generate", "plan", "trainer/seq2seq_trainer.py"),
    FieldRule("generation_max_length", "plan", "trainer/seq2seq_trainer.py"),
    FieldRule("generation_num_beams", "plan", "trainer/seq2seq_trainer.py"),
    FieldRule("generation_config", "plan", "trainer/seq2seq_trainer.py"),
)
"""Every field of ``TrainingArguments`` and ``Seq2SeqTrainingArguments``, in the order of declaration."""


def unsupported_problems(args: TrainingArguments) -> Iterator[Problem]:
    """Yield a problem for each field of ``args`` whose value is not supported."""
    for rule in FIELD_RULES:
        if rule.fate != "unsupported":
            continue
        value = getattr(args, rule.field)
        if value != defaults()[rule.field] and value not in rule.harmless:
            yield Problem(rule.field, value, f"{rule.target}.", unsupported=True)
