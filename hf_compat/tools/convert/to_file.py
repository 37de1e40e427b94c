"""A ``.ckpt`` file of Lightning, made of a Hugging Face folder: a model, or a checkpoint of a Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_compat.checkpoint import distributed_files, names, publish
from hf_compat.checkpoint.completeness import adapter_file, adapter_folders, incomplete_reason, weight_files
from hf_compat.checkpoint.finding import list_checkpoints
from hf_compat.checkpoint.states import CheckpointReader, ParameterNames
from hf_compat.checkpoint.unpickle import load_trusted
from hf_compat.checkpoint.weights import read_weights
from hf_compat.checkpoint.zero_partitions import engine_folder
from hf_compat.errors import CheckpointError
from hf_compat.plan import DataPosition
from hf_compat.state import TrainerState
from hf_compat.tools.convert.lightning_checkpoints import (
    VERSION_KEY,
    Counters,
    EngineStates,
    loops_state,
    optimizers_in,
    read_engine,
)
from hf_compat.tools.convert.models import (
    Architecture,
    dotted,
    find_configuration,
    generation_in,
    load_adapted,
    named_architecture,
)
from hf_compat.tools.convert.optimizers import (
    Candidates,
    NamedOptimizer,
    name_parameters,
    numbered,
    regroup,
    regroup_schedule,
    trained_of,
)
from hf_compat.tools.convert.options import OWN_KEY, Carried, Options

_PREFIX = "model."
"""Where most LightningModules, hf_compat's included, have their model."""
_SCALER = "MixedPrecision"
_LISTS = (("optimizer_states", names.OPTIMIZER_NAME), ("lr_schedulers", names.SCHEDULER_NAME))
_NO_PLACE = ("tokenizer*", "special_tokens_map.json", "preprocessor_config.json", names.TRAINING_ARGS_NAME)
"""Files for which a checkpoint of Lightning has no place."""


@dataclass(frozen=True)
class _Source:
    """Content of a folder."""

    folder: Path
    prefix: str
    """What the names of its weights begin with in the file."""
    architecture: Architecture | None
    """None if the model is none of transformers, or its configuration is not known."""
    weights: Mapping[str, Tensor]
    """The model's state dict, without the prefix."""
    engine: EngineStates | None
    """What DeepSpeed has saved in it, None if it has not."""

    @property
    def trained(self) -> list[list[str]]:
        """The names that an optimizer's parameters may have, in the model's order; with adapters, for each of them."""
        return [list(self.weights)] if self.architecture is None else self.architecture.trained

    @property
    def decayed(self) -> frozenset[str] | None:
        """The names of parameters with weight decay in a Trainer; None if the model's class is not known."""
        return None if self.architecture is None else self.architecture.decayed


def convert_to_file(folder: Path, target: Path, options: Options) -> list[str]:
    """Write the new file ``target`` from ``folder``; return what is not carried over, a sentence each.

    Raises:
        CheckpointError: If the folder is incomplete, has no weights, or its optimizer's state cannot be mapped.
        CheckpointWriteError: If the file cannot be written.
    """
    _check(folder)
    configuration, architecture, weights, engine = _model_in(folder, options)
    if options.architecture is not None and architecture is None:
        raise CheckpointError(f"`--architecture {options.architecture}` needs a configuration: pass `--model`.")
    prefix = _PREFIX if options.prefix is None else dotted(options.prefix)
    notes: list[str] = []
    source = _Source(folder, prefix, architecture, weights, engine)
    if architecture is None:
        notes.append(
            "tied weights: the model's class is unknown, so the file only has the names in the folder. With tied "
            "weights set `strict_loading = False` on the LightningModule."
        )
        if options.prefix is None:
            notes.append(f'names of weights: in the file they begin with `{prefix}`. `--prefix ""` leaves that out.')
    state_dict = {prefix + name: value for name, value in weights.items()}
    state_dict |= (
        CheckpointReader(folder).lightning_state().get("state_dict", {})
    )  # `HFCheckpointIO`'s, beside the model
    content: dict[str, Any] = {VERSION_KEY: version("lightning"), "state_dict": state_dict}
    carried = Carried(configuration, generation_in(folder))
    if architecture is not None and architecture.adapters is not None:
        carried.adapters = {name: dict(content) for name, content in architecture.adapters.items()}
    if (folder / names.TRAINER_STATE_NAME).is_file():
        content |= _training_state(source, carried, options, notes)
    else:
        content |= {"epoch": 0, "global_step": 0}
        notes.append("the training state: the folder has none, so the file only contains weights.")
    content[OWN_KEY] = carried.to_entry()
    lost = sorted({path.name for pattern in _NO_PLACE for path in folder.glob(pattern)})
    if lost:
        notes.append(f"files that Lightning's checkpoints have no place for: {', '.join(lost)}.")
    with publish.creating_file(target) as draft:
        torch.save(content, draft)
    return notes


def _has_adapters(folder: Path) -> bool:
    return adapter_file(folder) is not None or bool(adapter_folders(folder))


def _check(folder: Path) -> None:
    sharded = distributed_files.sharded_weights(folder)
    others = (weight_files(folder), sharded, engine_folder(folder), _has_adapters(folder))
    if not any(others):
        checkpoints = list_checkpoints(folder)
        advice = f", such as `{checkpoints[-1].path}`" if checkpoints else ""
        raise CheckpointError(f"`{folder}` has no weights: pass a model's folder, or a checkpoint{advice}.")
    if (folder / names.TRAINER_STATE_NAME).is_file():
        reason = incomplete_reason(folder)
        if reason is not None:
            raise CheckpointError(f"`{folder}` is not a complete checkpoint: {reason}")


def _own_configuration(folder: Path) -> Path | None:
    return folder if (folder / "config.json").is_file() else None


# ---- weights ----


def _model_in(
    folder: Path, options: Options
) -> tuple[dict[str, Any] | None, Architecture | None, Mapping[str, Tensor], EngineStates | None]:
    """Return the configuration, what is known of the model, its state dict, and what DeepSpeed has saved."""
    if not weight_files(folder) and _has_adapters(folder):
        if engine_folder(folder) is not None:
            raise CheckpointError(
                f"`{folder}` has adapters trained under DeepSpeed, which cannot be converted to a file. Save the "
                "run's model with `save_pretrained`, and convert that folder."
            )
        base, adapted = load_adapted(folder, options.model, options.architecture)
        return base, adapted, adapted.model.state_dict(), None
    configuration, _ = find_configuration(options.model or _own_configuration(folder), {})
    architecture = None if configuration is None else named_architecture(configuration, options.architecture)
    states = None if options.weights_only and weight_files(folder) else engine_folder(folder)
    engine = None if states is None else read_engine(states)
    return configuration, architecture, _weights(folder, architecture, engine), engine


def _weights(folder: Path, architecture: Architecture | None, engine: EngineStates | None) -> dict[str, Tensor]:
    """Return the model's state dict, tied weights under each name; those of DeepSpeed are in full precision."""
    files = weight_files(folder)
    if engine is not None:
        found: dict[str, Tensor] = engine.weights
    elif files:
        found = {name: value for file in files for name, value in read_weights(file)}
    else:
        entries = distributed_files.read_full(folder / names.SHARDED_WEIGHTS_NAME).items()
        found = {path[1]: value for path, value in entries if path[0] == "model"}
    if architecture is None:
        return found
    reason = architecture.misfit(found)
    if reason is not None:
        return _renamed(folder, architecture, reason)
    return architecture.complete(found)


def _renamed(folder: Path, architecture: Architecture, reason: str) -> dict[str, Tensor]:
    """Return the weights as the model has them in memory, by other names or in other shapes than in files."""
    model_class: Any = type(architecture.model)
    try:
        model, report = model_class.from_pretrained(
            folder, config=architecture.model.config, local_files_only=True, output_loading_info=True
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"The weights in `{folder}` are not those of {architecture.name}: {reason}.") from error
    if report["missing_keys"] or report["unexpected_keys"]:
        raise CheckpointError(f"The weights in `{folder}` are not those of {architecture.name}: {reason}.")
    loaded: nn.Module = model
    return dict(loaded.state_dict())


# ---- the training state ----


def _training_state(source: _Source, carried: Carried, options: Options, notes: list[str]) -> dict[str, Any]:
    folder = source.folder
    point = CheckpointReader(folder)
    state, kept = point.trainer_state(), point.lightning_state()
    carried.trainer_state = state
    callbacks = kept.pop("callbacks", {})
    kept.pop("state_dict", None)
    of_lightning = kept if "loops" in kept else {}  # `HFCheckpointIO` has written it
    position = point.lightning("position", DataPosition.from_dict)
    progress = _progress(state, position)
    if progress.batches and not of_lightning:
        notes.append(
            "the position in the epoch: Lightning starts the epoch's data again and trains on as many batches as were "
            "left, unless the train loader has a `state_dict`."
        )
    at_end = progress.batches == 0 and progress.epochs > 0
    made: dict[str, Any] = {
        "epoch": progress.epochs - at_end,
        "global_step": state.global_step,
        "loops": loops_state(progress),
        **of_lightning,
    }
    if options.weights_only:
        carried.trainer_state = None
        return made
    carried.lightning = {} if of_lightning else kept
    optimizer, schedule = _optimizer_and_schedule(source, carried, options)
    for (key, name), value in zip(_LISTS, (optimizer, schedule), strict=True):
        made[key] = made.get(key, []) if value is None else [value]
        if not made[key]:
            notes.append(f"`{name}`: the folder has none.")
    made["callbacks"] = callbacks
    if (folder / names.SCALER_NAME).is_file():
        made[_SCALER] = point.read(names.SCALER_NAME)
    _random_states(folder, carried, notes)
    notes.append("logs and metrics of the run: Lightning has no place for them.")
    return made


def _progress(state: TrainerState, position: DataPosition | None) -> Counters:
    """Return the counters of a Lightning run at the same place, as far as the folder holds them."""
    steps, epoch = state.global_step, float(state.epoch or 0.0)
    if position is not None and not position.other_windows:
        batches, epochs = position.samples // max(position.samples_per_batch, 1), position.epoch
        per_epoch = (steps * position.accumulate - batches) // epochs if epochs else 0
        return Counters(steps, epochs, batches, per_epoch)
    per_epoch = round(steps / epoch) if epoch else 0
    epochs = int(epoch + 1e-6)
    return Counters(steps, epochs, max(steps - epochs * per_epoch, 0), per_epoch)


def _optimizer_and_schedule(
    source: _Source, carried: Carried, options: Options
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    saved = _optimizer_state(source)
    file = source.folder / names.SCHEDULER_NAME
    schedule: dict[str, Any] | None = load_trusted(file) if file.is_file() else None
    if saved is None:
        return None, schedule
    groups = options.groups or "keep"
    if groups == "one" and len(saved["param_groups"]) == 1:
        groups = "keep"
    known = _saved_names(source) if source.architecture is None else None
    if source.architecture is None and known is None and groups == "one":
        raise CheckpointError(
            f"`--groups one`: the order of the model's parameters is not known. `{source.folder}` does not say it, as "
            "checkpoints of hf_compat do, and the model's class is not known. Pass the configuration of a transformers "
            "model as `--model`, or use `--groups keep`, and pass the run an optimizer with the same groups."
        )
    given = options.parameters or (None if known is None else known.groups)
    named = _named(saved, source, given, must=groups != "keep")
    if named is None:
        return saved, schedule
    trained = source.trained if known is None else [known.model]
    regrouped, former = regroup(named, trained_of(trained, named.state), source.decayed, groups)
    carried.parameters = [[source.prefix + name for name in group["params"]] for group in regrouped.groups]
    if schedule is not None:
        schedule = regroup_schedule(schedule, former, len(named.groups))
    return numbered(regrouped), schedule


def _saved_names(source: _Source) -> ParameterNames | None:
    """Return the names of parameters in a Trainer's checkpoint; None if it has none, or weights by other names."""
    names_in_run = CheckpointReader(source.folder).lightning("parameters", ParameterNames.from_dict)
    fits = names_in_run is not None and all(name in source.weights for name in names_in_run.model)
    return names_in_run if fits else None


def _named(
    saved: Mapping[str, Any], source: _Source, names: Sequence[Any] | None, *, must: bool
) -> NamedOptimizer | None:
    """Return ``saved`` by name; None if the names are not known, unless they ``must`` be.

    Without the model's class only those in ``names`` are: weight files do not have the model's order.
    """
    architecture = source.architecture
    known, orders = (source.weights, []) if architecture is None else (architecture.parameters, architecture.trained)
    shapes = {name: tuple(source.weights[name].shape) for name in known}
    try:
        return name_parameters(saved, Candidates(shapes, orders, source.decayed, ""), names)
    except CheckpointError:
        if must or names is not None:
            raise
        return None


def _optimizer_state(source: _Source) -> dict[str, Any] | None:
    """Return the optimizer's state dict, by index or by name; None if there is none."""
    if source.engine is not None:
        if source.engine.problem is not None:
            raise CheckpointError(
                f"`{source.folder}`: the training state cannot be converted, because {source.engine.problem}. Convert "
                "the weights with `--weights-only`."
            )
        return source.engine.optimizer
    for name in (names.OPTIMIZER_NAME, names.FULL_OPTIMIZER_NAME):
        if (source.folder / name).is_file():
            return _checked(load_trusted(source.folder / name), source.folder / name)
    sharded = source.folder / names.SHARDED_OPTIMIZER_NAME
    if not distributed_files.is_sharded(sharded):
        return None
    return optimizers_in(distributed_files.read_full(sharded)).get("optimizer")


def _checked(state: Any, file: Path) -> dict[str, Any] | None:
    """Return ``state``, of an optimizer's file.

    Raises:
        CheckpointError: If it is neither an optimizer's state dict nor None.
    """
    known = state is None or (
        isinstance(state, dict)
        and isinstance(state.get("state"), dict)
        and isinstance(state.get("param_groups"), list)
        and all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in state["param_groups"])
    )
    if not known:
        raise CheckpointError(f"`{file}` is damaged: it contains no optimizer's state dict.")
    return state  # type: ignore[no-any-return]


def _random_states(folder: Path, carried: Carried, notes: list[str]) -> None:
    files = sorted(folder.glob("rng_state*.pth"))
    for path in files:
        try:
            carried.add_rng(path.name, load_trusted(path))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"`{path}` is damaged: it contains no random states ({error!r}).") from error
    if files:
        notes.append(
            "random states: Lightning restores none, so dropout and shuffling continue differently. Converting back "
            "restores them."
        )
