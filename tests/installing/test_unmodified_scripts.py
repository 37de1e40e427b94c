"""Scripts for transformers' Trainer, as they are: under Python itself and under ``hf-compat run``."""

import signal
import sys
import time

import pytest

from hf_compat.tools.port.command import port_script
from tests.support import processes
from tests.support.unmodified import FOLDER, OURS, outcome, run_unmodified

pytest.importorskip("transformers")

CLASSIFICATION = """
    --do_train --do_eval --max_steps 6 --use_cpu --report_to none --logging_steps 1 --eval_strategy steps --eval_steps 2
    --save_steps 2 --load_best_model_at_end --metric_for_best_model accuracy --per_device_train_batch_size 4
    --disable_tqdm true --output_dir
"""


def compare(folder, script, *words):
    """Run ``script`` with ``words`` both ways in folders of their own, and compare what they leave."""
    left = []
    for name, before in (("upstream", ()), ("ours", OURS)):
        (folder / name).mkdir(exist_ok=True)
        told = run_unmodified(*before, FOLDER / script, *words, folder=folder / name)
        assert ("hf_compat" in told) == (name == "ours")
        left.append(outcome(folder / name / "out"))
    assert left[0] == left[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"), [("own_trainer.py", ["out"]), ("classification.py", [*CLASSIFICATION.split(), "out"])]
)
def test_a_ported_script(tmp_path, script, words):
    """With its imports changed by ``hf-compat port`` a script leaves what the original does."""
    pytest.importorskip("libcst")
    for name, text in (("upstream", (FOLDER / script).read_bytes()), ("ours", port_script(str(FOLDER / script)).after)):
        (tmp_path / name).mkdir()
        (tmp_path / name / script).write_bytes(text)
        run_unmodified(script, *words, folder=tmp_path / name)
    assert outcome(tmp_path / "upstream" / "out") == outcome(tmp_path / "ours" / "out")


@pytest.mark.slow
def test_a_script_with_a_trainer_of_its_own(tmp_path):
    """Overrides, a callback and a schedule of the script's: log history, files and weights are equal."""
    compare(tmp_path, "own_trainer.py", "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "resumed"),
    [
        ("own_trainer.py", ["out"], ["out", "--resume"]),
        ("seq2seq.py", ["out"], ["out", "--resume"]),
        ("classification.py", [*CLASSIFICATION.split(), "out"], [*CLASSIFICATION.split(), "out"]),
    ],
)
def test_a_script_and_its_resumed_run(script, words, resumed, tmp_path):
    """Equal to the last bit from the beginning, and resumed in the middle from what each left."""
    compare(tmp_path, script, *words)
    for name in ("upstream", "ours"):
        checkpoints = sorted((tmp_path / name / "out").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
        for folder in checkpoints[1:]:
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            folder.rmdir()
        (tmp_path / name / "out" / "model.safetensors").unlink()
    compare(tmp_path, script, *resumed)


@pytest.mark.slow
def test_an_interrupt_leaves_a_state_to_resume_from(tmp_path):
    """After Ctrl-C the script goes on from its newest checkpoint, and ends as one that was not interrupted."""
    words = [FOLDER / "classification.py", *CLASSIFICATION.split(), "out", "--max_steps", "60", "--save_steps", "4"]
    for folder in ("whole", "interrupted"):
        (tmp_path / folder).mkdir()
    run_unmodified(*OURS, *words, folder=tmp_path / "whole")
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # some shells' jobs ignore it, and so their own
    try:
        process = processes.start([sys.executable, *OURS, *words], tmp_path / "interrupted")
    finally:
        signal.signal(signal.SIGINT, handler)
    while process.poll() is None and not (tmp_path / "interrupted/out/checkpoint-12").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    ended = processes.finish([process])[0]
    assert ended.code == -signal.SIGINT, ended.output
    assert "KeyboardInterrupt" in ended.output
    assert not (tmp_path / "interrupted/out/checkpoint-60").exists()
    run_unmodified(*OURS, *words, folder=tmp_path / "interrupted")
    left = [outcome(tmp_path / folder / "out") for folder in ("whole", "interrupted")]
    for one in left:  # as in transformers, the mean loss is that of the update steps since resuming
        one["log"] = [log for log in one["log"] if "train_loss" not in log]
    assert left[0] == left[1]


LAUNCHERS = {
    "torchrun": (*processes.TORCHRUN, "--nproc-per-node=2"),
    "accelerate": (sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)
def test_two_ranks_under_a_launcher(tmp_path, launcher):
    """Under ``torchrun -m hf_compat run script.py`` one line says so, and both ranks' weights are upstream's."""
    left = []
    for name, before in (("upstream", ()), ("ours", OURS)):
        (tmp_path / name).mkdir()
        command = [*launcher, *before, FOLDER / "own_trainer.py", "out"]
        ended = processes.finish([processes.start(command, tmp_path / name)])[0]
        assert ended.code == 0, ended.output
        assert ended.output.count("replaces the Trainer") == len(before[:1])
        left.append(outcome(tmp_path / name / "out"))
    assert left[0] == left[1]
