"""Universal checkpoints of DeepSpeed: what two processes saved, another number of them goes on from."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from hf_compat import Trainer, TrainingArguments
from hf_compat.errors import TrainerSetupError
from tests.support.helpers import PlainModel, vector_rows
from tests.support.parity import differences
from tests.support.processes import outcome, run_scenarios

pytest.importorskip("deepspeed")
from tests.scripts.deepspeed_scenarios import config
from tests.scripts.universal_scenarios import SETTINGS, STEP, UNIVERSAL, convert

SETUPS = {
    "without ZeRO": ({"deepspeed": config(0, checkpoint=UNIVERSAL)}, "is not supported without ZeRO"),
    "the best model": (
        {
            "deepspeed": config(2, checkpoint=UNIVERSAL),
            "load_best_model_at_end": True,
            "eval_strategy": "epoch",
            "save_strategy": "epoch",
        },
        "with `load_best_model_at_end=True` is not supported",
    ),
}
"""Fields and what the error says."""
RESUMED = [(name, processes) for name in SETTINGS for processes in (1, 2) if (name, processes) != ("split", 1)]
"""A run, and how many processes go on from its checkpoint; those that share matrices are two."""


@pytest.mark.parametrize(("fields", "message"), SETUPS.values(), ids=SETUPS)
def test_setup_is_refused(tmp_path, fields, message):
    """What a config with ``load_universal`` cannot do is an error of the constructor."""
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **fields)
    rows = vector_rows(4)
    with pytest.raises(TrainerSetupError, match=f"`checkpoint.load_universal=true` .*{message}"):
        Trainer(PlainModel(), args, train_dataset=rows, eval_dataset=rows)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Train on two processes, convert, go on with one and with two; return where the outcomes are, by their number."""
    folder = tmp_path_factory.mktemp("universal")
    run_scenarios(folder, [f"ours:begun_{name}" for name in SETTINGS])
    for name, settings in SETTINGS.items():
        checkpoint = folder / f"begun_{name}" / "checkpoint"
        shutil.copytree(folder / f"begun_{name}" / "ours" / "output" / f"checkpoint-{STEP}", checkpoint)
        convert(checkpoint, stage=settings["zero_optimization"]["stage"])
    more = {1: ["ours:universal_checkpoint_with_buffers"], 2: ["ours:refused_universal_checkpoints"]}
    found = {0: folder}
    for processes in (1, 2):
        found[processes] = folder / str(processes)
        found[processes].mkdir()
        for name in SETTINGS:
            (found[processes] / f"begun_{name}").symlink_to(folder / f"begun_{name}")
        names = [name for name, number in RESUMED if number == processes]
        words = [f"{library}:resumed_{name}" for name in names for library in ("upstream", "ours")]
        run_scenarios(found[processes], [*words, *more[processes]], processes=processes)
    return found


def kept(outcome, name):
    """Return what a scenario kept under ``name``."""
    return next(item["value"] for item in outcome.results if item["name"] == name)


def lines(outcome):
    """Return step, loss, gradient norm and learning rate of each update step."""
    names = ("step", "loss", "grad_norm", "learning_rate")
    return [[line[name] for name in names] for line in kept(outcome, "train")["log_history"] if "loss" in line]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "processes"), RESUMED)
def test_resumed_as_upstream(finished, name, processes):
    """With one process and with two, ours goes on from a universal checkpoint as transformers does, to the last bit."""
    for rank in range(processes):
        theirs, ours = (
            outcome(finished[processes], f"resumed_{name}", library, rank) for library in ("upstream", "ours")
        )
        found = differences(theirs, ours)
        assert not found, f"process {rank}:\n{found}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "processes"), [pair for pair in RESUMED if pair[0] != "zero_3"])
def test_resumed_as_uninterrupted(finished, name, processes):
    """The run ends as the uninterrupted one: bit for bit with as many processes, else to the rounding of the sums.

    Not under ZeRO-3, where DeepSpeed gives all parameter groups the weight decay and the step counter of the first.
    """
    whole = outcome(finished[0], f"begun_{name}", "ours", 0)
    resumed = outcome(finished[processes], f"resumed_{name}", "ours", 0)
    exactly = {"rtol": 0, "atol": 0}
    rounded = {"rtol": 1e-5, "atol": 1e-5}
    # The bias of an attention's keys has no gradient but rounding errors, which Adam scales up.
    scaled = {"rtol": 1e-5, "atol": 1e-4}
    assert len(lines(whole)) == 9
    torch.testing.assert_close(lines(resumed), lines(whole), **(exactly if processes == 2 else rounded))
    weights = [kept(each, "full weights") for each in (resumed, whole)]
    torch.testing.assert_close(*weights, **(exactly if processes == 2 else scaled))


@pytest.mark.slow
def test_the_resumed_run_saves_ordinary_checkpoints(finished):
    """What one process saves after it went on from two is a checkpoint of one process, with the weights of its end."""
    output = finished[1] / "resumed_zero_2" / "ours" / "output" / "checkpoint-9"
    assert len(list(output.glob("global_step9/*_optim_states.pt"))) == 1
    assert not (output / "latest_universal").exists()
    weights = kept(outcome(finished[1], "resumed_zero_2", "ours", 0), "full weights")
    saved = load_file(output / "model.safetensors")
    assert saved
    assert all(torch.equal(value, weights[key]) for key, value in saved.items())


@pytest.mark.slow
def test_what_is_no_universal_checkpoint_is_refused(finished):
    """One that was not converted is told how to be; of one that holds code nothing has run. Both on every process."""
    for rank in (0, 1):
        found = outcome(finished[2], "refused_universal_checkpoints", "ours", rank)
        text = kept(found, "not converted")
        assert "`latest_universal` is missing. Convert the checkpoint with DeepSpeed's `ds_to_universal.py`" in text
        assert "exp_avg.pt` is refused: it contains more than tensors and plain values" in kept(found, "code")
        assert kept(found, "was run") is False


@pytest.mark.slow
def test_buffers_are_told_of(finished):
    """DeepSpeed leaves buffers as they are: a warning names them."""
    found = outcome(finished[1], "universal_checkpoint_with_buffers", "ours", 0)
    assert kept(found, "batches") == 1  # of the second update step alone
    assert any("The buffers batches keep their values: DeepSpeed does not restore" in text for text in found.warnings)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_shared_settings_are_told_of(finished, processes):
    """Under ZeRO-3, and only there, a warning says that groups share weight decay and step counter on every process."""
    words = (
        "continue with the weight_decay of the first and share one step counter, which goes up 2 times an update step"
    )
    for name in [name for name, number in RESUMED if number == processes]:
        for rank in range(processes):
            told = outcome(finished[processes], f"resumed_{name}", "ours", rank).warnings
            assert len([text for text in told if words in text]) == (name == "zero_3")
