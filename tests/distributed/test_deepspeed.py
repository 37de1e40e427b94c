"""DeepSpeed in two processes: our Trainer and transformers' do the same to the last bit."""

import json
import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from packaging.version import Version
from safetensors.torch import load_file

from hf_compat import Trainer, TrainingArguments
from hf_compat.arguments.parallelism import ParallelSizes
from hf_compat.engine.precision import FullPrecision
from hf_compat.engine.strategies import deepspeed_engine
from hf_compat.engine.strategies.choice import StrategyRequest, deepspeed_limits
from hf_compat.errors import HFCompatWarning, ModelError, TrainerSetupError
from tests.support.checkpoints import assert_same_checkpoints
from tests.support.helpers import PlainModel, gpt2, vector_rows
from tests.support.parity import compare, differences, run
from tests.support.paths import SCRIPTS
from tests.support.processes import build_cpu_adam, finish, free_port, outcome, run_scenarios, start

pytest.importorskip("deepspeed")
from deepspeed.ops.op_builder import AsyncIOBuilder
from deepspeed.runtime import config as config_errors

from tests.scripts.deepspeed_scenarios import config, global_batch

QUICK = (
    *("zero_1", "optimizer_and_schedule_of_the_config", "weights_stay_in_parts", "resume_zero_3"),
    *("lightnings_name_of_zero_2", "lightnings_strategy_of_zero_3", "given_optimizer_of_zero_2"),
)
"""Run under both libraries."""

SPLIT = ("split_by_zero_1", "resume_split")
"""As the quick ones, with matrices that DeepSpeed splits."""
SPLIT_ALONE = ("split_twice", "split_counted_once", "split_in_the_background")
"""Without a counterpart."""
SPLIT_THOROUGHLY = (
    "split_by_zero_0", "split_by_zero_2", "split_in_bf16", "split_averaged_by_batch", "split_parts_stay",
    "best_of_split",
)  # fmt: skip
UPSTREAM_COUNTS_ITEMS_ONCE = Version(transformers.__version__) >= Version("5.24")
needs_one_count = pytest.mark.skipif(
    not UPSTREAM_COUNTS_ITEMS_ONCE,
    reason="the installed transformers counts the items of ranks that share batches once a rank",
)

THOROUGH = (
    "zero_0",
    "zero_2",
    "zero_3",
    "accumulation_that_the_config_leaves_out",
    "optimizer_of_the_config",
    "schedule_of_the_config",
    "deepspeed_in_bf16",
    "deepspeed_in_fp16_without_a_gpu",
    "sizes_beside_zero_2",
    "weights_alone_of_deepspeed",
    "best_model_of_deepspeed",
    "evaluates_without_training",
    "generates_under_zero_3",
    "resume_zero_2",
    "backward_of_a_training_step",
    "schedule_free_under_zero_2",
)

IN_BACKGROUND = ("zero_2_in_the_background", "zero_3_in_the_background", "parts_in_the_background")
"""Run under ours, the first with the quick ones."""

LORA = ("lora_under_zero_3", "lora_stays_in_parts")
LORA_IN_BACKGROUND = "lora_in_the_background"
UPSTREAM_TRAINS_LORA = Version(transformers.__version__) >= Version("5")
"""Before, its schedule has a learning rate for the group that DeepSpeed drops."""

REFUSALS = {
    "processes": "contains the optimizer states of 2 ranks, and this run has world size 2. Copy the files of all nodes",
    "code": "_optim_states.pt` is refused: it contains more than tensors and plain values",
    "outside": "latest` contains `../elsewhere`, which is not a folder next to it",
    "none": "Can't find a valid checkpoint at",
}

SETUPS = {
    "best of weights alone": (
        {"save_only_model": True, "load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"},
        {},
        "DeepSpeed can't be used with `save_only_model` along with `load_best_model_at_end`",
    ),
    "two optimizers": (
        {"optim": "sgd", "deepspeed": config(1, optimizer={"type": "Adam", "params": {}})},
        {},
        "`optim='sgd'`: the DeepSpeed config has an `optimizer` too",
    ),
    "files written later": (
        {"deepspeed": config(2, checkpoint={"writer": {"type": "PYTHON", "decoupled": True}})},
        {},
        "`checkpoint.writer.decoupled` in the DeepSpeed config is not supported: DeepSpeed would still be writing",
    ),
    "files written later by DataStates": (
        {"deepspeed": config(2, datastates_ckpt={"host_cache_size": 1})},
        {},
        "`datastates_ckpt` in the DeepSpeed config is not supported: DeepSpeed would still be writing",
    ),
    "matrices of more ranks than there are": (
        {"deepspeed": config(2, tensor_parallel={"autotp_size": 2})},
        {},
        "`tensor_parallel.autotp_size=2` in the DeepSpeed config does not divide the world size, which is 1",
    ),
    "sequence parallelism of its own": (
        {"deepspeed": config(2, sequence_parallel_size=3)},
        {},
        "`sequence_parallel_size=3` in the DeepSpeed config, but `sp_size` of `parallelism_config` is 1",
    ),
    "saving in the background by a writer": (
        {"deepspeed": config(2, checkpoint={"writer": {"type": "PYTHON"}}), "save_async": True},
        {},
        "`save_async=True` .* is not supported with `checkpoint.writer`",
    ),
    "Lightning's own": (
        {},
        {"lightning": {"strategy": "deepspeed_stage_3"}},
        "'strategy': 'deepspeed_stage_3'.* contradicts `deepspeed=",
    ),
    "another strategy": ({}, {"lightning": {"strategy": "ddp"}}, "'ddp'.* contradicts `deepspeed`"),
    "two things at once": (
        {"deepspeed": config(2, checkpoint={"writer": {"type": "PYTHON", "decoupled": True}})},
        {"lightning": {"max_epochs": 4}},
        r"(?s)'max_epochs': 4.*`checkpoint.writer.decoupled` in the DeepSpeed config is not supported",
    ),
    "another strategy and more": (
        {},
        {"lightning": {"max_epochs": 4, "strategy": "ddp"}},
        r"(?s)'max_epochs': 4.*'ddp'.* contradicts `deepspeed`",
    ),
}
"""Fields, arguments of the Trainer, and what the error says."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run the quick scenarios, in one launch; return where their outcomes are."""
    folder = tmp_path_factory.mktemp("deepspeed")
    words = [f"{library}:{name}" for name in QUICK for library in ("upstream", "ours")]
    handed_over = ["upstream:resume_zero_3:ours", "ours:resume_zero_3:upstream"]
    run_scenarios(
        folder,
        [
            *words,
            *handed_over,
            "ours:half_a_global_batch_of_zero_3",
            f"ours:{IN_BACKGROUND[0]}",
            "ours:refused_checkpoints",
            "ours:parts_are_written_once",
            "ours:second_model_beside_deepspeed",
            *(f"{library}:{name}" for name in SPLIT for library in ("upstream", "ours")),
            "ours:split_refused",
            *(f"ours:{name}" for name in LORA),
            *(f"upstream:{name}" for name in (*LORA, LORA_IN_BACKGROUND) if UPSTREAM_TRAINS_LORA),
            f"ours:{LORA_IN_BACKGROUND}",
        ],
    )
    return folder


def check(folder, name, library="ours"):
    """Fail with a readable list of what differs from transformers, on either process."""
    for rank in (0, 1):
        found = differences(outcome(folder, name, "upstream", rank), outcome(folder, name, library, rank))
        assert not found, f"{name}, process {rank}:\n{found}"


def losses(outcome):
    """Return losses, gradient norms and evaluations in the order they were logged."""
    (kept,) = (item["value"] for item in outcome.results if item["name"] == "train")
    names = ("loss", "grad_norm", "learning_rate", "eval_loss")
    return [entry[name] for entry in kept["log_history"] for name in names if name in entry]


@pytest.mark.parametrize("name", QUICK)
def test_scenario(finished, name):
    """On each of two processes events, batches, logs, weights, partitions, results and files are equal."""
    check(finished, name)


@needs_one_count
@pytest.mark.parametrize("name", SPLIT)
def test_matrices_are_split(finished, name):
    """So they are where both processes have parts of each matrix and train on the same batches."""
    check(finished, name)


def test_items_of_ranks_that_share_batches(finished):
    """Both processes count the items of a batch once; transformers' 4.57 counts them on each."""
    theirs, ours = (
        [
            int(re.search(r"\d+", event["num_items_in_batch"])[0])
            for event in outcome(finished, "split_by_zero_1", library, 0).trace
            if "num_items_in_batch" in event
        ]
        for library in ("upstream", "ours")
    )
    assert len(ours) > 10
    assert theirs == [count if UPSTREAM_COUNTS_ITEMS_ONCE else 2 * count for count in ours]


def test_split_run_goes_on_with_its_sizes_alone(finished):
    """A checkpoint of split matrices is refused by every rank of a run with another size, which says both."""
    for rank in (0, 1):
        (kept,) = outcome(finished, "split_refused", "ours", rank).results
        assert re.search(
            r"`.*checkpoint-2` was written by 2 processes with `tensor_parallel.autotp_size=2` .* has 2 with 1,",
            kept["value"],
        )


@pytest.mark.parametrize("library", ["upstream-ours", "ours-upstream"])
def test_checkpoints_are_handed_over(finished, library):
    """Either library goes on from the checkpoint of the other as from its own."""
    check(finished, "resume_zero_3", library)


@pytest.mark.parametrize("name", ["resume_zero_3", "resume_split"])
def test_resumed_exactly(finished, name):
    """A run that goes on within an epoch ends in the partitions of the run that was not interrupted."""
    for rank in (0, 1):
        resumed = outcome(finished, name, "ours", rank)
        ends = [
            next(item["value"] for item in each.results if item["name"] == "optimizer after train")
            for each in (resumed.earlier, resumed)
        ]
        assert not list(compare(*ends, "optimizer"))


def check_in_background(folder, name):
    """Fail unless a run saved in the background what it saves at once."""
    output = folder / name / "ours" / "output"
    assert_same_checkpoints(output / "later", output / "at once")


def test_saved_in_the_background(finished):
    """Written by threads while both processes train on, DeepSpeed's files are byte for byte those saved at once."""
    check_in_background(finished, IN_BACKGROUND[0])


def test_weights_are_not_cloned_before_training_goes_on(finished):
    """Of three saves at once DeepSpeed clones the weights on both ranks, of as many in the background on none."""
    for rank in (0, 1):
        (kept,) = outcome(finished, IN_BACKGROUND[0], "ours", rank).results
        assert kept["value"] == 3


def test_parts_are_written_once(finished):
    """Weights and optimizer state of a checkpoint are in the same files; a user's second save writes again."""
    for rank in (0, 1):
        (kept,) = outcome(finished, "parts_are_written_once", "ours", rank).results
        assert kept["value"] == ["checkpoint", "mine", "mine"]


def test_a_second_model(finished):
    """Under ZeRO-2 and 3 a second model is prepared on every rank if it is not trained, else refused."""
    for rank in (0, 1):
        kept = outcome(finished, "second_model_beside_deepspeed", "ours", rank).results
        refused = [["a second trainable model is not supported" in text for text in item["value"]] for item in kept]
        assert refused == [[True, True]] * 2


@pytest.mark.parametrize("name", LORA)
def test_lora(finished, name):
    """Under ZeRO-3 LoRA trains with the numbers of upstream, whose 4.57 cannot, and adapters are saved."""
    if UPSTREAM_TRAINS_LORA:
        check(finished, name)
    ours = outcome(finished, name, "ours", 0)
    assert len(losses(ours)) > 4
    for place in ("checkpoint-3/", ""):
        saved = ours.files[f"{place}adapter_model.safetensors"]["tensors"]
        assert len(saved) == 4
        assert all(value.numel() > 0 for value in saved.values())


@pytest.mark.skipif(not UPSTREAM_TRAINS_LORA, reason="upstream has nothing to compare with")
def test_lora_in_the_background(finished):
    """Under ZeRO-2 checkpoints of LoRA that are written while both processes train on are those of upstream."""
    check(finished, LORA_IN_BACKGROUND)
    saved = outcome(finished, LORA_IN_BACKGROUND, "ours", 0).files
    for step in (2, 4, 6):
        states = f"global_step{step}/zero_pp_rank_1_mp_rank_00_optim_states.pt"
        assert {f"checkpoint-{step}/{name}" for name in ("adapter_model.safetensors", states)} <= saved.keys()


def test_one_process_with_the_same_global_batch(finished, tmp_path):
    """Two processes under ZeRO-3 train as one process without DeepSpeed does, to 1e-5."""
    one = run(lambda kit: global_batch(kit, size=4), "ours", tmp_path)
    two = outcome(finished, "half_a_global_batch_of_zero_3", "ours", 0)
    assert len(losses(one)) == 27
    torch.testing.assert_close(losses(two), losses(one), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", REFUSALS)
def test_checkpoint_is_refused(finished, name):
    """Every process says why it does not go on, and nothing in the files has run."""
    for rank in (0, 1):
        kept = {item["name"]: item["value"] for item in outcome(finished, "refused_checkpoints", "ours", rank).results}
        assert REFUSALS[name] in kept[name]
        assert kept["was run"] is False


@pytest.mark.parametrize(("fields", "given", "message"), SETUPS.values(), ids=SETUPS)
def test_setup_is_refused(tmp_path, fields, given, message):
    """What cannot be carried out is an error before anything is built."""
    model = PlainModel()
    chosen = {"deepspeed": config(2), "use_cpu": True, "report_to": "none", "metric_for_best_model": "loss", **fields}
    rows = vector_rows(4)
    with pytest.raises(TrainerSetupError, match=message):
        Trainer(model, TrainingArguments(str(tmp_path), **chosen), train_dataset=rows, eval_dataset=rows, **given)


def test_a_model_that_is_split_already(tmp_path):
    """A model that ``from_pretrained`` has split by a plan is refused under DeepSpeed as without it."""
    model, args = PlainModel(), TrainingArguments(str(tmp_path), deepspeed=config(2), use_cpu=True, report_to="none")
    model._tp_size = 2
    with pytest.raises(ModelError, match="PlainModel is split or sharded already"):
        Trainer(model, args, train_dataset=vector_rows(4))


def test_a_config_that_deepspeed_refuses(tmp_path, monkeypatch):
    """It is one error of ours, by whichever of its errors DeepSpeed says so."""

    def initialize(**_):
        raise config_errors.DeepSpeedConfigError("'zero_optimization.mics_shard_size' is no longer supported")

    monkeypatch.setattr(deepspeed_engine, "import_deepspeed", lambda device: SimpleNamespace(initialize=initialize))
    monkeypatch.setattr(deepspeed_engine, "prepare_process", lambda launch, device: None)
    launch = TrainingArguments(str(tmp_path), use_cpu=True).launch
    with pytest.raises(TrainerSetupError, match=r"`deepspeed`: .* Change what it names: .*mics_shard_size"):
        deepspeed_engine.build_engine(PlainModel(), {}, device=torch.device("cpu"), launch=launch)


@pytest.mark.parametrize("stage", [2, 3])
def test_batch_size_of_zero_3(tmp_path, stage):
    """As by transformers, it is not searched under ZeRO-3; under ZeRO-1 and 2 it is."""
    args = TrainingArguments(str(tmp_path), deepspeed=config(2), use_cpu=True, auto_find_batch_size=True)
    args.hf_deepspeed_config.config["zero_optimization"]["stage"] = stage  # no model is partitioned in this process
    args.hf_deepspeed_config.set_stage_and_offload()
    told = deepspeed_limits(StrategyRequest(args, None, False, FullPrecision(), None, ParallelSizes()))
    assert ["`auto_find_batch_size` isn't supported yet with DeepSpeed Zero-3" in text for text in told] == [True] * (
        stage == 3
    )


def limits_of(folder, stage, *, model=None, tensor=1, **zero):
    """Return what is refused about these keys of ``zero_optimization``; no model is partitioned in this process."""
    args = TrainingArguments(str(folder), deepspeed=config(2, tensor_parallel={"autotp_size": tensor}), use_cpu=True)
    args.hf_deepspeed_config.config["zero_optimization"] |= {"stage": stage, **zero}
    args.hf_deepspeed_config.set_stage_and_offload()
    return deepspeed_limits(StrategyRequest(args, model, False, FullPrecision(), None, ParallelSizes()))


def test_split_matrices_of_zero_3(tmp_path):
    """Under ZeRO-3 matrices are not split, as with transformers, which fails; under ZeRO-2 they are."""
    assert limits_of(tmp_path, 2, tensor=2) == []
    (told,) = limits_of(tmp_path, 3, tensor=2)
    assert "`tensor_parallel.autotp_size=2` in the DeepSpeed config is not supported with ZeRO-3" in told


def test_split_matrices_below_adapters(tmp_path):
    """Matrices with adapters are not split, as with transformers, which fails too."""
    peft = pytest.importorskip("peft")
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft reads a name that is deprecated
        model = peft.get_peft_model(gpt2(), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    (told,) = limits_of(tmp_path, 2, tensor=2, model=model)
    assert "is not supported with the adapters of a peft model" in told


@pytest.mark.parametrize(
    ("stage", "size", "refused"),
    [(3, 1, False), (3, 2, False), (3, 3, True), (3, 4, False), (3, 8, False), (2, 3, False)],
)
def test_partitions_of_zero_3(tmp_path, monkeypatch, stage, size, refused):
    """A group of ranks that hold all parameters divides the ranks, or is all of them; other stages have none."""
    monkeypatch.setattr(TrainingArguments, "world_size", 4)
    told = limits_of(tmp_path, stage, zero_hpz_partition_size=size)
    assert ["zero_hpz_partition_size=3` in the DeepSpeed config does not divide the 4" in text for text in told] == [
        True
    ] * refused


@pytest.mark.parametrize("stage", [2, 3])
def test_offloading_to_a_disk(tmp_path, stage):
    """Where DeepSpeed cannot build what writes to it, that is an error; ZeRO-2 offloads to the CPU instead."""
    if AsyncIOBuilder().is_compatible(verbose=False):
        pytest.skip("DeepSpeed builds async_io on this machine")
    told = limits_of(tmp_path, stage, offload_optimizer={"device": "nvme", "nvme_path": str(tmp_path)})
    wanted = r"offload_optimizer.device=nvme` .* cannot build .* Install libaio"
    assert [re.search(wanted, text) is not None for text in told] == [True] * (stage == 3)


def test_given_optimizer(tmp_path):
    """An optimizer that is passed is dropped as by transformers, which a warning says; see the scenario."""
    model, rows = PlainModel(), vector_rows(4)
    args = TrainingArguments(str(tmp_path), deepspeed=config(2), use_cpu=True, report_to="none")
    with pytest.warns(HFCompatWarning, match="`optimizers`: with `deepspeed` transformers trains without"):
        Trainer(model, args, train_dataset=rows, optimizers=(torch.optim.SGD(model.parameters()), None))


@pytest.fixture(scope="module")
def finished_thoroughly(tmp_path_factory):
    """Run the slow scenarios, in one launch; return where their outcomes are."""
    folder = tmp_path_factory.mktemp("deepspeed_thoroughly")
    words = [f"{library}:{name}" for name in THOROUGH for library in ("upstream", "ours")]
    words += [f"ours:{name}" for name in (*SPLIT_THOROUGHLY, *SPLIT_ALONE)]
    if UPSTREAM_COUNTS_ITEMS_ONCE:
        words += [f"upstream:{name}" for name in SPLIT_THOROUGHLY]
        words += ["upstream:resume_split", "upstream:resume_split:ours", "ours:resume_split:upstream"]
    handed_over = ["upstream:resume_zero_2:ours", "ours:resume_zero_2:upstream"]
    own = ["ours:evaluates_and_trains_twice", "ours:evaluates_and_trains_twice_without_deepspeed"]
    later = [f"ours:{name}" for name in IN_BACKGROUND[1:]]
    run_scenarios(folder, [*words, *handed_over, *own, *later])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", THOROUGH)
def test_scenario_thoroughly(finished_thoroughly, name):
    """What a quicker scenario is much like is equal too."""
    check(finished_thoroughly, name)


@pytest.mark.slow
@needs_one_count
@pytest.mark.parametrize("name", SPLIT_THOROUGHLY)
def test_matrices_are_split_thoroughly(finished_thoroughly, name):
    """So is what differs in stage, precision, files or the model that is loaded at the end."""
    check(finished_thoroughly, name)


@pytest.mark.slow
@needs_one_count
@pytest.mark.parametrize("library", ["upstream-ours", "ours-upstream"])
def test_checkpoints_of_split_matrices_are_handed_over(finished_thoroughly, library):
    """Either library goes on from the checkpoint of the other as from its own."""
    check(finished_thoroughly, "resume_split", library)


@pytest.mark.slow
def test_split_model_trains_twice(finished_thoroughly):
    """It goes on to learn, and models before and after it in the same process are not split."""
    for rank in (0, 1):
        kept = {
            item["name"]: item["value"] for item in outcome(finished_thoroughly, "split_twice", "ours", rank).results
        }
        first, second = kept["split"]
        assert sum(second) < sum(first)
        assert kept["whole"][0] == kept["whole"][1]


@pytest.mark.slow
def test_tokens_of_split_models_are_counted_once(finished_thoroughly):
    """Under corrected semantics without ``average_tokens_across_devices``, too; a warning says where they are not."""
    averaged, own = outcome(finished_thoroughly, "split_counted_once", "ours", 0).results
    assert own["value"]
    torch.testing.assert_close(own["value"], averaged["value"], rtol=0, atol=0)
    words = "divides the items of a window over the 2 ranks that have the same batches"
    for name, times in (("split_counted_once", 0), ("split_averaged_by_batch", 1)):
        warned = outcome(finished_thoroughly, name, "ours", 0).warnings
        assert len([text for text in warned if words in text]) == times


@pytest.mark.slow
def test_split_model_is_saved_in_the_background(finished_thoroughly):
    """The parts of both ranks are byte for byte those saved at once."""
    check_in_background(finished_thoroughly, "split_in_the_background")


@pytest.mark.slow
@needs_one_count
def test_replicas_of_split_models(tmp_path):
    """Four processes, two of each batch: weights, events, inputs and gradients are equal, logged losses to rounding."""
    name = "replicas_of_split"
    run_scenarios(tmp_path, [f"upstream:{name}", f"ours:{name}"], processes=4)
    for rank in range(4):
        theirs, ours = (outcome(tmp_path, name, library, rank) for library in ("upstream", "ours"))
        torch.testing.assert_close(losses(ours), losses(theirs), rtol=1e-6, atol=0)
        for each in (theirs, ours):
            drop_losses(each.trace)
            drop_losses(each.results)
            drop_losses(each.files)
        found = differences(theirs, ours)
        assert not found, f"process {rank}:\n{found}"


def drop_losses(kept):
    """Remove, wherever they are in ``kept``, the losses of training."""
    if isinstance(kept, dict):
        for name in ("loss", "train_loss", "training_loss"):
            kept.pop(name, None)
    for each in kept.values() if isinstance(kept, dict) else kept if isinstance(kept, list | tuple) else ():
        drop_losses(each)


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_BACKGROUND[1:])
def test_zero_3_saved_in_the_background(finished_thoroughly, name):
    """So are those of ZeRO-3, with whole weights beside them or without."""
    check_in_background(finished_thoroughly, name)


@pytest.mark.slow
def test_full_weights_without_unwrapping(finished_thoroughly):
    """``get_state_dict`` has the names of the model whether ``unwrap`` is set or not, as upstream's under DeepSpeed."""
    for name in ("zero_2", "zero_3"):
        kept = {item["name"]: item["value"] for item in outcome(finished_thoroughly, name, "ours", 0).results}
        assert kept["gathered"].keys() == kept["weights"].keys()
        assert all(torch.equal(kept["gathered"][key], weight) for key, weight in kept["weights"].items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optimizer_is_offloaded", "parameters_are_offloaded"])
def test_offloading(tmp_path, name):
    """States and parameters in host memory, updated by DeepSpeed's own optimizer there."""
    build_cpu_adam()
    run_scenarios(tmp_path, [f"upstream:{name}", f"ours:{name}"])
    check(tmp_path, name)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["upstream-ours", "ours-upstream"])
def test_checkpoints_of_zero_2_are_handed_over(finished_thoroughly, library):
    """Either library goes on from the checkpoint of the other as from its own."""
    check(finished_thoroughly, "resume_zero_2", library)


@pytest.mark.slow
def test_evaluates_and_trains_twice(finished_thoroughly):
    """After an evaluation, and a second time, ZeRO-3 trains as without DeepSpeed, which transformers cannot."""
    name = "evaluates_and_trains_twice"
    with_it, without = (
        outcome(finished_thoroughly, each, "ours", 0).results for each in (name, f"{name}_without_deepspeed")
    )
    for mine, other in zip(with_it, without, strict=True):
        torch.testing.assert_close(mine["value"], other["value"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_one_process_of_python(tmp_path):
    """Without any launcher one process trains under ZeRO-2 as it does without DeepSpeed."""
    script = SCRIPTS / "distributed_worker.py"
    (ended,) = finish([start([sys.executable, script, tmp_path, "ours:whole_global_batch_of_zero_2"])])
    assert ended.code == 0, ended.output
    plain = run(lambda kit: global_batch(kit, size=4), "ours", tmp_path / "plain")
    shared = outcome(tmp_path, "whole_global_batch_of_zero_2", "ours", 0)
    torch.testing.assert_close(losses(shared), losses(plain), rtol=1e-5, atol=0)


LAUNCHERS = {
    "accelerate": (
        ["-m", "accelerate.commands.launch", "--use_deepspeed", "--zero_stage=2", "--num_processes=2"],
        ["--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port={port}"],
        [],
    ),
    "deepspeed": (
        ["-m", "deepspeed.launcher.runner", "--num_gpus=2"],
        ["--master_port={port}"],
        ["--deepspeed", json.dumps(config(2))],
    ),
}
"""Launcher to its options, and what the script is told."""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers(tmp_path, launcher):
    """Both launchers start a ported script, and its processes train one model under ZeRO-2."""
    *options, words = LAUNCHERS[launcher]
    given = [word.format(port=free_port()) for part in options for word in part]
    folders = ["--folder", tmp_path, "--output_dir", tmp_path / "output"]
    command = [sys.executable, *given, SCRIPTS / "launch_script.py", *folders, *words]
    (ended,) = finish([start(command)])
    assert ended.code == 0, ended.output
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["wrapped"] == "DeepSpeedEngine"
    assert (first["world_size"], first["steps"], first["weights"]) == (2, 8, second["weights"])


@pytest.mark.slow
def test_zero_to_fp32(finished_thoroughly, tmp_path):
    """The script that DeepSpeed puts into a checkpoint makes the weights that are there beside it."""
    checkpoints = finished_thoroughly / "resume_zero_2" / "ours" / "output"
    checkpoint = max(checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    script = checkpoint / "zero_to_fp32.py"
    (ended,) = finish([start([sys.executable, script, checkpoint, tmp_path])])
    assert ended.code == 0, ended.output
    made, saved = torch.load(tmp_path / "pytorch_model.bin"), load_file(checkpoint / "model.safetensors")
    for name, weight in saved.items():
        assert torch.equal(made[name], weight), name
    marker = json.loads((checkpoint / "lightning.json").read_text())
    parts = [path.relative_to(checkpoint).as_posix() for path in Path(checkpoint).glob("global_step*/*")]
    assert set(parts) <= set(marker["files"])
    assert any("rank_1" in part for part in parts)
