"""``TrainingRun``: one call of ``train()``, with one fit or, under ``auto_find_batch_size``, several."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.checkpoint import finding, publish
from hf_compat.checkpoint.reader import ResumePoint
from hf_compat.checkpoint.rotation import Ledger
from hf_compat.checkpoint.writer import CheckpointWriter
from hf_compat.data.loader import PreparedDataLoader
from hf_compat.data.rank_batches import check_even
from hf_compat.data.stream_states import gather_stream_states
from hf_compat.data.windows import EpochStart
from hf_compat.distributed.votes import max_over_ranks
from hf_compat.engine.runtime import Runtime
from hf_compat.engine.signals import slurm_signal
from hf_compat.errors import DataError
from hf_compat.evaluation.results import TrainOutput
from hf_compat.hub import quiet_progress_bars
from hf_compat.optim.losses import check_loss
from hf_compat.optim.rank_states import share_states
from hf_compat.overriding import WarnOnce, call_as_defined
from hf_compat.plan import RunPlan
from hf_compat.plan.data_limits import limited
from hf_compat.plan.upstream import from_values
from hf_compat.run.accumulation import warn_of_changed_accumulation
from hf_compat.run.assembly import FitObjects, UserPieces, assemble, assemble_given
from hf_compat.run.batch_size import with_smaller_batches
from hf_compat.run.hooks import RunHooks
from hf_compat.run.host import RunHost
from hf_compat.run.optimization import RunOptimization
from hf_compat.run.preemption import SignalWatch
from hf_compat.run.preparing import prepare_model, take_wrapper
from hf_compat.run.progress import Counts
from hf_compat.run.resume import without_extra_step
from hf_compat.run.tokens import count_train_tokens
from hf_compat.run.untold_epochs import warn_of_untold_epochs

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hf_compat.engine.host import Optimization
    from hf_compat.tuning.spaces import Trial

__all__ = ["TrainingRun"]

logger = logging.getLogger(__name__)


class TrainingRun:
    """The state of one ``train()``; the ``Host`` of module and strategy, and the source of windows.

    Args:
        host: The Trainer.
        runtime: Placement, precision and ``lightning.Trainer``.
        counts: The run's counts.
        checkpoints: Writes checkpoints.
        warn_once: Issues each warning once per Trainer.
        trial: The trial of a hyperparameter search, None outside one.
        ignore_keys: Model outputs excluded from the predictions of evaluations during training.

    Attributes:
        point: The checkpoint to resume from; None for a run that starts from the beginning.
        watch: Records the signals on which the run saves and exits; None if nothing is saved.
        hooks: The script of the current or last fit, with its objects.
        pieces: The objects of the current or last fit; None before the first.
        output: The result, None before the end.
        originals: The Trainer's methods that methods of the module or the data stand in for.
    """

    def __init__(
        self,
        host: RunHost,
        runtime: Runtime,
        counts: Counts,
        checkpoints: CheckpointWriter,
        warn_once: WarnOnce,
        *,
        trial: Trial | None = None,
        ignore_keys: list[str] | None = None,
    ) -> None:
        self.host = host
        self.runtime = runtime
        self.counts = counts
        self.checkpoints = checkpoints
        self.trial = trial
        self.ignore_keys = ignore_keys
        self.point: ResumePoint | None = None
        self.watch: SignalWatch | None = None
        self.pieces: FitObjects | None = None
        self.output: TrainOutput | None = None
        self.originals: dict[str, Callable[..., Any]] = {}
        self._is_finished = False
        self.optimization: Optimization = RunOptimization(host, 0)
        self._warn_once = warn_once
        self.hooks = RunHooks(self)  # for methods that are called before a fit, which has its own

    # ---- the run ----

    def train(self, resume_from_checkpoint: str | bool | None) -> TrainOutput:
        """Train and return the result; see the Trainer's ``train``."""
        host = self.host
        with self.begun(resume_from_checkpoint):
            args = host.args  # `call_model_init`, or a trial, may have replaced them
            loop = functools.partial(
                host._inner_training_loop,
                args=args,
                resume_from_checkpoint=None if self.point is None else self.point.path,
                trial=self.trial,
                ignore_keys_for_eval=self.ignore_keys,
            )
            if self.may_fit_again:
                return with_smaller_batches(
                    loop, host._train_batch_size, share=self._share_states, timeout=args.ddp_timeout_delta
                )
            return loop(batch_size=host._train_batch_size)

    @contextmanager
    def begun(self, resume_from_checkpoint: str | bool | None) -> Iterator[None]:
        """Context of the run's fits: the model is prepared, with a checkpoint's weights, and signals are recorded."""
        self._begin(resume_from_checkpoint)
        try:
            prepare_model(self.host, self.runtime, self.trial, self._warn_once)
            if self.point is None:
                self.checkpoints.ledger = Ledger.start()
            else:
                self.checkpoints.ledger = Ledger.resume(self.point.folder)
                if not self.runtime.facts.shards_model:
                    self.host._load_from_checkpoint(self.point.path)
                self._resume_batch_size(self.point)
            with self._watching_signals(), quiet_progress_bars() if self.host.args.push_to_hub else nullcontext():
                yield
        finally:
            self._end()

    def _begin(self, resume_from_checkpoint: str | bool | None) -> None:
        host, args = self.host, self.host.args
        if args.should_save:  # before looking for checkpoints: a killed process may have left incomplete folders
            os.makedirs(args.output_dir, exist_ok=True)
            publish.clean_orphans(args.output_dir)
        host.accelerator.wait_for_everyone()
        folder = finding.find_checkpoint(args.output_dir, resume_from_checkpoint, is_main=host.is_world_process_zero())
        self.point = None if folder is None else ResumePoint(folder)
        self.checkpoints.last_step = None
        if not host.semantics.keeps_batch_size:
            host._train_batch_size = args.train_batch_size
        host.is_in_train = True
        host._memory_tracker.start("train")

    def _resume_batch_size(self, point: ResumePoint) -> None:
        host, size = self.host, point.trainer_state().train_batch_size
        wins = host.args.auto_find_batch_size or not host.semantics.resumes_batch_size_if_searching
        if size is not None and wins:
            host._train_batch_size = size

    def _share_states(self) -> None:
        """Make what steps with the optimizer the same on all ranks; the next fit's wrapper does so with weights."""
        host = self.host
        if max_over_ranks(int(host.optimizer is None), host.args.ddp_timeout_delta):
            return  # one failed before it had created its own, so none has made an update step
        scheduler = None if host._created_lr_scheduler else host.lr_scheduler
        share_states(host.optimizer, scheduler, getattr(self.runtime.precision, "scaler", None))

    @contextmanager
    def _watching_signals(self) -> Iterator[None]:
        """Context that records signals if the run saves, and waits for a background save however it ends."""
        args = for_run(self.host.args)
        saves = args.save_strategy != "no" or args.enable_jit_checkpoint
        watch = SignalWatch(slurm_signal(self.runtime.plugins), replaces_handler=bool(args.enable_jit_checkpoint))
        self.watch = watch if saves else None
        try:
            with watch.watching() if saves else nullcontext():
                yield
        except BaseException:
            try:
                self.checkpoints.wait_here()
            except Exception as error:  # the error that ended the run is the one to raise
                logger.error("%s", error)
            raise
        finally:
            self.watch = None

    def _end(self) -> None:
        host = self.host
        host.is_in_train = False
        self.checkpoints.end_run()
        self.runtime.end_fit()
        if self.pieces is not None:
            self.pieces.hooks.end()  # again, in case of an error before Lightning's teardown
        host._memory_tracker.cancel()

    # ---- one fit ----

    def fit(
        self,
        batch_size: int | None,
        resume_from_checkpoint: str | None,
        trial: Trial | None,
        ignore_keys_for_eval: list[str] | None,
    ) -> TrainOutput:
        """Run one fit with a per-device batch size of ``batch_size`` and return the result."""
        plan, loader, start = self._plan_fit(
            RunHooks(), batch_size, resume_from_checkpoint, trial, ignore_keys_for_eval
        )
        pieces = self._begin_fit(assemble(self, plan, loader, start), start)
        self.runtime.fit(pieces.module, pieces.windows)
        self.finish_without_epoch()
        return self.output  # type: ignore[return-value]  # None only if an override of `_finalize_training` returns that

    def fit_given(self, given: UserPieces) -> None:
        """Begin the one fit of ``given``, whose ``fit`` a person has called."""
        point = None if self.point is None else self.point.path
        batch_size = self.host._train_batch_size
        plan, loader, start = self._plan_fit(given.hooks, batch_size, point, self.trial, self.ignore_keys)
        self._begin_fit(assemble_given(self, plan, loader, start, given), start)

    @property
    def may_fit_again(self) -> bool:
        """Whether a fit that runs out of memory is followed by another."""
        return self.host.args.auto_find_batch_size

    def finish_without_epoch(self) -> None:
        """End the training if no epoch was left, for which Lightning calls no hook."""
        pieces = self.pieces
        if not self._is_finished and pieces is not None:
            self.hooks.on_train_start(pieces.trainer, pieces.module)
            self.hooks.on_train_end(pieces.trainer, pieces.module)

    def _plan_fit(
        self,
        hooks: RunHooks,
        batch_size: int | None,
        resume_from_checkpoint: str | None,
        trial: Trial | None,
        ignore_keys_for_eval: list[str] | None,
    ) -> tuple[RunPlan, Iterable[Any], EpochStart | None]:
        """Return plan and loader of a fit with ``hooks``, and the start of a resumed one."""
        host = self.host
        self._is_finished = False
        self.pieces = self.output = None
        host.accelerator.free_memory()  # also of a fit that ran out of memory
        host._train_batch_size = batch_size or host._train_batch_size
        self.ignore_keys = ignore_keys_for_eval
        self.point = self.resume_point(resume_from_checkpoint)
        loader = self._train_loader()
        plan = host.run_plan = self._plan(loader)
        self.counts.train_tokens = count_train_tokens(host, plan, loader)
        done = host._init_training_state(
            plan.max_steps, plan.update_steps_per_epoch, plan.num_train_epochs, resume_from_checkpoint, trial
        )
        self.hooks = hooks
        hooks.prepare(self)
        start: EpochStart | None = None
        if self.point is not None:
            resumed = hooks.resume.start_in_data(plan, loader, done, self._warn_once)
            plan, start, hooks.progress.shift = resumed
            hooks.start = start
            host.state.max_steps, host.state.num_train_epochs = plan.max_steps, plan.num_train_epochs
        warn_of_untold_epochs(loader, loader if start is None else start.rest, host.semantics, self._warn_once)
        plan = without_extra_step(host, plan, 0 if start is None else start.epoch, self._warn_once)
        host.run_plan = hooks.progress.plan = plan
        if host._created_lr_scheduler:
            host.lr_scheduler, host._created_lr_scheduler = None, False
        self.optimization = RunOptimization(host, plan.max_steps)
        hooks.progress.begin()
        host.callback_handler.train_dataloader = loader
        host.model_wrapped = self.runtime.strategy.evaluation_model(host.model_wrapped)  # not in the last run's wrapper
        host.deepspeed = None
        return plan, loader, start

    def _begin_fit(self, pieces: FitObjects, start: EpochStart | None) -> FitObjects:
        """Make ``pieces`` the current ones, where the fit starts; return them."""
        self.pieces, step = pieces, self.host.state.global_step
        loader = self.host.callback_handler.train_dataloader
        self.runtime.begin_fit(loader, pieces.module, None if start is None else (start.epoch, step, step))
        return pieces

    def _train_loader(self) -> Iterable[Any]:
        """Return a new train loader."""
        loader = self.host.get_train_dataloader()
        if isinstance(loader, PreparedDataLoader):
            loader.track_stream_states()
        return loader

    def reload(self) -> None:
        """Train on a new train loader from the epoch on that begins now; the next evaluations have new ones too."""
        assert self.pieces is not None, "called in a fit"
        loader = self._train_loader()
        self.pieces.windows.replace(loader)
        self.runtime.loaders.train = self.host.callback_handler.train_dataloader = loader
        self.host._eval_dataloaders.clear()

    def resume_point(self, folder: str | None) -> ResumePoint | None:
        """Return the checkpoint ``folder``, with the run's caches if it is the one to resume; None for None."""
        if folder is None:
            return None
        own = self.point is not None and self.point.path == folder
        return self.point if own else ResumePoint(folder)

    def _plan(self, loader: Iterable[Any]) -> RunPlan:
        """Return the plan of the run, from the Trainer's ``set_initial_training_values``."""
        check_even(loader)
        host, args = self.host, self.host.args
        by_batches = host.semantics.plans_by_batches
        samples = None if by_batches else host.get_total_train_batch_size(args)
        older = () if by_batches else (("total_train_batch_size", samples),)
        values = call_as_defined(host.set_initial_training_values, ("args", args), ("dataloader", loader), *older)
        plan = from_values(values, accumulate=args.gradient_accumulation_steps, samples_per_update_step=samples)
        return limited(
            plan, self.runtime.limits, num_train_epochs=args.num_train_epochs if args.max_steps < 0 else None
        )

    def lightning_state(self) -> dict[str, Any]:
        """Return the content of a checkpoint's ``lightning.pt``; every rank has to call it."""
        content: dict[str, Any] = {"callbacks": self.runtime.callback_states()}
        made = self.runtime.checkpoint_entries(self.checkpoints.writes)
        entries = {name: value for name, value in made.items() if name != "state_dict"}  # the checkpoint's weights
        if entries:
            content["callback_entries"] = entries
        position = self.hooks.progress.position_to_resume()
        if position is not None:
            content["position"] = position.to_dict()
        stream = gather_stream_states(None if self.pieces is None else self.pieces.windows.loader)
        if stream is not None:
            content["stream"] = stream
        return content

    def set_output(self, output: TrainOutput) -> None:
        """Store the run's result."""
        self.output, self._is_finished = output, True

    # ---- called by the engine ----

    def accumulating(self, *, ends_update: bool, syncs: bool) -> AbstractContextManager[None]:
        """Return the context for one batch, by the Trainer's accelerator: a subclass may have put its own in place."""
        accelerator = self.host.accelerator
        accelerator.sync_gradients = ends_update
        return nullcontext() if syncs else accelerator.no_sync(self.host.model_wrapped)

    def training_step(self, batch: dict[str, Any], num_items: Tensor | int | None) -> Tensor:
        """Call the Trainer's ``training_step`` with one batch; return its loss, ``()``."""
        loss: Tensor = call_as_defined(
            self.host.training_step,
            ("model", self.host.model_wrapped),
            ("inputs", batch),
            ("num_items_in_batch", num_items),
        )
        check_loss(loss, f"`{type(self.host).__name__}.training_step`")
        return loss

    def original(self, name: str) -> Callable[..., Any]:
        """Return the Trainer's method ``name``; where the module or the data stands in for it, the one before."""
        return self.originals.get(name) or getattr(self.host, name)

    def should_stop(self) -> bool:
        """Return whether a callback has requested the end of the epoch or of training."""
        control = self.host.control
        return control.should_epoch_stop or (control.should_training_stop and self.runtime.may_stop())

    def take_wrapper(self, wrapped: nn.Module) -> None:
        """Train ``wrapped``, the model in the strategy's wrapper; a sharded model loads resumed weights now."""
        take_wrapper(self.host, self.runtime, wrapped)
        facts = self.runtime.facts
        if facts.has_engine:
            self.host.deepspeed = wrapped
        elif facts.shards_model and self.point is not None and self.runtime.trains:
            self.host._load_from_checkpoint(self.point.path)

    def take_optimizers(self, optimizer: Optimizer, scheduler: Any) -> None:
        """Use the optimizer and the schedule that the strategy has created."""
        self.host.optimizer, self.host.lr_scheduler = optimizer, scheduler

    def draw_window(self, batches: Iterator[Any], count: int) -> tuple[list[Any], Any]:
        """Return the batches of the next window, and its number of items."""
        warn_of_changed_accumulation(self.host, self._warn_once)
        try:
            return self.host.get_batch_samples(batches, count, self.host.args.device)
        except Exception:  # of any class, where a batch is lost with the worker that sent it
            self.exit_if_preempted()
            raise

    def exit_if_preempted(self) -> None:
        """Save and exit, after an error in reading data, if the process has received a signal to exit."""
        if self.hooks.preemption is not None and self.pieces is not None:
            self.hooks.preemption.exit_without_workers(self.pieces.trainer)

    def restore_rng(self) -> None:
        """Restore the random states of the resumed checkpoint."""
        self.hooks.resume.restore_rng()

    def refuse_pass_without_update(self, batches: int) -> None:
        """Raise: a pass over the train loader had ``batches``, too few for an update step, and so would each have.

        Raises:
            DataError: Always.
        """
        steps = self.host.args.gradient_accumulation_steps
        raise DataError(
            f"`gradient_accumulation_steps={steps}`: `train_dataset` yielded {batches} batches in a pass, too few for "
            "an update step, and training would never end. Set it to at most that number, lower "
            "`per_device_train_batch_size`, or have the dataset repeat its samples."
        )

    def warn_of_empty_epoch(self) -> None:
        """Warn that the train loader yielded no batch in an epoch, and stop the training."""
        state = self.host.state
        logger.warning(
            "There is not a single sample in your epoch_iterator, stopping training at step %s! `train_dataset` "
            "yielded no batches in epoch %s, but `max_steps=%s` is not reached.",
            *(state.global_step, state.epoch, state.max_steps),
        )
        self.host.control.should_training_stop = True
        self.runtime.stop_without_minimum()
