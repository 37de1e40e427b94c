"""Components for any ``lightning.Trainer``: checkpoint folders, logs by update step, saves on SIGTERM, loaders."""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from hf_compat.checkpoint import names, publish
from hf_compat.checkpoint.rotation import beyond_limit
from hf_compat.checkpoint.states import rng_state, set_rng_state
from hf_compat.distributed.oom_consensus import PacedVotes
from hf_compat.engine.checkpoint_io import HFCheckpointIO
from hf_compat.engine.internals.loops import disable_signal_handlers, is_fitting
from hf_compat.engine.process_layout import slurm_signal
from hf_compat.errors import DataError, TrainerSetupError
from hf_compat.metrics import has_length
from hf_compat.model_facts import sample_of_weights
from hf_compat.optim.model_patches import activate_neftune, deactivate_neftune
from hf_compat.trainer.preemption import (
    NOT_ALL_RANKS,
    Deadline,
    SignalWatch,
    deadline_group,
    exit_status,
    is_same_on_all_ranks,
    requeue,
)

logger = logging.getLogger(__name__)


# `HFCheckpoints`: Hugging Face checkpoint folders by update step, the best one followed, the oldest deleted.


class HFCheckpoints(Checkpoint):
    """Saves ``checkpoint-<update step>`` folders, which ``from_pretrained`` reads; for any LightningModule.

    It needs ``lightning.Trainer(plugins=[HFCheckpointIO()])``. With ``monitor``, each validation that is better than
    all before saves a checkpoint too; ``best_model_path`` is its folder, and ``ckpt_path="best"`` finds it. Deleted are
    folders that this run, or the one that it resumes, has saved; the newest and the best are kept.

    Args:
        folder: Where the folders go.
        every_n_steps: Update steps between two of them.
        save_total_limit: How many are kept. Default: all.
        monitor: The name of a metric that validations log; of several ranks, rank 0's counts. NaN is never the best.
            Default: none is followed.
        greater_is_better: Whether a larger value of it is better.

    Attributes:
        best_model_path: The best checkpoint, empty before there is one.
        best_metric: Its metric.
        saved: The folders that are left, oldest first.
        is_saving: Whether a checkpoint is being saved.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every_n_steps: int = 500,
        save_total_limit: int | None = None,
        monitor: str | None = None,
        greater_is_better: bool = False,
    ) -> None:
        for name, value in (("every_n_steps", every_n_steps), ("save_total_limit", save_total_limit)):
            if value is not None and value < 1:
                raise TrainerSetupError(f"`{name}={value}`: pass 1 or more.")
        self.folder = Path(folder)
        self.every_n_steps = every_n_steps
        self.save_total_limit = save_total_limit
        self.monitor = monitor
        self.greater_is_better = greater_is_better
        self.best_model_path = ""
        self.best_metric: float | None = None
        self.saved: list[str] = []
        self.is_saving = False
        self._last_step = 0

    def setup(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check the trainer's plugin, and delete what killed processes have left.

        Raises:
            TrainerSetupError: If the trainer has another checkpoint plugin.
        """
        if not isinstance(pl_trainer.strategy.checkpoint_io, HFCheckpointIO):
            raise TrainerSetupError(
                f"HFCheckpoints: {type(pl_trainer.strategy.checkpoint_io).__name__} saves this trainer's checkpoints. "
                "Pass `lightning.Trainer(plugins=[HFCheckpointIO()])`."
            )
        if stage == "fit" and pl_trainer.is_global_zero:
            publish.clean_orphans(self.folder)

    def on_train_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note where the run starts."""
        self._last_step = pl_trainer.global_step

    def on_train_batch_end(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object) -> None:
        """Save if an update step was made and it is time."""
        if pl_trainer.global_step != self._last_step and pl_trainer.global_step % self.every_n_steps == 0:
            self.save(pl_trainer)

    def on_validation_end(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save if the metric is the best so far.

        Raises:
            TrainerSetupError: If the validation has not logged it.
        """
        if self.monitor is None or pl_trainer.sanity_checking or not is_fitting(pl_trainer):
            return
        value = pl_trainer.callback_metrics.get(self.monitor)
        if value is None:
            known = ", ".join(sorted(pl_trainer.callback_metrics)) or "none"
            raise TrainerSetupError(
                f"`monitor={self.monitor!r}`: the validation logged no such metric, but {known}. Log it with "
                "`self.log` in `validation_step`."
            )
        # Every rank has to save: a metric that is logged without `sync_dist` is another one on each.
        metric = pl_trainer.strategy.broadcast(float(value))
        if self._is_better(metric):
            self.best_metric, self.best_model_path = metric, str(self._path(pl_trainer))
            self._last_step = -1  # the folder of this update step, if there is one, does not know that it is the best
            self.save(pl_trainer)

    def _is_better(self, metric: float) -> bool:
        if self.best_metric is None or math.isnan(metric):
            return not math.isnan(metric)
        return metric > self.best_metric if self.greater_is_better else metric < self.best_metric

    def save(self, pl_trainer: pl.Trainer) -> str:
        """Save the current update step unless that was done, and delete what is over; return the folder."""
        path = str(self._path(pl_trainer))
        if self._last_step == pl_trainer.global_step and path in self.saved:
            return path
        self._last_step = pl_trainer.global_step
        self.saved = [*(one for one in self.saved if one != path), path]
        over = self._over()
        self.saved = [one for one in self.saved if one not in over]
        self.is_saving = True
        try:
            pl_trainer.save_checkpoint(path)
        finally:
            self.is_saving = False
        for one in over:
            pl_trainer.strategy.remove_checkpoint(one)
        return path

    def _path(self, pl_trainer: pl.Trainer) -> Path:
        return self.folder / names.checkpoint_name(pl_trainer.global_step)

    def _over(self) -> set[str]:
        if self.save_total_limit is None:
            return set()
        every = [Path(one) for one in self.saved]
        found = beyond_limit(every, self.save_total_limit, self.best_model_path or None, protects_newest=True)
        return {str(path) for path in found}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run continues with."""
        return {"best_model_path": self.best_model_path, "best_metric": self.best_metric, "saved": self.saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with ``state_dict``."""
        self.best_model_path, self.best_metric = state_dict["best_model_path"], state_dict["best_metric"]
        self.saved = list(state_dict["saved"])


# Callbacks for any `lightning.Trainer`: logs by update step, noise in the embeddings, a checkpoint on SIGTERM.


class GradientNorm(Callback):
    """Computes the gradient norm of every n-th update step, before clipping, and logs it as ``train/grad_norm``.

    For any LightningModule whose optimizer has all of its gradients on each rank.

    Args:
        every_n_steps: Update steps between two.

    Attributes:
        norm: The last norm, ``()``; None before the first.
    """

    def __init__(self, every_n_steps: int = 500) -> None:
        self.every_n_steps = _checked(every_n_steps)
        self.norm: Tensor | None = None

    def on_before_optimizer_step(
        self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Compute and log it."""
        step = pl_trainer.global_step + 1
        if step % self.every_n_steps:
            return
        gradients = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        self.norm = torch.nn.utils.get_total_norm(gradients)
        for logger in pl_trainer.loggers:
            logger.log_metrics({"train/grad_norm": self.norm.item()}, step=step)


class UpdateStepLogs(Callback):
    """Logs every n update steps the mean loss since the last log, learning rate and epoch, as transformers does.

    ``train/loss``, ``train/learning_rate`` and ``train/epoch`` go to the trainer's loggers, with the update step as x
    axis; between two logs nothing synchronises with the device. For any LightningModule whose ``training_step`` returns
    the loss. The mean is of this rank's losses.

    Args:
        every_n_steps: Update steps between two logs.
    """

    def __init__(self, every_n_steps: int = 500) -> None:
        self.every_n_steps = _checked(every_n_steps)
        self._summed: Tensor | float = 0.0
        self._count = 0
        self._last_step = 0
        self._learning_rate = 0.0

    def on_train_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note where the run starts."""
        self._last_step = pl_trainer.global_step

    def on_before_optimizer_step(
        self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Note the learning rate of the update step."""
        self._learning_rate = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(
        self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the loss of a batch, and log if it is time.

        Raises:
            TrainerSetupError: If ``training_step`` returns no loss.
        """
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if not isinstance(loss, Tensor):
            raise TrainerSetupError(
                "UpdateStepLogs: `training_step` returns no loss. Return it, or a dict with `loss`."
            )
        # Lightning has divided it by the batches of an update step.
        batches = pl_trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        self._summed, self._count = self._summed + batches * loss.detach(), self._count + 1
        step = pl_trainer.global_step
        if step == self._last_step or step % self.every_n_steps:
            return
        self._last_step = step
        epoch = pl_trainer.current_epoch + (batch_idx + 1) / pl_trainer.num_training_batches
        logs = {"loss": float(self._summed) / self._count, "learning_rate": self._learning_rate, "epoch": epoch}
        self._summed, self._count = 0.0, 0
        for logger in pl_trainer.loggers:
            logger.log_metrics({f"train/{name}": value for name, value in logs.items()}, step=step)

    def state_dict(self) -> dict[str, Any]:
        """Return the losses since the last log."""
        return {"summed": float(self._summed), "count": self._count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with them."""
        self._summed, self._count = state_dict["summed"], state_dict["count"]


def _checked(every_n_steps: int) -> int:
    if every_n_steps < 1:
        raise TrainerSetupError(f"`every_n_steps={every_n_steps}`: pass 1 or more.")
    return every_n_steps


class NEFTune(pl.Callback):
    """Adds noise to the embeddings of the module's ``model`` during a fit.

    See ``with_alpha``.

    Args:
        activate: Activates the noise of a model and returns the model.
        deactivate: Deactivates it.
    """

    def __init__(self, activate: Callable[[nn.Module], nn.Module], deactivate: Callable[[nn.Module], None]) -> None:
        self._activate = activate
        self._deactivate = deactivate
        self._model: nn.Module | None = None

    @classmethod
    def with_alpha(cls, noise_alpha: float) -> Self:
        """Return the callback for noise of magnitude ``noise_alpha``, 5 to 15 in the paper."""
        handles: list[RemovableHandle] = []

        def activate(model: nn.Module) -> nn.Module:
            handles.append(activate_neftune(model, noise_alpha))
            return model

        return cls(activate, lambda model: deactivate_neftune(model, handles.pop()))

    def setup(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Activate it."""
        if stage == "fit":
            self._model = self._activate(pl_module.model)  # type: ignore[arg-type]
            pl_module.model = self._model

    def teardown(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Deactivate it."""
        self._end()

    def on_exception(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Deactivate it: Lightning does not call ``teardown`` after an error."""
        self._end()

    def _end(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            self._deactivate(model)


class PreemptionSaving(pl.Callback):
    """Saves a checkpoint and exits on a signal; for any module.

    Lightning exits with status 0 on SIGTERM without saving, and under SLURM saves inside the signal handler. Here the
    handler only records the signal; the run saves after the current update step and exits with 128 + signal (143 for
    SIGTERM). SLURM's signal (SIGUSR1) also requeues the job. With several processes, ranks check about twice a second,
    and at least every 16 steps, whether any of them received one.

    Code that has not returned ``timeout`` seconds after SIGTERM is interrupted: a dataset, a validation, a callback.
    The run then saves if it has made an update step and not read the next batch, with several processes if all are
    interrupted after the same one, and exits in any case. What cannot be interrupted is ended with the process, 5
    seconds or a quarter of ``timeout`` later.

    Args:
        checkpoints: What saves; a callback of the same trainer.
        timeout: Seconds after SIGTERM; None to wait for ever.

    Raises:
        TrainerSetupError: If ``timeout`` is not greater than 0.
    """

    def __init__(self, checkpoints: HFCheckpoints, timeout: float | None = 20.0) -> None:
        if timeout is not None and not timeout > 0:
            raise TrainerSetupError(f"`timeout={timeout}`: pass a number of seconds greater than 0, or None.")
        self.timeout = timeout
        self._checkpoints = checkpoints
        self._watching = ExitStack()
        self._watch: SignalWatch | None = None
        self._deadline: Deadline | None = None
        self._group: ProcessGroup | None = None
        self._last_step = 0
        self._is_whole = False  # whether the last batch has ended an update step
        self._validated: Tensor | None = None  # a sample of the weights that are trained, during a validation
        self._votes = PacedVotes()

    def setup(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Note signals from now on."""
        if stage == "fit":
            disable_signal_handlers(pl_trainer)
            cluster = getattr(pl_trainer.strategy, "cluster_environment", None)
            checkpoints = self._checkpoints
            self._deadline = None if self.timeout is None else Deadline(self.timeout, lambda: checkpoints.is_saving)
            self._group = deadline_group(self._deadline)
            self._watch = SignalWatch(slurm_signal([cluster]), deadline=self._deadline)
            self._watching.enter_context(self._watch.watching())

    def on_train_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note where the run starts."""
        self._last_step = pl_trainer.global_step
        self._is_whole = False
        self._votes = PacedVotes()

    def on_train_batch_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Note that an update step begins."""
        if self._deadline is not None:
            self._deadline.begin_step()

    def on_train_batch_end(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object) -> None:
        """Save and exit if a rank has received a signal and an update step was made.

        Raises:
            SystemExit: With status 128 + signal.
        """
        if self._deadline is not None:
            self._deadline.end_step()
        self._is_whole = pl_trainer.global_step != self._last_step
        if self._watch is None or not self._is_whole:
            return
        self._last_step = pl_trainer.global_step
        signum = self._votes.max_over_ranks(pl_trainer.global_step, self._watch.received)
        if not signum:
            return
        self._save(pl_trainer, signum)
        pl_trainer.strategy.barrier()
        if signum == self._watch.requeue_signal and pl_trainer.is_global_zero:
            requeue()
        raise SystemExit(exit_status(signum))

    def _save(self, pl_trainer: pl.Trainer, signum: int) -> None:
        folder = self._checkpoints.save(pl_trainer)
        logger.warning("%s: saved %s; exiting.", signal.Signals(signum).name, folder)

    def on_validation_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the weights, which a callback may replace for the validation."""
        self._validated = sample_of_weights(pl_module)

    def on_validation_end(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget them."""
        self._validated = None

    def on_exception(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Save if code was interrupted; restore the signal handlers."""
        if self._watch is not None and self._deadline is not None and self._deadline.interrupted is not None:
            self._save_interrupted(pl_trainer, self._watch.received, self._deadline)
        self._watching.__exit__(type(exception), exception, exception.__traceback__)

    def _save_interrupted(self, pl_trainer: pl.Trainer, signum: int, deadline: Deadline) -> None:
        """Save the last update step if all states are those after it, on all ranks."""
        step, before, batches = pl_trainer.global_step, self._validated, pl_trainer.fit_loop.epoch_loop.batch_progress
        logger.warning(
            "%s: interrupted at %s, which had not returned %s seconds after the signal (`timeout`).",
            *(signal.Signals(signum).name, deadline.interrupted, deadline.timeout),
        )
        keeps_weights = before is None or torch.equal(before, sample_of_weights(pl_trainer.lightning_module))
        is_whole = self._is_whole and batches.current.ready == batches.current.completed  # none has been read since
        if not (is_whole and keeps_weights):
            logger.warning("There is no checkpoint of update step %s: its states cannot be saved from there.", step)
        elif not is_same_on_all_ranks(step, self._group):
            logger.warning("There is no checkpoint of update step %s: %s.", step, NOT_ALL_RANKS)
        else:
            self._save(pl_trainer, signum)

    def teardown(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Restore the signal handlers; a signal that came after the last update step is raised again."""
        self._watching.close()


# `ResumableLoader`: a train loader that resumes in the middle of an epoch.


class ResumableLoader:
    """Yields the batches of a loader; its state is the position in the epoch, with the random states there.

    Lightning saves its state with a checkpoint. On resume it restores the random states from the start of the epoch,
    skips the batches already trained on, then restores the random states of the checkpoint. Skipped batches are loaded,
    so that random numbers drawn for them are drawn again.

    Args:
        loader: A loader with a length, whose order follows from the random generators of torch, numpy and python.

    Raises:
        DataError: If it has no length.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        if not has_length(loader):
            raise DataError("ResumableLoader: `loader` has no length. Give its dataset a `__len__`.")
        self.loader = loader
        self._done = 0
        self._at_start: dict[str, Any] = {}
        self._resumed: dict[str, Any] | None = None

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch, of a resumed one those that are left."""
        resumed, self._resumed = self._resumed, None
        skipped = 0 if resumed is None else resumed["done"]
        if skipped == len(self):
            skipped = 0
        if skipped and resumed is not None:
            set_rng_state(resumed["at_start"])
        self._at_start, self._done = rng_state(), 0
        for batch in self.loader:
            self._done += 1
            if self._done == skipped and resumed is not None:
                set_rng_state(resumed["now"])
            if self._done > skipped:
                yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the random states."""
        return {"done": self._done, "at_start": self._at_start, "now": rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next epoch at the position of ``state``."""
        self._resumed = state
