"""What every part of the Trainer stands on: its attributes, callbacks, process facts and logging."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hf_compat import metrics as metric_files
from hf_compat.accelerator import Accelerator
from hf_compat.arguments import TrainingArguments
from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.callbacks import CallbackHandler
from hf_compat.log_files import write_log_file
from hf_compat.memory import TrainerMemoryTracker
from hf_compat.plan import RunPlan
from hf_compat.state import TrainerControl, TrainerState
from hf_compat.tuning.backends import run_id

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.engine.environments import Placement
    from hf_compat.engine.module import HFModule

__all__ = ["TrainerBase"]


class TrainerBase:
    """Attributes, callbacks, process facts, ``log`` and the metric files."""

    args: TrainingArguments
    semantics: Semantics
    accelerator: Accelerator
    model: Any
    model_wrapped: Any
    model_init: Callable[..., nn.Module] | None
    processing_class: Any
    data_collator: Any
    train_dataset: Any
    eval_dataset: Any
    compute_loss_func: Callable[..., Tensor] | None
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    optimizer: Any
    lr_scheduler: Any
    optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None
    callback_handler: CallbackHandler
    control: TrainerControl
    state: TrainerState
    label_names: list[str]
    label_smoother: Any
    can_return_loss: bool
    model_accepts_loss_kwargs: bool
    loss_is_scaled_for_ga: bool | None = None
    """Whether ``compute_loss`` already averages over the window; None decides by the model."""
    is_in_train: bool = False
    is_fsdp_enabled: bool = False
    is_deepspeed_enabled: bool = False
    is_fsdp_xla_enabled: bool = False
    is_fsdp_xla_v1_enabled: bool = False
    is_fsdp_xla_v2_enabled: bool = False
    is_tp_enabled: bool = False
    is_distributed_loading_by_transformers: bool = False
    is_model_parallel: bool = False
    place_model_on_device: bool = True
    """Whether the model was moved to its device when it was given or made."""
    neftune_noise_alpha: float | None = None
    neftune_hook_handle: Any = None
    use_apex: bool = False
    use_cpu_amp: bool = False
    deepspeed: Any = None
    """The engine of DeepSpeed, once there is one."""
    hp_name: Callable[..., str] | None = None
    hp_search_backend: Any = None
    current_flos: float = 0
    current_gradient_accumulation_steps: int = 1
    run_plan: RunPlan | None = None
    lightning_module: HFModule | None = None
    lightning_trainer: pl.Trainer | None = None
    """The Lightning trainer of the run under way or the last one."""
    _lightning_keywords: dict[str, Any]
    _placement: Placement
    _precision: Any
    """The Lightning plugin of every run: its gradient scaler goes on from one training to the next."""
    _trial: Any = None
    _memory_tracker: TrainerMemoryTracker

    # ---- facts ----

    @property
    def tokenizer(self) -> Any:
        """The processing class under the name it had before transformers 4.46."""
        return self.processing_class

    @tokenizer.setter
    def tokenizer(self, value: Any) -> None:
        self.processing_class = value

    def is_local_process_zero(self) -> bool:
        """Return whether this is the main process of its machine."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """Return whether this is the main process of all machines."""
        return self.args.process_index == 0

    def _set_log_level(self) -> None:
        """Give our loggers, and transformers', the level that ``args`` ask of this process; open its log file."""
        asked = self.args.log_level if self.args.should_log else self.args.log_level_replica
        if asked != "passive":
            for name in ("hf_compat", "transformers"):
                logging.getLogger(name).setLevel(self.args.get_process_log_level())
        write_log_file(self.args.process_index, self.args.get_process_log_level())

    # ---- callbacks ----

    def add_callback(self, callback: Any) -> None:
        """Append a user callback, an instance or a class to make one of."""
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Remove the first callback that is, or is an instance of, ``callback``; return it, None if there is none."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        """Remove the first callback that is, or is an instance of, ``callback``."""
        self.callback_handler.remove_callback(callback)

    def should_stop(self) -> bool:
        """Return whether a callback asked to end the epoch or the training."""
        return self.control.should_epoch_stop or self.control.should_training_stop

    # ---- logs and metric files ----

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Append ``logs`` to the history, at the current update step, and show it to all callbacks.

        Args:
            logs: Names and values; ``epoch``, and tokens seen if they are counted, are added to it.
            start_time: When the training began, in seconds since the epoch of ``time.time``; for token speeds.
        """
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                seen = self.state.num_input_tokens_seen - self._initial_num_input_tokens_seen
                logs.update(metric_files.speed_metrics("train", start_time, num_tokens=seen))
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    _initial_num_input_tokens_seen: int = 0

    def metrics_format(self, metrics: dict[str, float]) -> dict[str, Any]:
        """Return ``metrics`` as they are printed."""
        return metric_files.metrics_format(metrics)

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """Print ``metrics`` of ``split``, one a line, on the main process."""
        metric_files.log_metrics(self, split, metrics)

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Write ``metrics`` to ``<split>_results.json`` and, if ``combined``, into ``all_results.json``."""
        metric_files.save_metrics(self, split, metrics, combined)

    def save_state(self) -> None:
        """Write ``trainer_state.json`` into the output folder."""
        metric_files.save_state(self)

    def store_flos(self) -> None:
        """Move the floating-point operations counted since last time into the state."""
        counted = self.current_flos
        if self.args.world_size > 1:  # summed in float32, as upstream sums them
            counted = self.accelerator.gather(Tensor([counted]).to(self.args.device)).sum().item()
        self.state.total_flos += counted
        self.current_flos = 0

    def _get_output_dir(self, trial: Any = None) -> str:
        """Return the folder that this run's checkpoints go to: for a search's trial, one of its own."""
        if self.hp_search_backend is None or trial is None:
            return self.args.output_dir
        name = f"run-{run_id(self.hp_search_backend, trial)}" if self.hp_name is None else self.hp_name(trial)
        return os.path.join(self.args.output_dir, name)

    def _prepare_output_dir(self) -> None:
        if self.args.should_save:
            os.makedirs(self.args.output_dir, exist_ok=True)

    def create_accelerator_and_postprocess(self) -> None:
        """Set ``accelerator``: accelerate's members that subclasses call."""
        args = self.args
        self.accelerator = Accelerator(
            args.device,
            args.launch,
            args.accelerator_config,
            args.data_seed,
            deepspeed_plugin=args.deepspeed_plugin,
            is_fsdp=self._placement.fsdp is not None,
            sharing=self._placement,
        )
        self.is_deepspeed_enabled = args.deepspeed_plugin is not None
        self.is_tp_enabled = self._placement.tensor_parallel > 1
        self._reset_gather_function()

    def _reset_gather_function(self) -> None:
        self.gather_function = functools.partial(
            self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object
        )

    gather_function: Callable[[Any], Any]
