"""What is known of strategies by their names, and what each strategy answers where it does nothing of its own."""

import ast
import pkgutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hf_compat import Trainer, TrainingArguments
from hf_compat.engine import strategies
from hf_compat.engine.strategies.base import STRATEGIES, ModelStrategy, OneDeviceStrategy
from hf_compat.engine.strategies.choice import STRATEGY_TRAITS
from hf_compat.engine.strategies.deepspeed_engine import EngineScheduler
from tests.support.helpers import PlainModel, vector_rows

FOLDER = Path(strategies.__path__[0])
SHARED = ("base", "choice", "device_mesh", "sharding")
"""What every strategy may import of the others."""
OVERVIEWS = ("base", "choice")
"""Modules about all strategies."""


def test_each_strategy_has_facts_and_a_builder():
    """Both tables have the same names, and each name of a builder is that of a function."""
    assert STRATEGY_TRAITS.keys() == STRATEGIES.keys()
    assert all(callable(pkgutil.resolve_name(f"{strategies.__name__}.{name}")) for name in STRATEGIES.values())


@pytest.mark.parametrize(
    ("fact", "names"),
    [
        ("shards_model", {"fsdp1", "fsdp2", "tensor parallel", "presharded", "deepspeed"}),
        ("places_model", {"one device", "data parallel", "ddp"}),
        ("flat_shards", {"fsdp1"}),
        ("has_engine", {"deepspeed"}),
        ("own_precision", {"deepspeed"}),
        ("own_casts", {"fsdp2"}),
        ("recounts_parameters", {"deepspeed"}),
        ("groups_by_mesh", {"presharded"}),
    ],
)
def test_facts(fact, names):
    """Each fact holds of these strategies and no others."""
    assert {name for name, facts in STRATEGY_TRAITS.items() if getattr(facts, fact)} == names


@pytest.mark.parametrize("module", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_strategies_do_not_know_one_another(module):
    """A strategy imports nothing of another's, but what all share; a part of one has its name in front."""
    own = module.relative_to(FOLDER).with_suffix("").parts[0]
    if own in OVERVIEWS:
        return
    prefix = "hf_compat.engine.strategies."
    nodes = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.ImportFrom)]
    used = {node.module.removeprefix(prefix) for node in nodes if node.module.startswith(prefix)}
    others = {name for name in used if not name.startswith(own)}
    assert others <= {*SHARED}


class Held(nn.Linear):
    """Counts how often gradients are left on their rank."""

    held = 0

    def no_sync(self):
        self.held += 1
        return torch.enable_grad()


class Several(OneDeviceStrategy):
    """Holds gradients back, as the strategies of several processes do."""

    without_sync = ModelStrategy.without_sync


@pytest.mark.parametrize(("syncs_each_batch", "held"), [(False, 1), (True, 0)])
def test_no_sync(tmp_path, syncs_each_batch, held):
    """``no_sync`` of the accelerator is that of the wrapped model, unless ``sync_each_batch`` is set."""
    model = Held(2, 2)
    trainer = Trainer(model, TrainingArguments(str(tmp_path), use_cpu=True, report_to="none"))
    trainer.lightning_backend.strategy = strategy = Several(torch.device("cpu"))
    strategy.syncs_each_batch = syncs_each_batch
    with trainer.accelerator.no_sync(model):
        assert model.held == held


def test_accelerator_tells_what_the_strategy_knows(tmp_path):
    """``sync_gradients`` is False in the batches of a window but the last."""
    seen = []

    class Looks(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            seen.append(self.accelerator.sync_gradients)
            return super().training_step(model, inputs, num_items_in_batch)

    fields = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "num_train_epochs": 1}
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", save_strategy="no", **fields)
    Looks(PlainModel(), args, train_dataset=vector_rows(10)).train()
    assert seen == [False, False, True, False, True]


class Unstarted:
    """A schedule of DeepSpeed's before its first step."""

    optimizer = SimpleNamespace(param_groups=[{}, {}])

    def get_last_lr(self):
        raise AssertionError("need to call step() first")


def test_a_schedule_in_an_engine_has_the_rate_0_before_its_first_step():
    """One number for each parameter group."""
    assert EngineScheduler(Unstarted()).get_last_lr() == [0, 0]


def test_an_optimizer_is_made_once_though_no_epoch_is_left(tmp_path):
    """A run that resumes where it ended asks its override points once, and loads the state once."""
    calls = []

    class Counts(Trainer):
        def create_optimizer(self, *args, **kwargs):
            calls.append("optimizer")
            return super().create_optimizer(*args, **kwargs)

        def _load_optimizer_and_scheduler(self, checkpoint):
            calls.append("state")
            super()._load_optimizer_and_scheduler(checkpoint)

    fields = {"num_train_epochs": 1, "save_strategy": "epoch", "disable_tqdm": True}
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **fields)
    Counts(PlainModel(), args, train_dataset=vector_rows(8)).train()
    calls.clear()
    Counts(PlainModel(), args, train_dataset=vector_rows(8)).train(resume_from_checkpoint=True)
    assert calls == ["optimizer", "state"]
