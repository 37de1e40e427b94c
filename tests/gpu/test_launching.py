"""Launches as people make them on machines with GPUs: which GPU a process uses, and what it saves of them."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_compat import Trainer, TrainerCallback, TrainingArguments
from hf_compat.tools.verify.comparing import read_record
from hf_compat.tools.verify.recorder import Recorder, callback_class
from tests.gpu.comparing import ON_GPUS
from tests.gpu.harness import needs_fake_gpu, run_on_gpu, run_on_gpus, start_on_gpus
from tests.support import helpers, parity
from tests.support.parity import Kit, Which
from tests.support.processes import finish, free_port
from tests.support.scenarios.common import plain

pytestmark = needs_fake_gpu

TRAINS = """
import os
import torch
from hf_compat import Trainer, TrainingArguments
from tests.support import helpers

rows = helpers.ListDataset(helpers.vector_rows(8))
args = TrainingArguments("{folder}", max_steps=2, report_to="none", disable_tqdm=True, **{fields})
trainer = Trainer(helpers.PlainModel(), args, train_dataset=rows)
trainer.train()
print("device", args.device, "of", args.world_size, flush=True)
"""


def launch(folder: Path, variables: list[dict[str, str]], *, devices: int = 1, **fields: Any) -> list[Any]:
    """Return how the processes of a run ended, each started by hand with its variables."""
    script = folder / "train.py"
    script.write_text(TRAINS.format(folder=folder / "output", fields=fields))
    ranks = {"WORLD_SIZE": str(len(variables)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        start_on_gpus(
            [sys.executable, script], devices=devices, RANK=str(rank), LOCAL_RANK=str(rank), **ranks, **variables[rank]
        )
        for rank in range(len(variables))
    ]
    return finish(processes)


def random_states(which: Which, folder: Path) -> dict[str, Any]:
    """Return the states of a checkpoint by the type of what is saved of the GPUs, and the arguments' view of them."""
    parity.DEFAULTS.update(ON_GPUS)
    kit = Kit(which, folder / which)
    trainer = plain(kit, fields={"save_strategy": "epoch"})
    group = torch.distributed.get_world_size()
    trainer.train()
    (file,) = (folder / which).rglob("rng_state*.pth")
    saved = torch.load(file, weights_only=False)["cuda"]
    return {
        "file": file.name,
        "kind": type(saved).__name__,
        "states": [state.tolist() for state in saved],
        "mode": trainer.args.parallel_mode.value,
        "GPUs": trainer.args.n_gpu,
        "processes of the group": group,
    }


@pytest.mark.slow
def test_a_single_process_of_a_launcher(tmp_path: Path):
    """``torchrun --nproc-per-node 1`` uses one of the GPUs that it sees; the states of all are saved, as upstream."""
    (upstream,) = run_on_gpus(random_states, "upstream", tmp_path, processes=1, devices=2, by_torchrun=True)
    (ours,) = run_on_gpus(random_states, "ours", tmp_path, processes=1, devices=2, by_torchrun=True)
    assert ours == upstream
    assert (ours["file"], ours["kind"], len(ours["states"])) == ("rng_state.pth", "list", 2)
    assert (ours["mode"], ours["GPUs"], ours["processes of the group"]) == ("distributed", 1, 1)


def test_a_gpu_of_its_own_for_each_rank(tmp_path: Path):
    """A launcher that shows each rank its own GPU alone, which is the first to it, is one."""
    ended = launch(tmp_path, [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}])
    for each in ended:
        assert each.code == 0, each.output
        assert "device cuda:0 of 2" in each.output


def test_more_ranks_than_gpus(tmp_path: Path):
    """Ranks that would share a GPU are told so, and what to do."""
    for each in launch(tmp_path, [{}, {}]):
        assert each.code != 0
        assert "Several ranks of a node use the same GPU" in each.output


@pytest.mark.parametrize("which", ["user", "arguments"])
def test_a_run_leaves_the_gpu_alone(which: str, tmp_path: Path):
    """A fit empties the cache once, as upstream's, and logs no list of GPUs; torch's newer TF32 switch is no error."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", **place}
    found = run_on_gpu(quiet_run, which, tmp_path, variables=rank)
    assert found == {"emptied": 1, "lines": []}


def quiet_run(which: str, folder: Path) -> dict[str, Any]:
    """Return how often the cache was emptied, and what Lightning logged of the device."""
    emptied, lines = [], []
    torch.cuda.empty_cache = lambda: emptied.append(1)

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("lightning.pytorch").setLevel("INFO")
    logging.getLogger("lightning.pytorch").addHandler(Lines())
    if which == "user":
        torch.backends.fp32_precision = "tf32"
    fields = {"tf32": True} if which == "arguments" else {}
    args = TrainingArguments(str(folder), max_steps=2, eval_strategy="steps", eval_steps=1, report_to="none", **fields)
    rows = helpers.ListDataset(helpers.vector_rows(8))
    trainer = Trainer(helpers.PlainModel(), args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    trainer.evaluate()
    return {"emptied": len(emptied), "lines": [line for line in lines if "CUDA_VISIBLE_DEVICES" in line]}


@pytest.mark.parametrize(
    ("fields", "switch", "expected"),
    [
        pytest.param({"tf32": True}, None, "tf32", id="on"),
        pytest.param({"tf32": False}, None, "fp32", id="off"),
        pytest.param({}, "tf32", "tf32", id="on by torch's switch"),
        pytest.param({}, None, "fp32", id="as torch has it"),
        pytest.param({"tf32": True, "bf16": True}, None, "bf16", id="on under bf16"),
    ],
)
def test_the_precision_of_a_record(fields: dict[str, Any], switch: str | None, expected: str, tmp_path: Path):
    """The record that ``hf-compat verify`` makes of a run on a GPU says whether its products are in TF32."""
    assert run_on_gpu(recorded, fields, switch, tmp_path) == (expected, "Fake GPU")


def recorded(fields: dict[str, Any], switch: str | None, folder: Path) -> tuple[str, str]:
    """Return the precision and the device of a run's record; ``switch`` is what the script has set torch's to."""
    (folder / "outputs").mkdir()
    if switch is not None:
        torch.backends.fp32_precision = switch
    args = TrainingArguments(str(folder / "outputs" / "run"), max_steps=2, report_to="none", **fields)
    trainer = Trainer(helpers.PlainModel(), args, train_dataset=helpers.ListDataset(helpers.vector_rows(8)))
    recorder = Recorder(folder, 2)
    recorder.attach(trainer, callback_class(TrainerCallback))
    trainer.train()
    recorder.close(None)
    facts = read_record(folder).facts
    return facts["precision"], facts["environment"]["device"]
