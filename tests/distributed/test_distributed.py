"""Two processes: our Trainer and transformers' do the same to the last bit, however the processes were started."""

import errno
import json
import re
import sys
from importlib import metadata

import pytest
import torch
from packaging.version import Version

from hf_compat.checkpoint.finding import list_checkpoints
from hf_compat.data.samplers import SeedableRandomSampler
from tests.scripts.distributed_scenarios import BODIES, numbered, one_global_batch
from tests.support.checkpoints import assert_same_checkpoints
from tests.support.parity import compare, differences, run
from tests.support.paths import SCRIPTS
from tests.support.processes import TORCHRUN, finish, free_port, outcome, run_scenarios, start

HERE_RELEASE = Version(metadata.version("transformers"))
# 4.57 cannot load its own optimizer state on two CPU processes: it asks torch for the device "cpu:0".
UPSTREAM_RESUMES = Version("5.0") <= HERE_RELEASE

QUICK = (
    "bf16",
    "everything_at_once",
    "batches_are_split",
    "batches_are_dispatched",
    "batches_stay_uneven",
    "stream_is_shared_out",
    "stream_is_dispatched",
    "stream_longer_than_its_length",
    "tokens_of_each_process",
    "settings_of_the_wrapper",
    "objects_are_gathered",
    "half_a_global_batch",
    "losses_of_a_model_that_averages",
    "outputs_have_the_loss",
    "reductions_are_counted",
    "members_of_the_accelerator",
    "inputs_that_the_model_writes_to",
    "save_is_called_on_each_rank",
    "label_smoothing_with_adafactor",
    "grouping_by_length",
    "find_batch_size",
    "search_with_two_objectives",
)
"""Run under both libraries."""

THOROUGH = (
    "fp16_without_a_gpu",
    "custom_loss_function",
    "ragged_predictions_are_padded",
    "dispatched_batches_are_split",
    "stream_shorter_than_its_length",
    "stream_that_each_worker_reads_whole",
    "order_of_a_generator",
    "language_model_with_dropout",
    "accumulation_of_a_classifier",
    "input_tokens_but_padding_are_counted",
    "rate_falls_on_a_plateau",
    "nan_loss_is_filtered_from_the_log",
    "several_evaluation_sets",
    "metrics_batch_by_batch",
    "inputs_and_losses_for_metrics",
    "only_the_best_is_saved_and_loaded",
    "best_model_by_epoch_and_one_checkpoint",
    "early_stopping",
    "checkpoints_of_a_plain_module",
    "gradient_checkpointing",
    "frozen_parameters",
    "encoder_decoder",
    "callback_stops_training_within_a_window",
    "methods_are_called_in_order",
    "generation_in_evaluations",
    "find_batch_size_while_accumulating",
    "search_the_default_space",
)

if UPSTREAM_RESUMES:
    THOROUGH += ("resume_with_the_batch_size_found",)
if Version("5.24") <= HERE_RELEASE:
    QUICK += ("loaded_in_shards",)
    THOROUGH += ("loaded_with_experts",)
if Version("5.17") <= HERE_RELEASE:
    QUICK += ("batches_of_equal_cost", "resume_batches_of_equal_cost")
    THOROUGH += ("batches_of_equal_cost_by_a_column", "too_few_samples_for_batches_of_equal_cost")

LAUNCHED_BY_HAND = {
    "torchrun's variables": ("RANK", "LOCAL_RANK", {"WORLD_SIZE": "2"}),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", {"OMPI_COMM_WORLD_SIZE": "2"}),
    "SLURM": (
        "SLURM_PROCID",
        "SLURM_LOCALID",
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_JOB_NAME": "train"},
    ),
}
"""Launcher to its variables for the number of a process, on all nodes and on its own, and those that all share."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run the quick scenarios, in one launch; return where their outcomes are."""
    folder = tmp_path_factory.mktemp("distributed")
    words = [f"{library}:{name}" for name in QUICK for library in ("upstream", "ours")]
    resuming = ["upstream:resume_two_processes"] if UPSTREAM_RESUMES else []
    run(lambda kit: numbered(kit, 4), "ours", folder / "another_number_of_processes" / "one")
    own = ["ours:resume_two_processes", "ours:uneven_training_is_refused"]
    own += ["ours:uneven_evaluation_is_refused", "mixed:settings_of_the_wrapper"]
    own += ["ours:another_number_of_processes", "ours:steady_steps_are_watched"]
    own.append("ours:a_save_in_the_background_is_watched")
    own += ["ours:resume_what_was_saved_in_the_background", "ours:disk_fails_in_the_background"]
    if Version("5.17") <= HERE_RELEASE:
        own.append("ours:resume_batches_of_equal_cost_later")
    own += ["ours:nodes_with_a_shared_disk", "ours:unknown_error_in_the_background"]
    own += ["ours:output_folder_becomes_a_file", "ours:search_that_ends_early"]
    own += ["ours:nodes_without_a_shared_disk", "ours:streams_go_on_at_their_state"]
    own += ["ours:one_batch_is_gathered_as_objects", "ours:losses_of_a_model_that_averages_corrected"]
    own += [f"{library}:parameters_without_gradients" for library in ("upstream", "ours")]
    run_scenarios(folder, [*words, *resuming, *own])
    return folder


def check(folder, name, library="ours"):
    """Fail with a readable list of what differs from transformers, on either process."""
    for rank in (0, 1):
        found = differences(outcome(folder, name, "upstream", rank), outcome(folder, name, library, rank))
        assert not found, f"{name}, process {rank}:\n{found}"


@pytest.mark.parametrize("name", QUICK)
def test_scenario(finished, name):
    """On each of two processes events, random states, batches, logs, weights, results and files are equal."""
    check(finished, name)


def test_arguments_of_transformers(finished):
    """Our Trainer takes transformers' own arguments, which have let the processes find each other."""
    check(finished, "settings_of_the_wrapper", "mixed")


def test_losses_of_a_model_that_averages(finished):
    """Losses are multiplied by the two ranks, as in transformers; corrected, they are those of the ranks apart."""
    for rank in (0, 1):
        kept = outcome(finished, "losses_of_a_model_that_averages_corrected", "ours", rank).results
        by_default, apart, corrected = (one["value"] for one in kept)
        assert corrected == apart
        assert by_default == pytest.approx({name: 2 * value for name, value in apart.items()}, rel=1e-3)


def test_parameters_without_gradients(finished):
    """Torch's error is that of transformers, with a note that says which field to set."""
    for rank in (0, 1):
        theirs, ours = (
            {one["name"]: one["value"] for one in outcome(finished, "parameters_without_gradients", who, rank).results}
            for who in ("upstream", "ours")
        )
        assert ours["error"] == theirs["error"]
        assert theirs["error"][1].startswith("Expected to have finished reduction in the prior iteration")
        assert any("Set `ddp_find_unused_parameters=True`" in note for note in ours["notes"])


def test_uneven_training_is_refused(finished):
    """Processes that would make different numbers of update steps are refused, on every process."""
    for rank in (0, 1):
        (kept,) = outcome(finished, "uneven_training_is_refused", "ours", rank).results
        assert "with even_batches=False, 3 batches leave some of the 2 processes with one batch fewer" in kept["value"]


def test_uneven_evaluation_is_refused(finished):
    """So is an evaluation whose processes would have different numbers of samples to gather."""
    for rank in (0, 1):
        kept = outcome(finished, "uneven_evaluation_is_refused", "ours", rank).results
        assert [one["name"] for one in kept] == ["evaluate", "predict"]
        assert all("has more samples on some of the 2 processes than on others" in one["value"] for one in kept)


def test_steady_steps(finished):
    """Six update steps exchange their gradients once each; besides there are votes after the 4th and the 8th."""
    for rank in (0, 1):
        (kept,) = outcome(finished, "steady_steps_are_watched", "ours", rank).results
        recorded = {"Tensor.cpu", "Tensor.numpy"}  # by what the scenarios record of every batch
        seen = {name: count for name, count in kept["value"].items() if name not in recorded}
        assert seen.pop("c10d.allreduce_.default float32") == 6
        assert seen == {"c10d.allreduce_.default int64": 2, "Tensor.tolist": 2}


def test_exchanges_of_a_save_in_the_background(finished):
    """The processes ask each other twice before training goes on, and once more whether the save before has ended."""
    for rank in (0, 1):
        (kept,) = outcome(finished, "a_save_in_the_background_is_watched", "ours", rank).results
        assert kept["value"]["c10d.allgather_.default uint8"] == 2 + 3


@pytest.mark.slow
def test_more_scenarios(tmp_path):
    """The same for further scenarios of one process, run by two."""
    run_scenarios(tmp_path, [f"{library}:{name}" for name in THOROUGH for library in ("upstream", "ours")])
    for name in THOROUGH:
        check(tmp_path, name)


def test_resuming_ends_where_the_whole_run_ends(finished):
    """A run of two processes resumed within an epoch ends with the same bits; transformers' 5.x does too."""
    if UPSTREAM_RESUMES:
        check(finished, "resume_two_processes")
    ends_where_the_whole_run_ends(finished, "resume_two_processes")


def ends_where_the_whole_run_ends(folder, name):
    for rank in (0, 1):
        resumed = outcome(folder, name, "ours", rank)
        whole = {each["name"]: each["value"] for each in resumed.earlier.results}
        again = {each["name"]: each["value"] for each in resumed.results}
        for part in ("weights after train", "optimizer after train", "scheduler after train"):
            assert not list(compare(whole[part], again[part], part))


@pytest.mark.skipif(Version("5.17") > HERE_RELEASE, reason="has no batches of equal cost")
@pytest.mark.parametrize("name", ["resume_batches_of_equal_cost", "resume_batches_of_equal_cost_later"])
def test_resuming_batches_of_equal_cost(finished, name):
    """So does one with batches of equal cost, in a later epoch too, where transformers takes the first one's order."""
    ends_where_the_whole_run_ends(finished, name)


def test_saving_in_the_background(finished):
    """Two processes write the files that they write at once, while they train on; a run goes on from them exactly."""
    for rank in (0, 1):
        at_once = outcome(finished, "resume_two_processes", "ours", rank)
        later = outcome(finished, "resume_what_was_saved_in_the_background", "ours", rank)
        files = set(at_once.earlier.files)
        assert {f"checkpoint-{step}/rng_state_{number}.pth" for step in (1, 6) for number in (0, 1)} < files
        for first, second in ((at_once, later), (at_once.earlier, later.earlier)):
            assert not differences(first, second)


def test_disk_that_fails_in_the_background(finished):
    """The next save raises on both processes, though one alone writes; asked to, the run goes on and saves again."""
    output = finished / "disk_fails_in_the_background" / "ours" / "output"
    for rank in (0, 1):
        results = outcome(finished, "disk_fails_in_the_background", "ours", rank).results
        kept = {each["name"]: each["value"] for each in results}
        assert "checkpoint-4` cannot be written: " in kept["error"]
        assert (kept["errno"], kept["file"]) == (errno.EFBIG, "<output>/raise/checkpoint-4")
        assert (kept["update steps under raise"], kept["update steps under warn"]) == (6, 7)
    assert [item.step for item in list_checkpoints(output / "raise")] == [2]
    assert [item.step for item in list_checkpoints(output / "warn")] == [2, 6, 7]
    assert not [*output.rglob(".*")]


def test_nodes_without_a_shared_disk(finished):
    """Each node keeps what it keeps of a save at once, and nothing of one for which the other's disk fails."""
    output = finished / "nodes_without_a_shared_disk" / "ours" / "output"
    for by in ("one", "each"):
        for node in "01":
            assert_same_checkpoints(*(output / node / by / when for when in ("later", "at once")))
    assert {path.name for path in (output / "1" / "one" / "later" / "checkpoint-2").iterdir()} == {
        "lightning.json",
        "rng_state_1.pth",
    }
    for rank in (0, 1):
        results = outcome(finished, "nodes_without_a_shared_disk", "ours", rank).results
        kept = {each["name"]: each["value"] for each in results}
        assert "checkpoint-4` cannot be written: Rank 1 could not write: " in kept["error"]
        assert kept["errno"] == errno.EFBIG
        for answer, steps in (("raise", [2]), ("warn", [2, 6, 7])):
            assert [item.step for item in list_checkpoints(output / str(rank) / "fails" / answer)] == steps
    assert not [*output.rglob(".*")]


def test_nodes_with_a_shared_disk(finished):
    """Both nodes write one folder, and each flushes it when all is written."""
    output = finished / "nodes_with_a_shared_disk" / "ours" / "output"
    assert_same_checkpoints(*(output / when for when in ("later", "at once")))
    for rank in (0, 1):
        (kept,) = outcome(finished, "nodes_with_a_shared_disk", "ours", rank).results
        assert kept["value"] == [True] * 4


def test_an_error_that_cannot_be_pickled(finished):
    """The process where it happened raises it, the other one tells of it."""
    texts = [outcome(finished, "unknown_error_in_the_background", "ours", rank).results[0]["value"] for rank in (0, 1)]
    assert texts == ["_OwnError: of my own", "CheckpointError: Rank 0 could not save: _OwnError: of my own"]


def test_a_search_that_ends_early(finished):
    """A pruned trial ends after an epoch on each process, and the search after three trials; the first has the best."""
    for rank, best in ((0, ["0", 0.5, {"seed": 0}]), (1, None)):
        kept = outcome(finished, "search_that_ends_early", "ours", rank).results
        assert [each["value"] for each in kept] == [[0, 2.0], [1, 1.0], [2, 2.0], best]


def test_an_output_folder_that_is_gone(finished):
    """What the first process cannot make or tidy up before a run ends all of them, with its text."""
    texts = [outcome(finished, "output_folder_becomes_a_file", "ours", rank).results[0]["value"] for rank in (0, 1)]
    assert [text.split(": ")[0] for text in texts] == ["OutputFolderError", "CheckpointWriteError"]
    assert "File exists, and it is no folder. Remove the file, or name another folder." in texts[0]
    assert texts[1] == texts[0].replace("OutputFolderError: ", "CheckpointWriteError: Rank 0 could not write: ")


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        pytest.param("one reads, 0 workers", {*range(28, 37)}, id="one reads for both"),
        pytest.param("one reads, 2 workers", {*range(28, 37)}, id="its workers"),
        pytest.param("both read, 0 workers", {*range(28, 37)} | {*range(4)}, id="both read"),
        pytest.param("both read, 2 workers", {*range(24, 37)} | {*range(8)}, id="their workers"),
        pytest.param("shards, 0 workers", set(), id="each its shards"),
    ],
)
def test_streams_go_on_at_their_state(finished, kind, read):
    """What was used is not read again, but for a first round that fills up the last; the run ends alike."""
    for rank in (0, 1):
        results = outcome(finished, "streams_go_on_at_their_state", "ours", rank).results
        kept = {each["name"]: each["value"] for each in results}
        whole, rest = (kept[f"{kind}: {part}"] for part in ("whole", "rest"))
        assert rest["seen"] == whole["seen"][7:]
        assert not list(compare(whole["weights"], rest["weights"], "weights"))
        if rank == 0 or "both" in kind:  # where another reads, what the workers read is not used
            assert {*rest["read"]} == read


def test_another_number_of_processes_goes_on_at_the_next_sample(finished):
    """A run of one process, eight samples into its first epoch, is finished by two: they see the other eighteen."""
    ranks = [outcome(finished, "another_number_of_processes", "ours", rank).results for rank in (0, 1)]
    first, second = ({each["name"]: each["value"] for each in results} for results in ranks)
    rounds = [[*left, *right] for left, right in zip(first["seen"], second["seen"], strict=True)]
    assert [len(each) for each in rounds[:3]] == [6, 6, 6]
    order = list(SeedableRandomSampler(range(26), data_seed=42))
    assert [sample for each in rounds[:3] for sample in each] == order[8:]
    assert sorted({sample for each in rounds[3:] for sample in each}) == list(range(26))
    assert first["epoch"] == second["epoch"] == 2


def test_one_process_with_the_same_global_batch(finished, tmp_path):
    """Two processes with half of each batch log of their training what one process logs, within rounding."""
    two = outcome(finished, "half_a_global_batch", "ours", 0)
    one = run(lambda kit: one_global_batch(kit, size=4), "ours", tmp_path)
    logs = [entry["logs"] for entry in one.trace if "logs" in entry]
    halves = [entry["logs"] for entry in two.trace if "logs" in entry]
    assert len(logs) == len(halves) > 6
    for whole, half in zip(logs, halves, strict=True):
        for name in whole.keys() & {"loss", "grad_norm", "learning_rate", "train_loss", "epoch"}:
            assert half[name] == pytest.approx(whole[name], rel=1e-5), name


def test_one_reduction_an_update_step(finished):
    """Gradients are exchanged once per update step, the short last window included; losses see DDP's wrapper."""
    kept = {each["name"]: each["value"] for each in outcome(finished, "reductions_are_counted", "ours", 0).results}
    assert kept["reductions"] == [1, 1, 1]  # 26 rows are 7 batches of 2 for each: windows of 3, 3 and 1
    assert kept["given"] == ["DistributedDataParallel"]


def test_every_sample_is_evaluated_once(finished):
    """Evaluating seven samples on two processes predicts seven, not the eight that fill the batches up."""
    kept = [each for each in outcome(finished, "stream_is_dispatched", "ours", 0).results if each["name"] == "predict"]
    assert [len(each["value"]["predictions"]) for each in kept] == [7]


def test_one_batch_gathered_as_objects(finished):
    """An evaluation of one batch on each process has the mean of its losses."""
    kept = outcome(finished, "one_batch_is_gathered_as_objects", "ours", 0).results
    assert [each["name"] for each in kept] == ["as objects", "as objects", "as tensors"]
    assert len({each["value"] for each in kept}) == 1


def test_ranks_train_one_model_after_an_evaluation(tmp_path):
    """An evaluation before the training does not keep DDP's wrapper away: both ranks end with the same weights."""
    run_scenarios(tmp_path, ["ours:evaluation_before_training"])
    weights = []
    for rank in (0, 1):
        kept = {
            each["name"]: each["value"]
            for each in outcome(tmp_path, "evaluation_before_training", "ours", rank).results
        }
        weights.append(kept["weights after train"])
    first, second = weights
    assert all(torch.equal(value, second[name]) for name, value in first.items())


# Starting


def started(folder, processes):
    """Return what each process of a launched script wrote down, once all ended well."""
    for each in finish(processes):
        assert each.code == 0, each.output
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9].json"))]


def check_launch(seen, *, nodes=1):
    """Fail unless two processes trained one model."""
    assert [each["world_size"] for each in seen] == [2, 2]
    assert [each["local_rank"] for each in seen] == ([0, 1] if nodes == 1 else [0, 0])
    assert [each["should_save"] for each in seen] == [True, False]
    assert [each["nodes"] for each in seen] == [nodes, nodes]
    assert [each["steps"] for each in seen] == [8, 8]
    assert seen[0]["weights"] == seen[1]["weights"]
    assert seen[0]["losses"] == seen[1]["losses"]


def script(folder, **options):
    """Return the words of the script that the launchers start."""
    words = [SCRIPTS / "launch_script.py", "--folder", folder, "--output_dir", folder / "output"]
    return [*words, *(word for name, value in options.items() for word in (f"--{name}", value))]


def launch_by_hand(folder, launcher, **more):
    """Return the processes of one run, each told by ``launcher``'s variables which one it is."""
    rank, local_rank, variables = LAUNCHED_BY_HAND[launcher]
    variables = variables | {"MASTER_PORT": str(free_port())}
    command = [sys.executable, *script(folder, log_level="info", log_level_replica="error")]
    return [start(command, **variables, **more, **{rank: str(number), local_rank: str(number)}) for number in (0, 1)]


def test_lightning_starts_the_processes(tmp_path):
    """``lightning={"devices": 2, "strategy": "ddp"}`` under plain python trains one model on two processes."""
    seen = started(tmp_path, [start([sys.executable, *script(tmp_path, start=2)])])
    check_launch(seen)
    written = {path.name for path in (tmp_path / "output" / "checkpoint-8").iterdir()}
    assert {"rng_state_0.pth", "rng_state_1.pth", "optimizer.pt", "lightning.json"} <= written
    assert "rng_state.pth" not in written


@pytest.mark.slow
def test_slurm_variables(tmp_path):
    """Processes that SLURM started find each other and train one model; each writes a log file, if asked for."""
    check_launch(started(tmp_path, launch_by_hand(tmp_path, "SLURM", HF_COMPAT_LOG_DIR=str(tmp_path / "logs"))))
    logs = [path.read_text() for path in sorted((tmp_path / "logs").iterdir())]
    lines = ["INFO hf_compat.script: trained, in detail", "ERROR hf_compat.script: nothing went wrong", "mind this"]
    lines += ["INFO hf_compat.trainer.progress: ***** Running training *****"]
    assert [[line in log for line in lines] for log in logs] == [[True] * 4, [False, True, False, False]]
    assert logs[0].count("Running training") == 1


@pytest.mark.slow
def test_cluster_environment_of_the_user(tmp_path):
    """So do processes to whose Trainer a Lightning ``ClusterEnvironment`` is handed that tells which one it is."""
    port = free_port()
    commands = [[sys.executable, *script(tmp_path, rank=number, port=port)] for number in (0, 1)]
    check_launch(started(tmp_path, [start(command) for command in commands]))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [name for name in LAUNCHED_BY_HAND if name != "SLURM"])
def test_variables_by_hand(tmp_path, launcher):
    """So do processes told by other launchers' variables."""
    check_launch(started(tmp_path, launch_by_hand(tmp_path, launcher)))


@pytest.mark.slow
def test_accelerate_launch(tmp_path):
    """``accelerate launch`` starts a ported script as it is."""
    options = ["--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    launcher = [sys.executable, "-m", "accelerate.commands.launch", *options, f"--main_process_port={free_port()}"]
    seen = started(tmp_path, [start([*launcher, *script(tmp_path)])])
    check_launch(seen)


@pytest.mark.slow
def test_deepspeed_launcher(tmp_path):
    """So does ``deepspeed``, which adds ``--local_rank`` to the script's options."""
    pytest.importorskip("deepspeed")
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus=2", f"--master_port={free_port()}"]
    process = start([*launcher, *script(tmp_path)], DS_ACCELERATOR="cpu")
    check_launch(started(tmp_path, [process]))


@pytest.mark.slow
def test_two_nodes(tmp_path):
    """Two nodes of one process each train one model."""
    options = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    command = [word for word in TORCHRUN if word != "--standalone"]
    nodes = [start([*command, *options, f"--node-rank={number}", *script(tmp_path)]) for number in (0, 1)]
    check_launch(started(tmp_path, nodes), nodes=2)


# Failing


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_one_process_fails(tmp_path, how):
    """A process that raises, or is killed, ends the others; checkpoints written before are whole, and no other is."""
    script = SCRIPTS / "fault_script.py"
    ended = finish([start([*TORCHRUN, "--nproc-per-node=2", script, tmp_path, how])])[0]
    assert ended.code != 0
    assert ("process 1 gives up" in ended.output) == (how == "raise")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


@pytest.mark.slow
def test_one_process_fails_after_a_save_in_the_background(tmp_path):
    """The process saves its part before it ends, though the other one waits for it to train on."""
    script = SCRIPTS / "fault_script.py"
    ended = finish([start([*TORCHRUN, "--nproc-per-node=2", script, tmp_path, "after a save"])])[0]
    assert ended.code != 0
    assert "process 1 gives up" in ended.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-4"]


@pytest.mark.slow
def test_one_process_hangs(tmp_path):
    """The others wait no longer than ``ddp_timeout``, here half a minute, and end it all."""
    script = SCRIPTS / "fault_script.py"
    ended = finish([start([*TORCHRUN, "--nproc-per-node=2", script, tmp_path, "hang"])])[0]
    assert ended.code != 0
    assert re.search("timed out|timeout", ended.output, re.I), ended.output  # gloo says either
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


def test_every_scenario_has_a_name():
    """The lists above name scenarios that there are."""
    assert {*QUICK, *THOROUGH} <= BODIES.keys()
