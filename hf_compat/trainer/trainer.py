"""The class users know: transformers' ``Trainer``, run by a ``lightning.Trainer``."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hf_compat.arguments import TrainingArguments
from hf_compat.arguments.releases.convert import from_transformers
from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.arguments.releases.versions import SINCE
from hf_compat.callbacks import (
    CallbackHandler,
    DefaultFlowCallback,
    NotebookProgressCallback,
    PrinterCallback,
    ProgressCallback,
    is_in_notebook,
)
from hf_compat.checkpoint.background import background_problems
from hf_compat.checkpoint.writer import CheckpointWriter
from hf_compat.data.collators import default_collator_for
from hf_compat.data.columns import can_return_loss, find_labels
from hf_compat.engine.environments import Placement, place_run
from hf_compat.engine.loggers import LoggingCallback, build_loggers
from hf_compat.engine.module import HFModule
from hf_compat.engine.precision import ForwardMixedPrecision, autocast_forward, precision_plugin, precision_problems
from hf_compat.engine.runner import (
    build_lightning_trainer,
    evaluate,
    given_plugins,
    keyword_problems,
    split_callbacks,
)
from hf_compat.engine.strategies.tensor_parallel.splitting import check_plan
from hf_compat.errors import ArgumentsError, DataError, ModelError, TrainerSetupError
from hf_compat.evaluation.stream import is_metric
from hf_compat.memory import TrainerMemoryTracker
from hf_compat.metrics import has_length
from hf_compat.model_facts import accepts_loss_kwargs, is_bare_model, shifts_labels, unwrap_peft
from hf_compat.optim.liger import apply_liger_kernels
from hf_compat.optim.losses import LabelSmoother
from hf_compat.optim.settings import plain_name
from hf_compat.overriding import WarnOnce, refuse_overrides_never_called
from hf_compat.plan import RunPlan
from hf_compat.seeding import enable_full_determinism, set_seed
from hf_compat.state import TrainerControl, TrainerState, is_exportable
from hf_compat.trainer.sharing import SharingMethods

__all__ = ["Trainer"]


class Trainer(SharingMethods):
    """Trains, evaluates and predicts as transformers' ``Trainer`` does, on a ``lightning.Trainer``.

    Args:
        model: A model whose forward returns a loss: a dict with ``loss``, or a tuple that starts with it. A
            ``PreTrainedModel``, a peft model or any ``nn.Module``.
        args: The arguments; transformers' own are taken as they are. Default: ``TrainingArguments("tmp_trainer")``.
        data_collator: Makes a batch of a list of samples. Default: padding if ``processing_class`` is a tokenizer.
        train_dataset: What to train on; without length it needs ``max_steps``.
        eval_dataset: What to evaluate on, or a dict of such.
        processing_class: A tokenizer or processor, saved with the model.
        model_init: Called for a fresh model here and at each ``train``, instead of ``model``.
        compute_loss_func: ``(outputs, labels, num_items_in_batch)`` to the loss of a batch.
        compute_metrics: An ``EvalPrediction`` to a dict of metrics; or a ``torchmetrics`` metric or collection, which
            is updated with the predictions and labels of each batch, and nothing of them is kept. ``evaluate`` then
            has no predictions to return; ``predict`` has.
        callbacks: ``TrainerCallback`` classes or instances, and Lightning callbacks, in any mix.
        optimizers: An optimizer and a schedule to use; None for one that ``args`` names.
        optimizer_cls_and_kwargs: A class and its keywords, made with the model's parameter groups.
        preprocess_logits_for_metrics: ``(logits, labels)`` to what is kept of a batch's predictions.
        tokenizer: The name of ``processing_class`` before transformers 4.46.
        lightning: Keywords of the ``lightning.Trainer`` that runs the training, such as ``logger``, ``plugins`` or
            ``profiler``; those that follow from ``args`` are refused. The strategies ``"ddp_spawn"``, ``"ddp_fork"``
            and ``"ddp_notebook"`` start processes for ``train`` alone: see ``trainer.launching``.

    Attributes:
        lightning_trainer: The ``lightning.Trainer`` of the last run.

    Raises:
        ArgumentsError: If arguments contradict each other or the data sets given.
        HubError: If ``push_to_hub`` is set and the repository cannot be made.
        ModelError: If the model cannot be trained.
        TrainerSetupError: If constructor arguments exclude each other.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., Tensor] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        *,
        tokenizer: Any = None,
        lightning: Mapping[str, Any] | None = None,
    ) -> None:
        refuse_overrides_never_called(type(self))
        if tokenizer is not None:
            processing_class = _processing_class_of(tokenizer, processing_class)
        self.args = from_transformers(args) if args is not None else TrainingArguments("tmp_trainer")
        self.semantics = resolve_semantics(self.args.semantics)
        self._notices = WarnOnce()
        self._checkpoints = CheckpointWriter()
        self._lightning_keywords = dict(lightning or {})
        self._placement = self._place()
        self.is_fsdp_enabled = self._placement.fsdp is not None
        self._precision = precision_plugin(
            "no" if self._placement.facts.own_precision else self.args.mixed_precision,
            self.args.device,
            given_plugins(self._lightning_keywords),
            flat_shards=self._placement.facts.flat_shards,
        )
        self._set_log_level()
        (enable_full_determinism if self.args.full_determinism else set_seed)(self.args.seed)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.processing_class = processing_class
        self.data_collator = data_collator or default_collator_for(processing_class)
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.neftune_noise_alpha = self.args.neftune_noise_alpha
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.model, self.model_init = model, model_init
        self._memory_tracker = TrainerMemoryTracker(self.args.skip_memory_metrics)
        self._memory_tracker.start()
        self._train_batch_size = self.args.train_batch_size
        self._eval_dataloaders = {}
        self.create_accelerator_and_postprocess()
        self._validate_args()
        self.model = self.model_wrapped = self._first_model(model)
        if self.args.use_liger_kernel and not self.semantics.applies_liger_in_train:
            apply_liger_kernels(self.model, self.args.liger_kernel_config)
        self._inspect_model()
        self._set_up_callbacks(callbacks)
        if self.args.push_to_hub:
            self.init_hf_repo()
        self._prepare_output_dir()
        self.control = TrainerControl()
        self.state = TrainerState(
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
            stateful_callbacks=[cb for cb in [*self.callback_handler.callbacks, self.control] if is_exportable(cb)],
        )
        self.control = self.callback_handler.on_init_end(self.args, self.state, self.control)
        if self.semantics.writes_use_cache and getattr(self.model, "config", None) is not None:
            self.model.config.use_cache = self.args.use_cache
        self._memory_tracker.stop_and_update_metrics()

    # ---- construction ----

    def _place(self) -> Placement:
        """Return where the run takes place; processes are started only if Lightning takes the keywords."""
        if keyword_problems(self._lightning_keywords):  # told with all others
            return Placement(self.args.launch, "one device")
        return place_run(self.args, self._lightning_keywords)

    def _validate_args(self) -> None:
        """Refuse constructor arguments that exclude each other or ``args``, all that is wrong in one error."""
        setup, empty = self._setup_problems(), self._empty_data()
        problems = [*self._data_problems(), *self._optimization_problems()]
        if setup:
            raise TrainerSetupError("\n  ".join([*setup, *problems, *empty]))
        if problems:
            raise ArgumentsError([*problems, *empty])
        if empty:
            raise DataError(*empty)

    def _setup_problems(self) -> list[str]:
        args, problems = self.args, keyword_problems(self._lightning_keywords)
        facts, strategy = self._placement.facts, self._placement.strategy
        problems += background_problems(args, strategy, is_supported=facts.saves_in_background)
        problems += facts.limits(
            args,
            model=self.model,
            gives_optimizers=any(item is not None for item in (self.optimizer, self.lr_scheduler)),
            precision=self._precision,
            settings=self._placement.fsdp,
        )
        problems += precision_problems(args.mixed_precision, given_plugins(self._lightning_keywords))
        if args.world_size > 1 and args.auto_find_batch_size:
            problems.append(
                f"`auto_find_batch_size=True`: with {args.world_size} processes the one that runs out of memory would "
                "start again without the others; choose a `per_device_train_batch_size` that fits."
            )
        alone = args.world_size == 1 and self._placement.start is None
        if alone and args.device.type == "cuda" and torch.cuda.device_count() > 1:
            problems.append(
                f"{torch.cuda.device_count()} GPUs are visible, over which transformers would split each batch in one "
                "process. Start the script with `torchrun`, or set CUDA_VISIBLE_DEVICES to the one to use."
            )
        if self.model is None and self.model_init is None:
            problems.append("`model=None`: pass a `model`, or a `model_init` that returns one.")
        return problems + self._given_optimizer_problems()

    def _empty_data(self) -> list[str]:
        dataset = self.train_dataset
        if isinstance(dataset, torch.utils.data.IterableDataset) or not has_length(dataset) or len(dataset):
            return []
        return ["`train_dataset` is empty: it holds no sample to train on."]

    def _data_problems(self) -> list[str]:
        args, problems = self.args, []
        if args.eval_strategy != "no" and self.eval_dataset is None:
            problems.append(
                f"`eval_strategy={plain_name(args.eval_strategy)!r}`: there is no `eval_dataset` to evaluate on; pass "
                "one to the Trainer, or set `eval_strategy='no'`."
            )
        wants_best = args.save_strategy == "best" or args.load_best_model_at_end
        if wants_best and args.metric_for_best_model is None:
            problems.append("`metric_for_best_model=None`: `save_strategy='best'` needs a metric to go by; name one.")
        unsized = self.train_dataset is not None and not has_length(self.train_dataset)
        if unsized and args.max_steps <= 0:
            problems.append(
                f"`max_steps={args.max_steps}`: `train_dataset` has no length, so epochs cannot be counted; set "
                "`max_steps` to the number of update steps to make."
            )
        if is_metric(self.compute_metrics):
            if args.include_for_metrics:
                problems.append(
                    f"`include_for_metrics={args.include_for_metrics!r}`: `compute_metrics` is a torchmetrics metric, "
                    "which takes predictions and labels alone; drop it, or pass a function."
                )
        elif args.batch_eval_metrics and self.compute_metrics is not None:
            parameters = inspect.signature(self.compute_metrics).parameters
            if "compute_result" not in parameters:
                problems.append(
                    "`batch_eval_metrics=True`: `compute_metrics` has to take `compute_result`, True on the last batch."
                )
        return problems

    def _first_model(self, model: nn.Module | None) -> nn.Module:
        if self.model_init is not None:
            if model is not None and self.semantics.refuses_model_and_model_init:
                raise ValueError("`model` and `model_init` were both passed: choose one.")
            if model is not None:
                warnings.warn("`model_init` takes the place of `model`; pass only one.", FutureWarning, stacklevel=3)
            model = self.call_model_init()
        assert model is not None, "checked before"
        if is_bare_model(model) and self._leaves_loss_to_model():
            raise ModelError(
                f"`model`: {type(model).__name__} computes hidden states only and takes no labels, so it has no loss. "
                "Choose one with a head for the task, such as an `AutoModelFor...`."
            )
        check_plan(model, self.get_tp_size())
        self.place_model_on_device = self._places_model()
        if self.place_model_on_device and self._placement.start is None:  # processes started later move it to theirs
            self._move_model_to_device(model, self.args.device)
        return model

    def _places_model(self) -> bool:
        """Return whether the model is moved to its device at once; otherwise the first run or evaluation moves it."""
        if not self._placement.facts.places_model:
            return False
        wanted = self.args.place_model_on_device
        full_eval = self.args.fp16_full_eval or self.args.bf16_full_eval
        if self.semantics.release < SINCE["leaves_model_placement_open"]:
            return bool(wanted) and not (full_eval and not self.args.do_train)
        return not full_eval if wanted is None else bool(wanted)

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """Move ``model`` to ``device``, unless it was loaded into its place.

        Raises:
            ModelError: If it is spread over several devices.
        """
        _move(model, device)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Return what is called to train or evaluate ``model``: ``model``; Lightning wraps it for a strategy.

        Args:
            model: The model; wrapped already if that was done for an earlier training.
            training: Whether it is trained.
            dataloader: What it is evaluated on, in releases before 5.
        """
        return model

    def _leaves_loss_to_model(self) -> bool:
        """Return whether training would take the loss that the model returns."""
        own = type(self)
        overridden = own.compute_loss is not Trainer.compute_loss or own.training_step is not Trainer.training_step
        return self.train_dataset is not None and self.compute_loss_func is None and not overridden

    def _inspect_model(self) -> None:
        """Find out what the model takes and returns."""
        inner = unwrap_peft(self.model)
        self.model_accepts_loss_kwargs = accepts_loss_kwargs(self.model)
        self.label_names = find_labels(inner) if self.args.label_names is None else self.args.label_names
        self.can_return_loss = can_return_loss(inner)
        self._loss_shifts_labels = shifts_labels(inner)
        self.label_smoother = None
        if self.args.label_smoothing_factor != 0:
            if getattr(getattr(self.model, "config", None), "problem_type", None) == "multi_label_classification":
                self._warn_once(
                    f"`label_smoothing_factor={self.args.label_smoothing_factor}` has no meaning for a multi-label "
                    "classification and is left out."
                )
            else:
                self.label_smoother = LabelSmoother(epsilon=self.args.label_smoothing_factor)

    def _set_up_callbacks(self, callbacks: Sequence[Any] | None) -> None:
        users, self._lightning_callbacks = split_callbacks(callbacks)
        given = self._lightning_keywords.pop("logger", ())
        self._loggers = [*build_loggers(self.args), *(given if isinstance(given, list | tuple) else [given])]
        reporting = [LoggingCallback(self._loggers)] if self._loggers else []
        self.callback_handler = CallbackHandler(
            [DefaultFlowCallback, *reporting, *users],
            self.model,
            self.processing_class,
            self.optimizer,
            self.lr_scheduler,
        )
        shown: type = NotebookProgressCallback if is_in_notebook() else ProgressCallback
        self.add_callback(PrinterCallback if self.args.disable_tqdm else shown)

    # ---- Lightning ----

    def _build_lightning_trainer(self, plan: RunPlan | None) -> Any:
        """Return a fresh ``lightning.Trainer`` for a run of ``plan``, or for evaluations alone; the last one ends."""
        self.accelerator.strategy.close()
        self.deepspeed = None
        limits = {"max_epochs": 0, "max_steps": -1}
        if plan is not None:
            # A resumed run that already made all its update steps makes one more, as upstream's does.
            limits["max_steps"] = max(plan.max_steps, self.state.global_step + 1)
            limits["max_epochs"] = plan.num_train_epochs if plan.num_train_epochs < 2**31 else -1
        return build_lightning_trainer(
            self,
            placement=self._placement,
            precision=self._precision,
            model=self.accelerator.unwrap_model(self.model),
            callbacks=self._lightning_callbacks,
            loggers=self._loggers,
            keywords=self._lightning_keywords,
            limits=limits,
        )

    def _place_model(self, model: nn.Module) -> None:
        """Put ``model`` on its device, under autocast if the precision is mixed, compiled if asked for."""
        args = self.args
        if self._placed_model is model:
            return
        self._placed_model = model
        if self._placement.facts.places_model:
            _move(model, args.device)
        if isinstance(self._precision, ForwardMixedPrecision):
            autocast_forward(model, self._precision.autocast_context_manager)
        if args.torch_compile or self.accelerator.unwrap_model(self.model_wrapped) is not model:
            self._take_wrapper(model)  # the first time, or the user put another model in place

    _placed_model: nn.Module | None = None

    def _take_wrapper(self, wrapped: nn.Module) -> None:
        """Train ``wrapped``, the model with what the strategy put around it; compiled if asked for."""
        args, strategy = self.args, self.accelerator.strategy
        if args.torch_compile:
            backend = args.torch_compile_backend or "inductor"
            wrapped = strategy.compiled(wrapped, backend=backend, mode=args.torch_compile_mode)
        self.model_wrapped = wrapped
        self.deepspeed = strategy.engine

    def _run_session(self, session: Any, *, test: bool) -> None:
        self._attach_strategy()
        assert self.lightning_trainer is not None, "it has just been built"
        if self.lightning_module is None or self.lightning_module.model is not self.model:
            self.lightning_module = HFModule(self.model, self)
        evaluate(self.lightning_trainer, self.lightning_module, session, test=test)


def _processing_class_of(tokenizer: Any, processing_class: Any) -> Any:
    if processing_class is not None:
        raise ValueError("`tokenizer` and `processing_class` were both passed: they are one argument; pass the latter.")
    warnings.warn("`tokenizer` is now `processing_class`.", FutureWarning, stacklevel=3)
    return tokenizer


def _move(model: nn.Module, device: torch.device) -> None:
    spread = set((getattr(model, "hf_device_map", None) or {}).values())
    if len(spread) > 1:
        raise ModelError(
            f"`model` is spread over {sorted(map(str, spread))} by its `device_map`; this version trains on one "
            "device. Load it without `device_map`."
        )
    if not spread and getattr(model, "quantization_method", None) is None:
        model.to(device)
