"""Assembling a fit from ``TrainingArguments``: Lightning trainer, module, windows, and callbacks in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_compat.arguments.enums import DebugOption
from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.data.windows import EpochStart, WindowLoader
from hf_compat.engine.callbacks import CallbackGroup, RunCallback
from hf_compat.engine.internals.loops import train_on
from hf_compat.engine.loggers import open_loggers
from hf_compat.engine.module import HFModule
from hf_compat.model_facts import unwrap_model
from hf_compat.overriding import is_ours
from hf_compat.plan import RunPlan
from hf_compat.run.clipping import GradientClipping, clip_gradients
from hf_compat.run.current_optimizer import CurrentOptimizer
from hf_compat.run.evaluation_timing import EvaluationTiming
from hf_compat.run.events import Events
from hf_compat.run.flow import Flow
from hf_compat.run.neftune import NEFTune
from hf_compat.run.overflow import OverflowDebug
from hf_compat.run.past import PastState
from hf_compat.run.preemption import Preemption
from hf_compat.run.progress import Progress
from hf_compat.run.reloading import Reloading
from hf_compat.run.resume import Resume
from hf_compat.run.sanity import SanityCheck
from hf_compat.run.saving import CheckpointSaving
from hf_compat.run.schedule import LRSchedule
from hf_compat.run.start_log import Announcements
from hf_compat.run.stopping import Stopping
from hf_compat.run.tokens import TokensAhead
from hf_compat.run.train_mode import EarlyTrainMode
from hf_compat.run.training_evaluation import TrainingEvaluation
from hf_compat.run.training_logs import TrainingLogs

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.run.host import RunHost
    from hf_compat.run.run import TrainingRun

__all__ = ["GivenPieces", "Members", "Pieces", "assemble", "assemble_given", "build_members"]


@dataclass(frozen=True, slots=True)
class Members:
    """The callbacks of a run, one per concern, in the order in which every hook calls them."""

    neftune: NEFTune | None
    overflow: OverflowDebug | None
    early_mode: EarlyTrainMode | None
    resume: Resume
    optimizer: CurrentOptimizer
    sanity: SanityCheck | None
    reloading: Reloading | None
    past: PastState | None
    clipping: GradientClipping
    tokens: TokensAhead | None
    announcements: Announcements
    events: Events
    schedule: LRSchedule
    progress: Progress
    logging: TrainingLogs
    timing: EvaluationTiming | None
    evaluation: TrainingEvaluation
    saving: CheckpointSaving
    flow: Flow
    preemption: Preemption | None
    stopping: Stopping

    def in_order(self) -> list[RunCallback]:
        """Return the callbacks that are not None, in call order."""
        every = (getattr(self, name) for name in self.__slots__)
        return [member for member in every if member is not None]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The objects of one fit."""

    plan: RunPlan
    trainer: pl.Trainer
    module: HFModule
    windows: WindowLoader
    group: CallbackGroup


class GivenPieces(NamedTuple):
    """What the user calls ``fit`` with."""

    trainer: pl.Trainer
    module: HFModule
    group: CallbackGroup


def build_members(run: TrainingRun) -> Members:
    """Return the callbacks of one fit of ``run``."""
    host, counts = run.host, run.counts
    debugs = DebugOption.UNDERFLOW_OVERFLOW in host.args.debug
    noisy = host.neftune_noise_alpha is not None
    ahead = not host.semantics.counts_tokens_after_batch and host.args.include_num_input_tokens_seen != "no"
    loop = run.runtime.loop
    checks = loop.sanity_batches != 0 and run.point is None  # as in Lightning, not in a resumed run
    clipping = GradientClipping(partial(clip_gradients, host, loop.clip_value))
    schedule = LRSchedule(host)
    progress = Progress(host, counts)
    logging = TrainingLogs(host, counts, run.runtime.publish_metrics)
    evaluation = TrainingEvaluation(host, run.ignore_keys, run.exit_if_preempted)
    saving = CheckpointSaving(host, run.checkpoints, run.lightning_state)
    return Members(
        neftune=NEFTune(run.activate_neftune, run.deactivate_neftune) if noisy else None,
        overflow=OverflowDebug() if debugs else None,
        early_mode=None if host.semantics.leaves_mode_to_training_step else EarlyTrainMode(host),
        resume=Resume(host, run.point),
        optimizer=CurrentOptimizer(host, shards_model=run.runtime.facts.shards_model),
        sanity=SanityCheck(run.runtime.sanity_check, partial(evaluation.measure, run.ignore_keys)) if checks else None,
        reloading=Reloading(loop.reload_every, run.reload) if loop.reload_every else None,
        past=PastState(host) if for_run(host.args).past_index >= 0 else None,
        clipping=clipping,
        tokens=TokensAhead(host) if ahead else None,
        announcements=Announcements(host, None if run.point is None else run.point.path),
        events=Events(host),
        schedule=schedule,
        progress=progress,
        logging=logging,
        timing=None if loop.evaluation_times is None else EvaluationTiming(host, loop.evaluation_times),
        evaluation=evaluation,
        saving=saving,
        flow=Flow(host, counts, clipping, schedule, progress, logging, evaluation, saving, run.set_output),
        preemption=None if run.watch is None else Preemption(host, run.watch, saving),
        stopping=Stopping(host),
    )


def assemble(run: TrainingRun, plan: RunPlan, loader: Iterable[Any], start: EpochStart | None) -> Pieces:
    """Return the objects of one fit.

    Args:
        run: The run; its callbacks form the group.
        plan: Epochs, update steps and batches of the fit.
        loader: The train loader.
        start: Where a resumed run starts; None for the beginning.
    """
    host, runtime = run.host, run.runtime
    group = CallbackGroup(run.members.in_order(), run)
    loggers = open_loggers(host.callback_handler.callbacks, host.args, host.state)
    trainer = runtime.build(
        host.args, unwrap_model(host.model), limits=limits_of(host, plan), group=group, loggers=loggers
    )
    module = HFModule(host.model, host.args).connect(run, group)
    return Pieces(plan, trainer, module, windows_of(run, plan, loader, start, trainer), group)


def assemble_given(
    run: TrainingRun, plan: RunPlan, loader: Iterable[Any], start: EpochStart | None, given: GivenPieces
) -> Pieces:
    """Return the objects of one fit that a person has begun with their own; see :func:`assemble`.

    Args:
        run: The run.
        plan: Epochs, update steps and batches of the fit.
        loader: The train loader.
        start: Where a resumed run starts; None for the beginning.
        given: The Lightning trainer, which is inside its ``fit``, the module and the group.
    """
    trainer, module, group = given
    group.take(run.members.in_order(), run)
    module.model = run.host.model
    module.connect(run, group)
    windows = windows_of(run, plan, loader, start, trainer)
    train_on(trainer, windows, **limits_of(run.host, plan))
    return Pieces(plan, trainer, module, windows, group)


def limits_of(host: RunHost, plan: RunPlan) -> dict[str, int]:
    """Return ``max_steps`` and ``max_epochs`` of the Lightning trainer of a fit."""
    return {
        # A resumed run that has made all its update steps makes one more, as in transformers.
        "max_steps": max(plan.max_steps, host.state.global_step + 1),
        "max_epochs": max(plan.num_train_epochs, 0) if plan.num_train_epochs < 2**31 else -1,  # -1: without end
    }


def windows_of(
    run: TrainingRun, plan: RunPlan, loader: Iterable[Any], start: EpochStart | None, trainer: pl.Trainer
) -> WindowLoader:
    """Return the windows of a fit of ``trainer``; see :func:`assemble`."""
    semantics = run.host.semantics
    return WindowLoader(
        loader,
        plan,
        run,
        lambda: trainer.current_epoch,
        start,
        restores_without_batches=semantics.restores_rng_without_batches,
        asks_empty_loader=semantics.asks_empty_loader,
        skips_before_telling_epoch=semantics.skips_before_telling_epoch,
        asks_to_the_end=not is_ours(run.host.get_batch_samples),
    )
