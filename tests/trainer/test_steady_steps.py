"""Between two logs an update step reads nothing back from the device."""

import pytest
import transformers

import hf_compat
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.watching import watching_steps

SETTINGS = {
    "defaults": {},
    "without clipping": {"max_grad_norm": 0.0},
    "losses as they are": {"logging_nan_inf_filter": False},
    "accumulation": {"gradient_accumulation_steps": 2},
    "tokens are counted": {"include_num_input_tokens_seen": "all"},
    "bf16": {"bf16": True},
    "schedule with a minimum": {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}},
    "fused optimizer": {"optim": "adamw_torch_fused"},
    "Adafactor": {"optim": "adafactor"},
    "saving and evaluating later": {"save_strategy": "steps", "eval_strategy": "steps", "eval_steps": 100},
}


def reads(package, folder, **settings):
    """What five update steps read, of which none is logged, under ``package``'s Trainer."""
    watch = watching_steps(package.TrainerCallback, 12, 17)
    args = package.TrainingArguments(
        str(folder), max_steps=22, logging_steps=10, use_cpu=True, report_to="none", disable_tqdm=True, **settings
    )
    rows = ListDataset(vector_rows(500))
    model = PlainModel()
    model.main_input_name = "features"
    trainer = package.Trainer(model, args, train_dataset=rows, eval_dataset=rows, callbacks=[watch])
    trainer.train()
    return dict(watch.seen)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_nothing_is_read(tmp_path, settings):
    """Loss, gradient norm, counts and schedule stay where they are until they are logged."""
    assert reads(hf_compat, tmp_path, **settings) == {}


def test_reads_are_seen(tmp_path):
    """A read is seen: transformers asks the loss of every batch whether it is finite."""
    assert reads(transformers, tmp_path)["Tensor.__bool__"] >= 5
