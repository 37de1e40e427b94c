"""The data that the user's ``lightning.Trainer`` was given, and what then stands in for the Trainer's methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from torch.utils.data import DataLoader

from hf_compat.data.loader import PreparedDataLoader
from hf_compat.engine.data_module import HFDataModule
from hf_compat.engine.internals.evaluating import evaluation_loader, user_data
from hf_compat.engine.internals.loops import is_fitting, user_loader
from hf_compat.engine.module import HFModule
from hf_compat.engine.user_trainer import one_loader

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.run.run import TrainingRun
    from hf_compat.trainer.trainer import Trainer

__all__ = [
    "Evaluated",
    "data_of",
    "dataset_behind",
    "evaluated_data",
    "evaluation_overrides",
    "method_overrides",
    "standing_in",
]


def data_of(pl_trainer: pl.Trainer) -> HFDataModule | None:
    """Return the data module of the call that ``pl_trainer`` is inside of, None if it was given something else."""
    data = user_data(pl_trainer)
    return data if isinstance(data, HFDataModule) else None


class Evaluated(NamedTuple):
    """The data that ``validate``, ``test`` or ``predict`` reads."""

    dataset: Any
    loader: Any
    """The loader that the call was given, or its data module returned; None if the Trainer loads the dataset."""


def evaluated_data(pl_trainer: pl.Trainer, name: str) -> Evaluated:
    """Return what the call reads that the hook ``name`` belongs to; without any, the dataset is None."""
    data, load = data_of(pl_trainer), _loader_of(pl_trainer, name)
    if load is None:
        return Evaluated(None if data is None else _dataset_in(data, name), None)
    loader = one_loader(load())
    return Evaluated(getattr(loader, "dataset", loader), loader)


def dataset_behind(pl_trainer: pl.Trainer, name: str) -> Any:
    """Return the dataset that the hook ``name`` loads in a fit, or its loader; None without any."""
    data = data_of(pl_trainer)
    own = None if data is None else _dataset_in(data, name)
    return evaluated_data(pl_trainer, name).dataset if own is None else own


def _dataset_in(data: HFDataModule, name: str) -> Any:
    return {"train_dataloader": data.train_dataset, "val_dataloader": data.eval_dataset}.get(name, data.test_dataset)


def _loader_of(pl_trainer: pl.Trainer, name: str) -> Callable[[], Any] | None:
    """Return what loads the batches that the call was given; None if a method of the Trainer is what does.

    Args:
        pl_trainer: The Lightning trainer, inside the call.
        name: The hook: ``train_dataloader``, ``val_dataloader``, ``test_dataloader`` or ``predict_dataloader``.
    """
    data = data_of(pl_trainer)
    if data is not None and getattr(type(data), name) is getattr(HFDataModule, name):
        return None
    if not is_fitting(pl_trainer):
        return evaluation_loader(pl_trainer)
    return user_loader(pl_trainer, evaluates=name == "val_dataloader")


_Methods: TypeAlias = dict[str, Callable[..., Any]]
"""Methods that stand in for the Trainer's, by name."""


def method_overrides(pl_trainer: pl.Trainer, module: HFModule, trainer: Trainer) -> _Methods:
    """Return the methods of ``trainer`` that module and data have in its place during a fit of ``pl_trainer``."""
    found = _of_module(module)
    train, evaluation = _loader_of(pl_trainer, "train_dataloader"), _loader_of(pl_trainer, "val_dataloader")
    if train is not None:
        found["get_train_dataloader"] = lambda: _prepared(train(), trainer)
    if evaluation is not None:
        original = trainer.get_eval_dataloader

        def eval_loader(eval_dataset: Any = None) -> Any:
            own = eval_dataset is None or eval_dataset is trainer.eval_dataset
            return _prepared(evaluation(), trainer) if own else original(eval_dataset)

        found["get_eval_dataloader"] = eval_loader
    return found


def evaluation_overrides(evaluated: Evaluated, module: HFModule, trainer: Trainer) -> _Methods:
    """Return the methods of ``trainer`` that module and data have in its place while it reads ``evaluated``."""
    found = _of_module(module)
    if evaluated.loader is not None:
        for name in ("get_eval_dataloader", "get_test_dataloader"):
            found[name] = partial(_loader_or, evaluated, trainer, getattr(trainer, name))
    return found


def _loader_or(evaluated: Evaluated, trainer: Trainer, original: Callable[..., Any], dataset: Any = None) -> Any:
    return _prepared(evaluated.loader, trainer) if dataset is evaluated.dataset else original(dataset)


def _of_module(module: HFModule) -> _Methods:
    return {} if type(module).compute_loss is HFModule.compute_loss else {"compute_loss": module.compute_loss}


@contextmanager
def standing_in(trainer: Trainer, run: TrainingRun, methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Context in which ``methods`` stand in for those of ``trainer``, which ``run`` keeps as the originals."""
    before = {name: vars(trainer).get(name) for name in methods}
    run.originals.update({name: getattr(trainer, name) for name in methods})
    for name, function in methods.items():
        setattr(trainer, name, function)
    try:
        yield
    finally:
        for name, own in before.items():
            del run.originals[name]
            if own is None:
                delattr(trainer, name)
            else:
                setattr(trainer, name, own)


def _prepared(loader: Any, trainer: Trainer) -> Any:
    """Return ``loader`` with the batches of this rank."""
    loader = one_loader(loader)
    if isinstance(loader, DataLoader) and not isinstance(loader, PreparedDataLoader):
        return trainer.accelerator.prepare_data_loader(loader)
    return loader
