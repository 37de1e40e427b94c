"""Joining a ``lightning.Trainer`` built by the user: what it was given, and what a run needs from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ThroughputMonitor
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import CombinedLoader

from hf_compat.engine.internals.evaluating import renew_loops
from hf_compat.engine.internals.strategies import has_plain_ddp, plain_class, replace_strategy
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.kinds import device_keywords
from hf_compat.engine.strategy_table import is_of_ray
from hf_compat.errors import TrainerSetupError
from hf_compat.model_facts import unwrap_model

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.engine.backend import LightningBackend

__all__ = ["join", "one_loader", "user_keywords"]

_LIGHTNINGS_EPOCHS = 1000
"""What Lightning takes for ``max_epochs`` if neither epochs nor steps are given."""

_LIGHTNINGS_INTERVAL = 50
"""Its ``log_every_n_steps`` if that is not given."""

_LIMITS = ("limit_predict_batches", "limit_test_batches", "limit_train_batches", "limit_val_batches")
"""Keywords of ``lightning.Trainer``: the share, if a float, or the number of batches that are read."""


def _is_all(share: Any) -> bool:
    return isinstance(share, float) and share == 1.0


_IS_DEFAULT: dict[str, Callable[[Any], bool]] = {
    "check_val_every_n_epoch": lambda value: value == 1,
    "fast_dev_run": lambda value: not value,
    **dict.fromkeys(_LIMITS, _is_all),
    "log_every_n_steps": lambda value: value == _LIGHTNINGS_INTERVAL,
    "max_epochs": lambda value: value in (None, -1, _LIGHTNINGS_EPOCHS),
    "max_steps": lambda value: value == -1,
    "min_steps": lambda value: value is None,
    "overfit_batches": lambda value: not value,
    "reload_dataloaders_every_n_epochs": lambda value: not value,
    "val_check_interval": _is_all,
}
"""Keywords of ``lightning.Trainer`` that it has as attributes, to whether a value is Lightning's default."""

_FREE = {**dict.fromkeys(_LIMITS, 1.0), "overfit_batches": 0.0}
"""What a Lightning trainer has whose run limits the data itself."""


def user_keywords(pl_trainer: pl.Trainer) -> dict[str, Any]:
    """Return the keywords with which a person has built ``pl_trainer``, of those that training arguments say as well.

    A value that is Lightning's default counts as not given: then the training arguments decide.
    """
    keywords = {
        name: value for name, is_default in _IS_DEFAULT.items() if not is_default(value := getattr(pl_trainer, name))
    }
    if isinstance(pl_trainer.strategy, SingleDeviceStrategy) and pl_trainer.strategy.root_device.type == "cuda":
        keywords["devices"] = 1  # not all that are visible
    if type(pl_trainer.precision_plugin) is not Precision:
        keywords["precision"] = pl_trainer.precision
    if pl_trainer.loggers:
        keywords["logger"] = list(pl_trainer.loggers)
    return keywords


def join(backend: LightningBackend, pl_trainer: pl.Trainer, args: TrainingArguments) -> None:
    """Make ``pl_trainer``, which is inside its ``fit`` or an evaluation, that of ``backend``.

    Args:
        backend: Ranks, strategy and precision.
        pl_trainer: The Lightning trainer.
        args: The training arguments.

    Raises:
        TrainerSetupError: If it cannot run where ``args`` say.
    """
    problems = [*_strategy_problems(pl_trainer, args), *_callback_problems(pl_trainer)]
    if problems:
        raise TrainerSetupError("\n  ".join(problems))
    model = unwrap_model(pl_trainer.lightning_module.model)  # type: ignore[arg-type]
    replace_strategy(pl_trainer, device_keywords(backend.process_layout, args, model)["strategy"], backend.precision)
    for name, value in {**_FREE, **backend.monitored_at(args)}.items():
        setattr(pl_trainer, name, value)
    renew_loops(pl_trainer)
    backend.adopt(pl_trainer)


def one_loader(loader: Any) -> Any:
    """Return the one loader of what a person gave, or a hook returned.

    Raises:
        TrainerSetupError: If there are several.
    """
    if isinstance(loader, list | tuple) and len(loader) == 1:
        return loader[0]
    if isinstance(loader, list | tuple | dict | CombinedLoader):
        raise TrainerSetupError(
            "Several loaders were given, but a run trains on one loader and evaluates on one. Pass one of each; to "
            "evaluate on several datasets, pass `HFDataModule(eval_dataset={name: dataset, ...})`."
        )
    return loader


def _strategy_problems(pl_trainer: pl.Trainer, args: TrainingArguments) -> list[str]:
    strategy = pl_trainer.strategy
    if isinstance(strategy, ModelStrategy):  # of an earlier call
        strategy.close()
        return []
    name = type(strategy).__name__
    kind = plain_class(strategy) if is_of_ray(strategy) else type(strategy)
    if kind not in (SingleDeviceStrategy, DDPStrategy) or not has_plain_ddp(strategy):
        return [
            f"`strategy`: {name} is not supported, or has settings, in a `lightning.Trainer` with hf_compat's "
            "callbacks. The training arguments `fsdp`, `deepspeed` and `ddp_...` decide how the model is distributed: "
            "pass `strategy='auto'` or, under a launcher, `strategy='ddp'`."
        ]
    if pl_trainer.world_size != (size := args.world_size):
        return [
            f"`devices`: this `lightning.Trainer` runs in {pl_trainer.world_size} processes, the training arguments in "
            f"{size}. Start the script with `torchrun`, or pass `devices=1`."
        ]
    if strategy.root_device.type != (device := args.device).type:
        return [
            f"`accelerator`: this `lightning.Trainer` runs on {strategy.root_device}, the training arguments on "
            f"{device}. Pass `accelerator={device.type!r}`, or set `use_cpu`."
        ]
    return []


def _callback_problems(pl_trainer: pl.Trainer) -> list[str]:
    found = [each for each in pl_trainer.callbacks if isinstance(each, ThroughputMonitor)]  # type: ignore[attr-defined]
    if not found:
        return []
    return [
        "`callbacks`: ThroughputMonitor would count a window as a batch. Use it with `hf_compat.Trainer`, or with the "
        "`lightning.Trainer` of `hf_compat.to_lightning`."
    ]
