"""On a GPU a save in the background is copied to pinned memory, on a stream of its own, before other code runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch

from hf_compat.checkpoint.completeness import read_marker, write_marker
from hf_compat.checkpoint.flushing import checksums_of
from tests.gpu.harness import needs_fake_gpu, run_on_gpu
from tests.support.checkpoints import assert_same_checkpoints

pytestmark = needs_fake_gpu


def copied() -> dict[str, Any]:
    """Return what a snapshot of tensors on a GPU is, and what happened on the device meanwhile."""
    from hf_compat.checkpoint.background import HostBuffers, clones_on_host, to_host
    from tests.gpu.events import watching  # the extension is only loaded where the device is installed

    buffers, kept = HostBuffers(), []
    found: dict[str, Any] = {}
    for number in range(2):
        with watching() as events:
            base = torch.arange(6.0, device="cuda") * (number + 1)  # not waited for
            state = {"base": base, "part": base[2:], "turned": base.view(2, 3).T, "host": torch.ones(2), "step": 3}
            twin = to_host(state, buffers=buffers)
            clone = clones_on_host({"part": base[2:]}, buffers=buffers)
            base.fill_(-1)  # not waited for either
        found[f"values {number}"] = [twin[name].tolist() for name in ("base", "part", "turned")]
        found[f"clone {number}"] = clone["part"].tolist()
        found[f"events {number}"] = Counter(event.kind for event in events)
        kept.append({twin[name].data_ptr() for name in ("base", "host")} | {clone["part"].data_ptr()})
        found["pinned"] = [twin["base"].is_pinned(), clone["part"].is_pinned(), twin["host"].is_pinned()]
        found["shared"] = twin["part"].data_ptr() - twin["base"].data_ptr()
        buffers.give_back()
    found["kept"] = kept[0] == kept[1]
    buffers.clear()
    return found


def watched_run(folder: Path, save_async: bool) -> dict[str, Any]:
    """Train with a checkpoint after every update step, whose weights and states change right after it.

    Return what happened on the device while weights were changed, and the memory that is still taken at the end.
    """
    from hf_compat import Trainer, TrainerCallback, TrainingArguments
    from tests.gpu.events import watching
    from tests.scripts.crash_script import Model, Rows
    from tests.support.held_writer import HeldWriter

    class Changes(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **_: Any) -> None:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.data.clamp_(-0.1, 0.1)
                    parameter.data = parameter.data * 0.9
                    parameter.set_(parameter * 0.9)
            for entry in optimizer.state.values():
                entry["exp_avg"].mul_(0.5)

    torch.manual_seed(0)
    args = TrainingArguments(
        str(folder),
        disable_tqdm=True,
        report_to="none",
        logging_strategy="no",
        per_device_train_batch_size=2,
        max_steps=4,
        save_steps=1,
        save_async=save_async,
    )
    trainer = Trainer(Model(8), args, train_dataset=Rows(12, 1), callbacks=[Changes()])
    trainer.checkpoint_writer = HeldWriter()
    with watching() as events:
        trainer.train()
    buffers = trainer.checkpoint_writer.buffers
    copies = [event for event in events if any("host_copy" in frame for frame in event.frames)]
    return {
        "device": str(trainer.args.device),
        "races": [event for event in events if event.kind == "race"],
        "reads": [event for event in copies if event.kind == "read"],
        "left": (buffers._free, buffers._taken),
    }


def test_a_snapshot_of_tensors_on_a_gpu():
    """It has the values of the moment, in pinned memory that is used again; the host waits once for each snapshot."""
    found = run_on_gpu(copied)
    for number in (0, 1):
        values = [float(value * (number + 1)) for value in range(6)]
        turned = [[values[0], values[3]], [values[1], values[4]], [values[2], values[5]]]
        assert found[f"values {number}"] == [values, values[2:], turned]
        assert found[f"clone {number}"] == values[2:]
        assert found[f"events {number}"] == {"sync": 2}
    assert found["pinned"] == [True, True, False]
    assert found["shared"] == 2 * 4
    assert found["kept"]


def test_a_run_on_a_gpu(tmp_path):
    """Checkpoints are byte for byte those of a synchronous run, whatever is changed after the save; no stream races.

    The optimizer's file also says where its tensors were, which is in host memory, so its tensors are compared.
    """
    for name in ("at once", "later"):
        found = run_on_gpu(watched_run, tmp_path / name, name == "later")
        assert found == {"device": "cuda:0", "races": [], "reads": [], "left": ({}, [])}
    for path in sorted(tmp_path.glob("*/*/optimizer.pt")):
        state = torch.load(path, map_location="cpu")
        torch.save(state, path)
        marker = read_marker(path.parent)
        path.with_name("lightning.json").unlink()
        write_marker(path.parent, step=marker.step, checksums=checksums_of(path.parent))
    assert_same_checkpoints(tmp_path / "later", tmp_path / "at once")
