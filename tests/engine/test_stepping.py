"""A run's loop, and the loops that evaluate, compared with Lightning's own."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from torch.utils.data import DataLoader

import hf_compat
from hf_compat.data.loader import TrackedLoader
from hf_compat.data.windows import Window
from hf_compat.engine import backend
from hf_compat.engine.internals.stepping import _LeanEvaluationLoop, use_fast_loops
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.lightning import HFDataModule, HFModule
from tests.support.helpers import (
    ListDataset,
    PadCollator,
    PlainModel,
    SizedStream,
    bert_classifier,
    labelled_rows,
    vector_rows,
)
from tests.support.trainers import arguments

HOOKS = (
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_train_batch_end",
    "on_train_epoch_end",
)
ENDS = ("on_validation_epoch_end", "on_test_epoch_end")
EVALUATION_HOOKS = tuple(f"on_{stage}_batch_{when}" for stage in ("validation", "test") for when in ("start", "end"))


def told(value):
    """Return what a hook got, so that two runs can be compared: a window of one batch as that batch."""
    if isinstance(value, Window) and len(value.batches) == 1:
        return told(value.batches[0])
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: told(each) for name, each in value.items()}
    return value if isinstance(value, int | float | str | None) else type(value).__name__


def state_of(trainer, module):
    """Return what a hook can read of the loop."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    metrics = {name: told(value) for name, value in trainer.callback_metrics.items() if name.startswith("own")}
    return (
        module._current_fx_name,
        trainer.global_step,
        vars(progress.current).copy(),
        vars(progress.total).copy(),
        progress.is_last_batch,
        vars(trainer.fit_loop.epoch_loop)["_batches_that_stepped"],  # of which the lean loop shows one more
        metrics,
    )


class Seeing(pl.Callback):
    """Notes each hook, and logs a metric."""

    def __init__(self, seen):
        self.seen = seen

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.log("own_step", float(trainer.global_step))
        self.seen.append(("callback", "on_train_batch_end", told(outputs), batch_idx, state_of(trainer, pl_module)))


def noting_callback(name):
    def hook(self, trainer, pl_module, *given):
        self.seen.append(("callback", name, [told(each) for each in given], state_of(trainer, pl_module)))

    return hook


def noting_module(name):
    def hook(self, *given):
        SEEN.append(("module", name, [told(each) for each in given], state_of(self.trainer, self)))

    return hook


SEEN = []
"""What the module's hooks note, which is made by the run."""
for hook_name in HOOKS:
    if hook_name != "on_train_batch_end":
        setattr(Seeing, hook_name, noting_callback(hook_name))


def accumulating(folder, **more):
    """Return arguments of a run of two epochs with accumulation and a short last window."""
    more = {
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 2,
        "save_strategy": "no",
        "semantics": "corrected",
    } | more
    return arguments(folder, per_device_train_batch_size=2, **more)


def fit(folder, *callbacks, module, lightning=None, **more):
    """Train the pieces, and return their Lightning trainer with its module."""
    args = accumulating(folder, **more)
    keywords = {"logger": False, "accelerator": "cpu", "max_epochs": -1, "enable_progress_bar": False}
    callbacks = [*hf_compat.lightning.callbacks(args), *callbacks]
    trainer = pl.Trainer(callbacks=callbacks, **keywords, **(lightning or {}))
    hf_compat.set_seed(0)
    made = module(bert_classifier(), args)
    data = ListDataset(labelled_rows(7))
    trainer.fit(made, datamodule=HFDataModule(args, data, data_collator=PadCollator()))
    return trainer, made


class Plain(pl.LightningModule):
    """A module of Lightning alone, which does with a batch what a run of ours does with a window of one."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.model = PlainModel(dropout=0.0)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch, batch_idx):
        loss = self.model(**batch)["loss"]
        self.manual_backward(loss)
        self.optimizers().step()
        self.model.zero_grad()
        return {"loss": loss.detach()}


def noting(kind):
    """Return a class like ``kind`` whose hooks note what they get; gradients are zeroed without a hook in both."""
    return type(kind.__name__, (kind,), {name: noting_module(name) for name in HOOKS if name != "on_before_zero_grad"})


@pytest.mark.filterwarnings(r"ignore:`?isinstance\(treespec, LeafSpec\):FutureWarning")  # Lightning's
@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
def test_hooks_are_called_as_by_lightning(tmp_path):
    """Order, arguments, the hook's name, progress, logged metrics and weights are those of plain Lightning."""
    rows = [{name: torch.tensor(value) for name, value in vector_rows(1)[0].items()}] * 4  # in whatever order
    keywords = {"logger": False, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    more = {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "optim": "sgd", "learning_rate": 0.1}
    args = accumulating(tmp_path, gradient_accumulation_steps=1, **more)
    seen, weights = [], []
    for is_plain in (False, True):
        SEEN.clear()
        hf_compat.set_seed(0)
        if is_plain:
            module = noting(Plain)()
            trainer = pl.Trainer(max_epochs=2, callbacks=[Seeing(SEEN)], enable_checkpointing=False, **keywords)
            trainer.fit(module, DataLoader(rows, batch_size=2))
        else:
            module = noting(HFModule)(PlainModel(dropout=0.0), args)
            callbacks = [*hf_compat.lightning.callbacks(args), Seeing(SEEN)]
            pl.Trainer(max_epochs=-1, callbacks=callbacks, **keywords).fit(module, datamodule=HFDataModule(args, rows))
        seen.append([*SEEN])
        weights.append(module.model.state_dict())
    assert seen[0] == seen[1]
    assert {(kind, name) for kind, name, *_ in seen[0]} >= {("callback", name) for name in HOOKS[:5]}
    assert any("own_step" in str(entry) for entry in seen[0])
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_a_profiler_sees_what_it_sees_of_lightning(tmp_path):
    """Under a profiler each hook of each callback and of the module is an action, as are batches, steps and updates."""
    trainer, _ = fit(tmp_path, Seeing(SEEN), module=HFModule, lightning={"profiler": "simple"})
    actions = {name: len(times) for name, times in trainer.profiler.recorded_durations.items()}
    assert {name: count for name, count in actions.items() if not name.startswith("[")} == {
        "run_training_epoch": 2,
        "run_training_batch": 4,
        "optimizer_step": 4,
    }
    for owner in ("[Callback]Seeing", "[LightningModule]HFModule"):
        assert {name: actions[f"{owner}.{name}"] for name in HOOKS if name != "on_before_zero_grad"} == {
            "on_train_epoch_start": 2,
            "on_train_batch_start": 4,
            "on_before_backward": 8,
            "on_after_backward": 8,
            "on_before_optimizer_step": 4,
            "on_train_batch_end": 4,
            "on_train_epoch_end": 2,
        }
    assert actions["[_TrainingEpochLoop].train_dataloader_next"] == 4
    assert actions["[Strategy]OneDeviceStrategy.training_step"] == 4
    assert actions["[LightningModule]HFModule.transfer_batch_to_device"] == 4


def test_a_callback_that_comes_and_goes(tmp_path):
    """One that is added or removed within an epoch is called from then on, or no more."""
    seen = []

    class Adding(pl.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == 1:
                trainer.callbacks.insert(0, late)
            if trainer.global_step == 3:
                trainer.callbacks.remove(late)

    class Late(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append(trainer.global_step)

    late = Late()
    fit(tmp_path, Adding(), module=HFModule)
    assert seen == [2, 3]


class Ending(HFModule):
    """Ends each epoch before its second window."""

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx else None


class Transferring(HFModule):
    """Has something to do with each window before it is trained on."""

    windows = 0

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.windows += 1
        return batch


@pytest.mark.filterwarnings("ignore:You have overridden `on_after_batch_transfer`:UserWarning")
def test_hooks_of_a_module_that_change_what_happens(tmp_path):
    """A module's own hook ends an epoch, and another one gets each window before it is trained on, as in Lightning."""
    trainer, _ = fit(tmp_path / "ending", module=Ending)
    assert trainer.global_step == 2
    assert trainer.fit_loop.epoch_loop.batch_progress.total.completed == 2
    trainer, module = fit(tmp_path / "transferring", module=Transferring)
    assert module.windows == 4
    assert trainer.global_step == 4


class StepsItself(HFModule):
    """Adds to the step of a window, and returns a loss with a graph."""

    def training_step(self, window, batch_idx):
        outputs = super().training_step(window, batch_idx)
        return {**outputs, "loss": outputs["loss"] * torch.ones(1, requires_grad=True).sum(), "index": batch_idx}


def test_a_training_step_of_its_own(tmp_path):
    """Callbacks get what it returns, the loss without its graph."""
    seen = []

    class Ends(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append((outputs["index"], outputs["loss"].requires_grad))

    trainer, _ = fit(tmp_path, Ends(), module=StepsItself)
    assert trainer.global_step == 4
    assert seen == [(0, False), (1, False)] * 2


@pytest.mark.parametrize("more", [{}, {"bf16": True}], ids=["fp32", "bf16"])
def test_a_trainers_run_is_lean(tmp_path, monkeypatch, more):
    """``Trainer.train`` calls no hook that nobody overrides, whatever the precision."""
    called = []
    for name in HOOKS[1:5]:
        monkeypatch.setattr(pl.Callback, name, lambda *given, name=name: called.append(name))
        monkeypatch.setattr(pl.LightningModule, name, lambda *given, name=name: called.append(name))
    data = ListDataset(labelled_rows(7))
    hf_compat.Trainer(bert_classifier(), accumulating(tmp_path, **more), PadCollator(), data).train()
    assert called == []
    profiled = {"profiler": "simple"}
    hf_compat.Trainer(
        bert_classifier(), accumulating(tmp_path, **more), PadCollator(), data, lightning=profiled
    ).train()
    assert {*called} == {*HOOKS[1:5]}


class SeeingEvaluations(pl.Callback):
    """Notes each hook of a batch that is evaluated, and logs a metric by step and one by epoch."""

    def __init__(self):
        self.seen = []
        self.lean = set()

    def note(self, trainer, pl_module, name, given):
        loop = trainer._evaluation_loop
        self.lean.add(isinstance(loop, _LeanEvaluationLoop) and loop.lightning_hooks is not None)
        counts = vars(loop.batch_progress.current).copy(), loop.batch_progress.is_last_batch
        metrics = {
            name: told(value)
            for name, value in {**trainer.logged_metrics, **trainer.callback_metrics}.items()
            if name.startswith("own")
        }
        self.seen.append((name, [told(each) for each in given], pl_module._current_fx_name, counts, metrics))
        if name.endswith("batch_end"):
            count = float(len(self.seen))
            self.log("own_step", count, on_step=True, on_epoch=False, batch_size=2)
            self.log("own_epoch", count, on_step=False, on_epoch=True, batch_size=2)


def noting_evaluations(name):
    def hook(self, trainer, pl_module, *given):
        self.note(trainer, pl_module, name, given)

    return hook


for hook_name in (*EVALUATION_HOOKS, *ENDS):
    setattr(SeeingEvaluations, hook_name, noting_evaluations(hook_name))


class OwnStep(pl.LightningModule):
    """A module that is none of ours: its step takes no index, and it has a hook."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def validation_step(self, batch):
        self.steps.append((told(batch), self._current_fx_name))
        self.log("own_loss", batch.sum())
        return batch.mean()

    def on_validation_batch_end(self, outputs, batch, batch_idx):
        self.steps.append((told(outputs), batch_idx, self._current_fx_name))


class LeavesBatches(OwnStep):
    """Neither moves nor changes a batch."""

    transfer_batch_to_device = HFModule.transfer_batch_to_device


def evaluate(folder, *, lightning=None):
    """Train with an evaluation per epoch, then evaluate and predict; return what the hooks saw and what came out."""
    callback = SeeingEvaluations()
    rows = ListDataset(labelled_rows(7))
    args = accumulating(folder, eval_strategy="epoch", per_device_eval_batch_size=2)
    hf_compat.set_seed(0)
    given = {"train_dataset": rows, "eval_dataset": rows, "callbacks": [callback], "lightning": lightning}
    trainer = hf_compat.Trainer(bert_classifier(), args, PadCollator(), **given)
    trainer.train()
    metrics = trainer.evaluate()
    predicted = trainer.predict(rows)
    times = ("runtime", "per_second", "time")
    numbers = {**metrics, **predicted.metrics}
    numbers = {name: value for name, value in numbers.items() if not name.endswith(times)}
    return callback.lean, callback.seen, numbers, predicted.predictions.tolist()


def test_hooks_of_evaluations_are_called_as_by_lightning(tmp_path, monkeypatch):
    """In a fit and outside: order, arguments, the hook's name, progress, logged metrics and results are Lightning's."""
    lean, *ours = evaluate(tmp_path / "lean")
    assert lean == {True}
    monkeypatch.setattr(backend, "use_fast_loops", lambda trainer, **_: None)
    lean, *theirs = evaluate(tmp_path / "own")
    assert lean == {False}
    assert ours == theirs
    assert {name for name, *_ in ours[0]} == {*EVALUATION_HOOKS, *ENDS}
    assert {name for *_, metrics in ours[0] for name in metrics} == {"own_step", "own_epoch"}


def test_a_batch_of_a_later_evaluation_collects_no_metrics(tmp_path, monkeypatch):
    """What an evaluation has logged at its end is not looked through at each batch of the next one."""
    collected = []
    monkeypatch.setattr(_LoggerConnector, "on_batch_end", lambda self: collected.append(self))
    rows = ListDataset(labelled_rows(7))
    trainer = hf_compat.Trainer(bert_classifier(), accumulating(tmp_path), PadCollator(), eval_dataset=rows)
    first, second = trainer.evaluate(), trainer.evaluate()
    assert first["eval_loss"] == second["eval_loss"]
    assert trainer.lightning_trainer.callback_metrics["eval_loss"] == pytest.approx(first["eval_loss"])
    assert collected == []


def test_evaluations_under_a_profiler(tmp_path):
    """Lightning's own loop evaluates, with the profiler's context around each hook."""
    profiler = SimpleProfiler()
    lean, *_ = evaluate(tmp_path, lightning={"profiler": profiler})
    assert lean == {False}
    assert any("on_validation_batch_start" in action for action in profiler.recorded_durations)


@pytest.mark.filterwarnings(r"ignore:`?isinstance\(treespec, LeafSpec\):FutureWarning")  # Lightning's
@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
def test_evaluations_of_another_module():
    """A step without an index, the module's own hook, what it logs; where batches are moved it is Lightning's loop."""
    seen = []
    for kind in (LeavesBatches, OwnStep):
        module = kind()
        trainer = pl.Trainer(logger=False, accelerator="cpu", enable_progress_bar=False)
        use_fast_loops(trainer, noop_transfer=HFModule.transfer_batch_to_device, strategy_class=ModelStrategy)
        logged = trainer.validate(module, DataLoader(torch.arange(6.0), batch_size=4), verbose=False)
        assert (trainer.validate_loop.lightning_hooks is not None) == (kind is LeavesBatches)
        seen.append((logged, module.steps))
    assert seen[0] == seen[1]


class Counted:
    """Batches with a length."""

    def __init__(self, count=4, said=4):
        self.count, self.said = count, said

    def __len__(self):
        return self.said

    def __iter__(self):
        return iter(torch.arange(float(self.count)).split(1))


@pytest.mark.filterwarnings(r"ignore:`?isinstance\(treespec, LeafSpec\):FutureWarning")  # Lightning's
@pytest.mark.parametrize(("limit", "expected"), [(1.0, [4]), (0.5, [2]), (3, [3]), (9, [4]), (0, [])])
def test_batches_of_a_loader_with_a_length(limit, expected, monkeypatch):
    """As many are evaluated as by Lightning's own loop, without its sum of the lengths over the ranks."""
    sums = []
    for lean in (False, True):
        trainer = pl.Trainer(logger=False, accelerator="cpu", enable_progress_bar=False, limit_val_batches=limit)
        monkeypatch.setattr(trainer.strategy, "reduce", lambda tensor, **_: sums.append(tensor) or tensor)
        if lean:
            use_fast_loops(trainer, noop_transfer=HFModule.transfer_batch_to_device, strategy_class=ModelStrategy)
        trainer.validate(LeavesBatches(), TrackedLoader(Counted(), knows_end=False), verbose=False)
        assert trainer.num_val_batches == expected
        assert trainer.validate_loop.batch_progress.total.completed == sum(expected)
    assert len(sums) == (1 if expected else 0)


class Watching(pl.Callback):
    """Notes of each batch that is evaluated its index, how many there are said to be, and whether it is the last."""

    def __init__(self):
        self.seen = []

    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        is_last = trainer._evaluation_loop.batch_progress.is_last_batch
        self.seen.append((batch_idx, trainer.num_val_batches, is_last))

    on_test_batch_start = on_validation_batch_start


@pytest.mark.filterwarnings(r"ignore:`?isinstance\(treespec, LeafSpec\):FutureWarning")  # Lightning's
@pytest.mark.parametrize(
    ("limit", "expected", "said"),
    [
        pytest.param(1.0, 6, 4, id="all"),
        pytest.param(5, 5, 4, id="more than the length"),
        pytest.param(3, 3, 3, id="less than the length"),
        pytest.param(0.5, 2, 2, id="half of the length"),
    ],
)
@pytest.mark.parametrize("profiler", [None, "simple"])
def test_a_length_is_a_hint(limit, expected, said, profiler):
    """A loader is read to its end or to the limit, whatever its length, which callbacks are shown."""
    watching = Watching()
    keywords = {"logger": False, "accelerator": "cpu", "enable_progress_bar": False, "profiler": profiler}
    trainer = pl.Trainer(callbacks=[watching], limit_val_batches=limit, **keywords)
    use_fast_loops(trainer, noop_transfer=HFModule.transfer_batch_to_device, strategy_class=ModelStrategy)
    trainer.validate(LeavesBatches(), TrackedLoader(Counted(count=6), knows_end=True), verbose=False)
    assert watching.seen == [(index, [said], index == expected - 1) for index in range(expected)]
    assert (trainer.validate_loop.lightning_hooks is None) == (profiler is not None)


class SaysFour(SizedStream):
    """A stream that says that it has four rows."""

    def __len__(self):
        return 4


@pytest.mark.parametrize("keywords", [{}, {"profiler": "simple"}], ids=["lean", "profiled"])
def test_evaluations_of_a_stream_longer_than_its_length(tmp_path, keywords):
    """In a fit and outside callbacks see all batches, the length as their number, and which is the last."""
    rows = SaysFour(labelled_rows(7))
    watching = Watching()
    args = accumulating(tmp_path, eval_strategy="epoch", per_device_eval_batch_size=2, num_train_epochs=1)
    given = {"train_dataset": rows, "eval_dataset": rows, "callbacks": [watching], "lightning": keywords}
    trainer = hf_compat.Trainer(bert_classifier(), args, PadCollator(), **given)
    trainer.train()
    trainer.evaluate()
    assert len(trainer.predict(rows).predictions) == 7
    whole = [(index, index == 3) for index in range(4)]
    assert [(index, is_last) for index, _, is_last in watching.seen] == whole * 3
    assert {tuple(batches) for _, batches, _ in watching.seen[:8]} == {(2,)}


class CountedRows(DataLoader):
    """A loader of seven rows in twos that says there is one batch."""

    def __len__(self):
        return 1


@pytest.mark.parametrize(
    ("keywords", "rows"),
    [({}, [2, 2, 2, 1]), ({"limit_val_batches": 3}, [2, 2, 2]), ({"limit_val_batches": 9}, [2, 2, 2, 1])],
    ids=str,
)
@pytest.mark.parametrize("prepares", [True, False])
def test_the_last_batch_is_known(tmp_path, keywords, rows, prepares):
    """Metrics by batches are asked for at the last alone: of a prepared loader, of another, and before a limit."""
    asked = []

    class Own(hf_compat.Trainer):
        def get_eval_dataloader(self, eval_dataset=None):
            loader = CountedRows(self.eval_dataset, batch_size=2, collate_fn=self.data_collator)
            return self.accelerator.prepare(loader) if prepares else loader

    def counted(prediction, compute_result):
        asked.append((len(prediction.label_ids), compute_result))
        return {"asked": len(asked)}

    args = accumulating(tmp_path, batch_eval_metrics=True)
    given = {"eval_dataset": ListDataset(labelled_rows(7)), "compute_metrics": counted, "lightning": keywords}
    metrics = Own(bert_classifier(), args, PadCollator(), **given).evaluate()
    assert asked == [(size, number == len(rows)) for number, size in enumerate(rows, 1)]
    assert metrics["eval_asked"] == len(rows)
