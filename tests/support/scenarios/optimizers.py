"""Every optimizer of another package that runs without a GPU trains, under its own name in ``optim``."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import torch
from packaging.version import Version

from hf_compat.optim.optimizers import has_triton_without_gpu
from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import classifier, plain
from tests.support.scenarios.resuming import resume

RELEASE = Version(metadata.version("transformers"))
LOW_RANK = {"optim_target_modules": "all-linear", "optim_args": "rank=2,update_proj_gap=2"}
SCHEDULED = {"num_train_epochs": 2, "warmup_steps": 2, "weight_decay": 0.1}

CASES: dict[str, dict[str, Any]] = {
    "schedule_free_adamw": {"optim_args": "r=0.5,weight_lr_power=1.0"},
    "schedule_free_sgd": {},
    "schedule_free_radam": {},
    "stable_adamw": {"optim_args": "kahan_sum=true,max_lr=0.02,decouple_lr=true"},
    "grokadamw": {"optim_args": "lamb=1.5"},
    "adamw_bnb_8bit": {},
    "adamw_8bit": {},
    "paged_adamw_32bit": {},
    "paged_adamw_8bit": {},
    "lion_32bit": {},
    "lion_8bit": {},
    "paged_lion_32bit": {},
    "paged_lion_8bit": {},
    "ademamix": {"optim_args": "beta3=0.99,alpha=4,t_alpha=5,t_beta3=6"},
    "ademamix_8bit": {},
    "paged_ademamix_32bit": {},
    "paged_ademamix_8bit": {},
    "rmsprop_bnb": {},
    "rmsprop_bnb_8bit": {},
    "rmsprop_bnb_32bit": {},
    "adamw_torch_8bit": {},
    "adamw_torch_4bit": {},
    "galore_adamw": LOW_RANK,
    "galore_adafactor": LOW_RANK | {"optim_target_modules": r".*\.(query|key)", "optim_args": "rank=3,scale=0.5"},
    "apollo_adamw": LOW_RANK | {"optim_target_modules": ["attention.self", "classifier"]},
}
"""``optim`` to the other fields of the run."""
SLOW = {
    *("adamw_8bit", "paged_adamw_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit"),
    *("ademamix", "paged_ademamix_32bit", "paged_ademamix_8bit", "rmsprop_bnb", "rmsprop_bnb_32bit"),
    *("schedule_free_sgd", "apollo_adamw_layerwise"),
    *("adamw_torch_8bit", "adamw_torch_4bit"),  # these compile their step
}
"""Names that share the class or the code of a quicker one."""
IN_BACKWARD: dict[str, dict[str, Any]] = {"lomo": {}}
# transformers 4 cannot build a schedule for these with a torch of today.
IN_BACKWARD |= {"galore_adamw_layerwise": LOW_RANK, "apollo_adamw_layerwise": LOW_RANK} if RELEASE.major >= 5 else {}


def _enter(name: str, fields: dict[str, Any], **about: Any) -> None:
    def body(kit: Kit) -> None:
        if name == "stable_adamw" and has_triton_without_gpu():
            import pytest  # which a lent GPU's machine need not have

            pytest.skip("Triton is installed and there is no GPU: transformers' run fails, as optimi asks for a driver")
        trainer = classifier(kit, fields={"optim": name, "eval_strategy": "epoch", **SCHEDULED, **fields})
        kit.train(trainer)
        kit.evaluate(trainer)

    body.__name__ = f"optim_{name}"
    scenario(slow=name in SLOW, **about)(body)


for _name, _fields in CASES.items():
    _enter(_name, _fields)
for _name, _fields in IN_BACKWARD.items():
    _enter(_name, _fields, warns="updates parameters in the backward pass|the initial one is used")


@scenario(warns="does not accumulate|does not clip gradients|averages its loss")
def accumulation_with_lomo(kit: Kit) -> None:
    """Each batch updates, with the learning rate of the window."""
    fields = {"optim": "lomo", "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
    kit.train(classifier(kit, fields={**SCHEDULED, **fields}))


class Accurate(torch.optim.Optimizer):
    """SGD whose momentum is in float64, as long as nobody casts it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter, dtype=torch.float64))
                momentum.mul_(0.9).add_(parameter.grad)
                parameter.data.sub_(group["lr"] * momentum)


def handed_over(
    kit: Kit, make: Any = torch.optim.AdamW, *, used: bool = True, fields: Any = None, **settings: Any
) -> None:
    """Train with an optimizer of the script, which has made a step on the CPU; keep what becomes of it.

    Args:
        kit: The library under test.
        make: The optimizer's class.
        used: Whether it has made a step.
        fields: Training arguments.
        **settings: Of the optimizer.
    """
    calls: list[str] = []
    found: list[Any] = []
    model = kit.model(helpers.PlainModel)
    optimizer = make(model.parameters(), **settings)
    if used:
        model.body(torch.ones(2, helpers.WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("its state"))
    optimizer.register_load_state_dict_pre_hook(lambda *_: calls.append("a state is loaded"))
    groups, step = list(optimizer.param_groups), optimizer.step

    def noted(closure: Any) -> Any:
        calls.append("step")
        return step(closure)

    if kit.release.major > 4:  # whose schedules were of the optimizer itself, for which torch's need a method
        optimizer.step = noted

    class Unwraps(kit.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
            inner = optimizer.optimizer
            found.append(hasattr(inner, "optimizer"))
            found.append([type(inner).__name__, inner is given, inner.param_groups is optimizer.param_groups])
            found.append([one is other for one, other in zip(inner.param_groups, groups, strict=True)])
            for state in inner.state.values():
                found.append({name: [str(value.device), str(value.dtype)] for name, value in sorted(state.items())})

    given = optimizer
    trainer = plain(kit, model=model, optimizers=(optimizer, None), fields=fields, callbacks=[Unwraps()])
    kit.train(trainer)
    found.append([trainer.optimizer is optimizer, trainer.optimizer.optimizer is optimizer])
    kit.train(trainer)
    kit.keep("found", found)
    kit.keep("calls", calls)


@scenario()
def optimizer_with_a_state(kit: Kit) -> None:
    handed_over(kit)


@scenario()
def optimizer_without_a_state(kit: Kit) -> None:
    handed_over(kit, used=False, fields={"gradient_accumulation_steps": 2})


@scenario()
def optimizer_with_a_state_that_is_cast(kit: Kit) -> None:
    handed_over(kit, Accurate)


@scenario(resumes_exactly=True)
def resume_schedule_free(kit: Kit) -> None:
    """Saved between two updates, the weights are those to train on."""
    fields = {"optim": "schedule_free_adamw", "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    resume(kit, lambda each: classifier(each, fields=fields), 3)
