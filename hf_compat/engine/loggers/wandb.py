"""``report_to="wandb"``: Weights & Biases, by Lightning's ``WandbLogger``."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from hf_compat.arguments.derived import group_of_trials, has_name_of_its_own
from hf_compat.callbacks import TrainerCallback
from hf_compat.engine.loggers.contents import SUMMARY_KEYS, model_config, run_config, save_model
from hf_compat.errors import require_package
from hf_compat.metrics import rewrite_logs

if TYPE_CHECKING:
    from torch import nn

    from hf_compat.arguments import TrainingArguments
    from hf_compat.state import TrainerControl, TrainerState

logger = logging.getLogger(__name__)


_STEP = "train/global_step"
"""The metric on the x axis of all others."""
_LOG_MODEL = ("end", "checkpoint")
"""Values of ``WANDB_LOG_MODEL`` that upload models."""


def _wandb() -> Any:
    """Return the package; no object keeps it, so that each can be pickled."""
    return require_package("wandb", extra="wandb", purpose="report_to='wandb'")


class CurrentRun(WandbLogger):
    """Lightning's logger of the run that wandb has open, with transformers' x axis; starts one if there is none.

    Attributes:
        start_with: Keywords of ``wandb.init`` for a new run.
    """

    def __init__(self) -> None:
        _wandb()
        super().__init__(project=os.environ.get("WANDB_PROJECT", "huggingface"))
        self.start_with: dict[str, Any] = {}

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run."""
        if _wandb().run is None:
            _wandb().init(project=os.environ.get("WANDB_PROJECT", "huggingface"), **self.start_with)
        return _wandb().run

    def finish(self) -> None:
        """End the run, if one is open."""
        if _wandb().run is not None:
            _wandb().finish()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log ``metrics`` at the update step ``step``."""
        self.experiment.log({**metrics, **({} if step is None else {_STEP: step})})

    def __getstate__(self) -> dict[str, Any]:  # Lightning's starts a run, for the other process to write to as well
        return vars(self)


class WandbCallback(TrainerCallback):
    """Writes a run to Weights & Biases as transformers' callback of this name does.

    Environment:
        WANDB_PROJECT: Project of a new run; "huggingface" by default.
        WANDB_WATCH: "gradients", "parameters" or "all" to log histograms.
        WANDB_LOG_MODEL: "end" to upload the model at the end of training, "checkpoint" every checkpoint too.

    Attributes:
        logger: Lightning's logger of the same run.
    """

    def __init__(self) -> None:
        self.logger = CurrentRun()
        self._started = False
        self._log_model = os.environ.get("WANDB_LOG_MODEL", "false").lower()
        if self._log_model not in (*_LOG_MODEL, "false"):
            logger.warning("`WANDB_LOG_MODEL=%s`: no model is uploaded; set 'end' or 'checkpoint'.", self._log_model)

    def prepare_run(self, args: TrainingArguments, state: TrainerState) -> CurrentRun:
        """Return the logger; a new run has the names of ``args``, each trial of a search has a run of its own."""
        self.logger.start_with = _names(args, state)
        if state.is_hyper_param_search:
            self._started = False
            if state.is_world_process_zero:
                self.logger.finish()
        return self.logger

    def setup(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None, **kwargs: Any) -> None:
        """Start a run, unless one is open, and write its configuration."""
        self._started = True
        if not state.is_world_process_zero:
            return
        run = self.logger.experiment
        run.config.update(run_config(args, model), allow_val_change=True)
        run.define_metric(_STEP)
        run.define_metric("*", step_metric=_STEP, step_sync=True)
        watched = os.environ.get("WANDB_WATCH", "false")
        if watched in ("all", "parameters", "gradients") and model is not None:
            run.watch(model, log=watched, log_freq=max(100, int(state.logging_steps)))
        count: Any = getattr(model, "num_parameters", None)
        if callable(count):
            run.config["model/num_parameters"] = count()
        if self._log_model in _LOG_MODEL:
            details = {"model_config": model_config(model) or None, "num_parameters": self._num_parameters()}
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "model_architecture.txt").write_text(f"{model}\n", encoding="utf-8")
                self._upload(args, folder, {**details, "initial_model": True}, ["base_model"])

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Write the configuration of the run."""
        self._is_open(args, state, model)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Write ``logs``; the values of the whole run go to its summary."""
        if not self._is_open(args, state, model):
            return
        logs = logs or {}
        for key in SUMMARY_KEYS & logs.keys():
            self.logger.experiment.summary[key] = logs[key]
        curves = rewrite_logs({key: value for key, value in logs.items() if key not in SUMMARY_KEYS})
        self.logger.log_metrics(curves, state.global_step)

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any],
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Write the metrics of a prediction."""
        if self._is_open(args, state, model):
            self.logger.log_metrics(rewrite_logs(metrics))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Upload the checkpoint, with ``WANDB_LOG_MODEL=checkpoint``."""
        if self._log_model != "checkpoint" or not self._started or not state.is_world_process_zero:
            return
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        details = {**self._summary(), "model/num_parameters": self._num_parameters()}
        epoch = round(state.epoch or 0, 2)
        self._upload(args, folder, details, [f"epoch_{epoch}", f"checkpoint_global_step_{state.global_step}"])

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        """Upload the model, with ``WANDB_LOG_MODEL``."""
        if self._log_model not in _LOG_MODEL or not self._started or not state.is_world_process_zero:
            return
        details = self._summary()
        if args.load_best_model_at_end:
            details = {
                f"eval/{args.metric_for_best_model}": state.best_metric,
                "train/total_floss": state.total_flos,
                "model/num_parameters": self._num_parameters(),
            }
        with tempfile.TemporaryDirectory() as folder:
            assert model is not None, "training has a model"
            save_model(model, folder, processing_class)
            Path(folder, "model_architecture.txt").write_text(f"{model}\n", encoding="utf-8")
            self._upload(args, folder, {**details, "final_model": True}, ["final_model"])

    def _is_open(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> bool:
        """Start the run if it has not been; return whether this process logs."""
        if not self._started:
            self.setup(args, state, model)
        return state.is_world_process_zero

    def _summary(self) -> dict[str, Any]:
        summary = dict(self.logger.experiment.summary)
        return {key: value for key, value in summary.items() if isinstance(value, int | float) and key[0] != "_"}

    def _num_parameters(self) -> int | None:
        return self.logger.experiment.config.get("model/num_parameters")  # type: ignore[no-any-return]

    def _upload(self, args: TrainingArguments, folder: str, details: dict[str, Any], aliases: list[str]) -> None:
        run = self.logger.experiment
        name = f"model-{run.name if has_name_of_its_own(args) else run.id}"
        artifact = _wandb().Artifact(name=name, type="model", metadata=details)
        artifact.add_dir(folder)
        run.log_artifact(artifact, aliases=aliases)


def _names(args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
    """Return the names of a new run: those of a trial are in a group."""
    if state.trial_name is not None:
        return {"name": state.trial_name, "group": group_of_trials(args)}
    return {} if (given := args.run_name) is None else {"name": given}
