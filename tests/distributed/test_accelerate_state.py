"""accelerate's process-wide state is that of the run, in every launch mode: code beside the Trainer may use it."""

import json
import sys

import pytest
import torch
from packaging.version import Version

import hf_compat
from hf_compat import Trainer, TrainingArguments
from hf_compat.distributed.accelerate_state import partial_state
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.paths import SCRIPTS
from tests.support.processes import TORCHRUN, finish, free_port, start
from tests.support.trainers import arguments

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

get_logger = pytest.importorskip("accelerate.logging").get_logger
AcceleratorState, PartialState = accelerate.state.AcceleratorState, accelerate.state.PartialState

ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--mixed_precision=no"]
LAUNCHES = {
    "python": ([sys.executable], 1),
    "torchrun": ([*TORCHRUN, "--nproc-per-node=2"], 2),
    "accelerate launch": ([*ACCELERATE, "--cpu", "--num_processes=1"], 1),
    "accelerate launch of two": ([*ACCELERATE, "--multi_gpu", "--num_processes=2"], 2),
}
"""Commands that start upstream and ours alike, and how many processes they start."""


@pytest.fixture(autouse=True)
def no_state_is_left(monkeypatch):
    """Begin and end with an empty state, without the variable that transformers 4.57 leaves behind."""
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def told_by(command, folder, *words, processes=2, script="accelerate_state.py", **variables):
    """Return what each process of a run tells."""
    ended = finish([start([*command, SCRIPTS / script, *words], **variables)])[0]
    assert ended.code == 0, ended.output
    return [json.loads((folder / f"{words[0]}-{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.slow
@pytest.mark.parametrize("launch", LAUNCHES)
def test_the_state_is_upstreams(tmp_path, launch):
    """Loggers, seeds, gathered objects, ``PartialState`` and ``AcceleratorState`` are the same in every process."""
    command, processes = LAUNCHES[launch]
    theirs, ours = (
        told_by(
            [*command, *([f"--main_process_port={free_port()}"] if launch.startswith("accelerate") else [])],
            tmp_path,
            which,
            tmp_path,
            processes=processes,
            ACCELERATE_USE_CPU="true",
        )
        for which in ("upstream", "ours")
    )
    assert ours == theirs


@pytest.mark.slow
def test_the_state_under_fsdp(tmp_path):
    """Under FSDP ours tells what upstream does on a CPU, where that trains under DDP, and kind and plugin besides."""
    command, _ = LAUNCHES["torchrun"]
    shards = ["fsdp"] if Version(transformers.__version__) >= Version("5.0") else []  # 4.57 wants a GPU for it
    theirs = told_by(command, tmp_path, "upstream", tmp_path, *shards)
    ours = told_by(command, tmp_path, "ours", tmp_path, "fsdp")
    for told, expected in zip(ours, theirs, strict=True):
        assert told["run"].pop("fsdp_plugin").startswith("FullyShardedDataParallelPlugin(fsdp_version=2,")
        for name in ("process", "run"):
            assert told[name].pop("distributed_type") == "DistributedType.FSDP"
            assert expected[name].pop("distributed_type") == "DistributedType.MULTI_CPU"
        assert "FSDP" in told.pop("distributed_state")
        assert "MULTI_CPU" in expected.pop("distributed_state")
        assert told == expected


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["2", "3"])
def test_the_state_under_deepspeed(tmp_path, stage):
    """Arguments with DeepSpeed leave the state that upstream's leave on a CPU, whatever the stage."""
    pytest.importorskip("deepspeed")
    command, _ = LAUNCHES["torchrun"]
    theirs, ours = (
        told_by(command, tmp_path, which, tmp_path, stage, script="deepspeed_state.py")
        for which in ("upstream", "ours")
    )
    assert ours == theirs


@pytest.mark.parametrize("stage", [2, 3])
def test_a_state_configured_without_deepspeed(tmp_path, stage):
    """A state that the script has set up for another kind of run is a ``RuntimeError`` of upstream, and of ours."""
    pytest.importorskip("deepspeed")
    given = {"deepspeed": {"zero_optimization": {"stage": stage}}, "accelerator_config": CONFIGURED}
    for library in (transformers, hf_compat):
        AcceleratorState._reset_state(reset_partial_state=True)
        PartialState(cpu=True)
        with pytest.raises(RuntimeError, match=r"[Dd]eep[Ss]peed"):
            arguments(tmp_path, library, **given)


@pytest.mark.slow
@pytest.mark.parametrize("word", ["devices", "spawn"])
def test_the_state_in_processes_of_ours(tmp_path, word):
    """Processes that the Trainer starts itself have the state that torchrun's have."""
    launched, _ = LAUNCHES["torchrun"]
    torchrun = told_by(launched, tmp_path, "ours", tmp_path)
    started = told_by([sys.executable], tmp_path, "ours", tmp_path, word)
    assert started == torchrun


def test_arguments_set_up_the_state_of_the_process(tmp_path):
    """As soon as there are arguments, accelerate's loggers work and ``distributed_state`` is its ``PartialState``."""
    args = arguments(tmp_path, hf_compat)
    get_logger(__name__).info("no error")
    ours = args.distributed_state
    assert type(ours) is PartialState
    assert AcceleratorState._shared_state == {}  # a Trainer's, as upstream
    found = dict(PartialState._shared_state)
    arguments(tmp_path, transformers)
    assert found == PartialState._shared_state


def test_the_state_is_made_anew_after_a_reset(tmp_path):
    """A library that empties accelerate's state and creates the accelerator again has it back, with its precision."""
    args = arguments(tmp_path, hf_compat, bf16=True)
    trainer = Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(8)))
    before, accelerator = dict(AcceleratorState._shared_state), trainer.accelerator
    accelerator.state._reset_state(reset_partial_state=True)
    assert {} == AcceleratorState._shared_state == PartialState._shared_state
    trainer.create_accelerator_and_postprocess()
    assert trainer.accelerator is not accelerator
    assert dict(AcceleratorState._shared_state) == before
    assert AcceleratorState().mixed_precision == "bf16"


def test_two_trainers_have_their_precision_in_turn(tmp_path):
    """The state is that of the Trainer built last: upstream raises here, though nothing is wrong."""
    rows = ListDataset(vector_rows(8))
    for bf16 in (True, False):
        args = arguments(tmp_path, hf_compat, bf16=bf16)
        Trainer(PlainModel(), args, train_dataset=rows)
        assert AcceleratorState().mixed_precision == ("bf16" if bf16 else "no")


CONFIGURED = {"use_configured_state": True}


def test_a_configured_state_is_kept(tmp_path):
    """With ``use_configured_state`` neither arguments nor Trainer touch what the script has set up."""
    rows = ListDataset(vector_rows(8))
    for library in (transformers, hf_compat):
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.Accelerator(cpu=True)
        PartialState().mark, AcceleratorState().mark = "the script's", "the script's"
        args = arguments(tmp_path, library, accelerator_config=CONFIGURED)
        library.Trainer(PlainModel(), args, train_dataset=rows)
        assert PartialState().mark == AcceleratorState().mark == "the script's"
        assert args.device.type == "cpu"
        assert "use_configured_state" not in args.to_dict()["accelerator_config"]


def test_a_configured_process_gets_the_state_of_the_run(tmp_path):
    """A script that has set up ``PartialState`` alone gets the rest from the Trainer."""
    found = []
    for library in (transformers, hf_compat):
        AcceleratorState._reset_state(reset_partial_state=True)
        PartialState(cpu=True)
        args = arguments(tmp_path, library, accelerator_config=CONFIGURED)
        library.Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(8)))
        found.append({name: str(value) for name, value in AcceleratorState._shared_state.items()})
    assert found[0] == found[1]


@pytest.mark.parametrize(("configured", "bf16"), [("bf16", True), ("bf16", False), ("no", True), ("no", False)])
def test_the_precision_of_a_configured_state(tmp_path, configured, bf16):
    """Another precision than the arguments' is a ``ValueError``, or with older releases that of the run."""
    found = []
    for library in (transformers, hf_compat):
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.Accelerator(cpu=True, mixed_precision=configured)
        torch.manual_seed(0)
        fields = {"bf16": bf16, "max_steps": 3, "logging_steps": 1, "save_strategy": "no"}
        try:
            args = arguments(tmp_path, library, accelerator_config=CONFIGURED, **fields)
            trainer = library.Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(8)))
        except ValueError as error:
            found.append("AcceleratorState has already been initialized" in str(error))
            continue
        trainer.train()
        found.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        assert AcceleratorState().mixed_precision == configured
    assert found[0] == found[1]


def test_a_state_has_to_be_configured_first(tmp_path):
    """``use_configured_state`` without a state is a ``ValueError`` of upstream, and of ours."""
    for library in (transformers, hf_compat):
        AcceleratorState._reset_state(reset_partial_state=True)
        with pytest.raises(ValueError, match=r"use_configured_state.*PartialState"):
            arguments(tmp_path, library, accelerator_config=CONFIGURED)


def test_a_class_for_a_configuration(tmp_path):
    """A class in place of an instance is a ``NotImplementedError`` of upstream, and of ours."""
    for library in (transformers, hf_compat):
        kind = type(arguments(tmp_path, library).accelerator_config)
        with pytest.raises(NotImplementedError, match="callable"):
            arguments(tmp_path, library, accelerator_config=kind)


def test_without_accelerate(tmp_path, monkeypatch):
    """Where accelerate is not installed, ``distributed_state`` has the same members, and nothing is shared."""
    for name in [name for name in sys.modules if name.split(".")[0] == "accelerate"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    state = args.distributed_state
    assert partial_state(state) is state
    assert (state.num_processes, state.process_index, state.is_main_process) == (1, 0, True)
    Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(8)))
    monkeypatch.undo()
    assert PartialState._shared_state == {}
