"""``hf-compat convert`` makes Hugging Face folders of Lightning's checkpoints and the reverse; runs go on from both."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler

from hf_compat import HFCheckpointIO, Trainer, TrainingArguments, cli
from hf_compat.checkpoint import distributed_files, names
from hf_compat.errors import CheckpointError
from hf_compat.optim.prepared import parameter_groups
from hf_compat.optim.schedulers import get_scheduler
from hf_compat.tools.convert.conversion import convert
from hf_compat.tools.convert.options import Options
from tests.support import helpers
from tests.support.checkpoints import Trap
from tests.support.paths import SCRIPTS
from tests.support.processes import forked_ranks

STEPS = 6
"""Update steps of a whole run: three an epoch."""
ROWS = helpers.token_rows(12)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def language_model() -> nn.Module:
    """A model with tied weights and without dropout: what follows is the same whatever the random states are."""
    torch.manual_seed(0)
    return helpers.gpt2(dropout=0.0)


class Module(pl.LightningModule):
    """What a user of Lightning writes around a model of transformers."""

    def __init__(self, groups: str = "one", beside: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters({"config": language_model().config.to_dict()})
        self.model = language_model()
        if beside:
            self.head = nn.Linear(2, 2)
        self.groups = groups

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        return self.model(**batch).loss

    def configure_optimizers(self) -> Any:
        given = {
            "one": self.parameters,
            "named": self.named_parameters,
            "decay": lambda: parameter_groups(self.model, 0.1),
        }[self.groups]()
        optimizer = torch.optim.AdamW(given, lr=1e-2, weight_decay=0.1)
        schedule = get_scheduler("linear", optimizer, num_warmup_steps=1, num_training_steps=STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def lightning_run(
    folder: Path,
    module: pl.LightningModule,
    *,
    epochs: int = 2,
    resume: Path | None = None,
    plugins: Any = (),
    **saving: Any,
):
    """Train with ``lightning.Trainer``, rows in order, with a checkpoint for each epoch or as ``saving`` says."""
    saves = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, auto_insert_metric_name=False, **saving)
    loader = DataLoader(helpers.ListDataset(ROWS), 4, collate_fn=helpers.PadCollator())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            accelerator="cpu",
            callbacks=[saves],
            plugins=list(plugins),
            max_epochs=epochs,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, loader, ckpt_path=resume)
    return trainer


class InOrder(Trainer):
    """A Trainer that reads its rows in order."""

    def _get_train_sampler(self, *args: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)


def trainer_run(
    folder: Path, *, epochs: float = 2, resume: Path | None = None, model: nn.Module | None = None, **fields: Any
):
    """Train with our Trainer, with the same updates as the Lightning run."""
    args = TrainingArguments(
        str(folder),
        **{
            **{"num_train_epochs": epochs, "per_device_train_batch_size": 4, "learning_rate": 1e-2},
            **{"weight_decay": 0.1, "warmup_steps": 1, "max_grad_norm": 0.0, "save_strategy": "epoch"},
            **{"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_steps": 1, "optim": "adamw_torch"},
            **{"max_steps": STEPS if epochs == 2 else 3, "lr_scheduler_type": "linear", **fields},
        },
    )
    trainer = InOrder(
        model or language_model(), args, train_dataset=helpers.ListDataset(ROWS), data_collator=helpers.PadCollator()
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer


def assert_equal(found: Any, expected: Any) -> None:
    """Fail unless two nested states are equal to the last bit."""
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert sorted(found, key=str) == sorted(expected, key=str)
        for key, value in expected.items():
            assert_equal(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert found == expected


def by_name(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return each parameter's state by its name in the model."""
    of = {id(parameter): name for name, parameter in model.named_parameters()}
    return {of[id(parameter)]: state for parameter, state in optimizer.state.items()}


def told(made: Any, word: str) -> list[str]:
    """Return what a conversion says of ``word``."""
    return [note for note in made.notes if word in note]


# To a folder


@pytest.mark.filterwarnings("ignore:The optimizer goes on with the checkpoint's settings")
@pytest.mark.parametrize("groups", ["one", "named", "decay"])
def test_a_trainer_goes_on_where_lightning_stopped(tmp_path, groups, capsys):
    """An epoch under Lightning, converted, and one under our Trainer equal two under Lightning, to the last bit."""
    module = Module(groups)
    whole = lightning_run(tmp_path / "run", module)
    capsys.readouterr()
    target = tmp_path / "checkpoint-3"
    assert cli.main(["convert", str(tmp_path / "run" / "3.ckpt"), str(target)]) == 0
    output = capsys.readouterr().out
    assert f"{target}\nWorth knowing:\n- " in output
    assert "random states: the checkpoint has none" in output
    assert ("names in the optimizer's state" in output) == (groups != "named")
    state = json.loads((target / names.TRAINER_STATE_NAME).read_text())
    assert (state["global_step"], state["epoch"]) == (3, 1.0)
    resumed = trainer_run(tmp_path / "ours", resume=target)
    assert resumed.state.global_step == STEPS
    assert_equal(resumed.model.state_dict(), module.model.state_dict())
    assert_equal(by_name(resumed.optimizer, resumed.model), by_name(whole.optimizers[0], module.model))
    assert [group["lr"] for group in resumed.optimizer.param_groups] == [0.0, 0.0]


@pytest.mark.filterwarnings("ignore:The optimizer goes on with the checkpoint's settings")
def test_a_trainer_goes_on_within_an_epoch(tmp_path):
    """A checkpoint of the fourth update step, the first one of the second epoch, goes on with the fifth."""
    module = Module()
    lightning_run(tmp_path / "run", module, every_n_train_steps=4)
    convert(tmp_path / "run" / "4.ckpt", tmp_path / "checkpoint-4")
    assert json.loads((tmp_path / "checkpoint-4" / names.TRAINER_STATE_NAME).read_text())["epoch"] == pytest.approx(
        4 / 3
    )
    resumed = trainer_run(tmp_path / "ours", resume=tmp_path / "checkpoint-4")
    assert_equal(resumed.model.state_dict(), module.model.state_dict())


def upstream_run(folder: Path, model: nn.Module, resume: Path) -> Any:
    """Resume with the Trainer of transformers, with the same updates as the Lightning run."""
    from transformers import Trainer as Upstream, TrainingArguments as UpstreamArguments

    class UpstreamInOrder(Upstream):
        def _get_train_sampler(self, *args):
            return SequentialSampler(self.train_dataset)

    args = UpstreamArguments(
        str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        weight_decay=0.1,
        warmup_steps=1,
        max_grad_norm=0.0,
        save_strategy="epoch",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        optim="adamw_torch",
    )
    trainer = UpstreamInOrder(model, args, train_dataset=helpers.ListDataset(ROWS), data_collator=helpers.PadCollator())
    trainer.train(resume_from_checkpoint=str(resume))
    return trainer


@pytest.mark.slow
def test_upstreams_trainer_resumes_too(tmp_path):
    """The Trainer of transformers resumes from the folder, and makes the same weights."""
    module = Module()
    lightning_run(tmp_path / "run", module)
    convert(tmp_path / "run" / "3.ckpt", tmp_path / "checkpoint-3", Options(batch_size=4, steps_between=(1, 1, 1)))
    trainer = upstream_run(tmp_path / "theirs", language_model(), tmp_path / "checkpoint-3")
    assert_equal(trainer.model.state_dict(), module.model.state_dict())


# Of sharded strategies


def test_a_folder_of_fsdp(tmp_path):
    """A folder as FSDPStrategy saves it, with names for parameters, makes what a file of the same run makes."""
    module = Module()
    lightning_run(tmp_path / "run", module, epochs=1)
    source = tmp_path / "run" / "3.ckpt"
    content = torch.load(source, weights_only=True)
    order = [name for name, _ in module.named_parameters()]
    (optimizer,) = content.pop("optimizer_states")
    state = {order[index]: entry for index, entry in optimizer["state"].items()}
    groups = [{**group, "params": order} for group in optimizer["param_groups"]]
    sharded = {"model": content.pop("state_dict"), "optimizer_0": {"state": state, "param_groups": groups}}
    distributed_files.save(sharded, tmp_path / "sharded")
    torch.save(content, tmp_path / "sharded" / "meta.pt")
    assert not told(convert(tmp_path / "sharded", tmp_path / "out"), "names in")
    convert(source, tmp_path / "expected")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        path.name for path in (tmp_path / "expected").iterdir()
    }
    for name in (names.SAFE_WEIGHTS_NAME, names.TRAINER_STATE_NAME, "config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    for name in (names.OPTIMIZER_NAME, names.SCHEDULER_NAME):
        found, expected = (torch.load(tmp_path / place / name, weights_only=True) for place in ("out", "expected"))
        assert_equal(found, expected)


@pytest.mark.slow
def test_a_folder_of_two_ranks(tmp_path):
    """What two ranks of ModelParallelStrategy saved becomes the full model, with each parameter's state."""
    ended = forked_ranks(SCRIPTS / "sharded_lightning.py", tmp_path / "sharded")
    assert ended.code == 0, ended.output
    convert(tmp_path / "sharded", tmp_path / "out")
    expected = torch.load(tmp_path / "sharded.expected", weights_only=True)
    model = type(language_model()).from_pretrained(tmp_path / "out")
    assert_equal({name: value.detach() for name, value in model.named_parameters()}, expected["weights"])
    state = torch.load(tmp_path / "out" / names.OPTIMIZER_NAME, weights_only=True)["state"]
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    order = [name_of[id(parameter)] for group in parameter_groups(model, 0.0) for parameter in group["params"]]
    assert {order[index]: entry["exp_avg"].tolist() for index, entry in state.items()} == {
        name: value.tolist() for name, value in expected["exp_avg"].items()
    }


# To a file


def test_lightning_goes_on_where_a_trainer_stopped(tmp_path, capsys):
    """An epoch under our Trainer, converted, and one under Lightning are two epochs under our Trainer."""
    whole = trainer_run(tmp_path / "ours")
    target = tmp_path / "run.ckpt"
    assert cli.main(["convert", str(tmp_path / "ours" / "checkpoint-3"), str(target)]) == 0
    output = capsys.readouterr().out
    assert "random states: Lightning restores none" in output
    assert "training_args.bin" in output
    module = Module("decay")
    resumed = lightning_run(tmp_path / "run", module, resume=target)
    assert (resumed.global_step, resumed.current_epoch) == (STEPS, 2)
    assert_equal(module.model.state_dict(), whole.model.state_dict())
    assert_equal(resumed.optimizers[0].state_dict()["state"], whole.optimizer.state_dict()["state"])
    assert_equal(resumed.lr_scheduler_configs[0].scheduler.state_dict(), whole.lr_scheduler.state_dict())


def test_a_folder_of_lightning_goes_back(tmp_path):
    """A folder that ``HFCheckpointIO`` wrote for Lightning becomes Lightning's file, other weights included."""
    module = Module(beside=True)
    lightning_run(tmp_path / "run", module, plugins=[HFCheckpointIO()])
    (folder,) = (tmp_path / "run").glob("3*")
    convert(folder, tmp_path / "run.ckpt")
    resumed = Module(beside=True)
    with torch.no_grad():
        resumed.head.weight.zero_()
    lightning_run(tmp_path / "again", resumed, resume=tmp_path / "run.ckpt")
    assert_equal(resumed.state_dict(), module.state_dict())


def test_lightning_goes_on_within_an_epoch(tmp_path):
    """A checkpoint within an epoch makes the batches that are left of it, from the epoch's first one, which is said."""
    trainer_run(tmp_path / "ours", save_strategy="steps", save_steps=4)
    made = convert(tmp_path / "ours" / "checkpoint-4", tmp_path / "run.ckpt")
    assert told(made, "the position in the epoch")
    module = Module("decay")
    trainer = lightning_run(tmp_path / "run", module, resume=tmp_path / "run.ckpt")
    assert (trainer.global_step, trainer.current_epoch) == (STEPS, 2)


def test_one_group_for_lightning(tmp_path):
    """``--groups one`` makes the state of an optimizer of `self.parameters()`; with different options it is refused."""
    whole = trainer_run(tmp_path / "ours", weight_decay=0.0)
    folder = tmp_path / "ours" / "checkpoint-3"
    convert(folder, tmp_path / "one.ckpt", Options(groups="one"))
    module = Module()
    lightning_run(tmp_path / "run", module, resume=tmp_path / "one.ckpt")
    assert_equal(module.model.state_dict(), whole.model.state_dict())
    trainer_run(tmp_path / "other", epochs=1)
    with pytest.raises(CheckpointError, match=r"different options: weight_decay=0\.1 and 0\.0"):
        convert(tmp_path / "other" / "checkpoint-3", tmp_path / "no.ckpt", Options(groups="one"))
    assert not (tmp_path / "no.ckpt").exists()


def test_there_and_back(tmp_path):
    """A checkpoint converted to a file and back is the same checkpoint, random states and logs included."""
    trainer_run(tmp_path / "ours", epochs=1)
    folder = tmp_path / "ours" / "checkpoint-3"
    convert(folder, tmp_path / "run.ckpt")
    convert(tmp_path / "run.ckpt", tmp_path / "back")
    there = {path.name for path in folder.iterdir()}
    assert {path.name for path in (tmp_path / "back").iterdir()} == there - {"training_args.bin"}
    for name in (names.SAFE_WEIGHTS_NAME, "config.json", "generation_config.json", names.TRAINER_STATE_NAME):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes(), name
    for name in (names.OPTIMIZER_NAME, names.SCHEDULER_NAME, "rng_state.pth", names.LIGHTNING_STATE_NAME):
        found, expected = (torch.load(place / name, weights_only=False) for place in (tmp_path / "back", folder))
        if name == "rng_state.pth":
            assert (found["numpy"][1] == expected["numpy"][1]).all()
            found["numpy"], expected["numpy"] = found["numpy"][2:], expected["numpy"][2:]
        assert_equal(found, expected)
    convert(tmp_path / "run.ckpt", tmp_path / "other", Options(batch_size=7, steps_between=(1, 2, 3)))
    state = json.loads((tmp_path / "other" / names.TRAINER_STATE_NAME).read_text())
    changed = [state[name] for name in ("train_batch_size", "logging_steps", "eval_steps", "save_steps")]
    assert changed == [7, 1, 2, 3]


# What is refused, and what is said


def test_nothing_is_replaced(tmp_path):
    """A target that exists is refused, whatever it is, and stays as it is; an empty folder is taken."""
    model = Module().model
    model.save_pretrained(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "a.ckpt")
    before = (tmp_path / "a.ckpt").read_bytes()
    for source, target in (("model", "a.ckpt"), ("a.ckpt", "model"), ("a.ckpt", "a.ckpt")):
        with pytest.raises(CheckpointError, match="already exists"):
            convert(tmp_path / source, tmp_path / target)
    assert (tmp_path / "a.ckpt").read_bytes() == before
    (tmp_path / "empty").mkdir()
    convert(tmp_path / "a.ckpt", tmp_path / "empty")
    assert {path.name for path in tmp_path.iterdir()} == {"model", "a.ckpt", "empty"}
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "empty" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


def test_no_code_is_run(tmp_path):
    """A file that calls the operating system is refused; other objects are not read, which is said."""
    module = Module()
    content = {"pytorch-lightning_version": "2.6.0", "epoch": 0, "global_step": 0}
    content["state_dict"] = module.state_dict()
    content["hyper_parameters"] = {"trap": Trap(tmp_path / "made"), "config": module.model.config.to_dict()}
    torch.save(content, tmp_path / "evil.ckpt")
    with pytest.raises(CheckpointError, match="refused"):
        convert(tmp_path / "evil.ckpt", tmp_path / "out")
    content["hyper_parameters"]["trap"] = Path("somewhere")
    torch.save(content, tmp_path / "path.ckpt")
    notes = convert(tmp_path / "path.ckpt", tmp_path / "out").notes
    assert any(note.startswith("objects of pathlib.") for note in notes)
    assert not (tmp_path / "made").exists()


def test_a_file_names_no_other_file(tmp_path):
    """Random states under a path instead of a name are refused; nothing is written outside the target."""
    trainer_run(tmp_path / "ours", epochs=1)
    convert(tmp_path / "ours" / "checkpoint-3", tmp_path / "run.ckpt")
    content = torch.load(tmp_path / "run.ckpt", weights_only=True)
    states = content["hf_compat"]["random_states"]
    for name in ("../mine", str(tmp_path / "mine"), "model.safetensors"):
        content["hf_compat"]["random_states"] = {name: states["rng_state.pth"]}
        torch.save(content, tmp_path / "evil.ckpt")
        with pytest.raises(CheckpointError, match="do not trust"):
            convert(tmp_path / "evil.ckpt", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"ours", "run.ckpt", "evil.ckpt"}


def test_a_class_is_not_read_either(tmp_path):
    """A class in the optimizer's options, not an object of one, is refused, as no Trainer loads it."""
    lightning_run(tmp_path / "run", Module(), epochs=1)
    content = torch.load(tmp_path / "run" / "3.ckpt", weights_only=True)
    content["optimizer_states"][0]["param_groups"][0]["kind"] = Trap
    torch.save(content, tmp_path / "class.ckpt")
    with pytest.raises(CheckpointError, match=r"`optimizer\.pt` would contain objects other than tensors"):
        convert(tmp_path / "class.ckpt", tmp_path / "out")


def test_options_without_effect_are_refused(tmp_path):
    """Each option has its effect or is an error, and all are told at once."""
    language_model().save_pretrained(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"`--batch-size`: a `\.ckpt` file .*; `--max-shard-size`: a"):
        convert(tmp_path / "model", tmp_path / "a.ckpt", Options(batch_size=4, max_shard_size=9))
    with pytest.raises(CheckpointError, match=r"`--groups`: `--weights-only` leaves the training state out"):
        convert(tmp_path / "model", tmp_path / "a.ckpt", Options(weights_only=True, groups="one"))
    with pytest.raises(CheckpointError, match=r"`--batch-size 0`, `--steps-between -1`: pass 1 or more"):
        Options(batch_size=0, steps_between=(5, 5, -1))
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def saved(path: Path, module: nn.Module, **entries: Any) -> Path:
    """Write a Lightning checkpoint of weights by hand."""
    content = {"pytorch-lightning_version": "2.6.0", "epoch": 0, "global_step": 0, "state_dict": module.state_dict()}
    torch.save({**content, **entries}, path)
    return path


def test_what_is_no_checkpoint_of_lightning(tmp_path):
    """Other files, those of Lightning 1, and folders without weights are refused with what to do."""
    torch.save({"weight": torch.ones(2)}, tmp_path / "weights.pt")
    (tmp_path / "text.ckpt").write_text("no")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zero" / "checkpoint").mkdir(parents=True)
    torch.save({"module": {}, "dp_world_size": 1}, tmp_path / "zero" / "checkpoint" / "mp_rank_00_model_states.pt")
    old = saved(tmp_path / "old.ckpt", nn.Linear(2, 2), **{"pytorch-lightning_version": "1.9.0"})
    for source, message in (
        (tmp_path / "weights.pt", "is not a Lightning checkpoint"),
        (tmp_path / "text.ckpt", "cannot be read"),
        (tmp_path / "folder", "has no weights"),
        (tmp_path / "none.ckpt", "does not exist"),
        (old, r"upgrade_checkpoint"),
        (tmp_path / "zero", r"is not a checkpoint of a Lightning run: DeepSpeed's files have no"),
    ):
        with pytest.raises(CheckpointError, match=message):
            convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_without_counters(tmp_path):
    """Its weights can be converted; a run that would go on from it does not know where it is."""
    source = saved(tmp_path / "run.ckpt", nn.ModuleDict({"model": nn.Linear(2, 2)}), optimizer_states=[])
    content = torch.load(source, weights_only=True)
    del content["epoch"], content["global_step"]
    torch.save(content, source)
    with pytest.raises(CheckpointError, match=r"has no `epoch` and no `global_step`.*`--weights-only`"):
        convert(source, tmp_path / "out")
    convert(source, tmp_path / "out", Options(weights_only=True))
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_which_part_is_the_model(tmp_path):
    """Without a configuration the only part is taken, and of several one has to be named; others are said."""
    two = nn.ModuleDict({"net": nn.Linear(2, 2), "head": nn.Linear(2, 1)})
    source = saved(tmp_path / "two.ckpt", two)
    with pytest.raises(CheckpointError, match=r"`net\.`, `head\.`\. Pass one of them as `--prefix`"):
        convert(source, tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"`--prefix other`: no weight name starts with it"):
        convert(source, tmp_path / "out", Options(prefix="other"))
    notes = convert(source, tmp_path / "out", Options(prefix="net")).notes
    assert "weights outside the model (prefix `net.`): head.weight, head.bias." in notes
    assert any(note.startswith("config.json: ") for note in notes)
    only = saved(tmp_path / "one.ckpt", nn.ModuleDict({"net": nn.Linear(2, 2)}))
    convert(only, tmp_path / "one", Options(max_shard_size=8))
    assert {path.suffix for path in (tmp_path / "one").iterdir()} == {".safetensors", ".json"}
    assert len(list((tmp_path / "one").glob("*.safetensors"))) == 2


def test_the_class_is_found(tmp_path):
    """A classifier made of another model's folder is recognised; with another number of labels the shapes are said."""
    torch.manual_seed(0)
    model = helpers.bert_classifier()
    config = model.config.to_dict() | {"architectures": ["BertForMaskedLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "notes.txt").write_text("beside the configuration, not of a model")
    source = saved(tmp_path / "run.ckpt", nn.ModuleDict({"net": model, "beside": nn.Linear(2, 2)}))
    convert(source, tmp_path / "out", Options(model=tmp_path / "config.json"))
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architectures"] == ["BertForSequenceClassification"]
    assert not (tmp_path / "out" / "notes.txt").exists()
    loaded = type(model).from_pretrained(tmp_path / "out")
    assert_equal(dict(loaded.state_dict()), dict(model.state_dict()))
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 7}))
    with pytest.raises(CheckpointError, match=r"No weights .* match the bert model of its configuration"):
        convert(source, tmp_path / "no", Options(model=tmp_path / "config.json"))


def test_parameters_that_cannot_be_told_apart(tmp_path):
    """An optimizer in an unusual order, without names, is refused; its names may be given, or it is left out."""
    module = Module()
    backwards = [parameter for _, parameter in reversed(list(module.named_parameters()))]
    optimizer = torch.optim.AdamW(backwards, 1e-2)
    module.model(input_ids=torch.ones(1, 3).long(), labels=torch.ones(1, 3).long()).loss.backward()
    optimizer.step()
    states = {"optimizer_states": [optimizer.state_dict()], "lr_schedulers": [], "callbacks": {}, "loops": {}}
    source = saved(tmp_path / "run.ckpt", module, **states, hyper_parameters=dict(module.hparams), global_step=1)
    with pytest.raises(CheckpointError, match=r"no usual order fits\. Pass the names .*--parameters FILE"):
        convert(source, tmp_path / "out")
    unknown = saved(tmp_path / "unknown.ckpt", module, **states, global_step=1)
    with pytest.raises(
        CheckpointError, match=r"Pass the model's folder as `--model`, .* or the names .*--parameters FILE"
    ):
        convert(unknown, tmp_path / "out")
    order = [name for name, _ in reversed(list(module.named_parameters()))]
    (tmp_path / "names.json").write_text(json.dumps(order))
    assert cli.main(["convert", str(source), str(tmp_path / "out"), "--parameters", str(tmp_path / "names.json")]) == 0
    written = torch.load(tmp_path / "out" / "optimizer.pt", weights_only=True)
    groups = parameter_groups(module.model, 0.0)
    assert [len(group["params"]) for group in written["param_groups"]] == [len(group["params"]) for group in groups]
    parameters = [parameter for group in groups for parameter in group["params"]]
    for index, parameter in enumerate(parameters):
        assert_equal(written["state"][index], optimizer.state[parameter])
    assert not told(convert(source, tmp_path / "model", Options(weights_only=True)), "optimizer")
    assert not (tmp_path / "model" / "optimizer.pt").exists()


def test_a_schedule_by_epoch_is_refused(tmp_path):
    """A schedule that made other steps than the optimizer would go on wrongly in a Trainer."""
    module = Module()
    lightning_run(tmp_path / "run", module, epochs=1)
    content = torch.load(tmp_path / "run" / "3.ckpt", weights_only=True)
    content["lr_schedulers"][0]["last_epoch"] = 1
    torch.save(content, tmp_path / "epoch.ckpt")
    with pytest.raises(CheckpointError, match="the schedule has made 1 steps in 3 update steps"):
        convert(tmp_path / "epoch.ckpt", tmp_path / "out")
