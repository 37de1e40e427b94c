"""The best checkpoint of a run whose weights are saved in shards."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import transformers

import hf_compat
from tests.gpu.harness import needs_fake_gpu, run_on_gpus
from tests.scripts.sharded_common import llama
from tests.support import helpers

pytestmark = needs_fake_gpu


def best_checkpoints(folder: Path) -> dict[str, tuple[int, str | None]]:
    """Return the best update step of a run and the name of ``best_model_checkpoint`` after it, by library."""
    found = {}
    for library in (transformers, hf_compat):
        state = run_that_improves(library, folder / library.__name__).state
        name = None if state.best_model_checkpoint is None else Path(state.best_model_checkpoint).name
        found[library.__name__] = (state.best_global_step, name)
    return found


def run_that_improves(library: ModuleType, folder: Path) -> hf_compat.Trainer:
    """Return a Trainer of ``library`` that has evaluated and saved shards after each of four update steps."""
    args = library.TrainingArguments(
        str(folder),
        max_steps=4,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        fsdp="full_shard",
        fsdp_config={"version": 1, "state_dict_type": "SHARDED_STATE_DICT"},
        disable_tqdm=True,
        report_to="none",
    )
    data = helpers.ListDataset(helpers.token_rows(4))
    trainer = library.Trainer(llama(), args, train_dataset=data, eval_dataset=data)
    trainer.train()
    return trainer


def test_the_newest_checkpoint_may_be_the_best(tmp_path):
    """With sharded weights too; transformers 5 looks for its folder before it is made, and so never finds one here."""
    (found,) = run_on_gpus(best_checkpoints, tmp_path, processes=1, devices=1)
    theirs = None if transformers.__version__.startswith("5.") else "checkpoint-4"
    assert found == {"transformers": (4, theirs), "hf_compat": (4, "checkpoint-4")}
