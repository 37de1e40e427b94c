"""Sequences shared by processes: our Trainer and transformers' do the same to the last bit, and resume exactly."""

import pytest
import torch
import transformers
from packaging.version import Version

from hf_compat import Trainer
from hf_compat.engine.process_layout import place_run
from hf_compat.errors import TrainerSetupError
from tests.scripts.sharded_common import llama
from tests.support import helpers
from tests.support.parity import compare, differences, run
from tests.support.processes import outcome, run_scenarios
from tests.support.sequence_parallelism import sequence_arguments

pytest.importorskip("deepspeed")
from tests.scripts.sequence_parallel_scenarios import LENGTH, Rows, same_batches

UPSTREAM_SHARES_SEQUENCES = Version(transformers.__version__) >= Version("5.20")
needs_upstream = pytest.mark.skipif(
    not UPSTREAM_SHARES_SEQUENCES, reason="the installed transformers does not share sequences as 5.24 does"
)

QUICK = ("sequences_under_zero_2", "padded_sequences")
"""Run under both libraries."""

THOROUGH = (
    "sequences_under_zero_1",
    "sequences_under_zero_1_accumulated",
    "sequences_under_zero_3",
    "sequences_in_bf16",
    "packed_sequences",
    "sequences_with_one_key_head",
    "sequences_of_a_stream",
    "sequences_with_workers",
    "sequences_and_another_loss",
)

OWN = (
    "resume_sequences_under_zero_2",
    "resume_corrected_sequences",
    "resume_corrected_sequences_of_an_epoch",
    "sequences_twice",
    "same_batches_of_shared_sequences",
    "batches_that_cannot_be_shared",
)
"""Run under ours."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run the quick scenarios, in one launch; return where their outcomes are."""
    folder = tmp_path_factory.mktemp("sequences")
    upstream = [f"upstream:{name}" for name in QUICK] if UPSTREAM_SHARES_SEQUENCES else []
    run_scenarios(folder, [*upstream, *(f"ours:{name}" for name in (*QUICK, *OWN))])
    return folder


@pytest.fixture(scope="module")
def finished_thoroughly(tmp_path_factory):
    """Run the slow scenarios, in one launch; return where their outcomes are."""
    folder = tmp_path_factory.mktemp("sequences_thoroughly")
    words = [f"{library}:{name}" for name in THOROUGH for library in ("upstream", "ours")]
    resumed = ["ours:resume_sequences_under_zero_3"]
    resumed += [f"ours:resume_sequences_under_zero_{stage}:upstream" for stage in (2, 3)]
    run_scenarios(folder, [*words, *resumed])
    return folder


def check(folder, name, *, processes=2):
    """Fail with a readable list of what differs from transformers, on any process."""
    for rank in range(processes):
        found = differences(outcome(folder, name, "upstream", rank), outcome(folder, name, "ours", rank))
        assert not found, f"{name}, process {rank}:\n{found}"


def results(folder, name, library="ours", rank=0):
    """Return what a scenario has kept, by name; lists of what it has kept several times."""
    kept = {}
    for item in outcome(folder, name, library, rank).results:
        kept.setdefault(item["name"], []).append(item["value"])
    return kept


def logged(outcome, name):
    """Return the values of ``name`` in the order they were logged."""
    (train,) = (item["value"] for item in outcome.results if item["name"] == "train")
    return [entry[name] for entry in train["log_history"] if name in entry]


@needs_upstream
@pytest.mark.parametrize("name", QUICK)
def test_scenario(finished, name):
    """On each of two processes events, batches, logs, weights, partitions, results and files are equal."""
    check(finished, name)


@needs_upstream
@pytest.mark.slow
@pytest.mark.parametrize("name", THOROUGH)
def test_scenario_thoroughly(finished_thoroughly, name):
    """So they are under each ZeRO stage, with each kind of batches, and with an override of ``compute_loss``."""
    check(finished_thoroughly, name)


@needs_upstream
@pytest.mark.slow
def test_two_groups_of_two_ranks(tmp_path):
    """Four processes in two groups, each of which shares its own sequences, are equal too."""
    name = "sequences_of_four_processes"
    run_scenarios(tmp_path, [f"upstream:{name}", f"ours:{name}"], processes=4)
    check(tmp_path, name, processes=4)
    assert results(tmp_path, name)["samples per update step"] == [12]


def test_numbers_of_a_run(finished):
    """Of 20 rows, ten batches of two rows are trained on in each epoch, three of them in an update step."""
    kept = results(finished, "sequences_under_zero_2")
    assert kept["samples per update step"] == [6]
    assert kept["sizes"] == [[2, 1, 1]]
    shapes = {
        tuple(entry["shapes"])
        for entry in outcome(finished, "sequences_under_zero_2", "ours", 0).trace
        if entry["event"] == "forward" and entry["mode"] == "train"
    }
    assert shapes == {((2, LENGTH // 2),) * 4}


def test_an_epoch_loses_an_update_step(finished):
    """As under transformers, the second epoch has two update steps instead of four, of which the run warns."""
    ended = outcome(finished, "sequences_under_zero_2", "ours", 0)
    assert len(logged(ended, "loss")) == (6 if UPSTREAM_SHARES_SEQUENCES else 8)
    assert any("one update step less" in text for text in ended.warnings) == UPSTREAM_SHARES_SEQUENCES


def test_corrected_runs_have_all_update_steps(finished):
    """Under corrected semantics each of two epochs has four."""
    (train,) = results(finished, "resume_corrected_sequences")["train"]
    assert (train["state"]["global_step"], train["state"]["max_steps"]) == (8, 8)


def assert_resumed_exactly(folder, name, library="ours"):
    """Fail unless a resumed run ended in weights and optimizer state of the run that was not interrupted."""
    for rank in (0, 1):
        ended = outcome(folder, name, library, rank)
        assert ended.earlier is not None
        for kept in ("weights after train", "optimizer after train"):
            whole, resumed = (
                next(item["value"] for item in each.results if item["name"] == kept) for each in (ended.earlier, ended)
            )
            assert not list(compare(whole, resumed, kept))


@pytest.mark.parametrize(
    "name",
    ["resume_sequences_under_zero_2", "resume_corrected_sequences", "resume_corrected_sequences_of_an_epoch"],
)
def test_resumed_exactly(finished, name):
    """A run resumed between two batches that ranks have read together, or at the end of an epoch, ends as the whole."""
    assert_resumed_exactly(finished, name)


@needs_upstream
@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_resumed_from_upstream(finished_thoroughly, stage):
    """So does one from a checkpoint within the first epoch of transformers, which cannot resume that itself."""
    assert_resumed_exactly(finished_thoroughly, f"resume_sequences_under_zero_{stage}", "ours-upstream")


@needs_upstream
@pytest.mark.slow
def test_resumed_into_another_epoch(finished_thoroughly):
    """The resumed run loses the update steps of its second epoch that the whole run lost."""
    assert_resumed_exactly(finished_thoroughly, "resume_sequences_under_zero_3")


def test_numbers_of_one_process(finished, tmp_path):
    """Without clipping, two ranks that share sequences train as one process that has them whole."""
    one = run(lambda kit: same_batches(kit, per_device_train_batch_size=4), "ours", tmp_path)
    two = outcome(finished, "same_batches_of_shared_sequences", "ours", 0)
    assert len(logged(one, "loss")) == 6
    torch.testing.assert_close(logged(two, "loss"), logged(one, "loss"), rtol=1e-4, atol=0)


def test_nothing_is_left_behind(finished):
    """A Trainer trains twice, and the process is afterwards as it was; a run without shared sequences follows."""
    kept = results(finished, "sequences_twice")
    assert kept["losses"][0] == kept["losses"][1][-2:]
    assert kept["attention is transformers' own"] == [True, True]
    assert kept["left"] == [[None, None, None]]
    assert kept["size without it"] == [4]


REFUSED_BATCHES = {
    "positions": "batches have no position_ids, which sequence parallelism requires",
    "odd": "sequences of 11 tokens cannot be shared out over `sp_size=2` ranks",
    "shape": r"`attention_mask` of shape (2, 3) cannot be shared out like `input_ids` of shape (2, 12)",
}


@pytest.mark.parametrize("name", REFUSED_BATCHES)
def test_batch_is_refused(finished, name):
    """Every rank says why a batch cannot be shared."""
    for rank in (0, 1):
        (text,) = results(finished, "batches_that_cannot_be_shared", rank=rank)[name]
        assert REFUSED_BATCHES[name] in text


# What is requested


@pytest.mark.parametrize(
    ("sizes", "keywords", "text"),
    [
        pytest.param({"sp_size": 2}, {}, "is 2, but the world size is 1. Start 2 processes", id="too few"),
        pytest.param({"sp_size": 3, "dp_shard_size": 2}, {"devices": 4}, "is 6, but the world size is 4", id="groups"),
        pytest.param({"sp_size": 2}, {"devices": 4}, "dp_shard_size` so that the product is 4", id="too many"),
    ],
)
def test_processes_that_do_not_fit(sizes, keywords, text, tmp_path):
    """Sizes have to multiply to the world size, which is known before processes are started."""
    with pytest.raises(TrainerSetupError, match=text):
        place_run(sequence_arguments(tmp_path, sizes), keywords)


def recurrent():
    """Return a model that says it has a layer of linear attention."""
    model = llama()
    model.config.layer_types = ["full_attention", "linear_attention"]
    return model


@pytest.mark.parametrize(
    ("build", "text"),
    [
        pytest.param(lambda: llama(num_attention_heads=4), "num_attention_heads=4.*sp_size=3", id="heads"),
        pytest.param(lambda: llama(attn_implementation="eager"), "is 'eager'.*is 'sdpa'", id="attention"),
        pytest.param(helpers.PlainModel, "has no config of transformers", id="another model"),
        pytest.param(helpers.gpt2, "has no `num_key_value_heads`", id="a model without shared heads"),
        pytest.param(
            recurrent,
            "layers of type linear_attention",
            id="recurrent layers",
        ),
    ],
)
@pytest.mark.parametrize("name", ["model", "model_init"])
def test_models_that_cannot_share_sequences(build, text, name, tmp_path, monkeypatch):
    """A model whose heads or layers cannot be shared is refused when the Trainer is made, also a `model_init`'s."""
    monkeypatch.setattr("hf_compat.engine.backend.place_run", lambda args, keywords, model: layout(args))
    given = {name: build() if name == "model" else lambda: build()}
    with pytest.raises(TrainerSetupError, match=text):
        Trainer(args=sequence_arguments(tmp_path, {"sp_size": 3}), train_dataset=Rows(4), **given)


def layout(args):
    """Return the layout of one of three processes."""
    from hf_compat.arguments.parallelism import read_sequence_parallelism
    from hf_compat.engine.process_layout import ProcessLayout

    return ProcessLayout(args.launch, "deepspeed", sequences=read_sequence_parallelism(args))


def test_a_loss_function_is_refused(tmp_path, monkeypatch):
    """Transformers would not call it in training."""
    monkeypatch.setattr("hf_compat.engine.backend.place_run", lambda args, keywords, model: layout(args))
    with pytest.raises(TrainerSetupError, match=r"compute_loss_func.*sp_size=2"):
        Trainer(
            llama(),
            sequence_arguments(tmp_path, {"sp_size": 2}),
            train_dataset=Rows(4),
            compute_loss_func=lambda outputs, labels, num_items_in_batch=None: outputs.loss,
        )
