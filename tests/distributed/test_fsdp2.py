"""FSDP version 2 on two processes: the numbers of one process, from parameters of which each holds a part."""

import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file

from hf_compat.tools.consolidate import consolidate
from tests.scripts import fsdp2_saving, fsdp2_script
from tests.scripts.sharded_common import llama
from tests.support import helpers
from tests.support.checkpoints import assert_same_checkpoints
from tests.support.sharded import TOLERANCE, assert_other_members, check, launch, run_alone, seen


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Return the folder of what two processes saw of every scenario."""
    return launch("fsdp2_script.py", tmp_path_factory.mktemp("together"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the folder of what one process without FSDP saw."""
    return run_alone(fsdp2_script.ONE_PROCESS, tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        pytest.param("llama_by_layers", "llama_by_layers", id="layers of a Llama, clipping, token counts"),
        pytest.param("gpt2_trained_twice", "gpt2_trained_twice", id="tied embeddings, not resharded, two runs"),
        pytest.param("plain_whole", "plain_whole", id="a plain module as one unit"),
        pytest.param("plain_by_size", "plain_whole", id="units by size"),
        pytest.param("llama_offloaded", "llama_by_layers", id="kept on the host"),
        pytest.param("batches_left_uneven", "batches_left_uneven", id="as many batches on each, none filled up"),
        pytest.param("gpt2_computed_again", "gpt2_one_epoch", id="activations computed again"),
    ],
)
def test_numbers_of_one_process(together, alone, name, same_as):
    """Losses, gradient norms, evaluations and weights are those of one process with the same global batch."""
    found = seen(together, name)
    check(found, seen(alone, same_as))
    other = seen(together, name, rank=1)
    assert other["logs"] == found["logs"]
    assert not other["weights"]


@pytest.fixture(scope="module")
def in_replicas(tmp_path_factory):
    """Return the folder of what four processes saw: two replicas, each of two shards."""
    names = ("llama_by_layers", "resumed_full", "resumed_sharded")
    return launch("fsdp2_script.py", tmp_path_factory.mktemp("replicas"), *names, processes=4)


@pytest.mark.slow
def test_replicas(in_replicas, alone):
    """With two replicas of two shards the numbers stay those of one process with the same global batch."""
    found, expected = seen(in_replicas, "llama_by_layers"), seen(alone, "llama_by_layers")
    for line, other in zip(found["logs"], expected["logs"], strict=True):
        # An evaluation averages over batches, which are smaller here.
        names = [name for name in other if name != "eval_loss"]
        assert {name: line[name] for name in names} == pytest.approx({name: other[name] for name in names}, rel=1e-5)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, rtol=TOLERANCE, atol=TOLERANCE, msg=name)
    assert all(seen(in_replicas, "llama_by_layers", rank)["logs"] == found["logs"] for rank in range(4))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resumed_full", "resumed_sharded"])
def test_replicas_are_resumed(in_replicas, tmp_path, name):
    """So is a run that goes on in the middle of an epoch, to the last bit, from full and sharded checkpoints."""
    check_resumed(in_replicas, tmp_path, name)


def test_bf16(together, alone):
    """Under bf16 weights stay float32, and losses are near those of one process under autocast."""
    found, expected = seen(together, "llama_in_bf16"), seen(alone, "llama_in_bf16")
    assert {weight.dtype for weight in found["weights"].values()} == {torch.float32}
    check(found, expected, tolerance=0.05)


def test_gradients_are_exchanged_once_an_update_step(together):
    """Each unit's gradients, of two layers, embedding and rest, are reduced once, however many batches a window has."""
    assert seen(together, "llama_by_layers")["reductions"] == [4] * 8


def test_evaluation_and_prediction(together, alone):
    """A model evaluates before it is trained, sharded for that too, and predicts afterwards."""
    found, expected = seen(together, "llama_by_layers"), seen(alone, "llama_by_layers")
    assert found["before"] == pytest.approx(expected["before"], rel=TOLERANCE)
    for row, (one, other) in enumerate(zip(found["predictions"], expected["predictions"], strict=True)):
        length = len(helpers.token_rows(8, seed=1)[row]["input_ids"])  # behind it is padding, wider or narrower
        assert one[:length] == pytest.approx(other[:length], rel=1e-4, abs=1e-5)
    assert found["kinds"] == ["DTensor"]


def test_other_members_of_accelerator(together):
    """``get_state_dict`` gathers without ``unwrap`` too; a second model that is trained is refused on every rank."""
    assert_other_members(together, "llama_by_layers")


def test_saved_model_is_read_by_from_pretrained(together):
    """What ``save_model`` writes after training is a whole model of the class that was trained."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(together / "llama_by_layers" / "model")
    assert type(model).__name__ == "LlamaForCausalLM" == model.config.architectures[0]
    for name, weight in seen(together, "llama_by_layers")["weights"].items():
        assert torch.equal(model.state_dict()[name], weight), name


def test_activations_are_computed_twice(together):
    """With activation checkpointing each layer runs once more for each batch of the training."""
    assert seen(together, "gpt2_computed_again")["passes"] == 2 * 7


def test_masks_of_what_is_computed_again(together):
    """Layers drop other values the second time, as in accelerate, with a warning; corrected, the same ones."""
    found = seen(together, "gpt2_with_dropout")
    assert found["corrected"] == found["kept"] == {"norm": found["kept"]["norm"], "warnings": 0}
    assert found["again"]["norm"] != pytest.approx(found["kept"]["norm"], rel=1e-3)
    assert found["again"]["warnings"] == 1


def whole_weights(checkpoint, folder):
    """Return the weights in a checkpoint, made whole in ``folder`` if they are not."""
    sharded = (checkpoint / "pytorch_model_fsdp_0").is_dir()
    return load_file(consolidate(checkpoint, folder)[0] if sharded else checkpoint / "model.safetensors")


@pytest.mark.parametrize("name", ["resumed_full", "resumed_sharded"])
def test_a_resumed_run_is_the_uninterrupted_one(together, tmp_path, name):
    """Gone on with in the middle of an epoch, with dropout, all losses and weights are equal to the last bit.

    Whole and sharded checkpoints hold the same, and the best one is loaded at the end.
    """
    check_resumed(together, tmp_path, name)


def check_resumed(together, tmp_path, name):
    """Fail unless the resumed run of ``name`` ended as the one that was not interrupted, its checkpoints too."""
    found = seen(together, name)
    assert found["rest"]["logs"][:-1] == found["whole"]["logs"][:-1]  # the last is of this run's steps alone
    expected = load_file(together / "resumed_full" / "whole" / "output" / "checkpoint-8" / "model.safetensors")
    for part in ("whole", "rest"):
        output = together / name / part / "output"
        last = whole_weights(output / "checkpoint-8", tmp_path / part)
        assert {*last} ^ {*expected} <= {"lm_head.weight"}  # tied: consolidated once, saved under both names
        assert all(torch.equal(expected[key], value) for key, value in last.items())
        best = together / name / ("whole" if found["best"] == "checkpoint-3" else part) / "output" / found["best"]
        kept = whole_weights(best, tmp_path / f"best of {part}")
        assert all(torch.equal(found[part]["weights"][key], value) for key, value in kept.items())
    assert found["best"] != "checkpoint-8"


@pytest.mark.parametrize("kind", ["full", "sharded"])
def test_saved_in_the_background(together, kind):
    """Written by threads of both processes while they train on, checkpoints are those saved at once; so is the rest."""
    found, at_once = seen(together, f"in_background_{kind}"), seen(together, f"resumed_{kind}")
    for part in ("whole", "rest"):
        places = (together / f"{name}_{kind}" / part / "output" for name in ("in_background", "resumed"))
        assert_same_checkpoints(*places)
        assert found[part]["logs"] == at_once[part]["logs"]
        assert all(torch.equal(value, at_once[part]["weights"][key]) for key, value in found[part]["weights"].items())


def test_gathered_weights_are_not_copied_again(together):
    """What was gathered for a save in the background is written as it is."""
    is_shared = seen(together, "in_background_full")["is_shared"]
    assert is_shared
    assert all(is_shared)


@pytest.mark.parametrize("name", ["resumed_full", "resumed_sharded"])
@pytest.mark.parametrize("rank", [0, 1])
def test_accelerate_reads_what_is_written(together, name, rank):
    """The functions by which transformers resumes under FSDP give model and optimizer the same states as ours."""
    found = seen(together, name, rank)
    (weights, ours), (other, theirs) = found["ours"], found["accelerate's"]
    assert all(torch.equal(value, other[key]) for key, value in weights.items())
    assert ours["state"].keys() == theirs["state"].keys() != set()
    for number, entry in ours["state"].items():
        assert all(torch.equal(value, theirs["state"][number][key]) for key, value in entry.items())
    assert [group["lr"] for group in ours["param_groups"]] == [group["lr"] for group in theirs["param_groups"]]


def test_one_process_goes_on_from_shards(together, tmp_path):
    """A process without FSDP takes weights and the optimizer's state from what two wrote, to the same end."""
    found = seen(together, "sharded_for_one")
    same = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}  # transformers 4.57 keeps the former
    trainer = fsdp2_script.trainer_for(tmp_path, llama(1), **same)
    trainer.train(resume_from_checkpoint=str(together / "sharded_for_one" / "output" / "checkpoint-3"))
    one = fsdp2_script.seen_of(trainer)
    check({**one, "logs": one["logs"][:-1]}, {**found, "logs": found["logs"][:-1]})


def test_consolidated_weights_are_the_full_save(together, tmp_path):
    """Of the last checkpoint's shards ``consolidate`` makes what ``save_model`` gathers, bit for bit."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "copy"
    shutil.copytree(together / "sharded_for_one" / "output" / "checkpoint-8", folder)
    consolidate(folder)
    found = AutoModelForCausalLM.from_pretrained(folder)
    expected = load_file(together / "sharded_for_one" / "model" / "model.safetensors")
    assert load_file(folder / "model.safetensors").keys() == expected.keys()
    assert all(torch.equal(found.state_dict()[key], value) for key, value in expected.items())


@pytest.mark.parametrize("name", ["loaded_by_first", "made_by_first"])
def test_process_0_gives_the_others_their_weights(together, name):
    """Where process 0 alone read a model, or the others' has only shapes, all train its weights."""
    found, expected = seen(together, name), seen(together, "sharded_for_one")
    assert found["logs"] == expected["logs"]
    assert seen(together, name, rank=1)["logs"] == found["logs"]
    if name == "loaded_by_first":
        on_all = transformers.__version__.startswith("5")  # `from_pretrained` of 5.23 reads on every process
        assert [seen(together, name, rank)["is_read"] for rank in (0, 1)] == [True, on_all]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers
def test_an_adapter_is_trained_and_resumed(together, tmp_path):
    """A peft model trains as in one process, and goes on to the same bits; its files are an adapter's."""
    found = seen(together, "adapter")
    check(found, fsdp2_saving.adapter(tmp_path), tolerance=1e-4)
    assert found["rest"]["logs"][:-1] == found["logs"][:-1]
    assert all(torch.equal(found["rest"]["weights"][key], value) for key, value in found["weights"].items())
    folder = together / "adapter" / "whole" / "output" / "checkpoint-8"
    trained = torch.load(folder / "pytorch_model_fsdp.bin", weights_only=True)
    assert trained.keys() == {key for key in found["weights"] if "lora_" in key}
    assert (folder / "adapter_model.safetensors").is_file()
    assert not (folder / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("optimizers", "TrainerSetupError: Passing `optimizers` is not allowed if PyTorch FSDP is enabled"),
        (
            "training",
            "DataError: `accelerator_config`: with even_batches=False, 7 batches leave some of the 2",
        ),
        (
            "evaluation",
            "with even_batches=False, 1 batches leave some of the 2 processes with one batch fewer, and the "
            "others would wait forever for their outputs",
        ),
        ("peft", "TrainerSetupError: `model`: the adapters of a peft model can only be saved as a full state dict"),
    ],
)
def test_what_fsdp_cannot_do_is_told_first(together, case, told):
    """Each is an error of every process before any of them trains."""
    for rank in (0, 1):
        assert told in seen(together, "refused", rank)["told"][case]


def test_weights_of_an_evaluation(together):
    """Where an optimizer has other weights in evaluations, the first batch after one has some of them; corrected, none.

    So it is in transformers, with which ``tests/gpu`` compares it; here a run warns. A save gathers the trained ones.
    """
    pytest.importorskip("schedulefree")
    found = seen(together, "schedule_free")
    assert found["plain"]["losses"][:4] == found["saved"]["losses"][:4]
    assert found["plain"]["losses"][4] != found["saved"]["losses"][4]
    assert found["corrected"]["losses"] == found["saved"]["losses"]
    assert (found["plain"]["warnings"], found["corrected"]["warnings"]) == (1, 0)
