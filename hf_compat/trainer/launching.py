"""``train`` in processes that the Trainer starts itself, by multiprocessing, and what comes back of it.

The processes are there for the training alone. Before and after it there is one process, the caller's: it builds the
Trainer, evaluates, predicts and saves.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.multiprocessing.spawn import (
    ProcessContext,
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,
)

from hf_compat.checkpoint.rng import host_rng_state, set_host_rng_state
from hf_compat.distributed import collectives
from hf_compat.distributed.devices import cuda_is_initialized
from hf_compat.distributed.launch import OWN_MARK
from hf_compat.engine.placement import ProcessStart, place_started
from hf_compat.engine.signals import slurm_signal
from hf_compat.errors import LaunchError, TrainerSetupError
from hf_compat.run.preemption import SignalWatch, exit_status
from hf_compat.trainer.construction import set_log_level

if TYPE_CHECKING:
    from hf_compat.evaluation.results import TrainOutput
    from hf_compat.trainer.trainer import Trainer

__all__ = ["train_in_processes"]

_GRACE_PERIOD = 5.0
"""Seconds that the other processes have to end by themselves once one has failed, and again after SIGTERM."""
_COPIED_BACK = ("state", "control", "run_plan", "_train_batch_size")
"""Attributes that the caller's Trainer takes over from the main process of the training."""


@dataclass(frozen=True, slots=True)
class _WorkerConfig:
    """What a started process is told."""

    trainer: Trainer | None
    """Inherited by a forked process; None where it is read from a file."""
    run: Callable[[Any], TrainOutput] | None
    folder: Path
    """Where the Trainer is read from, and results and errors go to."""
    count: int
    port: int


def train_in_processes(trainer: Trainer, start: ProcessStart, run: Callable[[Any], TrainOutput]) -> TrainOutput:
    """Start processes, ``run`` the trainer in each, wait for all and return the main process's result.

    The caller's trainer has then the trained weights in ``model``, the main process's ``state`` (the history, the best
    metric, ...), ``control`` and random states; checkpoints are where the processes wrote them. It has no optimizer: a
    further ``train`` begins with a new one, unless it resumes. What callbacks keep for themselves stays with the
    processes, as far as it is not in ``state.stateful_callbacks``.

    Args:
        trainer: By any method but fork it goes to the processes by pickle.
        start: How many processes, and how they are started.
        run: Called with the trainer of each process.

    Raises:
        TrainerSetupError: If the trainer cannot be pickled, or CUDA is in use and the processes are to be forked.
        LaunchError: If a process ended without a result. What ``run`` raises in a process is raised here.
        SystemExit: If the processes were asked to leave, by SIGTERM or SLURM, and have saved.
    """
    if start.method == "fork" and cuda_is_initialized():
        raise TrainerSetupError(
            "`train` is to fork, but this process uses CUDA, by an evaluation perhaps, and forked ones then cannot: "
            "train first, or choose the strategy 'ddp_spawn'."
        )
    trainer._runtime.drop_last_run()  # an evaluation's strategy holds the module that was evaluated
    with tempfile.TemporaryDirectory(prefix="hf_compat-") as name:
        folder, forks = Path(name), start.method == "fork"
        if not forks:
            _pickle_trainer(trainer, run, folder / "job")
        job = _WorkerConfig(trainer if forks else None, run if forks else None, folder, start.processes, _free_port())
        with warnings.catch_warnings():  # one that chose fork has chosen it for a process with threads, too
            warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
            context = start_processes(  # type: ignore[no-untyped-call]
                _work, (job,), start.processes, join=False, start_method=start.method
            )
        watch = SignalWatch(slurm_signal(trainer._runtime.plugins))
        try:
            with watch.watching():
                _wait(context, watch, folder)
        finally:
            for process in context.processes:
                process.kill()
                process.join()
        return _copy_results(trainer, folder / "result")


def _pickle_trainer(trainer: Trainer, run: Callable[[Any], TrainOutput], path: Path) -> None:
    """Write what a process that inherits nothing needs."""
    try:
        torch.save({"trainer": trainer, "run": run, "random": host_rng_state()}, path)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TrainerSetupError(
            f"The Trainer has to be pickled for the processes to be started, and cannot be: {error}. Define functions "
            "and classes at the top of a module, not in a function or as a lambda; or choose the strategy 'ddp_fork'."
        ) from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(context: ProcessContext, watch: SignalWatch, folder: Path) -> None:
    """Return when all processes have ended well; pass on what asks this one to leave."""
    processes, told = context.processes, False
    while any(process.exitcode is None for process in processes) and not any(_exit_codes(context)):
        connection.wait([process.sentinel for process in processes if process.exitcode is None], timeout=1)
        if watch.received and not told:
            told = True
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, watch.received)
    codes = _exit_codes(context)  # before those that are left are ended
    try:
        while not context.join(grace_period=_GRACE_PERIOD):
            pass
    except (ProcessRaisedException, ProcessExitedException) as ended:
        _raise_first_error(ended, codes, watch.received, folder)


def _exit_codes(context: ProcessContext) -> list[int]:
    """Return the exit codes of the processes, 0 of those that run."""
    return [process.exitcode or 0 for process in context.processes]


def _raise_first_error(ended: Exception, codes: list[int], asked: int, folder: Path) -> None:
    """Raise what the first process to fail raised, or say how it ended; what befell the others follows from that.

    Args:
        ended: What torch made of it.
        codes: Exit codes of the processes when the first had failed.
        asked: The signal that asked this process to leave, 0 for none.
        folder: Where the processes left their errors.
    """
    if asked:
        raise SystemExit(exit_status(asked)) from ended
    errors = sorted(folder.glob("*.error"), key=lambda path: path.stat().st_mtime_ns)
    if min(codes) >= 0 and errors:
        raise pickle.loads(errors[0].read_bytes()) from ended
    if max(codes) > 128:
        raise SystemExit(max(codes)) from ended
    code = min(codes) if min(codes) < 0 else max(codes)  # one that was killed told nobody, the others fail for it
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}; standard error says why"
    process = codes.index(code)
    raise LaunchError(f"Training ended without a result: process {process} of {len(codes)} ended {how}.") from ended


def _copy_results(trainer: Trainer, path: Path) -> TrainOutput:
    """Give ``trainer`` what the main process wrote to ``path``, and return its result."""
    if not path.is_file():
        raise LaunchError("Training was interrupted: no process left a result.")
    kept = torch.load(path, map_location="cpu", weights_only=False)  # written by our own process in a private folder
    trainer.model.load_state_dict(kept["weights"])
    for name, value in kept["attributes"].items():
        setattr(trainer, name, value)
    set_host_rng_state(kept["random"])
    if kept["scaler"] is not None:
        scaler: Any = getattr(trainer._runtime.precision, "scaler", None)
        scaler.load_state_dict(kept["scaler"])
    output: TrainOutput = kept["output"]
    return output


def _work(rank: int, job: _WorkerConfig) -> None:
    """Train in process ``rank``; keep the result, or the error, in the job's folder."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": job.count, "LOCAL_WORLD_SIZE": job.count}
    place |= {"MASTER_PORT": job.port, OWN_MARK: 1}
    os.environ.update({name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"})
    if job.trainer is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as torchrun does; the threads of a forked process stayed behind
    try:
        _train(rank, job)
    except Exception as error:
        part = job.folder / f"{rank}.part"
        part.write_bytes(_pickle_error(error, rank))
        part.rename(job.folder / f"{rank}.error")
        raise


def _train(rank: int, job: _WorkerConfig) -> None:
    trainer, run = job.trainer, job.run
    if trainer is None or run is None:
        packed = torch.load(job.folder / "job", map_location="cpu", weights_only=False)
        trainer, run = packed["trainer"], packed["run"]
        set_host_rng_state(packed["random"])
    _join_as_rank(trainer)
    output = run(trainer)
    if rank == 0:
        attributes = {name: getattr(trainer, name) for name in _COPIED_BACK if hasattr(trainer, name)}
        scaler = getattr(trainer._runtime.precision, "scaler", None)
        kept = {
            "output": output,
            "weights": trainer.model.state_dict(),
            "attributes": attributes,
            "random": host_rng_state(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        torch.save(kept, job.folder / "result")
    collectives.barrier()
    distributed.destroy_process_group()


def _join_as_rank(trainer: Any) -> None:
    """Tell ``trainer`` which process this is now, and let it meet the others."""
    runtime = trainer._runtime
    runtime.placement = place_started(trainer.args, runtime.placement)
    set_log_level(trainer.args)
    trainer._eval_dataloaders = {}
    trainer.create_accelerator_and_postprocess()
    trainer._validate_args()
    if trainer.place_model_on_device:
        trainer._move_model_to_device(trainer.model, trainer.args.device)


def _pickle_error(error: Exception, rank: int) -> bytes:
    """Return ``error`` for the caller's process; one that cannot go there becomes a ``LaunchError`` that names it."""
    try:
        packed = pickle.dumps(error)
        if str(pickle.loads(packed)) == str(error):
            return packed
    except Exception as problem:  # a class of the user's, which may fail in any way
        del problem
    return pickle.dumps(LaunchError(f"Process {rank} raised {type(error).__name__}: {error}"))
