"""``hf-compat convert`` and the folders of DeepSpeed's ranks, from Lightning and from a Trainer."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_compat.checkpoint import names
from hf_compat.errors import CheckpointError
from hf_compat.optim.prepared import parameter_groups
from hf_compat.tools.convert.conversion import convert
from hf_compat.tools.convert.options import Options
from tests.support.checkpoints import Trap
from tests.support.deepspeed_tools import to_universal
from tests.support.paths import SCRIPTS
from tests.support.processes import build_cpu_adam, forked_ranks
from tests.tools.test_convert import STEPS, Module, assert_equal, language_model, lightning_run, told

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


AVERAGES = ("exp_avg", "exp_avg_sq")

# By hand, without DeepSpeed


def in_a_row(values: list[Tensor], ranks: int) -> list[Tensor]:
    """Return each rank's part of ``values`` in a row, filled up as DeepSpeed does under ZeRO-1 and ZeRO-2."""
    flat = torch.cat([value.flatten() for value in values])
    missing = -flat.numel() % (2 * ranks)
    return list(torch.cat([flat, torch.zeros(missing)]).chunk(ranks))


def of_each(values: list[Tensor], ranks: int) -> list[Tensor]:
    """Return each rank's part of each of ``values``, filled up as DeepSpeed does under ZeRO-3."""
    parts: list[list[Tensor]] = [[] for _ in range(ranks)]
    for value in values:
        size = math.ceil(value.numel() / ranks)
        filled = torch.cat([value.flatten(), torch.zeros(size * ranks - value.numel())])
        for own, part in zip(parts, filled.split(size), strict=True):
            own.append(part)
    return [torch.cat(own) for own in parts]


def laid_out(source: Path, folder: Path, module: Module, *, stage: int, ranks: int = 2) -> Path:
    """Write what ranks of DeepSpeed save of the run in the file ``source``, with groups as a Trainer makes them."""
    content = torch.load(source, weights_only=True)
    (saved,) = content.pop("optimizer_states")
    weights = content.pop("state_dict")
    part = of_each if stage == 3 else in_a_row
    order = {id(value): name for name, value in module.named_parameters()}
    groups = [[order[id(value)] for value in group["params"]] for group in parameter_groups(module.model, 0.1)]
    flat = [part([weights[name].detach() for name in group], ranks) for group in groups]
    states = [dict[int, dict[str, Any]]() for _ in range(ranks)]
    for number, group in enumerate(saved["param_groups"]):
        own = [saved["state"][index] for index in group["params"]]
        moments = {key: part([state[key] for state in own], ranks) for key in AVERAGES}
        for rank in range(ranks):
            averages = {key: parts[rank] for key, parts in moments.items()}
            states[rank][number] = {"step": own[0]["step"].clone(), **averages}
    options = [{**group, "params": [number]} for number, group in enumerate(saved["param_groups"])]
    target = folder / "checkpoint"
    target.mkdir(parents=True)
    model = {
        "module": {name: torch.zeros(0) if stage == 3 else value for name, value in weights.items()},
        "buffer_names": [],
        "param_shapes": [{name: weights[name].shape for name in group} for group in groups],
        "shared_params": {"model.lm_head.weight": "model.transformer.wte.weight"},
        "dp_world_size": ranks,
        **content,
    }
    for rank in range(ranks):
        base = {"state": states[rank], "param_groups": options}
        own = [parts[rank] for parts in flat]
        if stage == 3:
            torch.save(model, target / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
            kept: dict[str, Any] = {"fp32_flat_groups": own, "optimizer_state_dict": base}
        else:
            torch.save(model, target / "mp_rank_00_model_states.pt")
            kept = {"single_partition_of_fp32_groups": own, "base_optimizer_state": base}
        torch.save({"optimizer_state_dict": kept}, target / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return folder


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory):
    """Train an epoch under Lightning; return its file and its module."""
    folder = tmp_path_factory.mktemp("run")
    module = Module("decay")
    lightning_run(folder, module, epochs=1)
    return folder / "3.ckpt", module


@pytest.mark.parametrize(("stage", "ranks"), [(2, 1), (2, 3), (3, 2)])
def test_partitions_are_put_together(tmp_path, one_epoch, stage, ranks):
    """Flat parts, in a row or of each parameter, filled up at the end, make what the file of the same run makes."""
    source, module = one_epoch
    folder = laid_out(source, tmp_path / "zero", module, stage=stage, ranks=ranks)
    assert not told(convert(folder, tmp_path / "out"), "names in")
    convert(source, tmp_path / "expected")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        path.name for path in (tmp_path / "expected").iterdir()
    }
    for name in (names.SAFE_WEIGHTS_NAME, names.TRAINER_STATE_NAME, "config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    for name in (names.OPTIMIZER_NAME, names.SCHEDULER_NAME):
        found, expected = (torch.load(tmp_path / place / name, weights_only=True) for place in ("out", "expected"))
        assert_equal(found, expected)


def test_what_is_no_whole_save_is_refused(tmp_path, one_epoch):
    """Missing ranks, parts of a model, files of another save and code in them are refused; nothing is written."""
    source, module = one_epoch
    folder = laid_out(source, tmp_path / "zero", module, stage=2) / "checkpoint"
    last = folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    whole = last.read_bytes()

    def refused(message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            convert(tmp_path / "zero", tmp_path / "out", Options(weights_only=True))

    last.unlink()
    refused("was written by 2 ranks, but contains the optimizer states of 1")
    torch.save({"optimizer_state_dict": Trap(tmp_path / "made")}, last)
    refused(r"rank_1_mp_rank_00_optim_states\.pt` is refused")
    content = torch.load(folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt", weights_only=True)
    content["optimizer_state_dict"]["single_partition_of_fp32_groups"][0] = torch.zeros(3)
    torch.save(content, last)
    refused("DeepSpeed's partitions have .* elements for")
    last.write_bytes(whole)
    experts = folder / "layer_0_expert_0_mp_rank_00_model_states.pt"
    experts.touch()
    refused("a part of a model that is split over ranks")
    experts.unlink()
    (folder / "mp_rank_00_model_states.pt").rename(folder / "mp_rank_01_model_states.pt")
    refused("a part of a model that is split over ranks")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "made").exists()


def test_states_that_cannot_be_carried_over(tmp_path, one_epoch):
    """An optimizer's state without its options is refused by name, and the weights are converted alone."""
    source, module = one_epoch
    folder = laid_out(source, tmp_path / "zero", module, stage=2)
    for path in (folder / "checkpoint").glob("*_optim_states.pt"):
        content = torch.load(path, weights_only=True)
        content["optimizer_state_dict"]["base_optimizer_state"] = [{}]
        torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"`elastic_checkpoint` DeepSpeed does not save.*`--weights-only`"):
        convert(folder, tmp_path / "out")
    convert(folder, tmp_path / "out", Options(weights_only=True))
    model = type(language_model()).from_pretrained(tmp_path / "out")
    assert_equal(dict(model.state_dict()), dict(module.model.state_dict()))


# Of real runs

SCRIPT = SCRIPTS / "deepspeed_lightning.py"
STAGES = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Train under Lightning with DeepSpeed on two ranks; go on with our Trainer on two ranks from what is converted."""
    pytest.importorskip("deepspeed")
    if sys.platform != "linux":
        pytest.skip("gloo")
    folder = tmp_path_factory.mktemp("deepspeed")
    ended = forked_ranks(SCRIPT, "lightning", folder, *STAGES)
    assert ended.code == 0, ended.output
    for stage in STAGES:
        convert(folder / str(stage) / "3.ckpt", folder / str(stage) / "checkpoint-3")
    ended = forked_ranks(SCRIPT, "trainer", folder, *STAGES)
    assert ended.code == 0, ended.output
    yield folder
    shutil.rmtree(folder)


def expected_of(folder: Path, stage: int, epoch: int) -> dict[str, dict[str, Tensor]]:
    """Return weights as DeepSpeed puts them together, and Adam's averages, which are those of the run without ZeRO."""
    own, whole = (torch.load(folder / str(number) / "expected", weights_only=True)[epoch] for number in (stage, 0))
    return {name: {**whole[name], **own[name]} for name in whole}


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_equal_to_what_deepspeed_puts_together(finished, stage):
    """Weights are those that DeepSpeed gathers from the ranks, Adam's averages those of ranks with all of them."""
    expected = expected_of(finished, stage, 0)
    out = finished / str(stage) / "checkpoint-3"
    model = type(language_model()).from_pretrained(out)
    assert_equal(
        {name: value.detach() for name, value in model.named_parameters()},
        {name: entry["weight"] for name, entry in expected.items()},
    )
    state = torch.load(out / names.OPTIMIZER_NAME, weights_only=True)
    order = torch.load(finished / "order", weights_only=True)
    assert sorted(order) == sorted(expected)
    for index, name in enumerate(order):
        assert_equal([state["state"][index][key] for key in AVERAGES], [expected[name][key] for key in AVERAGES])


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_trainer_goes_on_where_deepspeed_stopped(finished, stage):
    """Two ranks under our Trainer go on from the folder with DDP as those under Lightning did with DeepSpeed."""
    found = torch.load(finished / str(stage) / "found", weights_only=True)
    assert found.pop("global_step") == STEPS
    assert_equal(found, expected_of(finished, stage, 1))


SETTINGS = ("1-bf16", "2-fp16", "2-bf16-optimizer", "3-fp16", "3-fp32-optimizer", "3-bf16-optimizer-parameters")
"""The stage, the precision, and what is offloaded."""


@pytest.fixture(scope="module")
def runs_of_settings(tmp_path_factory):
    """Train under Lightning with DeepSpeed in half precision, and with offloading."""
    pytest.importorskip("deepspeed")
    folder = tmp_path_factory.mktemp("settings")
    build_cpu_adam()
    ended = forked_ranks(SCRIPT, "setting", folder, *SETTINGS)
    assert ended.code == 0, ended.output
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_half_precision_and_offloading(runs_of_settings, setting):
    """Weights in full precision and Adam's averages are those of DeepSpeed's own conversion into universal files."""
    source, out = runs_of_settings / setting / "3.ckpt", runs_of_settings / setting / "checkpoint-3"
    lost = told(convert(source, out), "the loss scale")
    assert len(lost) == ("fp16" in setting)
    universal = runs_of_settings / setting / "universal"
    to_universal(source / "checkpoint", universal, stage=int(setting[0]))

    model = type(language_model()).from_pretrained(out, dtype=torch.float32)
    state = torch.load(out / names.OPTIMIZER_NAME, weights_only=True)
    named = {value: name for name, value in model.named_parameters()}
    order = [named[value] for group in parameter_groups(model, 0.1) for value in group["params"]]
    assert len(order) == len(state["state"]) == len(named)
    for index, name in enumerate(order):
        found = {"fp32": model.get_parameter(name).detach(), **{key: state["state"][index][key] for key in AVERAGES}}
        for key, value in found.items():
            content = torch.load(universal / "zero" / f"model.{name}" / f"{key}.pt", weights_only=False)
            assert_equal(value, (content["param"] if isinstance(content, dict) else content).view_as(value))


@pytest.mark.slow
def test_a_trainers_folder_becomes_a_file(tmp_path):
    """What DeepSpeed saved for our Trainer, weights in partitions alone included, becomes all that Lightning needs."""
    pytest.importorskip("deepspeed")
    ended = forked_ranks(SCRIPT, "saving", tmp_path, 0, 2, 3)
    assert ended.code == 0, ended.output
    optimizers = []
    for stage in (0, 2, 3):
        folder, file = tmp_path / str(stage) / "checkpoint-3", tmp_path / f"{stage}.ckpt"
        assert (folder / names.SAFE_WEIGHTS_NAME).exists() == (stage < 3)
        convert(folder, file)
        found = torch.load(file, weights_only=True)
        expected = torch.load(tmp_path / str(stage) / "expected", weights_only=True)
        assert_equal(
            {name: found["state_dict"][f"model.{name}"] for name in expected},
            {name: entry["weight"] for name, entry in expected.items()},
        )
        optimizers += found["optimizer_states"]
        module = Module("decay")
        assert lightning_run(tmp_path / f"run{stage}", module, resume=file).global_step == STEPS
    for optimizer in optimizers[1:]:
        assert sorted(optimizer["state"]) == sorted(optimizers[0]["state"])
        for index, state in optimizers[0]["state"].items():  # ZeRO sums gradients in another order
            torch.testing.assert_close(optimizer["state"][index], state, rtol=1e-3, atol=1e-6)

    ended = forked_ranks(SCRIPT, "reading", tmp_path)
    assert ended.code == 0, ended.output
    expected = torch.load(tmp_path / "0" / "expected", weights_only=True)
    first = torch.load(tmp_path / "first", weights_only=True)
    assert_equal(first, {name: entry["weight"] for name, entry in expected.items()})
