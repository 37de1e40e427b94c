"""A save in the background has the states of its update step, whatever a script changes before it is written."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hf_compat import Trainer, TrainerCallback, TrainingArguments
from hf_compat.checkpoint.names import SAFE_WEIGHTS_NAME
from tests.scripts.crash_script import Rows
from tests.support.checkpoints import assert_same_checkpoints
from tests.support.held_writer import HeldWriter


class Model(nn.Module):
    """Drops units, has buffers that each forward pass changes, a frozen layer, and parameters that nothing trains."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.norm, self.outside = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.apart = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = nn.functional.dropout(self.norm(self.frozen(self.inside(x))), 0.2, self.training)
        return {"loss": (self.outside(hidden).squeeze(-1) - labels).square().mean()}


class Run:
    """The Trainer of a run, and what the changes have to keep from one call to the next."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.model: Any = trainer.model
        self.average = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.own_optimizer = torch.optim.SGD(list(self.model.parameters())[-1:], lr=0.5)

    @property
    def weight(self) -> nn.Parameter:
        return self.model.inside.weight

    @property
    def optimizer(self) -> Any:
        return self.trainer.optimizer


def clamp_data(run: Run) -> None:
    run.weight.data.clamp_(-0.05, 0.05)


def clamp_without_grad(run: Run) -> None:
    with torch.no_grad():
        run.weight.clamp_(-0.05, 0.05)


def replace_data(run: Run) -> None:
    run.weight.data = run.weight.data * 0.5


def set_memory(run: Run) -> None:
    with torch.no_grad():
        run.weight.set_(run.weight * 0.5)


def write_to_the_old_memory(run: Run) -> None:
    old = run.weight.data
    run.weight.data = old * 0.5
    old.fill_(7)


def halve_in_numpy(run: Run) -> None:
    run.weight.detach().numpy()[:] *= 0.5


def apply_a_mask(run: Run) -> None:
    run.weight.data.mul_(torch.eye(16, 8))


def swap_in_the_average(run: Run) -> None:
    """As callbacks do that evaluate an exponential moving average."""
    with torch.no_grad():
        for name, value in run.model.state_dict().items():
            kept = value.clone()
            value.copy_(run.average[name])
            run.average[name] = kept


def load_other_weights(run: Run) -> None:
    run.model.load_state_dict({name: value * 0.5 for name, value in run.model.state_dict().items()})


def step_another_optimizer(run: Run) -> None:
    run.model.apart.grad = torch.ones(3)
    run.own_optimizer.step()


def change_a_buffer(run: Run) -> None:
    run.model.norm.running_mean += 1


def change_what_is_frozen(run: Run) -> None:
    run.model.frozen.weight.data.add_(1)


def change_the_optimizers_state(run: Run) -> None:
    for state in run.optimizer.state.values():
        state["exp_avg"].mul_(0.5)
        state["step"] += 1
        state["note"] = state.get("note", 0) + 1


def change_the_groups(run: Run) -> None:
    for group in run.optimizer.param_groups:
        group["weight_decay"] += 0.1
        group.setdefault("notes", []).append(len(run.optimizer.state))


def change_the_schedule(run: Run) -> None:
    run.trainer.lr_scheduler.base_lrs[0] *= 0.9


def draw_random_numbers(run: Run) -> None:
    random.random()
    np.random.rand()
    torch.rand(1)


def change_the_state(run: Run) -> None:
    run.trainer.state.log_history.append({"noted": run.trainer.state.global_step})
    run.trainer.state.total_flos += 1e9


CHANGES: list[Callable[[Run], None]] = [
    clamp_data,
    clamp_without_grad,
    replace_data,
    set_memory,
    write_to_the_old_memory,
    halve_in_numpy,
    apply_a_mask,
    swap_in_the_average,
    load_other_weights,
    step_another_optimizer,
    change_a_buffer,
    change_what_is_frozen,
    change_the_optimizers_state,
    change_the_groups,
    change_the_schedule,
    draw_random_numbers,
    change_the_state,
]


PAST_AUTOGRAD = (clamp_data, halve_in_numpy, apply_a_mask, change_what_is_frozen, change_the_optimizers_state)
"""Changes that a backward pass does not notice."""


def change_everything(run: Run) -> None:
    for change in CHANGES:
        change(run)


def change_past_autograd(run: Run) -> None:
    for change in PAST_AUTOGRAD:
        change(run)


EVENTS = ("on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_save")
MOMENTS = (*EVENTS, "forward hook", "compute_loss")


class Changing(Trainer):
    """Calls ``change`` with every ``compute_loss``, if that is the moment."""

    change: Callable[[], None] = staticmethod(lambda: None)

    def compute_loss(self, *given: Any, **named: Any) -> Any:
        loss = super().compute_loss(*given, **named)
        self.change()
        return loss


def train_while_changing(
    folder: Path,
    change: Callable[[Run], None],
    moment: str,
    *,
    save_async: bool,
    model: Callable[[], nn.Module] = Model,
    rows: type[Rows] = Rows,
    **fields: Any,
) -> Changing:
    """Train for six update steps with a checkpoint each; ``change`` what there is from the second on.

    In the background nothing is written before the next save, or the end, waits for it.
    """
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    settings: dict[str, Any] = {
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
        "learning_rate": 0.01,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 6,
        "save_steps": 1,
        "logging_steps": 3,
        "save_async": save_async,
        **fields,
    }
    args = TrainingArguments(str(folder), **settings)
    trainer = Changing(model(), args, train_dataset=rows(24, 1), eval_dataset=rows(4, 2))
    run = Run(trainer)

    def change_from_the_second(*_: Any, **__: Any) -> None:
        if trainer.is_in_train and trainer.model.training and trainer.state.global_step >= 1:
            change(run)

    if moment in EVENTS:
        calls = {moment: lambda self, *given, **named: change_from_the_second()}
        trainer.add_callback(type("Changes", (TrainerCallback,), calls)())
    elif moment == "forward hook":
        run.model.outside.register_forward_hook(change_from_the_second)
    else:
        trainer.change = change_from_the_second  # type: ignore[method-assign]
    if save_async:
        trainer.checkpoint_writer = HeldWriter()
    trainer.train()
    return trainer


def check(tmp_path: Path, change: Callable[[Run], None], moment: str, **fields: Any) -> None:
    """Fail unless all checkpoints are those of a synchronous run, and not those of a run without the change."""
    for name in ("at once", "later"):
        train_while_changing(tmp_path / name, change, moment, save_async=name == "later", **fields)
    train_while_changing(tmp_path / "unchanged", lambda run: None, moment, save_async=False, **fields)
    assert_same_checkpoints(tmp_path / "later", tmp_path / "at once")
    with pytest.raises(AssertionError):
        assert_same_checkpoints(tmp_path / "later", tmp_path / "unchanged")


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_between_two_updates(tmp_path, change):
    """Every file of every checkpoint is, byte for byte, what a synchronous save writes."""
    check(tmp_path, change, "on_step_begin")


@pytest.mark.parametrize("moment", MOMENTS)
def test_changes_at_every_moment(tmp_path, moment):
    """So are they if everything is changed, whenever that is."""
    check(tmp_path, change_everything if moment in EVENTS else change_past_autograd, moment)


@pytest.mark.parametrize("fields", [{"optim": "adafactor"}, {"optim": "sgd", "torch_empty_cache_steps": 1}])
def test_changes_with_other_optimizers(tmp_path, fields):
    """Whatever the optimizer's state is made of."""
    check(tmp_path, clamp_data, "on_step_begin", **fields)


def test_a_schedule_free_optimizer(tmp_path):
    """Its weights change when training goes on after an evaluation."""
    pytest.importorskip("schedulefree")
    fields = {"optim": "schedule_free_adamw", "lr_scheduler_type": "constant", "eval_strategy": "steps"}
    check(tmp_path, clamp_data, "on_step_begin", eval_steps=2, **fields)


def test_weights_are_those_noted_at_the_end_of_the_step(tmp_path):
    """The weights of a checkpoint are those that ``on_step_end`` saw, though ``on_step_begin`` changes them."""
    noted = {}

    class Notes(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            noted[state.global_step] = {name: value.clone() for name, value in model.state_dict().items()}

    trainer = train_while_changing(tmp_path / "first", change_everything, "on_step_begin", save_async=True)
    trainer.add_callback(Notes())
    trainer.args.output_dir = str(tmp_path / "second")
    trainer.train()
    assert sorted(noted) == [1, 2, 3, 4, 5, 6]
    for step, weights in noted.items():
        saved = load_file(tmp_path / "second" / f"checkpoint-{step}" / SAFE_WEIGHTS_NAME)
        assert saved.keys() == weights.keys()
        assert all(torch.equal(saved[name], value) for name, value in weights.items())


class Texts(Rows):
    """Tokens for a language model."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (self.values[index].abs() * 5).long() % 20
        return {"input_ids": tokens, "labels": tokens}


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 20, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)  # its head and its embeddings share their weights


def with_own_save() -> Any:
    """A GPT-2 that saves a parameter in a file of its own."""
    model = gpt2()

    class Own(type(model)):  # type: ignore[misc]
        def save_pretrained(self, save_directory: str, **given: Any) -> None:
            super().save_pretrained(save_directory, **given)
            torch.save(self.transformer.wte.weight, Path(save_directory, "own.pt"))
            Path(save_directory, "given.txt").write_text(" ".join(sorted(given)))

    model.__class__ = Own
    return model


def quantized() -> Any:
    """A GPT-2 that a quantizer saves, which reads the weights of the model."""
    model = gpt2()
    from transformers.quantizers import HfQuantizer

    class Quantizer(HfQuantizer):
        requires_calibration = is_trainable = False

        def __init__(self) -> None:
            self.quantization_config = None

        def _process_model_before_weight_loading(self, *_: Any, **__: Any) -> None:
            """Do nothing: abstract in transformers 4."""

        _process_model_after_weight_loading = _process_model_before_weight_loading

        def is_serializable(self, *_: Any, **__: Any) -> bool:
            return True

        def get_state_dict_and_metadata(self, model: Any, *_: Any) -> Any:
            return {"weight": model.transformer.wte.weight.detach() * 2}, {}

    model.hf_quantizer = Quantizer()
    return model


def prompted() -> Any:
    """A GPT-2 with a trained prompt, which peft computes as it saves it."""
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    return peft.get_peft_model(gpt2(), config)


def change_all_parameters(run: Run) -> None:
    for parameter in run.model.parameters():
        parameter.data.mul_(0.5)


def change_the_configuration(run: Run) -> None:
    run.model.config.architectures = ["Another"]
    run.model.config.note = run.trainer.state.global_step
    run.model.generation_config.max_length = 30 + run.trainer.state.global_step


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # read by peft
@pytest.mark.parametrize(
    ("model", "change"),
    [
        (gpt2, change_all_parameters),
        (gpt2, change_the_configuration),
        (with_own_save, change_all_parameters),
        (quantized, change_all_parameters),
        (prompted, change_all_parameters),
    ],
    ids=lambda function: function.__name__,
)
def test_models_that_save_themselves(tmp_path, model, change):
    """Weights and configuration are those of the step too, whatever is called to save them."""
    check(tmp_path, change, "on_step_begin", model=model, rows=Texts)
