"""Optimizers by name: class and keywords are transformers'."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import sys
from types import ModuleType

import pytest
import torch
import transformers.trainer
from transformers import Trainer
from transformers.training_args import OptimizerNames

from hf_compat import Trainer as HFCompatTrainer
from hf_compat.arguments.releases import resolve_semantics
from hf_compat.errors import ArgumentsError, MissingPackageError, UnsupportedArgumentsError
from hf_compat.optim.optimizers import OPTIMIZERS, optimizer_class_and_kwargs
from tests.support.optimizers import Settings, linears
from tests.support.trainers import arguments

KNOWN = {item.value for item in OptimizerNames}
GONE = {"adamw_hf", "adamw_apex_fused"}
OF_MODULES = [name for name in OPTIMIZERS if name.startswith(("galore", "apollo"))] + ["lomo", "adalomo"]
TORCH = ["adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"]
EXTERNAL = [name for name in OPTIMIZERS if name not in {*TORCH, *OF_MODULES, "adamw_hf"}]

PACKAGES = {
    "torch_xla.amp.syncfree": ["AdamW"],
    "torch_npu.optim": ["NpuFusedAdamW"],
    "apex.optimizers": ["FusedAdam"],
    "torchdistx.optimizers": ["AnyPrecisionAdamW"],
    "torchao.optim": ["AdamW4bit", "AdamW8bit"],
    "bitsandbytes.optim": ["AdamW", "Lion", "RMSprop", "AdEMAMix"],
    "schedulefree": ["AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"],
    "grokadamw": ["GrokAdamW"],
    "optimi": ["StableAdamW"],
}
AVAILABILITY = [
    "is_bitsandbytes_available",
    "is_grokadamw_available",
    "is_schedulefree_available",
    "is_torch_optimi_available",
    "is_torchao_available",
]


def fake_module(name: str, classes: list[str]) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    for each in classes:
        setattr(module, each, type(each, (torch.optim.Optimizer,), {}))
    return module


@pytest.fixture
def all_packages(monkeypatch):
    """Stand-ins for the optional packages: what is compared is the choice of class and keywords, not their work."""
    for name, classes in PACKAGES.items():
        parent = name.partition(".")[0]
        for part in {parent, name.rpartition(".")[0] or parent, name}:
            monkeypatch.setitem(sys.modules, part, fake_module(part, classes if part == name else []))
    home = sys.modules.get("transformers.trainer_optimizer", transformers.trainer)
    for check in AVAILABILITY:
        if hasattr(home, check):
            monkeypatch.setattr(home, check, lambda *_: True)
    monkeypatch.setitem(sys.modules, "triton", None)
    real = importlib.metadata.version
    fakes = {"torchao": "0.13.0", "bitsandbytes": "0.45.0"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: fakes.get(name) or real(name))


CASES = [
    *[(name, None) for name in [*TORCH, *EXTERNAL]],
    *[
        (f"{size}ademamix{bits}", "beta1=0.7, beta3=0.99,alpha=4,t_alpha=5,t_beta3=6,eps=1e-6")
        for size, bits in (("", ""), ("", "_8bit"), ("paged_", "_8bit"))
    ],
    ("sgd", "momentum=0.9,dampening=0.1,nesterov=yes,weight_decay=0.3,unknown=1"),
    ("sgd", "nesterov=off"),
    ("adagrad", "lr_decay=0.1,eps=1e-5"),
    ("rmsprop", "momentum=0.9,alpha=0.8,centered=True"),
    ("adamw_torch", "momentum=0.9"),
    ("adamw_anyprecision", "use_kahan_summation=true,momentum_dtype=bfloat16,variance_dtype=float16"),
    ("adamw_torch_4bit", "bf16_stochastic_round=True"),
    ("schedule_free_adamw", "weight_lr_power=1.5,r=0.25"),
    ("schedule_free_sgd", "r=1"),
    ("grokadamw", "alpha_init=0.9,lamb=3,gamma=0.2,grokking_signal_decay_rate=0.3,gradient_clipping=2"),
    ("stable_adamw", "max_lr=0.1,kahan_sum=false,decouple_lr=False"),
]


@pytest.mark.parametrize(("name", "optim_args"), CASES, ids=str)
@pytest.mark.usefixtures("all_packages")
def test_class_and_kwargs_are_upstreams(name, optim_args):
    """Class and keywords are those that the installed transformers chooses."""
    if name not in KNOWN:
        pytest.skip("this transformers no longer has it")
    settings = Settings(name, optim_args)
    expected_class, expected = Trainer.get_optimizer_cls_and_kwargs(settings, None)
    chosen, kwargs = optimizer_class_and_kwargs(settings)
    assert kwargs == expected
    assert [type(kwargs[key]) for key in expected] == [type(value) for value in expected.values()]
    assert chosen is expected_class


@pytest.mark.parametrize("name", TORCH)
def test_can_be_built(name):
    """Every optimizer that needs no package is built from its keywords and steps."""
    weight = torch.nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    chosen, kwargs = optimizer_class_and_kwargs(Settings(name))
    chosen([{"params": [weight], "weight_decay": 0.0}], **kwargs).step()
    assert (weight < 1).all()


def test_table_is_complete():
    """The table has every name of the installed transformers, and beside them only names that older ones had."""
    assert KNOWN - set(OPTIMIZERS) == set()
    assert set(OPTIMIZERS) - KNOWN <= GONE
    assert len(OPTIMIZERS) == 43


@pytest.mark.parametrize(
    ("release", "optim", "optim_args", "expected"),
    [
        pytest.param("5.2", "sgd", "momentum=0.9", {"lr": 3e-4}, id="not read before 5.3"),
        pytest.param("5.3", "sgd", "momentum=0.9", {"lr": 3e-4, "momentum": 0.9}, id="read from 5.3"),
    ],
)
def test_optim_args_of_torch_follow_the_release(release, optim, optim_args, expected):
    """SGD and its like read ``optim_args`` since 5.3."""
    built = optimizer_class_and_kwargs(Settings(optim, optim_args), semantics=resolve_semantics(release))
    assert built == (torch.optim.SGD, expected)


@pytest.mark.usefixtures("all_packages")
def test_optim_args_that_upstream_misreads():
    """RMSprop of bitsandbytes gets numbers; with corrected semantics a "false" of StableAdamW is one."""
    _, kwargs = optimizer_class_and_kwargs(Settings("rmsprop_bnb_8bit", "alpha=0.9,centered=True,kind=x"))
    assert kwargs == {"lr": 3e-4, "alpha": 0.9, "centered": True, "kind": "x", "optim_bits": 8}
    settings = Settings("stable_adamw", "kahan_sum=false")
    _, kwargs = optimizer_class_and_kwargs(settings, semantics=resolve_semantics("corrected"))
    assert kwargs["kahan_sum"] is False


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_stable_adamw_steps_without_a_gpu(monkeypatch):
    """Where Triton is installed without a GPU, as with torch's CUDA builds, the step is torch's, with its numbers."""
    optimi = pytest.importorskip("optimi")
    weights = []
    for has_triton in (False, True):
        monkeypatch.setitem(sys.modules, "triton", fake_module("triton", []) if has_triton else None)
        monkeypatch.setattr("optimi.utils.HAS_TRITON", has_triton)
        chosen, kwargs = optimizer_class_and_kwargs(Settings("stable_adamw"))
        assert chosen is optimi.StableAdamW
        assert kwargs.get("triton") is (False if has_triton else None)
        weight = torch.nn.Parameter(torch.linspace(0, 1, 4))
        weight.grad = torch.ones(4)
        chosen([{"params": [weight], "weight_decay": 0.1}], **kwargs).step()
        weights.append(weight.tolist())
    assert weights[0] == weights[1] != torch.linspace(0, 1, 4).tolist()


def test_adamw_hf_is_torchs():
    """The name that transformers dropped in 4.50 gives torch's AdamW."""
    expected = {"lr": 3e-4, "betas": (0.8, 0.95), "eps": 1e-7}
    assert optimizer_class_and_kwargs(Settings("adamw_hf")) == (torch.optim.AdamW, expected)


def test_enum_members_are_names():
    """An enum member, transformers' own included, is as good as its string."""
    assert optimizer_class_and_kwargs(Settings(OptimizerNames.SGD))[0] is torch.optim.SGD


@pytest.fixture
def no_packages(monkeypatch):
    """A Python in which none of the optional packages can be imported."""
    for name in [*PACKAGES, "galore_torch", "apollo_torch", "lomo_optim"]:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("name", EXTERNAL + OF_MODULES)
@pytest.mark.usefixtures("no_packages")
def test_missing_packages(name):
    """Without its package an optimizer is an ImportError and a ValueError that says what to install."""
    settings = Settings(name, optim_target_modules="all-linear")
    for kind in (MissingPackageError, ImportError, ValueError):
        with pytest.raises(kind, match=rf"optim='{name}'.* needs the package .*install"):
            optimizer_class_and_kwargs(settings, torch.nn.Linear(2, 2))


@pytest.mark.parametrize("name", OF_MODULES)
@pytest.mark.usefixtures("no_packages")
def test_a_missing_package_comes_first(name):
    """Where no modules and no model are given either, the error is that of the package, as upstream's."""
    with pytest.raises(MissingPackageError):
        optimizer_class_and_kwargs(Settings(name))


@pytest.mark.usefixtures("no_packages")
def test_a_missing_package_is_named_as_it_is_installed(monkeypatch):
    """The name is that of the package, not of a module in it; that of the module if only this is missing."""
    monkeypatch.setitem(sys.modules, "bitsandbytes", fake_module("bitsandbytes", []))
    with pytest.raises(MissingPackageError, match=r"needs the package `bitsandbytes\.optim`"):
        optimizer_class_and_kwargs(Settings("adamw_8bit"))
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingPackageError, match=r"`optim='adamw_8bit'` needs the package `bitsandbytes`\. Run: pip "):
        optimizer_class_and_kwargs(Settings("adamw_8bit"))


@pytest.mark.parametrize("name", OF_MODULES)
def test_model_is_needed(name):
    """What is built from the model's modules asks for the model."""
    with pytest.raises(ArgumentsError, match=r"You need to pass a `?model"):
        optimizer_class_and_kwargs(Settings(name, optim_target_modules="all-linear"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["adalomo", "galore_adamw_8bit", "galore_adamw_8bit_layerwise"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gpu_only(name):
    """What its package computes on GPUs only is refused before training starts."""
    settings = Settings(name, optim_target_modules="all-linear")
    with pytest.raises(UnsupportedArgumentsError, match=rf"optim='{name}'.*GPU"):
        optimizer_class_and_kwargs(settings, linears())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        pytest.param(Settings("adamw_troch"), "did you mean 'adamw_torch'", id="unknown name"),
        pytest.param(Settings("sgd", "momentum"), "name=value", id="no value"),
        pytest.param(Settings("sgd", "a=1=2"), "name=value", id="two values"),
        pytest.param(Settings("adamw_anyprecision", "use_kahan_summation=maybe"), "'maybe'", id="not a flag"),
    ],
)
def test_errors(settings, text):
    """Names and arguments that cannot be read are a ValueError that says how they should be."""
    with pytest.raises(ArgumentsError, match=text):
        optimizer_class_and_kwargs(settings)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_embeddings_of_8_bit_optimizers(tmp_path):
    """With bitsandbytes, 8 bits are kept of a large matrix, and all 32 of an embedding as large."""
    model = torch.nn.ModuleDict({"words": torch.nn.Embedding(1024, 8), "up": torch.nn.Linear(8, 1024)})
    args = arguments(tmp_path, optim="adamw_bnb_8bit")
    optimizer = HFCompatTrainer(model, args).create_optimizer()
    model["up"](model["words"](torch.arange(4))).sum().backward()
    optimizer.step()
    assert optimizer.state[model["words"].weight]["state1"].dtype == torch.float32
    assert optimizer.state[model["up"].weight]["state1"].dtype == torch.uint8


@pytest.mark.parametrize(("semantics", "given"), [("5.1", "groups"), ("5.2", "model")])
def test_factories(semantics, given, tmp_path):
    """What is no optimizer class is called with the groups before 5.2; since, its result is called with the model."""
    asked = []

    def with_model(model, **kwargs):
        asked.append("model")
        return torch.optim.SGD(model.parameters(), **kwargs)

    def factory(*groups, **kwargs):
        if not groups:
            return with_model
        asked.append("groups")
        return torch.optim.SGD(*groups, **kwargs)

    args = arguments(tmp_path, semantics=semantics)
    trainer = HFCompatTrainer(torch.nn.Linear(2, 2), args, optimizer_cls_and_kwargs=(factory, {"lr": 0.5}))
    assert trainer.create_optimizer().defaults["lr"] == 0.5
    assert asked == [given]
