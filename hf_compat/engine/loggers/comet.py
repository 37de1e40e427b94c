"""``report_to="comet_ml"``: Comet, by Lightning's ``CometLogger``."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import CometLogger

from hf_compat.callbacks import TrainerCallback
from hf_compat.engine.loggers.contents import model_config
from hf_compat.environment import is_switched_on
from hf_compat.errors import require_package
from hf_compat.metrics import rewrite_logs

if TYPE_CHECKING:
    from torch import nn

    from hf_compat.arguments import TrainingArguments
    from hf_compat.state import TrainerControl, TrainerState

logger = logging.getLogger(__name__)


_FRAMEWORK = "transformers"
_MODES = ("get_or_create", "create", "get")


class CometCallback(TrainerCallback):
    """Writes a run to Comet as transformers' callback of this name does.

    Environment:
        COMET_MODE: "get_or_create", "create" or "get"; before transformers 5 also "online" or "offline".
        COMET_START_ONLINE: Whether the experiment is online.
        COMET_PROJECT_NAME: Project of the experiment.
        COMET_LOG_ASSETS: Whether to upload the output folder at the end of training.
    """

    def __init__(self) -> None:
        require_package("comet_ml", extra="comet", purpose="report_to='comet_ml'")
        self._logger: CometLogger | None = None
        self._started = False
        self._name: str | None = None
        self._in_search = False

    def prepare_run(self, args: TrainingArguments, state: TrainerState) -> CometLogger:
        """Return the logger; a new experiment has the run's name, each trial of a search one of its own."""
        self._name, self._in_search = args.run_name, state.is_hyper_param_search
        return self.logger

    @property
    def logger(self) -> CometLogger:
        """Lightning's logger of the experiment, which the first use starts."""
        if self._logger is None:
            mode = os.environ.get("COMET_MODE", "").lower()
            online = {"online": True, "offline": False}.get(mode)
            if mode and online is None and mode not in _MODES:
                logger.warning("`COMET_MODE=%s` is ignored: set one of %s.", mode, ", ".join(_MODES))
            self._logger = CometLogger(
                mode="create" if self._in_search else mode if mode in _MODES else None,  # type: ignore[arg-type]
                online=online,
                name=self._name,
            )
        return self._logger

    def setup(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        """Start the experiment and write its parameters."""
        self._started = True
        if not state.is_world_process_zero:
            return
        experiment = self.logger.experiment
        params: dict[str, Any] = {"args": args.to_dict()}
        if model_config(model):
            params["config"] = model_config(model)
        peft = getattr(model, "peft_config", None)
        if peft is not None:
            params["peft_config"] = peft
        experiment.__internal_api__log_parameters__(params, framework=_FRAMEWORK, source="manual", flatten_nested=True)
        if state.is_hyper_param_search:
            experiment.log_optimization(optimization_id=state.trial_name, parameters=state.trial_params)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Write the parameters."""
        self._experiment(args, state, model)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Write ``logs`` by update step and epoch."""
        experiment = self._experiment(args, state, model)
        if experiment is not None:
            experiment.__internal_api__log_metrics__(
                rewrite_logs(logs or {}), step=state.global_step, epoch=state.epoch, framework=_FRAMEWORK
            )

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
        self.on_log(args, state, control, metrics, model)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Upload the output folder, with ``COMET_LOG_ASSETS``; end the experiment of a trial."""
        if not (self._started and state.is_world_process_zero):
            return
        experiment = self.logger.experiment
        if is_switched_on("COMET_LOG_ASSETS"):
            experiment.log_asset_folder(args.output_dir, recursive=True, log_file_name=True, step=state.global_step)
        if state.is_hyper_param_search:
            experiment.clean()
            self._logger, self._started = None, False

    def _experiment(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> Any:
        """Return the experiment, with its parameters written; None where this process does not log."""
        if not self._started:
            self.setup(args, state, model)
        return self.logger.experiment if state.is_world_process_zero else None
