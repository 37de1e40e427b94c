"""Models whose weights have other names in files than in memory: the ViT family in transformers 5.23."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file

import hf_compat
from hf_compat.checkpoint.weights import load_weights
from tests.support.helpers import ListDataset

LIBRARIES = {"ours": hf_compat, "transformers": transformers}
FAMILY = ["ViT", "DeiT", "Beit", "Dinov2", "ViTMSN", "IJepa"]


def new_model(name="ViT"):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = getattr(transformers, f"{name}Config")(**sizes, image_size=8, patch_size=4, num_labels=2)
    return getattr(transformers, f"{name}ForImageClassification")(config)


def new_trainer(library, folder, **fields):
    draw = torch.Generator().manual_seed(0)
    rows = [{"pixel_values": torch.randn(3, 8, 8, generator=draw), "labels": number % 2} for number in range(4)]
    settings = {"max_steps": 3, "save_steps": 1, "per_device_train_batch_size": 2, "learning_rate": 0.05}
    settings |= {"use_cpu": True, "disable_tqdm": True, "report_to": "none"}
    args = library.TrainingArguments(str(folder), **settings | fields)
    torch.manual_seed(0)
    data = {"train_dataset": ListDataset(rows), "eval_dataset": ListDataset(rows)}
    return library.Trainer(new_model(), args, **data)


def names_differ(folder):
    """Whether the installed release saves the model under other names than it has in memory."""
    return set(load_file(folder / "model.safetensors")) != set(new_model().state_dict())


def restored(model, saved):
    """How much of ``saved``, a state dict, the model has."""
    return sum(torch.equal(value, saved[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", LIBRARIES)
def test_a_resumed_run_goes_on_with_all_weights(kind, tmp_path):
    """Ours do under both releases; transformers keeps most of the new model's weights where names differ."""
    whole = new_trainer(LIBRARIES[kind], tmp_path)
    whole.train()
    saved = type(whole.model).from_pretrained(tmp_path / "checkpoint-2").state_dict()
    resumed = new_trainer(LIBRARIES[kind], tmp_path)
    resumed._load_from_checkpoint(str(tmp_path / "checkpoint-2"))
    count = restored(resumed.model, saved)
    if kind == "transformers" and names_differ(tmp_path / "checkpoint-2"):
        assert count < len(saved) / 2
        return
    assert count == len(saved)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert restored(resumed.model, whole.model.state_dict()) == len(saved)


@pytest.mark.parametrize("kind", LIBRARIES)
def test_the_best_model_is_loaded_with_all_weights(kind, tmp_path):
    """Ours is under both releases; transformers keeps most of the last weights where names differ."""
    best = {"load_best_model_at_end": True, "metric_for_best_model": "step", "greater_is_better": False}
    trainer = new_trainer(LIBRARIES[kind], tmp_path, **best, eval_strategy="steps", eval_steps=1)
    trainer.compute_metrics = lambda prediction: {"step": trainer.state.global_step}
    trainer.train()
    assert trainer.state.best_global_step == 1
    saved = type(trainer.model).from_pretrained(tmp_path / "checkpoint-1").state_dict()
    if kind == "transformers" and names_differ(tmp_path / "checkpoint-1"):
        assert restored(trainer.model, saved) < len(saved) / 2
    else:
        assert restored(trainer.model, saved) == len(saved)


@pytest.mark.parametrize("name", FAMILY)
def test_every_weight_of_the_family_is_restored(name, tmp_path):
    """What ``save_pretrained`` wrote is loaded into another model of the class, and nothing is missing."""
    model, fresh = new_model(name), new_model(name)
    model.save_pretrained(tmp_path)
    assert load_weights(fresh, tmp_path) == ([], [])
    assert restored(fresh, model.state_dict()) == len(model.state_dict())
