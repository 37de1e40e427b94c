"""A pure Lightning run that writes Hugging Face checkpoints, and goes on from them as if it had never stopped."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch import nn
from torch.utils.data import DataLoader

from hf_compat import HFCheckpointIO, HFCompatWarning, Trainer
from hf_compat.checkpoint.completeness import incomplete_reason
from hf_compat.errors import CheckpointError, TrainerSetupError
from tests.scripts.crash_script import Model, Rows
from tests.support.checkpoints import Trap
from tests.support.trainers import arguments

ROWS = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
BATCHES = 6
ALWAYS = {"lightning.json", "lightning.pt", "model.safetensors", "rng_state.pth", "trainer_state.json"}
STATES = {"optimizer.pt", "scheduler.pt"}


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


class Language(pl.LightningModule):
    """A transformers model, with dropout, and a layer beside it."""

    def __init__(self, width=2):
        super().__init__()
        self.save_hyperparameters()
        self.lm = gpt2()
        self.beside = nn.Linear(4, width)
        self.losses = []

    def training_step(self, batch, index):
        tokens = (batch.abs() * 5).long() % 20
        loss = self.lm(input_ids=tokens, labels=tokens).loss + self.beside(batch).square().mean()
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.beside(batch).square().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Plain(pl.LightningModule):
    """Layers of its own, with dropout, and two optimizers."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.head = nn.Linear(4, 1)
        self.losses = []

    def training_step(self, batch, index):
        loss = (self.net(batch) - self.head(batch)).square().mean()
        self.losses.append(loss.item())
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()

    def validation_step(self, batch, index):
        self.log("val_loss", self.head(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), 0.1, momentum=0.9), torch.optim.AdamW(self.head.parameters())


class Positioned:
    """A shuffled loader that knows where it is; torchdata's ``StatefulDataLoader`` is another."""

    def __init__(self):
        self.order, self.done = [], 0

    def __len__(self):
        return BATCHES

    def __iter__(self):
        if not self.order or self.done == BATCHES:
            self.done = 0
            self.order = torch.randperm(len(ROWS)).tolist()
        while self.done < BATCHES:
            self.done += 1
            yield ROWS[self.order[4 * self.done - 4 : 4 * self.done]]

    def state_dict(self):
        return {"order": self.order, "done": self.done}

    def load_state_dict(self, state):
        self.order, self.done = state["order"], state["done"]


def fit(folder, module=Language, ckpt_path=None, io=None, loader=None, seed=0, epochs=3, plugins=(), **every):
    """A run of six update steps an epoch; return its trainer and module."""
    torch.manual_seed(seed)
    model = module()
    saving = ModelCheckpoint(folder, filename="{step}", auto_insert_metric_name=False, **{"save_top_k": -1, **every})
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[saving],
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        max_epochs=epochs,
        plugins=[io or HFCheckpointIO(), *plugins],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", HFCompatWarning)
        loaders = loader or DataLoader(ROWS, 4, shuffle=True), DataLoader(ROWS, 8)
        trainer.fit(model, *loaders, ckpt_path=ckpt_path)
    return trainer, model


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))


@pytest.fixture(scope="module")
def three_epochs(tmp_path_factory):
    """A run of three epochs, a checkpoint at the end of each."""
    folder = tmp_path_factory.mktemp("run")
    trainer, model = fit(folder, save_last=True)
    return trainer, model, folder


def test_files(three_epochs):
    """A checkpoint has the files that transformers writes, and is complete."""
    _, _, folder = three_epochs
    assert sorted(path.name for path in folder.iterdir()) == ["12.ckpt", "18.ckpt", "6.ckpt", "last.ckpt"]
    names = {path.name for path in (folder / "12.ckpt").iterdir()}
    assert names == ALWAYS | STATES | {"config.json", "generation_config.json"}
    assert incomplete_reason(folder / "12.ckpt") is None
    state = json.loads((folder / "12.ckpt" / "trainer_state.json").read_text())
    assert (state["global_step"], state["epoch"], state["max_steps"], state["num_train_epochs"]) == (12, 2.0, 18, 3)
    assert set(torch.load(folder / "12.ckpt" / "optimizer.pt", weights_only=True)) == {"state", "param_groups"}


def test_from_pretrained(three_epochs):
    """`from_pretrained` reads the weights that the run ended with."""
    _, model, folder = three_epochs
    assert same(type(model.lm).from_pretrained(folder / "last.ckpt").state_dict(), model.lm.state_dict())


@pytest.mark.parametrize(
    ("module", "stop", "loader", "settings"),
    [
        pytest.param(Language, 6, None, {}, id="a transformers model, at an epoch's end"),
        pytest.param(Plain, 6, None, {}, id="own layers and two optimizers, at an epoch's end"),
        pytest.param(Language, 4, Positioned, {"every_n_train_steps": 2}, id="in the middle of an epoch"),
        pytest.param(Language, 6, Positioned, {"every_n_train_steps": 2}, id="at an epoch's last step"),
    ],
)
def test_resumed_run_is_the_uninterrupted_one(tmp_path, module, stop, loader, settings):
    """Every loss with dropout, every weight and every file of the last checkpoint are those of a run never stopped."""
    loaders = [loader() if loader else None for _ in range(2)]
    steps = 2 if module is Plain else 1  # Lightning counts the steps of each optimizer
    _, model = fit(tmp_path / "whole", module, loader=loaders[0], **settings)
    stopped = tmp_path / "whole" / f"{steps * stop}.ckpt"
    _, resumed = fit(tmp_path / "rest", module, stopped, loader=loaders[1], seed=1, **settings)
    assert resumed.losses == model.losses[stop:]
    assert len(resumed.losses) == 3 * BATCHES - stop
    assert same(resumed.state_dict(), model.state_dict())
    for name in ALWAYS | (STATES if module is Language else set()):
        if name not in ("lightning.pt", "lightning.json"):  # these hold paths, and the progress of the session
            whole, rest = (tmp_path / folder / f"{steps * 18}.ckpt" / name for folder in ("whole", "rest"))
            assert whole.read_bytes() == rest.read_bytes(), name


@pytest.mark.parametrize("kind", ["shards", "gradient scaler"])
def test_resumed_run_with_more_files(tmp_path, kind):
    """Weights in several files and the state of a gradient scaler are written, and given back, too."""

    def given():
        if kind == "shards":
            return {"io": HFCheckpointIO(max_shard_size="2KB")}
        # Half of bfloat16's range on the host is float16's on a GPU: the scaler's growth is what is to be kept.
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=5)
        return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}

    _, model = fit(tmp_path / "whole", **given())
    stopped = tmp_path / "whole" / "6.ckpt"
    written = {path.name for path in stopped.iterdir()}
    assert ("model.safetensors.index.json" if kind == "shards" else "scaler.pt") in written
    trainer, resumed = fit(tmp_path / "rest", Language, stopped, seed=1, **given())
    assert resumed.losses == model.losses[6:]
    assert same(resumed.state_dict(), model.state_dict())
    if kind == "gradient scaler":
        assert trainer.precision_plugin.scaler.get_scale() == 4.0 * 2**3
        assert torch.load(stopped / "scaler.pt")["scale"] == 8.0


def test_rotation_and_best(tmp_path):
    """ModelCheckpoint keeps the best, links the last and deletes the others; `ckpt_path="best"` reads the best."""
    trainer, model = fit(tmp_path, save_top_k=1, monitor="val_loss", mode="max", save_last="link")
    best = Path(trainer.checkpoint_callback.best_model_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["6.ckpt", "last.ckpt"]
    assert best.name == "6.ckpt"
    assert (tmp_path / "last.ckpt").is_symlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metrics = trainer.validate(model, DataLoader(ROWS, 8), ckpt_path="best", verbose=False)
    assert metrics[0]["val_loss"] == pytest.approx(trainer.checkpoint_callback.best_model_score.item())


def test_validate_reads_folders_of_transformers(three_epochs, tmp_path):
    """`validate` reads what `save_pretrained` wrote; `fit` refuses to go on from it, and says what to do."""
    trainer, model, _ = three_epochs
    other = gpt2()
    other.save_pretrained(tmp_path / "theirs")
    shutil.copy(three_epochs[2] / "6.ckpt" / "trainer_state.json", tmp_path / "theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.validate(model, DataLoader(ROWS, 8), ckpt_path=tmp_path / "theirs", verbose=False)
    assert same(model.lm.state_dict(), other.state_dict())
    with pytest.raises(CheckpointError, match="was not written by HFCheckpointIO"):
        fit(tmp_path / "new", ckpt_path=tmp_path / "theirs")


class Two(Language):
    """Two transformers models."""

    def __init__(self):
        super().__init__()
        self.teacher = gpt2()


@pytest.mark.parametrize(
    "choice", [pytest.param("lm", id="by name"), pytest.param(lambda module: module.lm, id="by function")]
)
def test_which_part_is_the_model(tmp_path, choice):
    """Of several models the caller names one; the weights of the others are kept, and come back."""
    with pytest.raises(TrainerSetupError, match="several models: lm, teacher"):
        fit(tmp_path, Two, epochs=1)
    with pytest.raises(TrainerSetupError, match="`model='nothing'`"):
        fit(tmp_path, Two, io=HFCheckpointIO("nothing"), epochs=1)
    _, model = fit(tmp_path, Two, io=HFCheckpointIO(choice), epochs=1)
    assert same(type(model.lm).from_pretrained(tmp_path / "6.ckpt").state_dict(), model.lm.state_dict())
    _, resumed = fit(tmp_path / "rest", Two, tmp_path / "6.ckpt", HFCheckpointIO(choice), seed=1, epochs=1)
    assert same(resumed.state_dict(), model.state_dict())


class Words:
    """A processing class."""

    def save_pretrained(self, folder):
        Path(folder, "words.txt").write_text("a b c")


def test_processing_class_and_weights_alone(tmp_path):
    """The processing class is saved too; of a checkpoint of weights alone nothing goes on, but weights are read."""
    io = HFCheckpointIO(processing_class=Words())
    trainer, model = fit(tmp_path, io=io, save_weights_only=True, epochs=1)
    names = {path.name for path in (tmp_path / "6.ckpt").iterdir()}
    assert names == ALWAYS - {"rng_state.pth"} | {"config.json", "generation_config.json", "words.txt"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.validate(model, DataLoader(ROWS, 8), ckpt_path=tmp_path / "6.ckpt", verbose=False)
    with pytest.raises(KeyError, match="only the model"):
        fit(tmp_path / "new", ckpt_path=tmp_path / "6.ckpt")


class Opaque(pl.LightningModule):
    """Hyperparameters, and optionally a state, that no safe loading rebuilds."""

    def __init__(self, model, where="there", state=None):
        super().__init__()
        self.save_hyperparameters()
        self.model, self.state = model, state

    def training_step(self, batch, index):
        return self.model(batch).mean()

    def validation_step(self, batch, index):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_save_checkpoint(self, checkpoint):
        if self.state is not None:
            checkpoint["mine"] = self.state


def test_what_could_not_be_loaded_safely_is_not_written(tmp_path):
    """Hyperparameters that are objects are left out with a warning; other objects are refused when they are saved."""
    with pytest.warns(UserWarning, match="recommended to ignore them"):
        modules = Opaque(nn.Linear(4, 1)), Opaque(nn.Linear(4, 1), state=Words())
    with pytest.warns(HFCompatWarning, match="not saved: model"):
        fit(tmp_path, lambda: modules[0], epochs=1)
    kept = torch.load(tmp_path / "6.ckpt" / "lightning.pt", weights_only=True)
    assert kept["hyper_parameters"] == {"where": "there", "state": None}
    with pytest.raises(CheckpointError, match="`mine` of the checkpoint"), pytest.warns(HFCompatWarning):
        fit(tmp_path, lambda: modules[1], epochs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["6.ckpt"]


@pytest.mark.parametrize("name", ["lightning.pt", "optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_malicious_files_are_refused(three_epochs, tmp_path, name):
    """A pickle that would run code is refused with the file's name, and does not run."""
    folder = shutil.copytree(three_epochs[2] / "6.ckpt", tmp_path / "bad")
    (folder / "lightning.json").unlink()  # which would notice the changed size
    torch.save(Trap(tmp_path / "sprung"), folder / name)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        fit(tmp_path / "new", ckpt_path=folder)
    assert not (tmp_path / "sprung").exists()


def test_incomplete_folder_is_refused(three_epochs, tmp_path):
    """A folder with a cut file is refused, and so is a path that is no folder."""
    folder = shutil.copytree(three_epochs[2] / "6.ckpt", tmp_path / "cut")
    content = (folder / "optimizer.pt").read_bytes()
    (folder / "optimizer.pt").write_bytes(content[:-100])
    with pytest.raises(CheckpointError, match=r"`optimizer\.pt` has"):
        fit(tmp_path / "new", ckpt_path=folder)
    with pytest.raises(CheckpointError, match="does not exist"):
        fit(tmp_path / "new", ckpt_path=tmp_path / "nowhere")


def test_weights_that_do_not_fit(three_epochs, tmp_path):
    """Missing weights are an error, unless the module says that it takes what there is."""
    trainer, model, folder = three_epochs
    other = shutil.copytree(folder / "6.ckpt", tmp_path / "other")
    (other / "lightning.json").unlink()
    weights = model.lm.state_dict()
    del weights["transformer.ln_f.bias"]
    model.lm.save_pretrained(other, state_dict=weights)
    with pytest.raises(CheckpointError, match=r"missing \['transformer\.ln_f\.bias'\]"):
        trainer.validate(model, DataLoader(ROWS, 8), ckpt_path=other, verbose=False)


def test_called_by_no_strategy(tmp_path):
    """Inside another CheckpointIO, which writes from a thread, it cannot know the model, and says so."""
    with pytest.raises(TrainerSetupError, match="Pass it directly"):
        HFCheckpointIO().save_checkpoint({"state_dict": {}, "global_step": 1}, tmp_path / "a")
    with pytest.raises(TrainerSetupError, match="Pass it directly"):
        fit(tmp_path, io=AsyncCheckpointIO(HFCheckpointIO()), epochs=1)
    with pytest.raises(TrainerSetupError, match="storage_options"):
        HFCheckpointIO().save_checkpoint({}, tmp_path / "a", storage_options={"a": 1})


def test_removing(tmp_path):
    """A folder is deleted, a link without what it points to; what is not there is no error."""
    io, folder, link = HFCheckpointIO(), tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    (folder / "file").write_text("text")
    link.symlink_to(folder)
    io.remove_checkpoint(link)
    assert (folder / "file").exists()
    io.remove_checkpoint(folder)
    io.remove_checkpoint(folder)
    assert list(tmp_path.iterdir()) == []


def test_inside_our_trainer(tmp_path):
    """Given to our Trainer it serves the ModelCheckpoint among its callbacks, as in a pure Lightning run."""
    args = arguments(tmp_path / "out", max_steps=4, save_strategy="no")
    saving = ModelCheckpoint(tmp_path / "own", filename="{step}", every_n_train_steps=2, save_top_k=-1)
    lightning = {"plugins": [HFCheckpointIO("model")]}
    trainer = Trainer(Model(8), args, train_dataset=Rows(12, 1), callbacks=[saving], lightning=lightning)
    trainer.train()
    folder = tmp_path / "own" / "step=4.ckpt"
    assert {path.name for path in folder.iterdir()} >= ALWAYS
    other = Trainer(Model(8), args, train_dataset=Rows(12, 1))
    other._load_from_checkpoint(str(folder))
    assert same(other.model.state_dict(), trainer.model.state_dict())


def test_our_trainer_refuses_a_run_of_another_kind(three_epochs, tmp_path):
    """Our Trainer reads the weights; the optimizer of a pure Lightning run has other groups, which it says."""
    folder = three_epochs[2] / "6.ckpt"
    args = arguments(tmp_path, max_steps=9)
    rows = [{"input_ids": torch.arange(4), "labels": torch.arange(4)} for _ in range(8)]
    trainer = Trainer(gpt2(), args, train_dataset=rows)
    with pytest.raises(CheckpointError, match="does not fit this run's"):
        trainer.train(resume_from_checkpoint=str(folder))
    assert same(trainer.model.state_dict(), type(trainer.model).from_pretrained(folder).state_dict())
