"""An evaluation waits for the GPU no more often than transformers', and leaves a sharded model sharded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from torch.distributed.tensor import DTensor

import hf_compat
from tests.gpu.comparing import ON_GPUS
from tests.gpu.harness import needs_fake_gpu, run_on_gpu, run_on_gpus
from tests.scripts.sharded_common import llama
from tests.support import helpers, parity
from tests.support.parity import Kit, Which
from tests.support.scenarios.common import plain

pytestmark = needs_fake_gpu


def many_metrics(prediction: Any) -> dict[str, float]:
    """Return twenty metrics."""
    return {f"metric_{index}": float(index) for index in range(20)}


def waits(which: Which, folder: Path, is_in_fit: bool, **given: Any) -> list[dict[str, int]]:
    """Return how often each kind of event came in each of two evaluations."""
    from tests.gpu.events import watching  # the extension is only loaded where the device is installed

    parity.DEFAULTS.update(ON_GPUS)
    kit = Kit(which, folder / which)
    counts: list[dict[str, int]] = []

    class Watched(kit.Trainer):  # type: ignore[misc,name-defined]
        def evaluate(self, *given: Any, **named: Any) -> Any:
            with watching() as events:
                metrics = super().evaluate(*given, **named)
            kinds = [event.kind for event in events]
            counts.append({kind: kinds.count(kind) for kind in kinds})
            return metrics

    fields = {"accelerator_config": {"non_blocking": True}, "max_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    trainer = plain(kit, subclass=Watched, fields=fields, **given)
    if is_in_fit:
        trainer.train()
    else:
        trainer.evaluate()
        trainer.evaluate()
    return counts


@pytest.mark.parametrize("is_in_fit", [True, False], ids=["in a fit", "outside"])
@pytest.mark.parametrize("given", [{}, {"compute_metrics": many_metrics}], ids=["loss", "metrics"])
def test_an_evaluation(given: dict[str, Any], is_in_fit: bool, tmp_path: Path):
    """No read and no copy that transformers' evaluation does not have, and no race."""
    expected = run_on_gpu(waits, "upstream", tmp_path, is_in_fit, **given)
    found = run_on_gpu(waits, "ours", tmp_path, is_in_fit, **given)
    assert len(found) == len(expected) == 2
    for ours, theirs in zip(found, expected, strict=True):
        more = {kind: count - theirs.get(kind, 0) for kind, count in ours.items() if count > theirs.get(kind, 0)}
        assert more == {}, (ours, theirs)


def whole_parameters(folder: Path) -> dict[str, tuple[float, int]]:
    """Return the loss of an evaluation under FSDP 2 and the parameters that it leaves whole, by library."""
    found = {}
    for library in (transformers, hf_compat):
        args = library.TrainingArguments(
            str(folder / library.__name__),
            max_steps=1,
            per_device_train_batch_size=1,
            per_device_eval_batch_size=1,
            save_strategy="no",
            fsdp="full_shard auto_wrap",
            fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
            disable_tqdm=True,
            report_to="none",
        )
        rows = helpers.ListDataset(helpers.token_rows(4))
        trainer = library.Trainer(llama(), args, train_dataset=rows, eval_dataset=rows)
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
        found[library.__name__] = loss, sum(not isinstance(item, DTensor) for item in trainer.model.parameters())
    return found


def test_a_sharded_model_stays_sharded(tmp_path: Path):
    """What FSDP 2 gathers last of all is still gathered after an evaluation of transformers'; losses are equal."""
    for found in run_on_gpus(whole_parameters, tmp_path, variables={"FSDP_VERSION": "2"}):
        (their_loss, theirs), (our_loss, ours) = found["transformers"], found["hf_compat"]
        assert our_loss == their_loss
        assert theirs > 0
        assert ours == 0
