"""``train`` in processes that the Trainer starts by multiprocessing, and copying the results back.

The processes exist during training only. The calling process constructs the Trainer, evaluates, predicts and saves.
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
from dataclasses import dataclass, replace
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

from hf_compat.arguments.process_facts import set_log_level
from hf_compat.checkpoint.states import host_rng_state, set_host_rng_state
from hf_compat.distributed import collectives
from hf_compat.distributed.accelerators import is_initialized
from hf_compat.distributed.launch import OWN_MARK
from hf_compat.engine.loggers.reporters import check_fork
from hf_compat.engine.process_layout import ProcessStart, slurm_signal
from hf_compat.errors import LaunchError, TrainerSetupError
from hf_compat.trainer.preemption import SignalWatch, exit_status
from hf_compat.trainer.preparing import move_to_device

if TYPE_CHECKING:
    from hf_compat.trainer.outputs import TrainOutput
    from hf_compat.trainer.trainer import Trainer


_GRACE_PERIOD = 5.0
"""Seconds that the other processes have to exit after one has failed, and again after SIGTERM."""
_TRAINER_FILE = "trainer"
_RESULT_FILE = "result"
_COPIED_BACK = ("state", "control", "run_plan", "_train_batch_size")
"""Attributes that are copied from rank 0 to the calling process' Trainer."""


@dataclass(frozen=True, slots=True)
class _WorkerConfig:
    """The configuration of a started process."""

    trainer: Trainer | None
    """The Trainer of a forked process; None if it is unpickled from ``folder``."""
    run: Callable[[Any], TrainOutput] | None
    folder: Path
    """The folder for the pickled Trainer, the result and errors."""
    world_size: int
    port: int


def train_in_processes(trainer: Trainer, start: ProcessStart, run: Callable[[Any], TrainOutput]) -> TrainOutput:
    """Start processes, call ``run`` in each, wait for all of them and return rank 0's result.

    Afterwards ``trainer`` has the trained weights in ``model``, and rank 0's ``state``, ``control`` and random states.
    It has no optimizer: the next ``train`` creates a new one, unless it resumes. Attributes of callbacks are not copied
    back, except those in ``state.stateful_callbacks``.

    Args:
        trainer: The Trainer; pickled, unless the start method is fork.
        start: Start method and number of processes.
        run: Called with the Trainer in each process.

    Raises:
        TrainerSetupError: If the trainer cannot be pickled, or processes are forked after CUDA was initialised, or
            after a tracker was used that forked processes cannot use.
        LaunchError: If a process exited without a result. Errors of ``run`` in a process are raised as they are.
        SystemExit: If the processes were preempted, by SIGTERM or SLURM, and have saved.
    """
    if start.method == "fork" and is_initialized(device := trainer.args.device):
        name = device.type.upper()
        raise TrainerSetupError(
            f"`train` would fork processes, but {name} is initialised in this process, perhaps by an evaluation, and "
            "forked processes cannot use it then. Train before evaluating, or use the strategy 'ddp_spawn'."
        )
    if start.method == "fork":
        check_fork(trainer.callback_handler.callbacks)
    trainer.lightning_backend.drop_last_run()  # cannot be pickled
    with tempfile.TemporaryDirectory(prefix="hf_compat-") as name:
        folder, forks = Path(name), start.method == "fork"
        if not forks:
            _pickle_trainer(trainer, run, folder / _TRAINER_FILE)
        config = _WorkerConfig(
            trainer if forks else None, run if forks else None, folder, start.processes, _free_port()
        )
        with warnings.catch_warnings():  # the user has chosen to fork, with or without threads
            warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
            context = start_processes(  # type: ignore[no-untyped-call]
                _worker, (config,), start.processes, join=False, start_method=start.method
            )
        watch = SignalWatch(slurm_signal(trainer.lightning_backend.plugins))
        try:
            with watch.watching():
                _wait(context, watch, folder)
        finally:
            for process in context.processes:
                process.kill()
                process.join()
        return _copy_results(trainer, folder / _RESULT_FILE)


def _pickle_trainer(trainer: Trainer, run: Callable[[Any], TrainOutput], path: Path) -> None:
    """Pickle the Trainer, ``run`` and the random states for the started processes."""
    try:
        torch.save({"trainer": trainer, "run": run, "random": host_rng_state()}, path)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TrainerSetupError(
            f"The Trainer must be pickled to start processes, but cannot be: {error}. Define functions and classes at "
            "module level, not in a function or as a lambda, or use the strategy 'ddp_fork'."
        ) from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(context: ProcessContext, watch: SignalWatch, folder: Path) -> None:
    """Wait until all processes have exited with 0; forward signals to them."""
    processes, forwarded = context.processes, False
    while any(process.exitcode is None for process in processes) and not any(_exit_codes(context)):
        connection.wait([process.sentinel for process in processes if process.exitcode is None], timeout=1)
        if watch.received and not forwarded:
            forwarded = True
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, watch.received)
    codes = _exit_codes(context)  # before `join` terminates the other processes
    try:
        while not context.join(grace_period=_GRACE_PERIOD):
            pass
    except (ProcessRaisedException, ProcessExitedException) as error:
        _raise_first_error(error, codes, watch.received, folder)


def _exit_codes(context: ProcessContext) -> list[int]:
    """Return the exit codes of the processes, 0 for those that are running."""
    return [process.exitcode or 0 for process in context.processes]


def _raise_first_error(error: Exception, codes: list[int], received: int, folder: Path) -> None:
    """Raise the error of the first process that failed, or a ``LaunchError``; errors of others are consequences.

    Args:
        error: torch's error.
        codes: Exit codes of the processes when the first one failed.
        received: The signal that this process has received, 0 for none.
        folder: The folder with the processes' errors.
    """
    if received:
        raise SystemExit(exit_status(received)) from error
    errors = sorted(folder.glob("*.error"), key=lambda path: path.stat().st_mtime_ns)
    if min(codes) >= 0 and errors:
        raise pickle.loads(errors[0].read_bytes()) from error
    if max(codes) > 128:
        raise SystemExit(max(codes)) from error
    code = min(codes) if min(codes) < 0 else max(codes)  # a killed process leaves no error, and makes the others fail
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}; see its standard error"
    rank = codes.index(code)
    raise LaunchError(f"Training ended without a result: rank {rank} of {len(codes)} {how}.") from error


def _copy_results(trainer: Trainer, path: Path) -> TrainOutput:
    """Copy rank 0's results in ``path`` to ``trainer``, and return its output."""
    if not path.is_file():
        raise LaunchError("Training was interrupted before rank 0 had a result.")
    result = torch.load(path, map_location="cpu", weights_only=False)  # written by rank 0 in a private folder
    trainer.model.load_state_dict(result["weights"])
    for name, value in result["attributes"].items():
        setattr(trainer, name, value)
    set_host_rng_state(result["random"])
    scaler = trainer.accelerator.scaler
    if scaler is not None:
        scaler.load_state_dict(result["scaler"])
    output: TrainOutput = result["output"]
    return output


def _worker(rank: int, config: _WorkerConfig) -> None:
    """Train as ``rank``; write the result, or the error, to the folder."""
    size = config.world_size
    variables = {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    variables |= {"MASTER_PORT": config.port, OWN_MARK: 1}
    os.environ.update({name: str(value) for name, value in variables.items()} | {"MASTER_ADDR": "127.0.0.1"})
    if config.trainer is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as torchrun does; a forked process does not inherit the threads
    try:
        _train(rank, config)
    except Exception as error:
        partial = config.folder / f"{rank}.partial"
        partial.write_bytes(_pickle_error(error, rank))
        partial.rename(config.folder / f"{rank}.error")
        raise


def _train(rank: int, config: _WorkerConfig) -> None:
    trainer, run = config.trainer, config.run
    if trainer is None or run is None:
        pickled = torch.load(config.folder / _TRAINER_FILE, map_location="cpu", weights_only=False)
        trainer, run = pickled["trainer"], pickled["run"]
        set_host_rng_state(pickled["random"])
    _join_as_rank(trainer)
    output = run(trainer)
    if rank == 0:
        attributes = {name: getattr(trainer, name) for name in _COPIED_BACK if hasattr(trainer, name)}
        scaler = trainer.accelerator.scaler
        result = {
            "output": output,
            "weights": trainer.model.state_dict(),
            "attributes": attributes,
            "random": host_rng_state(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        torch.save(result, config.folder / _RESULT_FILE)
    collectives.barrier()
    distributed.destroy_process_group()


def _join_as_rank(trainer: Trainer) -> None:
    """Initialise the process group, and set up ``trainer`` for the rank of this process."""
    args, backend = trainer.args, trainer.lightning_backend
    args.choose_device_again()
    args.join_processes(args.device)
    backend.set_layout(replace(backend.process_layout, launch=args.launch, strategy="ddp", start=None))
    set_log_level(args)
    trainer.run_counters.eval_loaders = {}
    trainer.create_accelerator_and_postprocess()
    trainer._validate_args()
    if trainer.place_model_on_device:
        move_to_device(trainer, trainer.model)


def _pickle_error(error: Exception, rank: int) -> bytes:
    """Return ``error`` pickled; an error that cannot be pickled as a ``LaunchError`` with its message."""
    try:
        pickled = pickle.dumps(error)
        if str(pickle.loads(pickled)) == str(error):
            return pickled
    except Exception as problem:  # pickling a user's class may raise anything
        del problem
    return pickle.dumps(LaunchError(f"Rank {rank} raised {type(error).__name__}: {error}"))
