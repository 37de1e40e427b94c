"""In a steady update step our own code waits for the GPU nowhere, and no two streams race."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.comparing import ON_GPUS
from tests.gpu.harness import needs_fake_gpu, run_on_gpu
from tests.support import helpers, parity
from tests.support.parity import Kit, Which
from tests.support.scenarios.common import language_model

pytestmark = needs_fake_gpu


def waits(which: Which, folder: Path, fields: dict[str, Any]) -> dict[str, int]:
    """Return how often each kind of event came in update steps 3 to 8, which neither log nor save."""
    from tests.gpu.events import watching  # the extension is only loaded where the device is installed

    parity.DEFAULTS.update(ON_GPUS)
    kit = Kit(which, folder / which)
    counted: dict[str, int] = {}

    class Watch(kit.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2:
                self.watch = watching()
                self.events = self.watch.__enter__()
            elif state.global_step == 8:
                self.watch.__exit__(None, None, None)
                for event in self.events:
                    counted[event.kind] = counted.get(event.kind, 0) + 1

    every = {"max_steps": 9, "logging_steps": 100, "accelerator_config": {"non_blocking": True}, **fields}
    language_model(kit, rows=60, fields=every, model=helpers.gpt2(), callbacks=[Watch()]).train()
    assert torch.cuda.is_initialized()
    return counted


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="fp32"),
        pytest.param({"bf16": True, "gradient_accumulation_steps": 2}, id="bf16, accumulating"),
        pytest.param({"fp16": True}, id="fp16", marks=pytest.mark.slow),
        pytest.param({"bf16": True, "dataloader_num_workers": 1}, id="workers", marks=pytest.mark.slow),
    ],
)
def test_a_steady_step(fields: dict[str, Any], tmp_path: Path):
    """No wait that upstream's step does not have, and no race."""
    expected = run_on_gpu(waits, "upstream", tmp_path, fields)
    found = run_on_gpu(waits, "ours", tmp_path, fields)
    assert "race" not in found
    more = {kind: count - expected.get(kind, 0) for kind, count in found.items() if count > expected.get(kind, 0)}
    assert more == {}, (found, expected)
