"""``report_to="mlflow"``: MLflow, by Lightning's ``MLFlowLogger``."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.utilities import rank_zero_only

from hf_compat.callbacks import TrainerCallback
from hf_compat.engine.loggers.contents import model_config, numbers, warn_of_dropped
from hf_compat.environment import is_switched_on
from hf_compat.errors import require_package

if TYPE_CHECKING:
    from torch import nn

    from hf_compat.arguments import TrainingArguments
    from hf_compat.state import TrainerControl, TrainerState

logger = logging.getLogger(__name__)


_NOT_IN_NAMES = re.compile(r"[^0-9A-Za-z_\-\.\ :/]")


def _mlflow() -> Any:
    """Return the package; no object keeps it, so that each can be pickled."""
    return require_package("mlflow", extra="mlflow", purpose="report_to='mlflow'")


class ActiveRun(MLFlowLogger):
    """Lightning's logger of MLflow's active run, which the callback ends, not Lightning.

    Attributes:
        run_name: Name of the run that :meth:`start` starts.
        is_own: Whether a run was started here.
    """

    def __init__(self) -> None:
        mlflow, uri = _mlflow(), os.environ.get("MLFLOW_TRACKING_URI")
        if uri and not mlflow.is_tracking_uri_set():
            mlflow.set_tracking_uri(uri)
        super().__init__(tracking_uri=mlflow.get_tracking_uri())
        self.run_name: str | None = None
        self.is_own = False

    def start(self) -> None:
        """Start a run, unless one is active that is to be used."""
        nested = is_switched_on("MLFLOW_NESTED_RUN")
        if _mlflow().active_run() is None or nested or os.environ.get("MLFLOW_RUN_ID"):
            experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME")
            if experiment:
                _mlflow().set_experiment(experiment)
            _mlflow().start_run(run_name=self.run_name, nested=nested)
            self.is_own = True

    def end(self) -> None:
        """End the run, if it was started here."""
        if self.is_own and _mlflow().active_run() is not None:
            _mlflow().end_run()

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """A client of the tracking server."""
        return _mlflow().MlflowClient()

    @property
    def run_id(self) -> str | None:
        """The id of the active run, None if there is none."""
        active = _mlflow().active_run()
        return None if active is None else str(active.info.run_id)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log ``metrics`` at the update step ``step``; without an active run MLflow starts one."""
        clean = {_NOT_IN_NAMES.sub("_", name): value for name, value in metrics.items()}
        _mlflow().log_metrics(clean, step=step, synchronous=False)

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        """Do nothing: the callback has logged the parameters."""

    def finalize(self, status: str = "success") -> None:
        """Do nothing: an evaluation, which ends here too, does not end the run."""


class MLflowCallback(TrainerCallback):
    """Writes a run to MLflow as transformers' callback of this name does.

    Environment:
        MLFLOW_TRACKING_URI: Where the tracking server or file store is.
        MLFLOW_EXPERIMENT_NAME: Experiment of a new run.
        MLFLOW_RUN_ID: A run to continue.
        MLFLOW_NESTED_RUN: Whether to start a run inside the active one.
        MLFLOW_TAGS: Tags of the run, a JSON object.
        MLFLOW_FLATTEN_PARAMS: Whether to flatten nested parameters.
        MLFLOW_MAX_LOG_PARAMS: Maximum number of parameters.
        HF_MLFLOW_LOG_ARTIFACTS: Whether to log every checkpoint as an artifact.

    Attributes:
        logger: Lightning's logger of the same run.
    """

    def __init__(self) -> None:
        self.logger = ActiveRun()
        self._initialized = False

    def prepare_run(self, args: TrainingArguments, state: TrainerState) -> ActiveRun:
        """Return the logger; a new run has the name of ``args``."""
        self.logger.run_name = args.run_name
        return self.logger

    def setup(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        """Start a run, unless one is active, and log its parameters and tags."""
        self._initialized = True
        if not state.is_world_process_zero:
            return
        self.logger.start()
        self._log_params({**model_config(model), **args.to_dict()})
        tags = os.environ.get("MLFLOW_TAGS")
        if tags:
            _mlflow().set_tags(json.loads(tags))

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Start the run."""
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
        """Log the numbers in ``logs``, under their own names."""
        if self._is_open(args, state, model):
            logs = logs or {}
            metrics = numbers(logs)
            warn_of_dropped("MLflow", {key: logs[key] for key in logs.keys() - metrics.keys()})
            self.logger.log_metrics(metrics, state.global_step)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log the checkpoint as an artifact, with ``HF_MLFLOW_LOG_ARTIFACTS``."""
        if not (self._initialized and state.is_world_process_zero and is_switched_on("HF_MLFLOW_LOG_ARTIFACTS")):
            return
        name, pyfunc = f"checkpoint-{state.global_step}", _mlflow().pyfunc
        path = os.path.join(args.output_dir, name)
        pyfunc.log_model(name, artifacts={"model_path": path}, python_model=pyfunc.PythonModel())

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the run, if the callback started it."""
        if self._initialized and state.is_world_process_zero:
            self.logger.end()

    def __del__(self) -> None:
        # The package is installed, and the interpreter has not taken this module apart.
        if "logger" in vars(self) and callable(_mlflow):
            self.logger.end()

    def _is_open(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> bool:
        """Start the run if it has not been; return whether this process logs."""
        if not self._initialized:
            self.setup(args, state, model)
        return state.is_world_process_zero

    def _log_params(self, params: dict[str, Any]) -> None:
        """Log ``params`` in batches that MLflow takes; those with too long a value are left out."""
        limits = _mlflow().utils.validation
        if is_switched_on("MLFLOW_FLATTEN_PARAMS"):
            params = _flatten(params)
        short = {name: value for name, value in params.items() if len(str(value)) <= limits.MAX_PARAM_VAL_LENGTH}
        if len(short) < len(params):
            logger.warning(
                "MLflow: parameters longer than %s characters are not logged: %s. `MLFLOW_FLATTEN_PARAMS=true` logs "
                "nested values one by one.",
                limits.MAX_PARAM_VAL_LENGTH,
                ", ".join(sorted(params.keys() - short.keys())),
            )
        items, most = list(short.items()), os.environ.get("MLFLOW_MAX_LOG_PARAMS", "")
        items = items[: int(most)] if most.isdigit() else items
        for start in range(0, len(items), limits.MAX_PARAMS_TAGS_PER_BATCH):
            batch = dict(items[start : start + limits.MAX_PARAMS_TAGS_PER_BATCH])
            _mlflow().log_params(batch, synchronous=False)


def _flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return ``params`` with the values of nested mappings under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in params.items():
        nested = isinstance(value, Mapping) and bool(value)
        flat |= _flatten(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return flat
