"""The effect of each field of ``TrainingArguments``: one row per field."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from hf_compat.arguments.checking.problems import Problem
from hf_compat.arguments.fields.accounts import ACCOUNTS
from hf_compat.arguments.fields.older import AllFields

__all__ = ["DEFAULTS", "FIELD_RULES", "FieldRule", "unsupported_problems"]

Fate = Literal["trainer", "plan", "script", "alias", "unsupported"]


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The effect of one field."""

    field: str
    fate: Fate
    """A keyword of ``lightning.Trainer``; used by hf_compat; only read by scripts; an old name; or not supported."""
    target: str
    """The keyword; our module; who reads it; the new name; or the reason and the remedy."""
    harmless: tuple[Any, ...] = ()
    """Values besides the default that have no effect, so are accepted."""

    @property
    def account(self) -> str:
        """One sentence on the effect of the field, or why it is not supported and what to do."""
        return f"{self.target[0].upper()}{self.target[1:]}." if self.fate == "unsupported" else ACCOUNTS[self.field]


_APEX = "apex is not supported; remove it, torch's automatic mixed precision is used"
_TPU = "TPUs are not supported; remove it"
_TRACKERS = "other trackers' own callbacks"

FIELD_RULES: tuple[FieldRule, ...] = (
    FieldRule("output_dir", "trainer", "default_root_dir"),
    FieldRule("per_device_train_batch_size", "plan", "arguments/process_facts.py"),
    FieldRule("num_train_epochs", "trainer", "max_epochs"),
    FieldRule("max_steps", "trainer", "max_steps"),
    FieldRule("learning_rate", "plan", "optim/optimizers.py"),
    FieldRule("lr_scheduler_type", "plan", "optim/schedulers.py"),
    FieldRule("lr_scheduler_kwargs", "plan", "optim/schedulers.py"),
    FieldRule("warmup_steps", "plan", "optim/schedulers.py"),
    FieldRule("optim", "plan", "optim/optimizers.py"),
    FieldRule("optim_args", "plan", "optim/optim_args.py"),
    FieldRule("weight_decay", "plan", "optim/groups.py"),
    FieldRule("adam_beta1", "plan", "optim/settings.py"),
    FieldRule("adam_beta2", "plan", "optim/settings.py"),
    FieldRule("adam_epsilon", "plan", "optim/settings.py"),
    FieldRule("optim_target_modules", "plan", "optim/low_rank.py"),
    FieldRule("gradient_accumulation_steps", "plan", "plan/plan.py"),
    FieldRule("average_tokens_across_devices", "plan", "trainer/steps.py"),
    FieldRule("max_grad_norm", "plan", "trainer/optimization.py"),
    FieldRule("label_smoothing_factor", "plan", "trainer/trainer.py"),
    FieldRule("bf16", "trainer", "plugins"),
    FieldRule("fp16", "trainer", "plugins"),
    FieldRule("bf16_full_eval", "plan", "trainer/evaluation.py"),
    FieldRule("fp16_full_eval", "plan", "trainer/evaluation.py"),
    FieldRule("tf32", "plan", "distributed/devices.py"),
    FieldRule("activation_checkpointing", "plan", "trainer/training.py"),
    FieldRule("activation_checkpointing_kwargs", "plan", "trainer/training.py"),
    FieldRule("gradient_checkpointing", "alias", "activation_checkpointing"),
    FieldRule("gradient_checkpointing_kwargs", "alias", "activation_checkpointing_kwargs"),
    FieldRule("torch_compile", "plan", "trainer/trainer.py"),
    FieldRule("torch_compile_backend", "plan", "trainer/trainer.py"),
    FieldRule("torch_compile_mode", "plan", "trainer/trainer.py"),
    FieldRule("use_liger_kernel", "plan", "optim/liger.py"),
    FieldRule("liger_kernel_config", "plan", "optim/liger.py"),
    FieldRule("use_cache", "plan", "trainer/trainer.py"),
    FieldRule("neftune_noise_alpha", "plan", "optim/neftune.py"),
    FieldRule("torch_empty_cache_steps", "plan", "trainer/steps.py"),
    FieldRule("auto_find_batch_size", "plan", "trainer/batch_size.py"),
    FieldRule("logging_strategy", "plan", "callbacks/default_flow.py"),
    FieldRule("logging_steps", "plan", "callbacks/default_flow.py"),
    FieldRule("logging_first_step", "plan", "callbacks/default_flow.py"),
    FieldRule("log_on_each_node", "plan", "arguments/process_facts.py"),
    FieldRule("logging_nan_inf_filter", "plan", "trainer/steps.py"),
    FieldRule("include_num_input_tokens_seen", "plan", "trainer/steps.py"),
    FieldRule("log_level", "plan", "arguments/process_facts.py"),
    FieldRule("log_level_replica", "plan", "arguments/process_facts.py"),
    FieldRule("disable_tqdm", "plan", "trainer/trainer.py"),
    FieldRule("report_to", "trainer", "logger"),
    FieldRule("run_name", "script", _TRACKERS),
    FieldRule("project", "script", _TRACKERS),
    FieldRule("trackio_space_id", "script", _TRACKERS),
    FieldRule("trackio_bucket_id", "script", _TRACKERS),
    FieldRule("trackio_static_space_id", "script", _TRACKERS),
    FieldRule("eval_strategy", "plan", "callbacks/default_flow.py"),
    FieldRule("eval_steps", "plan", "callbacks/default_flow.py"),
    FieldRule("eval_delay", "plan", "callbacks/default_flow.py"),
    FieldRule("per_device_eval_batch_size", "plan", "arguments/process_facts.py"),
    FieldRule("prediction_loss_only", "plan", "trainer/evaluation.py"),
    FieldRule("eval_on_start", "plan", "trainer/training.py"),
    FieldRule("eval_do_concat_batches", "plan", "evaluation/session.py"),
    FieldRule("eval_use_gather_object", "plan", "trainer/base.py"),
    FieldRule("eval_accumulation_steps", "plan", "evaluation/session.py"),
    FieldRule("include_for_metrics", "plan", "evaluation/session.py"),
    FieldRule("batch_eval_metrics", "plan", "evaluation/session.py"),
    FieldRule("save_only_model", "plan", "trainer/saving.py"),
    FieldRule("save_strategy", "plan", "callbacks/default_flow.py"),
    FieldRule("save_steps", "plan", "callbacks/default_flow.py"),
    FieldRule("save_on_each_node", "plan", "arguments/process_facts.py"),
    FieldRule("save_total_limit", "plan", "trainer/saving.py"),
    FieldRule("enable_jit_checkpoint", "plan", "trainer/preemption.py"),
    FieldRule("push_to_hub", "plan", "trainer/pushing.py"),
    FieldRule("hub_token", "plan", "trainer/pushing.py"),
    FieldRule("hub_private_repo", "plan", "trainer/pushing.py"),
    FieldRule("hub_model_id", "plan", "trainer/pushing.py"),
    FieldRule("hub_strategy", "plan", "trainer/pushing.py"),
    FieldRule("hub_always_push", "plan", "trainer/pushing.py"),
    FieldRule("hub_revision", "plan", "trainer/pushing.py"),
    FieldRule("load_best_model_at_end", "plan", "trainer/flow.py"),
    FieldRule("metric_for_best_model", "plan", "trainer/saving.py"),
    FieldRule("greater_is_better", "plan", "trainer/saving.py"),
    FieldRule("ignore_data_skip", "plan", "trainer/training.py"),
    FieldRule("restore_callback_states_from_checkpoint", "plan", "trainer/saving.py"),
    FieldRule("full_determinism", "plan", "seeding.py"),
    FieldRule("seed", "plan", "seeding.py"),
    FieldRule("data_seed", "plan", "data/preparing.py"),
    FieldRule("use_cpu", "trainer", "accelerator"),
    FieldRule("accelerator_config", "plan", "trainer/trainer.py"),
    FieldRule("parallelism_config", "plan", "engine/strategies/tensor_parallel/strategy.py"),
    FieldRule("dataloader_drop_last", "plan", "trainer/data.py"),
    FieldRule("dataloader_num_workers", "plan", "trainer/data.py"),
    FieldRule("dataloader_pin_memory", "plan", "trainer/data.py"),
    FieldRule("dataloader_persistent_workers", "plan", "trainer/data.py"),
    FieldRule("dataloader_prefetch_factor", "plan", "trainer/data.py"),
    FieldRule("dataloader_multiprocessing_context", "plan", "trainer/data.py"),
    FieldRule("dataloader_in_order", "plan", "trainer/data.py"),
    FieldRule("remove_unused_columns", "plan", "data/columns.py"),
    FieldRule("label_names", "plan", "trainer/trainer.py"),
    FieldRule("train_sampling_strategy", "plan", "trainer/data.py"),
    FieldRule("length_column_name", "plan", "data/samplers.py"),
    FieldRule("ddp_find_unused_parameters", "plan", "engine/strategies/ddp.py"),
    FieldRule("ddp_bucket_cap_mb", "plan", "engine/strategies/ddp.py"),
    FieldRule("ddp_broadcast_buffers", "plan", "engine/strategies/ddp.py"),
    FieldRule("ddp_static_graph", "plan", "engine/strategies/ddp.py"),
    FieldRule("ddp_backend", "plan", "arguments/process_facts.py"),
    FieldRule("ddp_timeout", "plan", "arguments/process_facts.py"),
    FieldRule("fsdp", "plan", "arguments/fsdp/settings.py"),
    FieldRule("fsdp_config", "plan", "arguments/fsdp/settings.py"),
    FieldRule("deepspeed", "plan", "arguments/deepspeed/asked.py"),
    FieldRule("debug", "plan", "overflow.py"),
    FieldRule("skip_memory_metrics", "plan", "memory.py"),
    FieldRule("do_train", "script", "the script"),
    FieldRule("do_eval", "script", "the script"),
    FieldRule("do_predict", "script", "the script"),
    FieldRule("resume_from_checkpoint", "script", "the script"),
    FieldRule("local_rank", "script", "launchers"),
    FieldRule("overwrite_output_dir", "script", "the script"),
    FieldRule("evaluation_strategy", "alias", "eval_strategy"),
    FieldRule("per_gpu_train_batch_size", "alias", "per_device_train_batch_size"),
    FieldRule("per_gpu_eval_batch_size", "alias", "per_device_eval_batch_size"),
    FieldRule("warmup_ratio", "alias", "warmup_steps"),
    FieldRule("logging_dir", "plan", "engine/loggers.py"),
    FieldRule("save_safetensors", "plan", "trainer/saving.py"),
    FieldRule("no_cuda", "alias", "use_cpu"),
    FieldRule("use_mps_device", "plan", "arguments/checking/checks.py"),
    FieldRule("jit_mode_eval", "plan", "engine/tracing.py"),
    FieldRule("use_ipex", "unsupported", "IPEX is not supported; remove it, or set `bf16=True`"),
    FieldRule("fp16_opt_level", "unsupported", _APEX),
    FieldRule("half_precision_backend", "unsupported", _APEX, ("cpu_amp", "cuda_amp")),
    FieldRule("tpu_num_cores", "unsupported", _TPU),
    FieldRule("tpu_metrics_debug", "unsupported", _TPU),
    FieldRule("past_index", "plan", "trainer/steps.py"),
    FieldRule("sharded_ddp", "unsupported", "FairScale is not supported; remove it", (None, [], False)),
    FieldRule("fsdp_min_num_params", "alias", "fsdp_config"),
    FieldRule("fsdp_transformer_layer_cls_to_wrap", "alias", "fsdp_config"),
    FieldRule("adafactor", "alias", "optim"),
    FieldRule("group_by_length", "alias", "train_sampling_strategy"),
    FieldRule("use_legacy_prediction_loop", "plan", "evaluation/legacy.py"),
    FieldRule("include_inputs_for_metrics", "alias", "include_for_metrics"),
    FieldRule("fp16_backend", "alias", "half_precision_backend"),
    FieldRule("push_to_hub_model_id", "alias", "hub_model_id"),
    FieldRule("push_to_hub_organization", "alias", "hub_model_id"),
    FieldRule("push_to_hub_token", "alias", "hub_token"),
    FieldRule("_n_gpu", "plan", "arguments/process_facts.py"),
    FieldRule("mp_parameters", "unsupported", "SageMaker's model parallelism is not supported; remove it"),
    FieldRule("torchdynamo", "alias", "torch_compile_backend"),
    FieldRule("ray_scope", "plan", "tuning/ray_tune.py"),
    FieldRule("xpu_backend", "unsupported", "XPUs are not supported; remove it, or set `ddp_backend`"),
    FieldRule("dispatch_batches", "alias", "accelerator_config"),
    FieldRule("include_tokens_per_second", "alias", "include_num_input_tokens_seen"),
    FieldRule("split_batches", "alias", "accelerator_config"),
    FieldRule(
        "tp_size", "unsupported", "remove it; set `tp_size` in `parallelism_config` for tensor parallelism", (None, 1)
    ),
    FieldRule("semantics", "plan", "arguments/releases/semantics.py"),
    FieldRule("save_async", "plan", "checkpoint/background.py"),
    FieldRule("on_save_error", "plan", "trainer/saving.py"),
    FieldRule("sortish_sampler", "script", "nothing"),
    FieldRule("predict_with_generate", "plan", "trainer/seq2seq.py"),
    FieldRule("generation_max_length", "plan", "trainer/seq2seq.py"),
    FieldRule("generation_num_beams", "plan", "trainer/seq2seq.py"),
    FieldRule("generation_config", "plan", "trainer/seq2seq.py"),
)
"""Every field of ``TrainingArguments`` and ``Seq2SeqTrainingArguments``, in the order of declaration."""

DEFAULTS: dict[str, Any] = {
    item.name: item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
    for item in dataclasses.fields(AllFields)
}
"""Field to upstream's default; a subclass may have another one."""


def unsupported_problems(args: AllFields) -> Iterator[Problem]:
    """Yield a problem for each field of ``args`` whose value is not supported."""
    for rule in FIELD_RULES:
        if rule.fate != "unsupported":
            continue
        value = getattr(args, rule.field)
        if value != DEFAULTS[rule.field] and value not in rule.harmless:
            yield Problem(rule.field, value, f"{rule.target}.", unsupported=True)
