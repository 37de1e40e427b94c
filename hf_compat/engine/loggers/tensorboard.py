"""``report_to="tensorboard"``: event files under ``runs``, by Lightning's ``TensorBoardLogger``."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import TensorBoardLogger

from hf_compat.arguments.derived import event_folder
from hf_compat.callbacks import TrainerCallback
from hf_compat.engine.loggers.contents import naming_folder, numbers, warn_of_dropped
from hf_compat.metrics import rewrite_logs

if TYPE_CHECKING:
    from torch import nn

    from hf_compat.arguments import TrainingArguments
    from hf_compat.state import TrainerControl, TrainerState


class EventFiles(TensorBoardLogger):
    """Lightning's TensorBoard logger of one folder, which holds event files only, without ``hparams.yaml``.

    Args:
        writer: A ``SummaryWriter`` to use. Default: a new one, when something is written first.

    Attributes:
        folder: The folder of the event files; None before :meth:`open_folder`.
    """

    def __init__(self, writer: Any = None) -> None:
        super().__init__(save_dir="", name="", version="")
        self.folder: str | None = None
        self._given = writer
        self._experiment = writer
        self._process = os.getpid()

    def open_folder(self, folder: str) -> None:
        """Write to ``folder`` from now on; without effect on a writer that was given."""
        if folder == self.folder:
            return
        self.close()
        self.folder, self._experiment = folder, self._given

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The ``SummaryWriter``, which makes its file when something is first written: a prediction writes nothing.

        Lightning reads this as it sets up each call.
        """
        self._leave_to_parent()
        if self._experiment is None:
            self._experiment = _delayed_writer(self.log_dir)
        return self._experiment

    def _leave_to_parent(self) -> None:
        """In a forked process, leave the open file to the one that opened it, with the thread that writes it.

        The writer is then as one that has been closed: it makes a file of its own.
        """
        if self._process != os.getpid():
            self._process = os.getpid()
            if self._experiment is not None:
                self._experiment.file_writer = self._experiment.all_writers = None

    @property
    def log_dir(self) -> str:
        """The folder of the event files."""
        return self.folder or ""

    root_dir = log_dir

    def save(self) -> None:
        """Flush."""
        self._leave_to_parent()
        if self._experiment is not None:
            self._experiment.flush()

    def finalize(self, status: str = "success") -> None:
        """Flush: Lightning calls it after each evaluation, and transformers has them all in one file."""
        self.save()

    def close(self) -> None:
        """Close the event file; what is written later goes to another one in the same folder."""
        self._leave_to_parent()
        if self._experiment is not None:
            self._experiment.close()


class TensorBoardCallback(TrainerCallback):
    """Writes a run's logs to TensorBoard: numbers as scalars, texts as texts, by update step.

    The folder is ``args.logging_dir`` before transformers 5.2, else the environment variable
    ``TENSORBOARD_LOGGING_DIR``, else a new one under ``runs`` in the output folder; a trial of a search has a folder of
    its own in it. As in transformers the arguments and the model's configuration are the texts ``args`` and
    ``model_config``.

    Args:
        tb_writer: The ``SummaryWriter`` to use. Default: a new one.

    Attributes:
        logger: Lightning's logger of the same event files.
    """

    def __init__(self, tb_writer: Any = None) -> None:
        self.logger = EventFiles(tb_writer)
        self._folder: str | None = None

    @property
    def tb_writer(self) -> Any:
        """The ``SummaryWriter``."""
        return self.logger.experiment

    def prepare_run(self, args: TrainingArguments, state: TrainerState) -> EventFiles:
        """Return the logger; the first time choose the folder of the event files. A trial's is inside it."""
        if self._folder is None:
            self._folder = event_folder(args)
        self.logger.open_folder(os.path.join(self._folder, state.trial_name) if state.trial_name else self._folder)
        return self.logger

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Write the arguments and the model's configuration."""
        if state.is_world_process_zero:
            with naming_folder(self.logger):
                write_configuration(self.logger.experiment, args, model)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write ``logs``; what is neither number nor text is left out, with a warning."""
        if not state.is_world_process_zero:
            return
        renamed = rewrite_logs(logs or {})
        scalars = numbers(renamed)
        with naming_folder(self.logger):
            writer = self.logger.experiment
            for key, scalar in scalars.items():
                writer.add_scalar(key, scalar, state.global_step)
            texts = write_texts(writer, renamed, state.global_step)
            writer.flush()
        warn_of_dropped("TensorBoard", {key: renamed[key] for key in renamed.keys() - scalars.keys() - texts})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the event file."""
        self.logger.close()


def _delayed_writer(folder: str) -> Any:
    """Return a ``SummaryWriter`` of ``folder`` that has no file yet, as one that has been closed."""
    try:
        module: Any = importlib.import_module("torch.utils.tensorboard")
    except ImportError:  # it needs `tensorboard`, for which Lightning takes this too
        return importlib.import_module("tensorboardX").SummaryWriter(log_dir=folder)

    class DelayedWriter(module.SummaryWriter):
        _is_made = False

        def _get_file_writer(self) -> Any:
            return super()._get_file_writer() if self._is_made else None

    writer = DelayedWriter(log_dir=folder)
    writer._is_made = True
    return writer


def write_configuration(writer: Any, args: TrainingArguments, model: nn.Module | None) -> None:
    """Write the texts ``args`` and ``model_config``."""
    writer.add_text("args", args.to_json_string())
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_json_string"):
        writer.add_text("model_config", config.to_json_string())


def write_texts(writer: Any, logs: Mapping[str, object], step: int) -> set[str]:
    """Write the texts in ``logs`` and return their keys."""
    texts = {key: value for key, value in logs.items() if isinstance(value, str)}
    for key, text in texts.items():
        writer.add_text(key, text, step)
    return set(texts)
