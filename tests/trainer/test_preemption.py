"""A process that is asked to leave saves a complete checkpoint first, and the next start goes on as if undisturbed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as torch_worker

import hf_compat
from hf_compat.data.loader import ignoring_signals
from hf_compat.trainer.preemption import SignalWatch, requeue
from tests.scripts.crash_script import STEPS
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.interrupted import FINISHED, Server, assert_tidy, fake_scontrol, newest, outcome, steps
from tests.support.processes import PATIENCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and waits for signals")

SELDOM = {"save_steps": 1000}
LEFT_ON_SIGTERM = {"event": "exit", "status": 143}


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


def left(folder):
    """What a run leaves; the checkpoint it deems the best may be one that only the signal had it save."""
    files = outcome(folder)
    del files["trainer_state.json"]["best_model_checkpoint"]
    return files


@pytest.fixture(scope="module")
def undisturbed(server, tmp_path_factory):
    """What a run that nobody disturbs leaves."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert server.run(folder, **SELDOM)[-2:] == FINISHED
    return left(folder)


def signalled(server, folder, stage, step, *signals, **settings):
    """Send ``signals`` to a run that waits at a stage, let it go on and return its events to the end."""
    process = server.start(folder, stage=stage, wait_step=step, **{**SELDOM, **settings})
    server.events_until("waiting")
    for signum in signals:
        os.kill(process, signum)
    os.kill(process, signal.SIGUSR2)
    return server.events_until("exit")


@pytest.mark.parametrize(
    ("stage", "step", "saved"),
    [
        pytest.param("training", 3, 4, id="in the middle of an update step"),
        pytest.param("training", 6, 7, id="in the last window of an epoch"),
        pytest.param("evaluating", 4, 4, id="while evaluating"),
    ],
)
def test_sigterm(server, undisturbed, tmp_path, stage, step, saved):
    """SIGTERM: the window under way is finished and saved, the status is 143, and the next start loses nothing."""
    events = signalled(server, tmp_path, stage, step, signal.SIGTERM)
    assert steps(events, "saved") == [saved]
    assert events[-1] == LEFT_ON_SIGTERM
    assert newest(tmp_path) == saved
    assert_tidy(tmp_path)
    events = server.run(tmp_path, **SELDOM)
    assert (steps(events, "begin"), events[-2:]) == ([saved], FINISHED)
    assert left(tmp_path) == undisturbed


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGUSR1], ids=["SIGTERM", "SIGUSR1"])
def test_second_signal_during_the_save(server, undisturbed, tmp_path, again):
    """A signal that arrives while the checkpoint is written changes nothing, be it the first or the second."""
    environment = fake_scontrol(tmp_path / "bin")
    process = server.start(tmp_path, stage="optimizer written", wait_step=4, save_steps=4, environment=environment)
    server.events_until("waiting")
    for signum in (signal.SIGTERM, again, signal.SIGTERM, signal.SIGUSR2):
        os.kill(process, signum)
    events = server.events_until("exit")
    assert steps(events, "saved") == [4]
    # Of signals that arrive together Python sees the one of the lowest number first.
    assert events[-1]["status"] in (128 + signal.SIGTERM, 128 + again)
    assert_tidy(tmp_path)
    assert server.run(tmp_path, **SELDOM)[-2:] == FINISHED
    without_cadence = outcome(tmp_path)["model.safetensors"], outcome(tmp_path)["optimizer.pt"]
    assert without_cadence == (undisturbed["model.safetensors"], undisturbed["optimizer.pt"])


def test_sigterm_while_a_checkpoint_is_written_in_the_background(server, undisturbed, tmp_path):
    """The checkpoint being written and the one of the last update step are both there before the process leaves."""
    events = signalled(
        server, tmp_path, "in the background", 1, signal.SIGTERM, save_async=True, save_steps=3, save_total_limit=5
    )
    assert events[-1] == LEFT_ON_SIGTERM
    assert_tidy(tmp_path)
    assert newest(tmp_path) >= 3
    assert server.run(tmp_path, **SELDOM)[-2:] == FINISHED
    assert outcome(tmp_path)["model.safetensors"] == undisturbed["model.safetensors"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1], ids=["SIGTERM", "SIGUSR1"])
def test_signal_to_the_whole_process_group(server, undisturbed, tmp_path, signum):
    """Loader workers outlive a signal that a scheduler sends to all processes, and are gone once the run has left."""
    environment = fake_scontrol(tmp_path / "bin")
    process = server.start(
        tmp_path, stage="training", wait_step=3, dataloader_num_workers=2, environment=environment, **SELDOM
    )
    server.events_until("waiting")
    workers = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    assert len(workers) == 2
    for receiver in (*map(int, workers), process):
        os.kill(receiver, signum)
    os.kill(process, signal.SIGUSR2)
    events = server.events_until("exit")
    assert (steps(events, "saved"), events[-1]["status"]) == ([4], 128 + signum)
    assert not any(Path("/proc", worker).exists() for worker in workers)
    assert server.run(tmp_path, dataloader_num_workers=2, **SELDOM)[-2:] == FINISHED
    assert left(tmp_path) == undisturbed


@pytest.mark.parametrize(
    "loader",
    [
        "plain",
        pytest.param("with a worker_init_fn", marks=pytest.mark.slow),
        "persistent",
        pytest.param("started before", marks=pytest.mark.slow),
        pytest.param("lazy", marks=pytest.mark.slow),
        pytest.param("evaluation: plain", marks=pytest.mark.slow),
        "evaluation: started before",
        pytest.param("on the side", marks=pytest.mark.slow),
    ],
)
def test_signal_to_workers_of_loaders_that_a_script_made(server, tmp_path, loader):
    """A run outlasts the signal with the workers of any loader, and without those that it cannot keep alive."""
    process = server.start(tmp_path, stage="training", wait_step=3, loader=loader, **SELDOM)
    server.events_until("waiting")
    workers = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    for receiver in (*map(int, workers), process):
        os.kill(receiver, signal.SIGTERM)
    os.kill(process, signal.SIGUSR2)
    events = server.events_until("exit")
    assert (steps(events, "saved"), events[-1]) == ([4], LEFT_ON_SIGTERM)
    assert not any(Path("/proc", worker).exists() for worker in workers)
    assert server.run(tmp_path, **SELDOM)[-2:] == FINISHED


def test_signal_ends_the_worker_that_reads_the_next_batch(server, tmp_path):
    """A run whose batch is lost with its worker saves the last update step."""
    # Row 39 is in the seventh batch of the second window, and four batches are read ahead.
    server.start(tmp_path, loader="fatal: started before", gradient_accumulation_steps=13, **SELDOM)
    events = server.events_until("exit")
    assert (steps(events, "step"), steps(events, "saved"), events[-1]) == ([1], [1], LEFT_ON_SIGTERM)
    assert newest(tmp_path) == 1
    assert_tidy(tmp_path)


def test_signal_ends_a_worker_before_the_first_update_step(server, tmp_path):
    """There is nothing to save yet; the status says that the run is to be started again."""
    server.start(tmp_path, loader="fatal: started before", gradient_accumulation_steps=26, **SELDOM)
    events = server.events_until("exit")
    assert (steps(events, "saved"), events[-1], newest(tmp_path)) == ([], LEFT_ON_SIGTERM, 0)


def test_workers_are_torchs_own_again():
    """Loaders that start their workers outside of a run that saves, and before it, run torch's function."""
    theirs = torch_worker._worker_loop
    with SignalWatch().watching():
        assert torch_worker._worker_loop is not theirs
        with ignoring_signals([signal.SIGTERM]):
            pass
        assert torch_worker._worker_loop is not theirs
    assert torch_worker._worker_loop is theirs


def test_a_patch_of_the_loader_outlives_a_run(monkeypatch):
    """What other code has put in place of a loader's method starts the workers of the run, and is there afterwards."""
    made, iterator = [], DataLoader._get_iterator

    def noting(loader):
        made.append(loader)
        return iterator(loader)

    monkeypatch.setattr(DataLoader, "_get_iterator", noting)
    loader = DataLoader([0])
    with ignoring_signals([signal.SIGTERM]):
        assert list(loader) == [torch.tensor([0])]
    assert made == [loader]
    assert DataLoader._get_iterator is noting


def test_worker_that_hangs_is_ended_by_its_run():
    """Of the signals that it outlives, a worker obeys those that its own run sends."""
    began = multiprocessing.get_context("fork").Event()
    with ignoring_signals([signal.SIGTERM]):
        batches = iter(DataLoader([0], num_workers=1, worker_init_fn=partial(hang, began)))
    (worker,) = batches._workers
    assert began.wait(PATIENCE)
    subprocess.run(["kill", str(worker.pid)], check=True)
    for _ in range(PATIENCE):
        assert worker.exitcode is None
        worker.terminate()  # which counts for nothing while the other signal has not been looked at
        worker.join(1)
        if worker.exitcode is not None:
            break
    assert worker.exitcode == 0


def test_worker_ends_with_its_run(tmp_path):
    """A worker that outlives the signal, and hangs, is gone soon after the process that started it."""
    script = """
import os, signal, sys, time
from torch.utils.data import DataLoader
from hf_compat.data.loader import ignoring_signals
def hang(worker):
    print(os.getpid(), flush=True)
    time.sleep(600)
with ignoring_signals([signal.SIGTERM]):
    batches = iter(DataLoader([0], num_workers=1, worker_init_fn=hang))
sys.stdin.read()
"""
    run = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    worker = int(run.stdout.readline())
    run.kill()
    run.stdin.close()
    assert run.stdout.read() == "", worker  # until the worker, which holds the other end, is gone
    run.stdout.close()
    run.wait()


def hang(began, worker_id):
    began.set()
    while True:
        signal.pause()


def test_sigterm_in_the_last_update_step(server, tmp_path):
    """A run that is done is finished, with its last checkpoint; then the signal does what it does without a run."""
    events = signalled(server, tmp_path, "training", STEPS - 1, signal.SIGTERM)
    assert (steps(events, "saved"), events[-1]) == ([STEPS], {"event": "exit", "status": -signal.SIGTERM})
    assert newest(tmp_path) == STEPS


@pytest.mark.parametrize(
    ("settings", "saved"),
    [
        pytest.param({"save_strategy": "no"}, None, id="no checkpoints asked for"),
        pytest.param({"save_strategy": "no", "enable_jit_checkpoint": True}, 4, id="but on SIGTERM"),
    ],
)
def test_runs_without_checkpoints(server, tmp_path, settings, saved):
    """A run that is to write no checkpoints dies of SIGTERM at once, unless `enable_jit_checkpoint` asks for one."""
    events = signalled(server, tmp_path, "training", 3, signal.SIGTERM, **settings)
    assert events[-1] == ({"event": "exit", "status": -signal.SIGTERM} if saved is None else LEFT_ON_SIGTERM)
    assert newest(tmp_path) == (saved or 0)


def test_slurm_requeue(server, undisturbed, tmp_path):
    """SIGUSR1 inside a SLURM job: saved, requeued once, left with a status that is not 0; the next start goes on."""
    environment = fake_scontrol(tmp_path / "bin")
    events = signalled(server, tmp_path, "training", 3, signal.SIGUSR1, environment=environment)
    assert (steps(events, "saved"), events[-1]["status"]) == ([4], 128 + signal.SIGUSR1)
    assert (tmp_path / "bin" / "calls").read_text() == "requeue 17\n"
    assert server.run(tmp_path, **SELDOM)[-2:] == FINISHED
    assert left(tmp_path) == undisturbed


@pytest.mark.parametrize(
    ("variables", "status", "expected", "message"),
    [
        pytest.param({}, 0, "requeue 17\n", "is requeued", id="a job"),
        pytest.param(
            {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"},
            0,
            "requeue 5_2\n",
            "5_2 is requeued",
            id="an array",
        ),
        pytest.param({}, 3, "requeue 17\n", "failed: refused", id="refused"),
        pytest.param({"PATH": ""}, 0, None, "cannot be requeued: `scontrol`", id="no scontrol"),
    ],
)
def test_requeue(tmp_path, monkeypatch, caplog, variables, status, expected, message):
    """The job, or the task of an array, is handed to `scontrol requeue`; a failure is logged."""
    for name, value in {**fake_scontrol(tmp_path / "bin", status), **variables}.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level("WARNING"):
        assert requeue() == ("is requeued" in message)
    assert message in caplog.text
    calls = tmp_path / "bin" / "calls"
    assert (calls.read_text() if calls.exists() else None) == expected


def test_handlers_are_put_back():
    """While signals are watched the handlers are ours; what the program ignores or handles itself stays its own."""

    def theirs(*_):
        raise AssertionError("a handler that is not ours was called")

    former = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        signal.signal(signal.SIGTERM, theirs)
        signal.signal(signal.SIGUSR1, theirs)
        watch = SignalWatch(signal.SIGUSR1)
        with suppress(SystemExit), watch.watching():
            assert signal.getsignal(signal.SIGUSR1) is theirs
            signal.raise_signal(signal.SIGTERM)
            assert watch.received == signal.SIGTERM
            raise SystemExit
        assert signal.getsignal(signal.SIGTERM) is theirs
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with watch.watching():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            watch.received = 0
    finally:
        for signum, handler in former.items():
            signal.signal(signum, handler)


@pytest.mark.parametrize(
    "package", [pytest.param(transformers, id="transformers"), pytest.param(hf_compat, id="hf_compat")]
)
@pytest.mark.parametrize("first", [pytest.param(True, id="before training"), pytest.param(False, id="in training")])
def test_handler_of_the_program(package, first, tmp_path):
    """It is called at once, ends training as it likes, and stays after it."""
    received = []

    def handle(signum, frame):
        received.append(trainer.state.global_step)

    class Ends(package.TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            if not first:
                signal.signal(signal.SIGTERM, handle)

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                signal.raise_signal(signal.SIGTERM)
                control.should_training_stop = bool(received)

    fields = {"max_steps": 4, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
    args = package.TrainingArguments(str(tmp_path), **fields)
    trainer = package.Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(16)), callbacks=[Ends()])
    before = signal.getsignal(signal.SIGTERM)
    try:
        if first:
            signal.signal(signal.SIGTERM, handle)
        assert trainer.train().global_step == 2
        assert (received, signal.getsignal(signal.SIGTERM)) == ([2], handle)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_forked_process_dies_of_the_signal():
    """A process forked by the run inherits the handler but dies of SIGTERM all the same."""
    with SignalWatch().watching():
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
