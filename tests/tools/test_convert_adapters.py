"""``hf-compat convert`` and adapters of peft: folders as peft writes them, and files that Lightning loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from safetensors.torch import load_file

from hf_compat import cli
from hf_compat.checkpoint import names
from hf_compat.errors import CheckpointError
from hf_compat.optim.schedulers import get_scheduler
from hf_compat.tools.convert.conversion import convert
from hf_compat.tools.convert.options import Options
from tests.tools.test_convert import (
    STEPS,
    assert_equal,
    by_name,
    language_model,
    lightning_run,
    told,
    trainer_run,
    upstream_run,
)

peft = pytest.importorskip("peft")

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]


@pytest.fixture
def base(tmp_path):
    """Return the folder of the adapters' base model."""
    language_model().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def lora(**options: Any) -> Any:
    """Return a configuration whose adapter is not without effect from the beginning."""
    fields = {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True, "init_lora_weights": False}
    return peft.LoraConfig(**{**fields, "task_type": peft.TaskType.CAUSAL_LM, **options})


def adapted(base: Path, *more: str) -> Any:
    """Return the model with an adapter, and with ``more``, of which the last one is active."""
    torch.manual_seed(1)
    model = peft.get_peft_model(type(language_model()).from_pretrained(base), lora())
    for name in more:
        model.add_adapter(name, lora(r=3))
        model.set_adapter(name)
    return model


class Adapted(pl.LightningModule):
    """What a user of Lightning writes around a model of peft."""

    def __init__(self, base: Path, *more: str, parts: bool = False) -> None:
        super().__init__()
        configurations = {"default": lora(), **{name: lora(r=3) for name in more}}
        self.save_hyperparameters({"model_name": str(base), "lora": configurations if more else lora()})
        self.model = adapted(base, *more)
        self.parts = parts

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        return self.model(**batch).loss

    def configure_optimizers(self) -> Any:
        trained = [value for value in self.parameters() if value.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1)
        schedule = get_scheduler("linear", optimizer, num_warmup_steps=1, num_training_steps=STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.parts:
            weights = checkpoint["state_dict"]
            checkpoint["state_dict"] = {name: value for name, value in weights.items() if "lora_" in name}


def contents(folder: Path) -> dict[str, Any]:
    """Return what is in each file of adapters below ``folder``."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.name.startswith("adapter_"):
            name = path.relative_to(folder).as_posix()
            found[name] = load_file(path) if path.suffix == ".safetensors" else path.read_text()
    return found


@pytest.mark.filterwarnings("ignore:The optimizer goes on with the checkpoint's settings")
@pytest.mark.parametrize(
    "parts", [pytest.param(False, id="whole"), pytest.param(True, id="adapters alone", marks=pytest.mark.slow)]
)
def test_a_trainer_goes_on_where_lightning_stopped(tmp_path, base, parts):
    """An epoch under Lightning, converted, and one under our Trainer are two under Lightning, to the last bit."""
    module = Adapted(base, parts=parts)
    whole = lightning_run(tmp_path / "run", module)
    made = convert(tmp_path / "run" / "3.ckpt", tmp_path / "checkpoint-3")
    (note,) = told(made, "the base model's weights")
    assert note.endswith(f"loaded from `{base}`.")
    assert not (tmp_path / "checkpoint-3" / names.SAFE_WEIGHTS_NAME).exists()
    resumed = trainer_run(tmp_path / "ours", resume=tmp_path / "checkpoint-3", model=adapted(base))
    assert resumed.state.global_step == STEPS
    assert_equal(dict(resumed.model.state_dict()), dict(module.model.state_dict()))
    assert_equal(by_name(resumed.optimizer, resumed.model), by_name(whole.optimizers[0], module.model))


@pytest.mark.slow
def test_upstreams_trainer_resumes_too(tmp_path, base):
    """The Trainer of transformers resumes from the folder of adapters, and makes the same weights."""
    module = Adapted(base)
    lightning_run(tmp_path / "run", module)
    convert(tmp_path / "run" / "3.ckpt", tmp_path / "checkpoint-3", Options(batch_size=4, steps_between=(1, 1, 1)))
    trainer = upstream_run(tmp_path / "theirs", adapted(base), tmp_path / "checkpoint-3")
    assert_equal(dict(trainer.model.state_dict()), dict(module.model.state_dict()))


@pytest.mark.parametrize(
    "more", [pytest.param((), id="one", marks=pytest.mark.slow), pytest.param(("second",), id="two")]
)
def test_the_folder_is_that_of_peft(tmp_path, base, more):
    """Configurations and weights of one adapter, and of two, are those that peft writes of the same model."""
    module = Adapted(base, *more)
    lightning_run(tmp_path / "run", module, epochs=1)
    module.model.save_pretrained(tmp_path / "expected")
    convert(tmp_path / "run" / "3.ckpt", tmp_path / "out")
    assert_equal(contents(tmp_path / "out"), contents(tmp_path / "expected"))
    assert len(contents(tmp_path / "out")) == 2 * (1 + len(more))
    assert (tmp_path / "out" / names.OPTIMIZER_NAME).is_file()


def test_lightning_goes_on_where_a_trainer_stopped(tmp_path, base):
    """An epoch under our Trainer, converted, and one under Lightning are two epochs under our Trainer."""
    whole = trainer_run(tmp_path / "ours", model=adapted(base))
    target = tmp_path / "run.ckpt"
    assert cli.main(["convert", str(tmp_path / "ours" / "checkpoint-3"), str(target), "--groups", "one"]) == 0
    module = Adapted(base)
    lightning_run(tmp_path / "run", module, resume=target)
    assert_equal(dict(module.model.state_dict()), dict(whole.model.state_dict()))


def test_several_there_and_back(tmp_path, base):
    """Of two adapters of which the second was trained both go to a file and back, with the one's optimizer."""
    trainer_run(tmp_path / "ours", epochs=1, model=adapted(base, "second"))
    folder = tmp_path / "ours" / "checkpoint-3"
    convert(folder, tmp_path / "run.ckpt")
    saved = torch.load(tmp_path / "run.ckpt", weights_only=True)
    expected = {f"model.{name}" for name in adapted(base, "second").state_dict()}
    assert set(saved["state_dict"]) == expected
    assert all("second" in name for name in saved["hf_compat"]["parameters"][0])
    convert(tmp_path / "run.ckpt", tmp_path / "back")
    assert_equal(contents(tmp_path / "back"), contents(folder))
    found, wanted = (torch.load(place / names.OPTIMIZER_NAME) for place in (tmp_path / "back", folder))
    assert_equal(found, wanted)


def test_a_configuration_imports_nothing(tmp_path, base):
    """One that names a module for peft to import is refused either way; text to begin with is not looked up."""
    module = Adapted(base)
    lightning_run(tmp_path / "run", module, epochs=1)
    source = tmp_path / "run" / "3.ckpt"
    module.model.save_pretrained(tmp_path / "evil")
    file = tmp_path / "evil" / "adapter_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "megatron_config": {"a": 1}, "megatron_core": "this"}))
    with pytest.raises(CheckpointError, match="with which peft would import or load"):
        convert(source, tmp_path / "out", Options(adapter=file))
    with pytest.raises(CheckpointError, match="with which peft would import or load"):
        convert(tmp_path / "evil", tmp_path / "out.ckpt")
    assert "this" not in sys.modules
    file.write_text(json.dumps({**config, "init_lora_weights": "pissa"}))
    convert(source, tmp_path / "out", Options(adapter=file))
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["init_lora_weights"] == "pissa"


def test_configurations_are_needed(tmp_path, base):
    """Without them, or with those of other adapters, a checkpoint is refused with what to pass; so is a lost base."""
    module = Adapted(base, "second")
    lightning_run(tmp_path / "run", module, epochs=1)
    content = torch.load(tmp_path / "run" / "3.ckpt", weights_only=False)
    del content["hyper_parameters"]["lora"]
    torch.save(content, tmp_path / "bare.ckpt")
    module.model.save_pretrained(tmp_path / "adapters")

    def refused(message: str, **options: Any) -> None:
        with pytest.raises(CheckpointError, match=message):
            convert(tmp_path / "bare.ckpt", tmp_path / "none", Options(**options))

    refused("PEFT adapters, but not their configuration: .* as `--adapter`")
    refused(r"has the adapters default, second, but .* of default\.", adapter=tmp_path / "adapters/adapter_config.json")
    refused("has no `adapter_config.json`", adapter=base)
    refused("`--max-shard-size` has no effect on adapters", adapter=tmp_path / "adapters", max_shard_size=9)
    convert(tmp_path / "bare.ckpt", tmp_path / "out", Options(adapter=tmp_path / "adapters"))
    assert_equal(contents(tmp_path / "out"), contents(tmp_path / "adapters"))
    del content["hyper_parameters"]["model_name"]
    torch.save(content, tmp_path / "bare.ckpt")
    refused("in a model that the installed transformers knows. .* as `--model`", adapter=tmp_path / "adapters")
    base.rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"(?s)their base model.*as `--model`"):
        convert(tmp_path / "out", tmp_path / "file.ckpt")
    convert(tmp_path / "out", tmp_path / "file.ckpt", Options(model=tmp_path / "moved"))
