"""The data that a person's ``lightning.Trainer`` was given, and what stands in for the Trainer's methods then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from hf_compat.data.loader import PreparedDataLoader
from hf_compat.engine.data_module import HFDataModule
from hf_compat.engine.internals.evaluating import evaluation_loader, given_data
from hf_compat.engine.internals.loops import given_loader, is_fitting
from hf_compat.engine.joining import one_loader
from hf_compat.engine.module import HFModule

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.run.run import TrainingRun
    from hf_compat.trainer.trainer import Trainer

__all__ = ["data_of", "dataset_behind", "stand_ins", "standing_in"]


def data_of(trainer: pl.Trainer) -> HFDataModule | None:
    """Return the data module of the call that ``trainer`` is inside of, None if it was given something else."""
    data = given_data(trainer)
    return data if isinstance(data, HFDataModule) else None


def dataset_behind(trainer: pl.Trainer, name: str) -> Any:
    """Return the dataset that the hook ``name`` loads in the call, or its loader; None without any."""
    data, load = data_of(trainer), _loader_of(trainer, name)
    if data is not None and (load is None or _dataset_in(data, name) is not None):
        return _dataset_in(data, name)
    loader = None if load is None else one_loader(load())
    return getattr(loader, "dataset", loader)


def _dataset_in(data: HFDataModule, name: str) -> Any:
    return {"train_dataloader": data.train_dataset, "val_dataloader": data.eval_dataset}.get(name, data.test_dataset)


def _loader_of(trainer: pl.Trainer, name: str) -> Callable[[], Any] | None:
    """Return what loads the batches that the call was given; None if a method of the Trainer is what does.

    Args:
        trainer: The Lightning trainer, inside the call.
        name: The hook: ``train_dataloader``, ``val_dataloader``, ``test_dataloader`` or ``predict_dataloader``.
    """
    data = data_of(trainer)
    if data is not None and getattr(type(data), name) is getattr(HFDataModule, name):
        return None
    if not is_fitting(trainer):
        return evaluation_loader(trainer)
    return given_loader(trainer, evaluates=name == "val_dataloader")


def stand_ins(trainer: pl.Trainer, module: HFModule, host: Trainer, name: str) -> dict[str, Callable[..., Any]]:
    """Return the methods of the Trainer that the module and the data have in its place.

    Args:
        trainer: The Lightning trainer, inside the call.
        module: Its module.
        host: The Trainer.
        name: The hook that loads what is evaluated on.
    """
    found: dict[str, Callable[..., Any]] = {}
    if type(module).compute_loss is not HFModule.compute_loss:
        found["compute_loss"] = module.compute_loss
    train = _loader_of(trainer, "train_dataloader") if is_fitting(trainer) else None
    if train is not None:
        found["get_train_dataloader"] = lambda: _prepared(train(), host)
    evaluation = _loader_of(trainer, name)
    if evaluation is not None and name != "val_dataloader":
        found["get_test_dataloader"] = lambda test_dataset: _prepared(evaluation(), host)
    elif evaluation is not None:
        original = host.get_eval_dataloader

        def eval_loader(eval_dataset: Any = None) -> Any:
            own = eval_dataset is None or eval_dataset is host.eval_dataset
            return _prepared(evaluation(), host) if own else original(eval_dataset)

        found["get_eval_dataloader"] = eval_loader
    return found


@contextmanager
def standing_in(host: Trainer, run: TrainingRun, methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Context in which ``methods`` stand in for those of ``host``, which ``run`` keeps as the originals."""
    before = {name: vars(host).get(name) for name in methods}
    run.originals.update({name: getattr(host, name) for name in methods})
    for name, function in methods.items():
        setattr(host, name, function)
    try:
        yield
    finally:
        for name, own in before.items():
            del run.originals[name]
            if own is None:
                delattr(host, name)
            else:
                setattr(host, name, own)


def _prepared(loader: Any, host: Trainer) -> Any:
    """Return ``loader`` with the batches of this rank."""
    loader = one_loader(loader)
    if isinstance(loader, DataLoader) and not isinstance(loader, PreparedDataLoader):
        return host.accelerator.prepare_data_loader(loader)
    return loader
