"""A Hugging Face folder of what a Lightning run has saved: the model, or a checkpoint that a Trainer resumes from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_compat.checkpoint import names, publish
from hf_compat.checkpoint.unpickle import is_trusted
from hf_compat.checkpoint.weights import save_weights, without_aliases
from hf_compat.errors import CheckpointError
from hf_compat.state import TrainerControl, TrainerState
from hf_compat.tools.convert.lightning_checkpoints import LightningCheckpoint, epochs_done, is_plain
from hf_compat.tools.convert.models import (
    Architecture,
    Place,
    divided,
    find_adapters,
    find_configuration,
    find_place,
    generation_in,
    refuse_importing,
    with_base,
)
from hf_compat.tools.convert.optimizers import (
    Candidates,
    name_parameters,
    numbered,
    regroup,
    regroup_schedule,
    trained_of,
)
from hf_compat.tools.convert.options import OWN_KEY, Carried, Options
from hf_compat.tools.model_classes import generation_config
from hf_compat.tools.safetensors_files import DEFAULT_LIMIT, Entry, write_model

_SCALERS = ("MixedPrecision", "MixedPrecisionPlugin", "FSDPPrecision", "native_amp_scaling_state")
"""Entries of Lightning's checkpoints with a gradient scaler's state."""
_KNOWN = frozenset(
    {
        *("epoch", "global_step", "pytorch-lightning_version", "loops", "callbacks", "lr_schedulers", OWN_KEY),
        *("hparams_name", "hyper_parameters", "hparams_type", "hyper_parameters_type"),
        *("datamodule_hparams_name", "datamodule_hyper_parameters", "datamodule_hyper_parameters_type"),
        *_SCALERS,
    }
)
_RUNNING = ("running_mean", "running_var", "num_batches_tracked")
"""Last parts of the names of entries that are no parameters."""
_CONFIGURATIONS = ("config.json", names.TRAINER_STATE_NAME, names.TRAINING_ARGS_NAME)
_MODEL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
"""Files of a model's folder that tokenizers and processors, and generation, are read from."""


@dataclass(frozen=True)
class _States:
    """The files of a checkpoint beside the model: name → content."""

    files: dict[str, Any]
    state: TrainerState


def convert_to_folder(checkpoint: LightningCheckpoint, target: Path, options: Options) -> list[str]:
    """Write ``checkpoint`` to the new folder ``target``; return what is not carried over, a sentence each.

    Raises:
        CheckpointError: If the model is not found in the checkpoint, or the optimizer's state cannot be mapped.
        CheckpointWriteError: If the folder cannot be written.
    """
    carried = Carried.from_checkpoint(checkpoint.rest)
    configuration, folder = find_configuration(options.model, checkpoint.hyper_parameters)
    generation = generation_in(folder)
    if configuration is None:
        configuration, generation = carried.configuration, carried.generation
    adapters = find_adapters(options.adapter, checkpoint.hyper_parameters, checkpoint.weights) or carried.adapters
    if adapters is not None:
        refuse_importing(adapters)
        _refuse_of_whole_models(options)
        adapters = adapters if folder is None else with_base(adapters, str(folder))
    place = find_place(checkpoint.weights, configuration, options.prefix, options.architecture, adapters)
    own, beside = divided(checkpoint.weights, place.prefix)
    notes = [*checkpoint.notes, *_notes_on_names(place, beside, options)]
    if configuration is None:
        notes.append(
            "config.json: the checkpoint has no configuration of the model. Pass it as `--model`, if there is one."
        )
    if adapters is not None:
        base = next(iter(adapters.values())).get("base_model_name_or_path")
        notes.append(
            "the base model's weights: PEFT folders contain none. They are loaded from "
            f"{'the folder or repository that the run names' if base is None else f'`{base}`'}."
        )
    states = None
    if not options.weights_only:
        states = _states(checkpoint, place, carried, options, notes)
    step = None if states is None else states.state.global_step
    with publish.creating_folder(target, step=step) as staged:
        _write_weights(own, place.architecture, configuration, generation, staged, options)
        if folder is not None and adapters is None:
            _copy_model_files(folder, staged)
        if states is not None:
            for name, content in states.files.items():
                torch.save(content, staged / name)
            states.state.save_to_json(staged / names.TRAINER_STATE_NAME)
    return notes


# ---- the model ----


def _notes_on_names(place: Place, beside: list[str], options: Options) -> Iterator[str]:
    """Yield what becomes of the names of weights: of those ``beside`` the model, and of the prefix of the others."""
    if beside:
        yield f"weights outside the model (prefix `{place.prefix}`): {_names(beside)}."
    if place.architecture is None and place.prefix and options.prefix is None:
        yield (
            f"names of weights: `{place.prefix}`, with which they begin in the checkpoint, is left out. "
            '`--prefix ""` keeps it.'
        )


def _write_weights(
    weights: Mapping[str, Tensor],
    architecture: Architecture | None,
    configuration: Mapping[str, Any] | None,
    generation: Mapping[str, Any] | None,
    staged: Path,
    options: Options,
) -> None:
    if architecture is None:
        kept = without_aliases(weights)
        entries = [Entry(name, value.dtype, tuple(value.shape)) for name, value in kept.items()]
        limit = DEFAULT_LIMIT if options.max_shard_size is None else options.max_shard_size
        write_model(staged, entries, lambda entry: kept[entry.name], limit=limit)
        if configuration is not None:
            _write_json(staged / "config.json", configuration)
        return
    model = architecture.model
    _check_ties(weights, architecture)
    if architecture.adapters is not None:
        model.load_state_dict(architecture.complete(weights), assign=True, strict=False)  # perhaps without the base's
        save_weights(model, staged)
        return
    model.load_state_dict(architecture.complete(weights), assign=True)
    model.tie_weights()  # type: ignore[operator]
    if generation is not None and getattr(model, "generation_config", None) is not None:
        model.generation_config = generation_config(generation)
    save_weights(model, staged, max_shard_size=options.max_shard_size)


def _refuse_of_whole_models(options: Options) -> None:
    if options.max_shard_size is not None:
        raise CheckpointError("`--max-shard-size` has no effect on adapters, whose weights are one file. Remove it.")


def _check_ties(weights: Mapping[str, Tensor], architecture: Architecture) -> None:
    for name, value in weights.items():
        other = architecture.first[name]
        if other in weights and not torch.equal(value, weights[other]):
            raise CheckpointError(
                f"`{name}` and `{other}` are tied in {architecture.name}, but differ in the checkpoint. Pass a "
                "configuration with `tie_word_embeddings: false` as `--model`."
            )


def _copy_model_files(folder: Path, staged: Path) -> None:
    """Copy the tokenizer's files, and what else a folder for ``from_pretrained`` has beside the weights."""
    for path in sorted(path for pattern in _MODEL_FILES for path in folder.glob(pattern)):
        is_index = path.name.endswith(".index.json")
        if path.is_file() and path.name not in _CONFIGURATIONS and not is_index and not (staged / path.name).exists():
            shutil.copyfile(path, staged / path.name)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    import json

    path.write_text(json.dumps(content, indent=2, sort_keys=True, default=str) + "\n", encoding="utf-8")


# ---- the training state ----


def _states(
    checkpoint: LightningCheckpoint, place: Place, carried: Carried, options: Options, notes: list[str]
) -> _States | None:
    """Return the training state's files, None if the checkpoint has weights only; add to ``notes``."""
    if checkpoint.problem is not None:
        raise CheckpointError(
            f"`{checkpoint.path}`: the training state cannot be converted, because {checkpoint.problem}. Convert the "
            "weights with `--weights-only`."
        )
    if checkpoint.optimizers is None:
        notes.append("the training state: the checkpoint has none, so the folder only contains a model.")
        return None
    missing = [name for name in ("epoch", "global_step") if name not in checkpoint.rest]
    if missing:
        raise CheckpointError(
            f"`{checkpoint.path}` has no {' and no '.join(f'`{name}`' for name in missing)}, which resuming needs. "
            "Convert the weights with `--weights-only`."
        )
    if len(checkpoint.optimizers) != 1 or len(checkpoint.rest.get("lr_schedulers", ())) > 1:
        raise CheckpointError(
            f"`{checkpoint.path}` has the states of {len(checkpoint.optimizers)} optimizers and "
            f"{len(checkpoint.rest.get('lr_schedulers', ()))} schedules; a Trainer has one of each. Convert the "
            "weights with `--weights-only`."
        )
    files: dict[str, Any] = {}
    former, count = _optimizer_file(checkpoint, place, carried, options, files, notes)
    _schedule_file(checkpoint, former, count, files, notes)
    scaler = next((checkpoint.rest[name] for name in _SCALERS if checkpoint.rest.get(name)), None)
    if scaler is not None:
        files[names.SCALER_NAME] = scaler
    files |= carried.rng_files()
    if not carried.random_states:
        notes.append("random states: the checkpoint has none, so dropout and shuffling continue differently.")
    files[names.LIGHTNING_STATE_NAME] = carried.lightning | _callbacks(checkpoint.rest, notes)
    others = sorted(set(checkpoint.rest) - _KNOWN)
    if others:
        notes.append(f"entries only known to the run's own code: {', '.join(others)}.")
    _refuse_unread(files)
    return _States(files, _trainer_state(checkpoint, carried, options, notes))


def _optimizer_file(
    checkpoint: LightningCheckpoint,
    place: Place,
    carried: Carried,
    options: Options,
    files: dict[str, Any],
    notes: list[str],
) -> tuple[list[int], int]:
    """Add the optimizer's state to ``files``; return the former group of each group, and how many there were."""
    assert checkpoint.optimizers is not None, "checked before"
    shapes = dict(_named_shapes(checkpoint.weights, place))
    architecture = place.architecture
    if architecture is None:
        models, decayed = [[name for name in shapes if name.startswith(place.prefix)]], None
    else:
        models = [[place.prefix + name for name in trained] for trained in architecture.trained]
        decayed = frozenset(place.prefix + name for name in architecture.decayed)
    candidates = Candidates(shapes, models, decayed, place.prefix)
    named = name_parameters(checkpoint.optimizers[0], candidates, options.parameters or carried.parameters)
    if named.by_order is not None:
        notes.append(
            f"names in the optimizer's state: it has none; its parameters are assumed to be in {named.by_order}."
        )
    groups = options.groups or ("keep" if decayed is None or carried.parameters else "decay")
    if decayed is None and options.groups is None and not carried.parameters:
        notes.append(
            "the optimizer's groups: a Trainer's are known for transformers models alone, so they are as in the "
            "checkpoint. Override `create_optimizer` to make the same ones, unless they are a Trainer's."
        )
    regrouped, former = regroup(named, trained_of(models, named.state), decayed, groups)
    left_out = sorted(set(named.state) - set(regrouped.state))
    if left_out:
        notes.append(f"the optimizer state of parameters outside the model: {_names(left_out)}.")
    files[names.OPTIMIZER_NAME] = numbered(regrouped)
    return former, len(named.groups)


def _named_shapes(weights: Mapping[str, Tensor], place: Place) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each parameter of the module, tied ones once."""
    own = (
        None if place.architecture is None else frozenset(place.prefix + name for name in place.architecture.parameters)
    )
    for name, value in without_aliases(weights).items():
        is_parameter = value.is_floating_point() and not name.endswith(_RUNNING)
        if own is not None and name.startswith(place.prefix):
            is_parameter = name in own
        if is_parameter:
            yield name, tuple(value.shape)


def _schedule_file(
    checkpoint: LightningCheckpoint, former: list[int], count: int, files: dict[str, Any], notes: list[str]
) -> None:
    schedules = checkpoint.rest.get("lr_schedulers", ())
    if not schedules:
        rates = [group.get("lr") for group in files[names.OPTIMIZER_NAME]["param_groups"]]
        if None in rates:  # of an optimizer that finds its own
            notes.append(
                "the schedule: the checkpoint has none, and without one a Trainer does not load the optimizer's state."
            )
            return
        files[names.SCHEDULER_NAME] = _constant(rates, checkpoint.rest["global_step"])
        notes.append(
            "the schedule: the checkpoint has none; one that leaves the learning rates as they are is written. Resume "
            'with `lr_scheduler_type="constant"` to keep them.'
        )
        return
    if "last_epoch" not in schedules[0]:
        raise CheckpointError(
            f"`{checkpoint.path}`: the schedule does not count its steps like torch's schedules, which a Trainer "
            "uses; schedules from a DeepSpeed config do not. Convert the weights with `--weights-only`."
        )
    steps, updates = schedules[0]["last_epoch"], checkpoint.rest["global_step"]
    if steps != updates:
        raise CheckpointError(
            f"`{checkpoint.path}`: the schedule has made {steps} steps in {updates} update steps, but a Trainer's "
            "makes one after each. Convert the weights with `--weights-only`."
        )
    files[names.SCHEDULER_NAME] = regroup_schedule(schedules[0], former, count)


def _constant(rates: Sequence[Any], update_steps: int) -> dict[str, Any]:
    """Return the state of a schedule that has left the learning rates of all groups, ``rates``, as they are."""
    return {
        "base_lrs": list(rates),
        "last_epoch": update_steps,
        "_step_count": update_steps + 1,
        "_last_lr": list(rates),
        "lr_lambdas": [None] * len(rates),
    }


def _callbacks(checkpoint: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    states = checkpoint.get("callbacks") or {}
    kept = {key: state for key, state in states.items() if is_plain(state) and is_trusted(state)}
    lost = sorted(set(states) - set(kept))
    if lost:
        notes.append(f"the states of callbacks that contain custom objects: {', '.join(lost)}.")
    return {"callbacks": kept}


def _trainer_state(
    checkpoint: LightningCheckpoint, carried: Carried, options: Options, notes: list[str]
) -> TrainerState:
    if carried.trainer_state is not None:
        return _changed(carried.trainer_state, options)
    notes.append("logs: Lightning's loggers keep them, so `log_history` is empty.")
    if options.steps_between is None:
        notes.append(
            "logging_steps, eval_steps, save_steps: a resumed run takes them from the checkpoint, which now contains "
            "transformers' default of 500. Pass `--steps-between LOGS EVALUATIONS SAVES` to change them."
        )
    if options.batch_size is None:
        notes.append(
            "train_batch_size: Lightning does not save it, and transformers' own Trainer cannot resume without it. "
            "Pass `--batch-size`."
        )
    logging_steps, eval_steps, save_steps = options.steps_between or (500, 500, 500)
    return TrainerState(
        epoch=epochs_done(checkpoint.rest.get("loops"), checkpoint.rest["epoch"]),
        global_step=checkpoint.rest["global_step"],
        logging_steps=logging_steps,
        eval_steps=eval_steps,
        save_steps=save_steps,
        train_batch_size=options.batch_size,
        stateful_callbacks=[TrainerControl()],  # transformers' Trainer expects it as it saves
    )


def _changed(state: TrainerState, options: Options) -> TrainerState:
    """Return ``state`` with the numbers that ``options`` give."""
    if options.steps_between is not None:
        state.logging_steps, state.eval_steps, state.save_steps = options.steps_between
    if options.batch_size is not None:
        state.train_batch_size = options.batch_size
    return state


def _refuse_unread(files: Mapping[str, Any]) -> None:
    for name, content in files.items():
        if not is_plain(content):
            raise CheckpointError(
                f"`{name}` would contain objects other than tensors and plain values, which no Trainer loads. Convert "
                "the weights with `--weights-only`."
            )


def _names(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
