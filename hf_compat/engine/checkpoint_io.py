"""``HFCheckpointIO``: any ``lightning.Trainer`` saves Hugging Face checkpoint folders and resumes from them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from hf_compat.checkpoint import names, publish, states, weights
from hf_compat.checkpoint.completeness import incomplete_reason
from hf_compat.checkpoint.states import CheckpointReader
from hf_compat.checkpoint.unpickle import is_trusted
from hf_compat.checkpoint.writer import CheckpointWriter
from hf_compat.engine.internals.strategies import calling_strategy
from hf_compat.errors import CheckpointError, TrainerSetupError, warn_user
from hf_compat.state import TrainerState

_HPARAMS = pl.LightningModule.CHECKPOINT_HYPER_PARAMS_KEY
_LISTS = (("optimizer_states", names.OPTIMIZER_NAME), ("lr_schedulers", names.SCHEDULER_NAME))
"""Lists in Lightning's checkpoints; one with a single state is saved as transformers' file."""


class Savable(Protocol):
    """A tokenizer or processor."""

    def save_pretrained(self, folder: str | os.PathLike[str], /) -> object:
        """Write its files into ``folder``."""


class HFCheckpointIO(CheckpointIO):
    """Makes a ``lightning.Trainer`` save Hugging Face checkpoint folders and resume from them.

    Pass ``lightning.Trainer(plugins=[HFCheckpointIO()])``: each path of ``ModelCheckpoint`` or
    ``trainer.save_checkpoint`` becomes a folder that ``from_pretrained`` reads, with the model's weights and
    configuration, ``optimizer.pt``, ``scheduler.pt``, ``scaler.pt``, ``rng_state.pth``, ``trainer_state.json`` and
    ``lightning.pt``, which holds Lightning's states: loops, callbacks, hyperparameters, and the module's weights
    outside the model. The folder appears only when it is complete. ``ckpt_path`` takes such a folder: ``fit`` resumes
    as if it had not been interrupted, random states included; ``validate``, ``test`` and ``predict`` load the weights,
    also from folders of transformers. Files cannot run code when they are loaded.

    As with any Lightning checkpoint, a run that was interrupted within an epoch resumes at the right sample only if
    the train loader has a ``state_dict``. Lightning calls a checkpoint plugin on rank 0 only: its random state is
    saved, and all ranks resume with it.

    Args:
        model: The part of the LightningModule that is the model: an attribute's name, dotted if it is nested, or a
            function of the module that returns it. Default: the one attribute that has ``save_pretrained``; if none
            has, the whole module.
        processing_class: A tokenizer or processor, saved with the model.
        max_shard_size: Maximum size of a weight file of a transformers model, in bytes or as text such as ``"5GB"``.
            Default: the installed transformers'.
    """

    def __init__(
        self,
        model: str | Callable[[pl.LightningModule], nn.Module] | None = None,
        *,
        processing_class: Savable | None = None,
        max_shard_size: int | str | None = None,
    ) -> None:
        self._model = model
        self._processing_class = processing_class
        self._max_shard_size = max_shard_size
        self._checkpoints = CheckpointWriter()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Save Lightning's ``checkpoint`` as the folder ``path``.

        Args:
            checkpoint: Lightning's checkpoint.
            path: The folder; an existing one is replaced.
            storage_options: Not supported.

        Raises:
            CheckpointError: If an entry could not be loaded safely.
            CheckpointWriteError: If the folder cannot be written.
            TrainerSetupError: If the model cannot be found in the module.
        """
        if storage_options is not None:
            raise TrainerSetupError(
                f"`storage_options={storage_options!r}` is not supported by HFCheckpointIO. Do not pass it."
            )
        strategy = _strategy()
        writers = self._writers(checkpoint, strategy)

        def save(folder: Path) -> None:
            for write in writers:
                write(folder)

        # Lightning calls checkpoint plugins on rank 0 only.
        self._checkpoints.write_alone(Path(path), save, step=checkpoint["global_step"])

    def _writers(self, checkpoint: Mapping[str, Any], strategy: Strategy) -> list[Callable[[Path], object]]:
        """Return what writes the files of ``checkpoint``; the last one holds what has no file of its own."""
        prefix, model = self._find_model(strategy)
        rest = dict(checkpoint)
        state = rest.pop("state_dict")
        own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        writers: list[Callable[[Path], object]] = [
            partial(weights.save_weights, model, state_dict=own, max_shard_size=self._max_shard_size)
        ]
        if self._processing_class is not None:
            writers.append(self._processing_class.save_pretrained)
        scaler = type(strategy.precision_plugin).__qualname__
        if _has_scaler(strategy) and scaler in rest:
            writers.append(_state_file_writer(names.SCALER_NAME, rest.pop(scaler)))
        for key, name in _LISTS:
            if len(rest.get(key, ())) == 1:
                writers.append(_state_file_writer(name, rest.pop(key)[0]))
        if "optimizer_states" in checkpoint:  # else only weights are saved
            writers.append(states.save_rng_state)
        trainer_state = _trainer_state(checkpoint, strategy)
        writers.append(lambda folder: trainer_state.save_to_json(folder / names.TRAINER_STATE_NAME))
        rest["state_dict"] = {name: value for name, value in state.items() if not name.startswith(prefix)}
        writers.append(lambda folder: _save_lightning_state(rest, folder / names.LIGHTNING_STATE_NAME))
        return writers

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return the checkpoint in the folder ``path`` in Lightning's format; its weights are loaded already.

        Args:
            path: A folder saved by this plugin or, except for ``fit``, by transformers.
            map_location: Has no effect: states are moved to their device when they are loaded.
            weights_only: Has no effect: files cannot run code when they are loaded.

        Raises:
            CheckpointError: If the folder is incomplete, cannot be read, or does not fit the module.
        """
        folder = Path(path)
        reason = incomplete_reason(folder)
        if reason is not None:
            raise CheckpointError(f"`ckpt_path={str(path)!r}` is not a complete checkpoint folder: {reason}")
        strategy = _strategy()
        module = _module(strategy)
        fits = module.trainer.state.fn is TrainerFn.FITTING
        point = CheckpointReader(folder)
        kept = point.lightning_state()
        if fits and "loops" not in kept:
            raise CheckpointError(
                f"`ckpt_path={str(path)!r}` was not written by HFCheckpointIO, so `fit` cannot resume from it. Load "
                "the model with `from_pretrained` and start from scratch, or resume with `hf_compat.Trainer`."
            )
        kept["state_dict"] = {**self._load_weights(strategy, folder, fits), **kept.get("state_dict", {})}
        kept.setdefault("pytorch-lightning_version", version("lightning"))
        if fits:
            _load_states(kept, point, strategy)
        return kept

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Delete the folder or link ``path`` if it exists; a killed process leaves no incomplete folder."""
        folder = Path(path)
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        elif folder.exists():
            publish.delete_folder(folder)

    def _load_weights(self, strategy: Strategy, folder: Path, fits: bool) -> dict[str, Any]:
        module = _module(strategy)
        _, model = self._find_model(strategy)
        missing, unexpected = weights.load_weights(model, folder, trains_on=fits)
        if (missing or unexpected) and module.strict_loading:
            raise CheckpointError(
                f"The weights in `{folder}` do not fit {type(model).__name__}: missing {missing}, unexpected "
                f"{unexpected}. Set the module's `strict_loading = False` to load only the weights that fit."
            )
        state: dict[str, Any] = module.state_dict()
        return state

    def _find_model(self, strategy: Strategy) -> tuple[str, nn.Module]:
        """Return the prefix of the model's names in the module's state dict, and the model."""
        module = _module(strategy)
        wanted = self._select_model(module)
        wanted = getattr(wanted, "_orig_mod", wanted)  # torch.compile's wrapper adds a prefix to the names
        for name, part in module.named_modules(remove_duplicate=False):
            if part is wanted:
                return f"{name}." if name else "", part
        raise TrainerSetupError(
            f"`model={self._model!r}` is not a submodule of {type(module).__name__}. Pass the name of the attribute "
            "that holds the model."
        )

    def _select_model(self, module: pl.LightningModule) -> Any:
        if callable(self._model):
            return self._model(module)
        if self._model is not None:
            part: Any = module
            for name in self._model.split("."):
                part = getattr(part, name, None)
            return part
        savable = {name: part for name, part in module.named_children() if hasattr(part, "save_pretrained")}
        if len(savable) > 1:
            raise TrainerSetupError(
                f"{type(module).__name__} has several models: {', '.join(savable)}. Choose the one to save, for "
                f"example `HFCheckpointIO(model={next(iter(savable))!r})`; the others are saved in `lightning.pt`."
            )
        return next(iter(savable.values()), module)


def _strategy() -> Strategy:
    strategy = calling_strategy()
    if strategy is None:
        raise TrainerSetupError(
            "HFCheckpointIO must be called by a Lightning strategy. Pass it directly in "
            "`lightning.Trainer(plugins=[...])`, not wrapped in another CheckpointIO."
        )
    return strategy


def _module(strategy: Strategy) -> pl.LightningModule:
    module = strategy.lightning_module
    assert module is not None, "Lightning saves and loads with a module connected"
    return module


def _has_scaler(strategy: Strategy) -> bool:
    return getattr(strategy.precision_plugin, "scaler", None) is not None


def _state_file_writer(name: str, state: object) -> Callable[[Path], object]:
    return lambda folder: torch.save(state, folder / name)


def _trainer_state(checkpoint: Mapping[str, Any], strategy: Strategy) -> TrainerState:
    """Return the run's counts as transformers' ``TrainerState``; the epoch is fractional within an epoch."""
    trainer = _module(strategy).trainer
    batches, epochs = trainer.num_training_batches, trainer.max_epochs or 0
    is_sized = 0 < batches < math.inf
    max_steps = trainer.max_steps
    if max_steps < 0:
        max_steps = math.ceil(batches / trainer.accumulate_grad_batches) * epochs if is_sized and epochs > 0 else 0
    done = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"]
    return TrainerState(
        epoch=done / batches if is_sized else float(checkpoint["epoch"]),
        global_step=checkpoint["global_step"],
        max_steps=max_steps,
        num_train_epochs=epochs,
    )


def _load_states(kept: dict[str, Any], point: CheckpointReader, strategy: Strategy) -> None:
    """Add the states that have files of their own to ``kept``, and restore the random states."""
    for key, name in _LISTS:
        if key not in kept:
            state = point.read(name)
            if state is not None:
                kept[key] = [state]
    if _has_scaler(strategy):
        state = point.read(names.SCALER_NAME)
        if state is not None:
            kept[type(strategy.precision_plugin).__qualname__] = state
    states.load_rng_state(point.folder)
    if not kept["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"]:
        _module(strategy).trainer.callbacks.append(_RestoreRandomState(states.rng_state()))  # type: ignore[attr-defined]


class _RestoreRandomState(pl.Callback):
    """Restores the random states a second time when training resumes within an epoch.

    The train loader's iterator has drawn random numbers by then, as it did when the epoch began in the previous run.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def on_train_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        states.set_rng_state(self._state)
        pl_trainer.callbacks.remove(self)  # type: ignore[attr-defined]


def _save_lightning_state(content: dict[str, Any], path: Path) -> None:
    """Write ``content``, which has to be loadable without running code.

    Raises:
        CheckpointError: If it is not.
    """
    params = content.get(_HPARAMS, {})
    unsafe = [name for name, value in params.items() if not is_trusted(value)]
    if unsafe:
        warn_user(
            f"Hyperparameters that are not plain values are not saved: {', '.join(unsafe)}. Exclude them with "
            "`save_hyperparameters(ignore=[...])`."
        )
        content = {**content, _HPARAMS: {name: value for name, value in params.items() if name not in unsafe}}
    for name, value in content.items():
        if name != "state_dict" and not is_trusted(value):
            raise CheckpointError(
                f"`{name}` of the checkpoint contains objects other than tensors and plain values, which cannot be "
                "loaded without running code. Remove them from the `state_dict` or `on_save_checkpoint` that adds them."
            )
    torch.save(content, path)
