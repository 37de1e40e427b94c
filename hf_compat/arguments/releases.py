"""Releases of transformers: their behaviours, and which of them a run reproduces."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import metadata
from typing import Any, TypeVar

from packaging.version import InvalidVersion, Version

from hf_compat.arguments.problems import Problem, raise_all
from hf_compat.errors import warn_user

Arguments = TypeVar("Arguments")

# Behaviours that changed between transformers releases, and which of them a run reproduces.
#
# A run follows the installed transformers, the newest known release if none is installed. `HF_COMPAT_SEMANTICS` or the
# `semantics` field of `TrainingArguments` overrides it: a release (`"4.57"`) or `"corrected"`, which follows the
# installed release except where its numbers are known to be wrong. No release before 4.57 can be followed.


ENVIRONMENT_VARIABLE = "HF_COMPAT_SEMANTICS"
NEWEST_RELEASE = Version("5.24.0")
OLDEST_RELEASE = Version("4.57")


def _since(release: str, *, until: str | None = None, corrected: bool | None = None) -> bool:
    """Declare a behaviour of transformers since ``release``; off before it.

    Args:
        release: The first release with it.
        until: The first later release without it.
        corrected: The value under ``"corrected"``; None follows the release.
    """
    last = None if until is None else Version(until)
    return field(default=False, metadata={"since": Version(release), "until": last, "corrected": corrected})


@dataclass(frozen=True, slots=True)
class Semantics:
    """The behaviours of one transformers release: one flag per change, on from the release that made it."""

    release: Version = NEWEST_RELEASE
    """The transformers release whose numbers the run reproduces."""
    corrected: bool = False
    """Numbers known to be wrong upstream are computed correctly."""

    logs_unrounded_loss: bool = _since("5.0")
    """The logged training loss keeps all its digits; before, it was rounded to 4 decimals."""
    counts_flops_per_token: bool = _since("5.0")
    """``total_flos`` is 6 x tokens x parameters outside embeddings; before, the model's own ``floating_point_ops``."""
    writes_use_cache: bool = _since("5.0")
    """The Trainer sets ``model.config.use_cache`` to the field ``use_cache``."""
    reports_to_none: bool = _since("5.0")
    """``report_to=None`` reports nowhere; before, to every installed tracker."""
    carries_on_with_shared_sequences: bool = _since("5.0", corrected=False)
    """With sequence parallelism each epoch after the first begins with an empty window, and has one update step less;
    before, the Trainer had no sequence parallelism, and here trains on all batches."""
    divides_own_item_count: bool = _since("5.0", corrected=False)
    """With ``average_tokens_across_devices=False`` a rank's ``num_items_in_batch`` is divided by the number of ranks
    with the same batches, which makes losses and gradients as many times too large; before, it was not."""
    leaves_loss_out_of_cpu_autocast: bool = _since("5.0")
    """On a CPU, bf16 covers the model's forward pass alone; before, in one process, all of ``compute_loss``."""
    announces_pushes: bool = _since("5.0")
    """Callbacks get ``on_push_begin`` before each push to the Hub."""
    drops_text_to_text_results: bool = _since("5.0")
    """A model card's metadata has no results for translation, summarization and text to text."""
    deepspeed_without_apex: bool = _since("5.0")
    """The section ``amp`` of a DeepSpeed config is ignored; before, it was filled in and compared."""
    deepspeed_starts_from_float32: bool = _since("5.0", corrected=True)
    """Without precision settings in its config DeepSpeed is assumed to compute in float32; before, in float16."""
    compares_configured_precision: bool = _since("5.0")
    """A precision of accelerate's state, set up by the script, that is not the run's is an error; before, the run had
    it unless ``bf16`` or ``fp16`` was set."""
    counts_tokens_as_seen: bool = _since("5.0")
    """Tokens per second are of the batches seen; before, ``include_tokens_per_second`` had a pass over the train loader
    ahead of training."""
    speed_counts_session_tokens: bool = _since("5.0", corrected=True)
    """Tokens per second count the tokens of this ``train`` call; before, all of a resumed run."""
    warmup_below_one_is_ratio: bool = _since("5.0")
    """``warmup_steps`` below 1 is a fraction of all update steps; before, ``warmup_ratio`` was."""
    warmup_ratio_replaces_steps: bool = _since("5.0", until="5.15", corrected=False)
    """``warmup_ratio`` is copied to ``warmup_steps``, where 1.0 is one update step; before, ``warmup_steps`` took
    precedence and 1.0 was the whole run. Since, transformers has no such field, and it is as before."""
    skips_before_telling_epoch: bool = _since("5.0", corrected=False)
    """In an epoch that is resumed in the middle ``set_epoch`` of the data set is not called; before, it was called
    ahead of skipping batches, and in each epoch ahead of ``on_epoch_begin`` and of asking for the epoch's length. On
    several processes it never is called, except under ``"corrected"``."""
    creates_scheduler_apart: bool = _since("5.1")
    """``train`` calls ``create_optimizer`` and ``create_scheduler``; before, ``create_optimizer_and_scheduler``."""
    calls_optimizer_factories: bool = _since("5.2")
    """An optimizer given as a callable that is not a class is called with the model to create it."""
    leaves_layerwise_rate_constant: bool = _since("5.1", corrected=False)
    """Layerwise GaLore and APOLLO log the scheduled learning rate but update with the initial one."""
    resumes_batch_size_if_searching: bool = _since("5.2")
    """A checkpoint's batch size overrides the argument only under ``auto_find_batch_size``; before, always."""
    refuses_model_and_model_init: bool = _since("5.2")
    """``Trainer(model, model_init=...)`` is an error; before, ``model_init`` won with a warning."""
    divides_gradients_twice: bool = _since("5.2", until="5.6", corrected=False)
    """Gradients, not the logged loss, are divided by the accumulation steps a second time."""
    rotation_protects_newest: bool = _since("5.2")
    """Rotation never deletes the newest or the best checkpoint; before, the best was only moved up in the order."""
    loads_state_if_resumed: bool = _since("5.3")
    """``_load_optimizer_and_scheduler`` is called in resumed runs only; before, in every run, perhaps with None."""
    plans_by_batches: bool = _since("5.3")
    """``set_initial_training_values`` gives samples per update step and batches per epoch; before, whether epochs
    count and the data loader's length, and it took the samples per update step."""
    applies_liger_in_train: bool = _since("5.3")
    """``train`` applies Liger kernels to the model; before, the constructor did."""
    plans_equal_epochs: bool = _since("5.3")
    """Each epoch has as many batches as the train loader had when training began; before, as many as it has when the
    epoch begins, which a callback may have changed."""
    always_logs_grad_norm: bool = _since("5.3")
    """The gradient norm is logged without clipping too."""
    sums_loss_in_float32: bool = _since("5.3", corrected=False)
    """The logged loss is summed in float32; before, in the type of the model's loss if that is wider."""
    loads_best_after_final_log: bool = _since("5.3")
    """The best model is loaded after the final log; before, ahead of it."""
    state_epoch_starts_at_zero: bool = _since("5.3")
    """``TrainerState.epoch`` is 0 before training; before, None, and evaluation metrics then had no epoch."""
    restores_rng_without_batches: bool = _since("5.3")
    """A resumed epoch without remaining batches also restores the random generators."""
    counts_tokens_after_batch: bool = _since("5.3")
    """``num_input_tokens_seen`` counts a batch after it is trained on; before, ahead of ``on_step_begin``."""
    keeps_batch_size: bool = _since("5.3")
    """``train`` uses the Trainer's batch size: the one it was built with, a trial's, or the one that
    ``auto_find_batch_size`` found; before, that of the arguments, which may have been changed since."""
    leaves_mode_to_training_step: bool = _since("5.3")
    """The model is first put in training mode by a training step; before, also ahead of ``on_train_begin``."""
    aligns_tokens_after_model_init: bool = _since("5.3", corrected=True)
    """The model that ``model_init`` makes for a run gets the tokenizer's special tokens; before, its predecessor."""
    asks_empty_loader: bool = _since("5.3")
    """A train loader of length 0 is asked for a batch, for which it draws a random number; before, not."""
    applies_trial_after_model_init: bool = _since("5.3", corrected=False)
    """A trial's values are applied after the model is created, which then has the previous trial's seed."""
    best_strategy_sets_best_step: bool = _since("5.4", corrected=True)
    """``save_strategy="best"`` records ``best_global_step``, so that the best model can be loaded at the end."""
    reports_to_job: bool = _since("5.4")
    """A run in a Kubeflow job is reported to it, whatever ``report_to`` says."""
    evaluates_last_step: bool = _since("5.4")
    """With ``eval_strategy="steps"`` the last update step is always evaluated."""
    counts_shifted_labels: bool = _since("5.10")
    """A causal language model's items are the labels after the first position; before, all labels."""
    counts_shifted_labels_of_encoder_decoders: bool = _since("5.10", until="5.15", corrected=False)
    """So are those of an encoder-decoder model, whose loss scores the first label too; before and since, all labels."""
    liger_skips_unused_logits: bool = _since("5.15")
    """With Liger kernels an evaluation that only keeps the loss does not compute logits."""
    smoother_takes_item_count: bool = _since("5.15")
    """Label smoothing divides by the window's items; before, by the batch's."""
    eval_grouping_has_own_generator: bool = _since("5.16")
    """Length-grouped evaluation uses its own random generator; before, the global one."""
    drops_missing_best_checkpoint: bool = _since("5.17")
    """A resumed ``best_model_checkpoint`` that no longer exists is cleared."""
    balances_by_fixed_seed: bool = _since("5.17", corrected=False)
    """The order of samples under ``train_sampling_strategy="batch_rebalance"`` depends on the epoch alone, not on
    ``seed`` or ``data_seed``; before, there was no such strategy."""
    reshuffles_batch_samplers: bool = _since("5.17", corrected=True)
    """On several ranks a batch sampler with ``set_epoch`` is told the epoch; before, all were as the first."""
    averages_over_session_steps: bool = _since("5.19", corrected=True)
    """``train_loss`` and training speeds count the update steps of this ``train`` call; before, all of the run."""
    item_count_is_float: bool = _since("5.23")
    """``num_items_in_batch`` is a float tensor; before, an integer tensor."""
    keeps_tokens_undefined_by_tokenizer: bool = _since("5.23")
    """Special tokens that the tokenizer does not define keep their value in the model's config."""
    deepspeed_warms_up: bool = _since("5.23")
    """``warmup_num_steps`` in a DeepSpeed config must be 1 without warmup; before, 0."""
    drops_non_finite_eval_losses: bool = _since("5.23")
    """The evaluation loss excludes NaN and infinite batches under ``logging_nan_inf_filter``."""
    calls_save_on_every_rank: bool = _since("5.23")
    """``save_model`` calls ``_save`` on every rank; before, only on those that write files."""


def _is_on(row: Mapping[str, Any], release: Version, corrected: bool) -> bool:
    if corrected and row["corrected"] is not None:
        return bool(row["corrected"])
    return release >= row["since"] and (row["until"] is None or release < row["until"])


@cache
def installed_release() -> Version:
    """Return the installed transformers release; without transformers the newest known one."""
    try:
        return Version(metadata.version("transformers"))
    except metadata.PackageNotFoundError:
        return NEWEST_RELEASE


@cache
def _warn_of_older(installed: Version) -> None:
    """Warn, once a process, that ``installed`` is older than what can be followed."""
    warn_user(
        f"transformers {installed} is installed, but hf_compat reproduces transformers {OLDEST_RELEASE} and later: "
        f"runs follow {OLDEST_RELEASE}, whose numbers are not always those of {installed}. Upgrade transformers, or "
        f"accept this with {ENVIRONMENT_VARIABLE}={OLDEST_RELEASE}."
    )


def _default_release() -> Version:
    """Return the installed release, or 4.57, with a warning, if that is older."""
    installed = installed_release()
    if installed < OLDEST_RELEASE:
        _warn_of_older(installed)
    return max(installed, OLDEST_RELEASE)


def semantics_problem(requested: str | None) -> Problem | None:
    """Return why ``resolve_semantics`` cannot follow ``requested``, or else what the environment requests."""
    name = "semantics" if requested else ENVIRONMENT_VARIABLE
    chosen = requested or os.environ.get(ENVIRONMENT_VARIABLE)
    if not chosen or chosen == "corrected":
        return None
    try:
        release = Version(chosen)
    except (InvalidVersion, TypeError):
        return Problem(name, chosen, "use 'corrected' or a transformers release such as '4.57'.")
    if release >= OLDEST_RELEASE:
        return None
    text = f"numbers of releases before {OLDEST_RELEASE} are not reproduced; use '{OLDEST_RELEASE}'."
    return Problem(name, chosen, text)


def resolve_semantics(requested: str | None = None) -> Semantics:
    """Return the behaviours that a run reproduces.

    Args:
        requested: ``"corrected"``, a release such as ``"4.57"`` or None: the environment variable, else the installed
            transformers release, else the newest known one. An installed release before 4.57 follows 4.57.

    Raises:
        ArgumentsError: If ``requested`` is neither ``"corrected"`` nor a release, or a release before 4.57.
    """
    problem = semantics_problem(requested)
    if problem is not None:
        raise_all([problem])
    chosen = requested or os.environ.get(ENVIRONMENT_VARIABLE) or None
    corrected = chosen == "corrected"
    release = _default_release() if chosen is None or corrected else Version(chosen)
    flags = {item.name: _is_on(item.metadata, release, corrected) for item in fields(Semantics) if item.metadata}
    return Semantics(release=release, corrected=corrected, **flags)


LOG_LEVELS: dict[str, int] = {
    "detail": 10,
    "debug": 10,
    "info": 20,
    "warning": 30,
    "error": 40,
    "critical": 50,
    "passive": -1,
}
"""Name to level of ``logging``; -1 does not change the level."""


# Fields that a script's subclass of `TrainingArguments` declares anew, because its transformers release has none.
#
# Such a field is the script's, not an old name of ours: its value is left alone, and the run uses ours at its default.


_STORE = "_values_for_run"
"""Attribute with the run's value of each field that is the script's."""


@contextmanager
def script_values_aside(args: object, of_the_script: Mapping[str, object]) -> Iterator[None]:
    """In the block ``args`` have the run's values of the fields that are the script's.

    Afterwards the script's values are back, and the run's are kept for ``effective_args``.

    Args:
        args: The arguments.
        of_the_script: Those fields, with the value that a run has at first.
    """
    ours = {**of_the_script, **vars(args).get(_STORE, {})}
    if not ours:
        yield
        return
    theirs = {name: getattr(args, name) for name in ours}
    vars(args).update(ours)
    try:
        yield
    finally:
        vars(args)[_STORE] = {name: getattr(args, name) for name in ours}
        vars(args).update(theirs)


def keep_apart(args: object, name: str, value: object) -> None:
    """Set the field ``name`` of ``args`` to a script's ``value`` of that name; the run uses the value it has now."""
    vars(args).setdefault(_STORE, {})[name] = getattr(args, name)
    setattr(args, name, value)


def effective_args(args: Arguments) -> Arguments:
    """Return ``args`` as a run reads them: with its own values of fields that are the script's."""
    if _STORE not in args.__dict__:  # nearly always, and at every batch
        return args
    ours = vars(args)[_STORE]
    if not ours:
        return args
    seen = copy.copy(args)
    vars(seen).update(ours)
    return seen


# Values of fields that depend on a release, of torch or of the reproduced transformers.


_FUSED_ADAMW_IS_DEFAULT = (2, 8)

SINCE: dict[str, Version] = {
    "drops_logging_dir": Version("5.0"),
    "drops_warmup_ratio": Version("5.0"),
    "drops_sigopt": Version("5.0"),
    "leaves_local_rank": Version("5.0"),
    "leaves_model_placement_open": Version("5.2"),
    "makes_fsdp_a_switch": Version("5.10"),
    "names_main_process": Version("5.23"),
    "renames_gradient_checkpointing": Version("5.23"),
    "renames_group_by_length": Version("5.2"),
    "renames_past_key_values": Version("5.24"),
    "saves_safetensors_only": Version("5.0"),
}
"""Changes of arguments, enums and models that do not affect numbers, and the transformers release of each."""


def default_optimizer() -> str:
    """Return upstream's default for the installed torch, which is not imported."""
    try:
        installed = Version(metadata.version("torch")).release
    except metadata.PackageNotFoundError:
        return "adamw_torch"
    return "adamw_torch_fused" if installed >= _FUSED_ADAMW_IS_DEFAULT else "adamw_torch"
