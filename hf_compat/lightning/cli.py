"""``HFLightningCLI``: a run from a YAML file, by Lightning's command line tool. Extra ``cli``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, LRSchedulerTypeTuple, SaveConfigCallback
from torch.optim import Optimizer

from hf_compat.arguments import TrainingArguments
from hf_compat.engine.module import HFDataModule, HFModule
from hf_compat.errors import NotSupportedError, TrainerSetupError, require_package
from hf_compat.seeding import set_seed
from hf_compat.trainer.pieces import StandaloneRun, callbacks

_OPTIMIZERS = (
    "optimizer and schedule are those of the training arguments (`optim`, `lr_scheduler_type`). Set the fields, or "
    "override `HFModule.configure_optimizers`."
)


class RunParser(LightningArgumentParser):
    """Lightning's parser, without arguments that would replace the optimizer or the schedule of a run."""

    def add_optimizer_args(
        self, optimizer_class: Any = (Optimizer,), nested_key: str = "optimizer", link_to: str = "AUTOMATIC"
    ) -> None:
        """Add the arguments of an optimizer that a module takes as its own.

        Raises:
            NotSupportedError: If they are not linked to an argument of the module.
        """
        _refuse_automatic(nested_key, link_to)
        super().add_optimizer_args(optimizer_class, nested_key, link_to)

    def add_lr_scheduler_args(
        self,
        lr_scheduler_class: Any = LRSchedulerTypeTuple,
        nested_key: str = "lr_scheduler",
        link_to: str = "AUTOMATIC",
    ) -> None:
        """Add the arguments of a schedule that a module takes as its own.

        Raises:
            NotSupportedError: If they are not linked to an argument of the module.
        """
        _refuse_automatic(nested_key, link_to)
        super().add_lr_scheduler_args(lr_scheduler_class, nested_key, link_to)


def _refuse_automatic(key: str, link_to: str) -> None:
    if link_to == "AUTOMATIC":
        raise NotSupportedError(f"`{key}`: {_OPTIMIZERS}")


class SaveRunConfig(SaveConfigCallback):
    """Saves the configuration of a fit as ``config.yaml`` in the output folder, of which evaluations write none."""

    def setup(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Save it."""
        if stage == "fit":
            super().setup(pl_trainer, pl_module, stage)


class HFLightningCLI(LightningCLI):
    """Runs ``fit``, ``validate``, ``test`` or ``predict`` of a YAML file, as transformers' Trainer does.

        HFLightningCLI()  # python script.py fit --config run.yaml --args.learning_rate 1e-4

    The file has the training arguments under ``args``, an ``HFModule`` under ``model``, an ``HFDataModule`` under
    ``data``, and keywords of ``lightning.Trainer`` under ``trainer``; see docs/taking_apart.md. The seed of the
    arguments is set before the model is made. Optimizer and schedule are those of the arguments.

    Args:
        model_class: A class, or a function that returns an instance; by default the file names it as ``class_path``.
        datamodule_class: The same for the data.
        user_callbacks: ``TrainerCallback`` classes or instances. Lightning callbacks are named in the file.
        args_class: The class of the training arguments.
        **settings: Arguments of ``LightningCLI``.

    Attributes:
        training_args: The training arguments.

    Raises:
        MissingPackageError: If jsonargparse is not installed.
        NotSupportedError: If Lightning is to configure the optimizer.
    """

    def __init__(
        self,
        model_class: type[HFModule] | Callable[..., HFModule] | None = None,
        datamodule_class: type[pl.LightningDataModule] | Callable[..., pl.LightningDataModule] | None = None,
        *,
        user_callbacks: Sequence[Any] = (),
        args_class: type[TrainingArguments] = TrainingArguments,
        **settings: Any,
    ) -> None:
        for package in ("jsonargparse", "docstring_parser", "typeshed_client"):
            require_package(package, extra="cli", purpose="HFLightningCLI")
        if settings.get("auto_configure_optimizers"):
            raise NotSupportedError(f"`auto_configure_optimizers=True`: {_OPTIMIZERS}")
        self._user_callbacks = tuple(user_callbacks)
        self._args_class = args_class
        self._ours: list[pl.Callback] = []
        settings = {
            "save_config_callback": SaveRunConfig,
            "save_config_kwargs": {"overwrite": True},  # of a run that is resumed
            "seed_everything_default": False,
            "parser_class": RunParser,
            "subclass_mode_model": model_class is None,
            "subclass_mode_data": datamodule_class is None,
            **settings,
            "auto_configure_optimizers": False,
        }
        settings["trainer_defaults"] = {"max_epochs": -1, "logger": False, **(settings.get("trainer_defaults") or {})}
        super().__init__(model_class or HFModule, datamodule_class or HFDataModule, **settings)

    @property
    def output(self) -> Any:
        """Result of ``Trainer.train``, ``evaluate`` or ``predict``; None before its end."""
        group = self._ours[-1]
        assert isinstance(group, StandaloneRun), "the last of the run's callbacks"
        return group.output

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add ``--args``."""
        super().add_default_arguments_to_parser(parser)
        parser.add_argument("--args", type=dict[str, Any], default={}, help="Fields of TrainingArguments.")

    def before_instantiate_classes(self) -> None:
        """Make the training arguments, check what contradicts them, and set their seed.

        Raises:
            ArgumentsError: If the arguments are not valid.
            TrainerSetupError: If Lightning is to resume a fit.
        """
        given = self._configured(self.config)
        self.training_args = self._args_class(**given["args"])
        self._check(given)
        if given["seed_everything"] is False:
            set_seed(self.training_args.seed)

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Return the ``lightning.Trainer`` of the file, with the run's callbacks."""
        given, args = self._configured(self.config_init).get("trainer") or {}, self.training_args
        named = given.get("callbacks") or []
        self._ours = callbacks(
            args, self._user_callbacks, resume_from_checkpoint=getattr(args, "resume_from_checkpoint", None)
        )
        kwargs = {"default_root_dir": given.get("default_root_dir") or args.output_dir, **kwargs}
        every = [*self._ours, *(named if isinstance(named, list) else [named])]
        return super().instantiate_trainer(callbacks=every, **kwargs)

    def _configured(self, config: Any) -> Any:
        """Return the part of ``config`` that is of the subcommand."""
        return config if self.subcommand is None else config[self.subcommand]

    def _check(self, config: Any) -> None:
        path = config.get("ckpt_path")
        if self.subcommand == "fit" and path:
            raise TrainerSetupError(
                f"`ckpt_path={path!r}`: Lightning would resume without data position and random states. Set "
                "`args.resume_from_checkpoint` instead; `auto` is the newest checkpoint, if there is one."
            )
