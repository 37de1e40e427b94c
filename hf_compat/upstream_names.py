"""Names and classes of transformers: those handed on or shared by modules, and those counted as hf_compat's.

What belongs to the Trainer's contract is ours. Everything else that transformers' modules around its Trainer offer, and
its models, tokenizers and configurations, is transformers' own object, imported when it is first used.
"""

from __future__ import annotations

import importlib
from abc import ABCMeta
from types import FunctionType, ModuleType
from typing import Any

from hf_compat.errors import MissingPackageError, is_installed
from hf_compat.overriding import WarnOnce

_NAMES: dict[str, str] = {
    "optimization": """
        AdafactorSchedule StreamingAverage get_adafactor_schedule get_constant_schedule
        get_constant_schedule_with_warmup get_cosine_schedule_with_warmup
        get_cosine_with_hard_restarts_schedule_with_warmup get_cosine_with_min_lr_schedule_with_warmup
        get_cosine_with_min_lr_schedule_with_warmup_lr_rate get_greedy_schedule get_inverse_sqrt_schedule
        get_linear_schedule_with_warmup get_polynomial_decay_schedule_with_warmup get_reduce_on_plateau_schedule
        get_wsd_schedule
    """,
    "trainer_utils": """
        TrainerMemoryTracker align_special_tokens check_target_module_exists compare_trainer_and_checkpoint_args
        default_hp_space_sigopt default_hp_space_wandb find_executable_batch_size load_sharded_checkpoint
        neftune_post_forward_hook rotate_checkpoints sort_checkpoints suppress_progress_bars unwrap_peft_model
        validate_quantization_for_training
    """,
    "trainer_pt_utils": """
        DistributedLengthGroupedSampler DistributedSamplerWithLoop
        DistributedTensorGatherer EvalLoopContainer IterableDatasetShard LayerWiseDummyOptimizer
        LayerWiseDummyScheduler SequentialDistributedSampler ShardSampler atleast_1d
        distributed_broadcast_scalars distributed_concat expand_like find_batch_size get_dataloader_sampler
        get_learning_rates get_length_grouped_indices get_model_param_count get_module_class_from_name
        get_num_trainable_parameters get_optimizer_group get_parameter_names get_tpu_sampler
        is_attention_mask_causal log_metrics metrics_format nested_concat nested_detach nested_gather
        nested_new_like nested_numpify nested_truncate nested_xla_mesh_reduce numpy_pad_and_concatenate
        reissue_pt_warnings remove_dummy_checkpoint safe_globals save_metrics save_state
        set_rng_state_for_device torch_distributed_zero_first torch_pad_and_concatenate
    """,
    "training_args": """
        default_logdir get_int_from_env get_xla_device_type str_to_bool
    """,
    "hf_argparser": """
        make_choice_type_function
    """,
    "data.data_collator": """
        DataCollatorForLanguageModeling DataCollatorForMultipleChoice DataCollatorForPermutationLanguageModeling
        DataCollatorForSOP DataCollatorForSeq2Seq DataCollatorForTokenClassification
        DataCollatorForWholeWordMask DataCollatorMixin DataCollatorWithFlattening
        pad_without_fast_tokenizer_warning tf_default_data_collator to_numpy tolist
    """,
    "trainer": """
        ACCELERATE_MIN_VERSION ADAPTER_CONFIG_NAME ALL_HYPERPARAMETER_SEARCH_BACKENDS BaseImageProcessor
        BatchEncoding CONFIG_NAME DATA_SAMPLERS DataClass DataClassType DataCollator DebugUnderflowOverflow
        FSDP_MODEL_NAME FeatureExtractionMixin ForCausalLMLoss GENERATION_CONFIG_NAME GenerationConfig
        IS_SAGEMAKER_MP_POST_1_10 IS_XLA_FSDPV2_POST_2_2 LOSS_MAPPING MIN_PEFT_VERSION
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES MODEL_MAPPING_NAMES OPTIMIZER_NAME_BIN OptimizerContext
        PaddingStrategy PreTrainedConfig PreTrainedModel PreTrainedTokenizerBase PretrainedConfig ProcessorMixin
        PushInProgress PushToHubMixin QuantizationMethod SequenceFeatureExtractor TYPE_TO_SCHEDULER_FUNCTION
        TrainingSummary XLA_FSDPV2_MIN_VERSION activate_neftune add_start_docstrings apply_liger_kernel
        can_return_loss check_torch_load_is_safe deactivate_neftune deepspeed_init deepspeed_load_checkpoint
        deepspeed_sp_compute_loss default_hp_search_backend deprecate_kwarg find_labels get_fsdp_ckpt_kwargs
        get_reporting_integration_callbacks has_mixed_dtensor hf_api log_levels propagate_args_to_deepspeed
        requires requires_backends save_tpu_checkpoint strtobool tpu_spmd_dataloader trainer_log_levels
        unwrap_model update_fsdp_plugin_peft wrap_model_xla_fsdp
    """,
    "utils": """
        enable_tf32 is_accelerate_available is_apex_available is_apollo_torch_available
        is_bitsandbytes_available is_datasets_available is_deepspeed_available is_deepspeed_zero3_enabled
        is_fsdp_managed_module is_galore_torch_available is_grokadamw_available is_in_notebook is_ipex_available
        is_liger_kernel_available is_lomo_available is_optimizer_factory is_optimum_neuron_available
        is_peft_available is_psutil_available is_sagemaker_dp_enabled is_sagemaker_mp_enabled
        is_schedulefree_available is_tf_available is_torch_available is_torch_bf16_gpu_available
        is_torch_cuda_available is_torch_greater_or_equal_than_2_3 is_torch_hpu_available is_torch_mlu_available
        is_torch_mps_available is_torch_musa_available is_torch_neuron_available is_torch_neuroncore_available
        is_torch_npu_available is_torch_optimi_available is_torch_tf32_available is_torch_tpu_available
        is_torch_xla_available is_torch_xpu_available is_torchao_available is_training_run_on_sagemaker
    """,
}
"""A module of transformers to what it offers beside the Trainer, in any release since 4.57."""

_HOMES = {name: f"transformers.{module}" for module, names in _NAMES.items() for name in names.split()}
"""Name to the module where it is looked for first."""

HANDED_ON = frozenset(_HOMES)
"""Names beside the Trainer that are transformers' own; some are of one release alone."""

_MODULES = (
    "transformers.trainer_utils",
    "transformers.trainer_pt_utils",
    "transformers.optimization",
    "transformers.training_args",
    "transformers.hf_argparser",
    "transformers.trainer_callback",
    "transformers.data.data_collator",
    "transformers.trainer_seq2seq",
    "transformers.training_args_seq2seq",
    "transformers.trainer",
)
"""Where these names are looked for next: some moved between releases."""

_DEFAULTS = "hf_compat.callbacks.default_callbacks"
_TAKEN = ("DEFAULT_PROGRESS_CALLBACK", "Trainer", "TrainingArguments")
"""What a script may put into the module of transformers' Trainer: a default of ours, or for others to import."""
_NO_EFFECT = (
    "`{}` was replaced, but hf_compat's Trainer does not use it, so that its runs do not change. Override the method "
    "of the Trainer that uses it instead."
)
_warn_once = WarnOnce()

_COUNTERPARTS = {"hf_compat": "transformers", "transformers": "hf_compat"}


def is_handed_on(name: str) -> bool:
    """Return whether ``name``, which is not ours, may be one of transformers': listed above, or a class's name."""
    return name in HANDED_ON or name[:1].isupper()


def find_upstream(name: str, *modules: str) -> Any:
    """Return what the installed transformers calls ``name``; None if it has no such name or is not installed.

    Args:
        name: The name.
        *modules: Where to look, in that order. Default: where the Trainer's names are, for others in ``transformers``.
    """
    if not is_installed("transformers"):
        return None
    own_places = (_HOMES[name], *_MODULES) if name in _HOMES else ("transformers",)
    for place in modules or own_places:
        found = getattr(importlib.import_module(place), name, None)
        if found is not None:
            return found
    return None


def hand_on(name: str) -> Any:
    """Return transformers' own object ``name``.

    Raises:
        MissingPackageError: If ``name`` is listed here and transformers is not installed.
        AttributeError: If there is no such name.
    """
    found = find_upstream(name)
    if found is not None:
        return found
    if is_installed("transformers"):
        raise AttributeError(f"Neither hf_compat nor the installed transformers has {name!r}.")
    if name in HANDED_ON or name.startswith("Auto"):
        raise MissingPackageError(
            f'`{name}` comes from transformers, which is not installed. Run: pip install "hf-compat[transformers]"'
        )
    raise AttributeError(f"hf_compat has no {name!r}. If it comes from transformers, install that first.")


def _shared(name: str) -> property:
    def get(_: ModuleType) -> Any:
        return getattr(importlib.import_module(_DEFAULTS), name)

    def assign(_: ModuleType, value: Any) -> None:
        setattr(importlib.import_module(_DEFAULTS), name, value)

    return property(get, assign, doc=f"As in ``{_DEFAULTS}``.")


class ModuleWithDefaults(ModuleType):
    """The class of the modules in which scripts find the default callbacks, as in ``transformers.trainer``.

    Scripts assign to them there. A module can answer for a name itself, but only its class can take an assignment.
    """

    DEFAULT_CALLBACKS = _shared("DEFAULT_CALLBACKS")
    DEFAULT_PROGRESS_CALLBACK = _shared("DEFAULT_PROGRESS_CALLBACK")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set ``name``, and warn once if that is what transformers' Trainer reads there, and ours does not."""
        before = vars(self).get(name)
        is_read = isinstance(before, str) or (isinstance(before, FunctionType | type) and _is_of_libraries(before))
        if is_read and not _is_of_libraries(value) and _package(self) == "transformers" and name not in _TAKEN:
            _warn_once(_NO_EFFECT.format(f"{self.__name__}.{name}"))
        super().__setattr__(name, value)


class CountsCounterparts(ABCMeta):
    """Metaclass of the classes that scripts test for: ``isinstance`` and ``issubclass`` accept transformers' class too.

    ``isinstance(callback, hf_compat.TrainerCallback)`` is true of a callback of transformers. A class that a script
    derives from one of ours has no counterpart. It is derived from ``ABCMeta``, so that a subclass may be abstract.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        # ABCMeta remembers which classes it has found to be none, and then asks `__subclasscheck__` no more.
        return super().__instancecheck__(instance) or derives_from_counterpart(type(instance), cls)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return super().__subclasscheck__(subclass) or derives_from_counterpart(subclass, cls)


def derives_from_counterpart(subclass: type, kind: type) -> bool:
    """Return whether ``subclass`` is, or derives from, the other library's class of the name of ``kind``."""
    library = _COUNTERPARTS.get(_package(kind))
    return library is not None and any(
        base.__name__ == kind.__name__ and _package(base) == library for base in subclass.__mro__
    )


def _package(kind: type | ModuleType) -> str:
    return (kind.__name__ if isinstance(kind, ModuleType) else kind.__module__).partition(".")[0]


def _is_of_libraries(value: object) -> bool:
    """Return whether ``value`` is a function or class of the libraries whose names the module of the Trainer has."""
    libraries = ("accelerate", "hf_compat", "torch", "transformers")
    return str(getattr(value, "__module__", "")).partition(".")[0] in libraries
