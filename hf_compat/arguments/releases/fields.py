"""The fields of ``TrainingArguments`` in each transformers release; ours have those of all releases."""

from __future__ import annotations

from packaging.version import Version

__all__ = ["ADDED", "DROPPED", "OWN_FIELDS", "is_field_of", "may_be_lacking"]

OWN_FIELDS = frozenset({"on_save_error", "preemption_timeout", "save_async", "semantics"})
"""Fields that no release has."""

ADDED: dict[str, tuple[str, ...]] = {
    "5.0": ("enable_jit_checkpoint", "use_cache"),
    "5.2": ("train_sampling_strategy",),
    "5.6": ("ddp_static_graph", "trackio_bucket_id", "trackio_static_space_id"),
    "5.15": ("dataloader_in_order", "dataloader_multiprocessing_context"),
    "5.23": ("activation_checkpointing", "activation_checkpointing_kwargs"),
}
"""Release to the fields that it is the first to have; fields that 4.57 has are in none."""

DROPPED: dict[str, tuple[str, ...]] = {
    "4.57": (
        "dispatch_batches",
        "evaluation_strategy",
        "sharded_ddp",
        "split_batches",
        "tp_size",
        "use_ipex",
        "xpu_backend",
    ),
    "5.0": (
        "_n_gpu",
        "adafactor",
        "fp16_backend",
        "fp16_opt_level",
        "fsdp_min_num_params",
        "fsdp_transformer_layer_cls_to_wrap",
        "half_precision_backend",
        "include_inputs_for_metrics",
        "include_tokens_per_second",
        "jit_mode_eval",
        "mp_parameters",
        "no_cuda",
        "overwrite_output_dir",
        "past_index",
        "per_gpu_eval_batch_size",
        "per_gpu_train_batch_size",
        "push_to_hub_model_id",
        "push_to_hub_organization",
        "push_to_hub_token",
        "ray_scope",
        "save_safetensors",
        "torchdynamo",
        "tpu_metrics_debug",
        "tpu_num_cores",
        "use_legacy_prediction_loop",
        "use_mps_device",
    ),
    "5.2": ("group_by_length",),
    "5.15": ("logging_dir", "warmup_ratio"),
}
"""Release to the fields that it is the first to lack; of releases before 4.57 that is 4.57."""

_SINCE = {name: Version(release) for release, names in ADDED.items() for name in names}
_UNTIL = {name: Version(release) for release, names in DROPPED.items() for name in names}


def may_be_lacking(name: str) -> bool:
    """Return whether some release lacks the field ``name`` of our ``TrainingArguments``."""
    return name in OWN_FIELDS or name in _SINCE or name in _UNTIL


def is_field_of(name: str, release: Version) -> bool:
    """Return whether ``release``, or 4.57 if it is older, has the field ``name`` of our ``TrainingArguments``."""
    if name in OWN_FIELDS or release < _SINCE.get(name, release):
        return False
    return name not in _UNTIL or release < _UNTIL[name]
