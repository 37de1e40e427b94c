"""FSDP version 1 on two processes: the numbers of one process, from a model of which each holds a part."""

import sys
from importlib import metadata

import pytest
import torch
from packaging.version import Version
from safetensors.torch import load_file

from tests.scripts import fsdp1_script
from tests.support import helpers
from tests.support.paths import SCRIPTS
from tests.support.processes import finish, free_port, start
from tests.support.sharded import TOLERANCE, assert_other_members, check, check_in_background, launch, seen

pytestmark = pytest.mark.slow

SCRIPT = "fsdp1_script.py"
QUICK = (
    "everything",
    "best_and_twice",
    "resume_whole",
    "resume_sharded",
    "in_background_whole",
    "in_background_sharded",
)
THOROUGH = tuple(name for name in fsdp1_script.SEVERAL if name not in QUICK)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Return the folder of what two processes saw of the quick scenarios."""
    return launch(SCRIPT, tmp_path_factory.mktemp("together"), *QUICK)


@pytest.fixture(scope="module")
def thorough(tmp_path_factory):
    """Return the folder of what two processes saw of the others."""
    return launch(SCRIPT, tmp_path_factory.mktemp("thorough"), *THOROUGH)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the folder of what one process without FSDP saw."""
    folder = tmp_path_factory.mktemp("alone")
    for name in fsdp1_script.ALONE:
        fsdp1_script.write_scenario(name, folder)
    return folder


def check_as_one_process(folder, alone, name, same_as):
    """Fail unless both processes saw what one process did; the first one has the weights, both if none are sharded."""
    found, other = seen(folder, name), seen(folder, name, rank=1)
    check(found, seen(alone, same_as))
    assert other["logs"] == found["logs"]
    assert other["weights"].keys() == (found["weights"].keys() if name == "no_shard" else set())


@pytest.mark.parametrize("name", ["everything", "best_and_twice"])
def test_numbers_of_one_process(together, alone, name):
    """Losses, gradient norms, evaluations and weights are those of one process with the same global batch."""
    check_as_one_process(together, alone, name, name)


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        pytest.param("grad_op", "steady", id="gradients sharded, prefetching"),
        pytest.param("no_shard", "steady", id="nothing sharded"),
        pytest.param("hybrid", "steady", id="copies of parts"),
        pytest.param("flat", "no_decay", id="flat parameters"),
        pytest.param("recomputed", "steady", id="activations computed again"),
        pytest.param("by_lightning", "steady", id="an instance of Lightning's strategy"),
        pytest.param("loaded_once", "steady", id="weights read by process 0 alone"),
    ],
)
def test_numbers_of_every_sharding(thorough, alone, name, same_as):
    """Whatever is sharded, the numbers are those of one process."""
    check_as_one_process(thorough, alone, name, same_as)


def test_wrapper_is_what_losses_are_computed_with(together):
    """``compute_loss`` is given torch's ``FullyShardedDataParallel``, as upstream's is."""
    assert seen(together, "everything")["called"] == "FullyShardedDataParallel"


def test_gradients_are_exchanged_once_an_update_step(together):
    """Each unit's gradients, of two layers and the rest, are reduced once, however many batches a window has."""
    assert seen(together, "everything")["reductions"] == [3] * 8


def test_evaluation_and_prediction(together, alone):
    """A model evaluates before it is trained, and evaluates and predicts afterwards."""
    found, expected = seen(together, "everything"), seen(alone, "everything")
    for when in ("before", "after"):
        assert found[when] == pytest.approx(expected[when], rel=TOLERANCE)
    for row, (one, other) in enumerate(zip(found["predictions"], expected["predictions"], strict=True)):
        length = len(helpers.token_rows(8, seed=1)[row]["input_ids"])  # behind it is padding, wider or narrower
        assert one[:length] == pytest.approx(other[:length], rel=1e-4, abs=1e-5)


def test_other_members_of_accelerator(together):
    """``get_state_dict`` gathers without ``unwrap`` too; a second model that is trained is refused on every rank."""
    assert_other_members(together, "everything")


def test_saved_models_are_read_by_from_pretrained(together):
    """``save_model`` and checkpoints write whole models, tied weights under each of their names."""
    from transformers import AutoModelForCausalLM

    folder = together / "everything" / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model).__name__ == "LlamaForCausalLM" == model.config.architectures[0]
    for name, weight in seen(together, "everything")["weights"].items():
        assert torch.equal(model.state_dict()[name], weight), name
    checkpoint = together / "resume_whole" / "output" / "checkpoint-3"
    assert {path.name for path in checkpoint.iterdir()} >= {"model.safetensors", "optimizer.bin", "scheduler.pt"}
    AutoModelForCausalLM.from_pretrained(checkpoint)
    for path in (folder, checkpoint):
        assert load_file(path / "model.safetensors").keys() >= {"lm_head.weight", "model.embed_tokens.weight"}


def test_best_model_and_a_second_run(together, alone):
    """The best checkpoint's weights are there at the end of a run; the same Trainer trains on from them."""
    found, expected = seen(together, "best_and_twice"), seen(alone, "best_and_twice")
    assert found["best"] == expected["best"] == 4
    check(found["second"], expected["second"], tolerance=1e-4)


def check_resumed(folder, name):
    """Fail unless the resumed run ended bit for bit as the uninterrupted one."""
    for rank in (0, 1):
        both = seen(folder, name, rank)
        whole, resumed = both["whole"], both["resumed"]
        assert resumed["logs"][:-1] == whole["logs"][:-1]
        assert all(torch.equal(resumed["weights"][key], weight) for key, weight in whole["weights"].items())


@pytest.mark.parametrize("name", ["resume_whole", "resume_sharded"])
def test_resumed_run_is_the_uninterrupted_one(together, name):
    """A run goes on from a checkpoint in the middle of an epoch bit for bit, whole or in parts."""
    check_resumed(together, name)


@pytest.mark.parametrize("kind", ["whole", "sharded"])
def test_saved_in_the_background(together, kind):
    """Written by threads of both processes while they train on, checkpoints are byte for byte those saved at once."""
    check_in_background(together, f"in_background_{kind}", f"resume_{kind}")


def test_sharded_checkpoints_have_the_names_of_accelerate(together):
    """Weights and optimizer are folders of torch.distributed.checkpoint under accelerate's names, no whole files.

    The model's configuration and the arguments are there too.
    """
    checkpoint = together / "resume_sharded" / "output" / "checkpoint-3"
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        assert {path.name for path in (checkpoint / name).iterdir()} == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    files = {path.name for path in checkpoint.iterdir()}
    assert not files & {"model.safetensors", "optimizer.bin", "optimizer.pt"}
    assert files >= {"config.json", "training_args.bin"}


def test_resumed_run_with_flat_parameters(thorough):
    """Flat parameters are saved by the model's own names, and a run goes on with them bit for bit."""
    check_resumed(thorough, "resume_flat")


def test_bf16(thorough, alone):
    """Under bf16 weights stay float32, and losses are near those of one process under autocast."""
    found, expected = seen(thorough, "bf16"), seen(alone, "bf16")
    assert {weight.dtype for weight in found["weights"].values()} == {torch.float32}
    check(found, expected, tolerance=0.05)


@pytest.mark.skipif(Version(metadata.version("transformers")) >= Version("5"), reason="every process reads all there")
def test_weights_are_read_by_process_0_alone(thorough):
    """The other process's model came without the weights that it trained."""
    assert [seen(thorough, "loaded_once", rank)["read"] for rank in (0, 1)] == [True, False]


def test_generation(thorough, alone):
    """A model generates with gathered weights what it generates whole."""
    assert (seen(thorough, "generated")["predictions"] == seen(alone, "generated")["predictions"]).all()


def test_weights_are_left_by_generation(thorough):
    """After an evaluation that generates, the weights of wrapped layers are what they were before it."""
    found = seen(thorough, "generated")
    assert (found["again"] == found["predictions"]).all()
    assert found["losses"][0] == found["losses"][1]


def test_accelerate_launch(tmp_path, alone):
    """``accelerate launch --use_fsdp`` shards a script that says nothing of it, as its options ask."""
    options = ["--use_fsdp", "--fsdp_version=1", "--fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP"]
    machine = ["--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    launcher = [sys.executable, "-m", "accelerate.commands.launch", *machine, f"--main_process_port={free_port()}"]
    ended = finish([start([*launcher, *options, SCRIPTS / "fsdp1_script.py", tmp_path, "launched"])])[0]
    assert ended.code == 0, ended.output
    check_as_one_process(tmp_path, alone, "launched", "steady")
    placed = seen(tmp_path, "launched")["placed"]
    assert (placed.version, placed.sharding, placed.wrapping) == (1, "full_shard", "transformer")


@pytest.mark.parametrize("written", ["resume_whole", "resume_sharded"])
def test_checkpoints_for_one_process(together, tmp_path, monkeypatch, written):
    """One process without FSDP goes on from a checkpoint of FSDP, whole or in parts."""
    monkeypatch.setenv("CHECKPOINT", str(together / written / "output" / "checkpoint-3"))
    fsdp1_script.write_scenario("resume_elsewhere", tmp_path)
    resumed, whole = seen(tmp_path, "resume_elsewhere"), seen(together, written)["whole"]
    check({**resumed, "logs": resumed["logs"][:-1]}, {**whole, "logs": whole["logs"][:-1]})


def test_checkpoint_of_one_process(tmp_path, alone, monkeypatch):
    """Under FSDP a run goes on from a checkpoint of one process."""
    monkeypatch.setenv("CHECKPOINT", str(alone / "steady" / "output" / "checkpoint-3"))
    launch(SCRIPT, tmp_path, "resume_elsewhere")
    resumed, whole = seen(tmp_path, "resume_elsewhere"), seen(alone, "steady")
    check({**resumed, "logs": resumed["logs"][:-1]}, {**whole, "logs": whole["logs"][:-1]})


def test_what_is_not_sharded_is_counted_whole(thorough, alone):
    """``total_flos`` with ``no_shard`` is that of one process; of a part on each rank it is about half, as upstream."""
    whole = seen(alone, "steady")["flos"]
    assert seen(thorough, "no_shard")["flos"] == whole
    assert seen(thorough, "grad_op")["flos"] == pytest.approx(whole / 2, rel=0.1)


def test_an_adapter_is_saved_and_resumed(thorough):
    """All of an adapter's weights are in both of its files, by peft's names, and a resumed run ends with the same bits.

    With peft 0.21 transformers writes files without a weight: layers have other names in wrappers than in state dicts.
    """
    found, folder = seen(thorough, "adapter"), thorough / "adapter" / "output" / "checkpoint-8"
    weights = found["whole"]["weights"]
    trained = {name.replace(".default", ""): value for name, value in weights.items() if "lora_" in name}
    assert trained
    for saved in (
        load_file(folder / "adapter_model.safetensors"),
        torch.load(folder / "pytorch_model_fsdp.bin", weights_only=True),
    ):
        assert saved.keys() == trained.keys()
        assert all(torch.equal(saved[name], value) for name, value in trained.items())
    assert found["resumed"]["logs"][:-1] == found["whole"]["logs"][:-1]
    assert all(torch.equal(found["resumed"]["weights"][name], value) for name, value in weights.items())
