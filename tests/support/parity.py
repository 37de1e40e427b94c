"""Run one scenario under transformers' Trainer and under ours, and say where the two first differ.

A scenario is a function of a ``Kit``. It names no library: what it needs of one it takes from the kit, so that only
the import differs. Everything that a user could see afterwards ends in an ``Outcome``: events, between them the inputs
and the random state of every forward pass, logs, weights, optimizer and scheduler, results, the contents of every file.
Equal means equal to the bit. Of times and rates only the presence is compared.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import os
import random
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from packaging.version import Version
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hf_compat.engine.strategies.deepspeed_engine import reset_autotp
from tests.support.helpers import recording_callback

Which = Literal["upstream", "ours", "mixed", "pieces"]
"""transformers; hf_compat; our Trainer with transformers' arguments and callbacks; or ours, run by ``to_lightning``."""

TIME = re.compile(r"(^|_)(runtime|per_second|model_preparation_time|jit_compilation_time)$")
MEMORY = re.compile(r"(^|_)mem_(cpu|gpu)(_|$)")
OUR_FILES = re.compile(r"(^|/)checkpoint-\d+/lightning\.(json|pt)$|^runs/")
DEFAULTS: dict[str, Any] = {
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 3,
    "learning_rate": 1e-2,
    "num_train_epochs": 1,
    "logging_steps": 1,
    "save_strategy": "no",
    "dataloader_pin_memory": False,
}
PROJECTORS = ("GaLoreProjector", "GradientProjector", "LossScaler", "DynamicLossScaler")
"""Objects in the states of GaLore, APOLLO and DeepSpeed."""
WRAPPED = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
"""Attributes with what a wrapper has wrapped; with ours ``trainer.model`` is the model itself."""
MOST_LINES = 12


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table.

    Attributes:
        body: What to do with a kit.
        warns: What hf_compat is to warn of, a regular expression; None: of nothing.
        warns_of_own: Whether it sees only in a checkpoint of its own that it is to warn.
        resumes_exactly: Whether a run that is resumed ends where the run that was not interrupted ends.
        warns_since: The first transformers release for which it is to warn.
        until: The first transformers release that cannot run it any more; None: every release can.
        since: The first transformers release that can run it.
        slow: Whether it runs only when asked for, because a quicker one is much the same.
    """

    body: Callable[[Kit], None]
    warns: str | None = None
    warns_of_own: bool = False
    resumes_exactly: bool = False
    warns_since: str = "4.57"
    until: str | None = None
    since: str = "4.57"
    slow: bool = False


SCENARIOS: dict[str, Scenario] = {}
"""Every scenario by the name of its function."""


def scenario(**about: Any) -> Callable[[Callable[[Kit], None]], Callable[[Kit], None]]:
    """Return a decorator that enters a function into ``SCENARIOS``; ``about`` as in ``Scenario``."""

    def enter(body: Callable[[Kit], None]) -> Callable[[Kit], None]:
        SCENARIOS[body.__name__] = Scenario(body, **about)
        return body

    return enter


@dataclass
class Outcome:
    """Everything that a user could see of one run, in the order in which a difference would show."""

    trace: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """What hf_compat warned of. Not compared: transformers has no such warnings."""
    earlier: Outcome | None = None
    """The run that this one resumed. Not compared: it is a scenario of its own."""


class Kit:
    """What a scenario takes from the library under test.

    Args:
        which: The library.
        folder: An empty folder; the run writes to ``folder/output``.
        starter: The library that runs the stages before the last one. Default: the same.
    """

    def __init__(self, which: Which, folder: Path, starter: Which | None = None) -> None:
        transformers = importlib.import_module("transformers")
        self.which = which
        self.release = Version(transformers.__version__)
        library = transformers if which == "upstream" else importlib.import_module("hf_compat")
        parts = library if which in ("ours", "pieces") else transformers
        self.Trainer: Any = library.Trainer
        self.TrainingArguments: Any = parts.TrainingArguments
        self.Seq2SeqTrainer: Any = library.Seq2SeqTrainer
        self.Seq2SeqTrainingArguments: Any = parts.Seq2SeqTrainingArguments
        self.TrainerCallback: Any = parts.TrainerCallback
        self.EarlyStoppingCallback: Any = parts.EarlyStoppingCallback
        self.folder = folder
        self.output_dir = str(folder / "output")
        self.starter: Which = starter or which
        self.outcome = Outcome()

    def args(self, *, seq2seq: bool = False, **fields: Any) -> Any:
        """Return training arguments over ``DEFAULTS``, in the spelling of the installed transformers."""
        fields = {**DEFAULTS, "output_dir": self.output_dir, **fields}
        if self.release >= Version("5.2") and fields.pop("group_by_length", False):
            fields["train_sampling_strategy"] = "group_by_length"
        if self.release.major >= 5 and "warmup_ratio" in fields:
            fields["warmup_steps"] = fields.pop("warmup_ratio")
        return (self.Seq2SeqTrainingArguments if seq2seq else self.TrainingArguments)(**fields)

    def model(self, build: Callable[..., nn.Module], **config: Any) -> nn.Module:
        """Return ``build(**config)``; its forward passes enter the trace."""
        model = build(**config)
        model.register_forward_pre_hook(self._record_forward, with_kwargs=True)
        return model

    def trainer(self, subclass: Any = None, *, callbacks: Any = (), **given: Any) -> Any:
        """Return a Trainer whose events enter the trace, behind those of ``callbacks``."""
        recorder = recording_callback(self.TrainerCallback, self.outcome.trace)
        return (subclass or self.Trainer)(callbacks=[*callbacks, recorder], **given)

    def train(self, trainer: Any, **given: Any) -> Any:
        """Train; keep the output and the state in which everything was left."""
        output = fit_pieces(trainer, **given) if self.which == "pieces" else trainer.train(**given)
        state = dataclasses.asdict(trainer.state)
        # Objects in memory and dicts in a file; the files are compared.
        state.pop("stateful_callbacks")
        self.keep("train", {"output": output, "log_history": state.pop("log_history"), "state": state})
        self.keep("weights after train", _weights(trainer))
        self.keep("training mode after train", _modes(trainer.model))
        self.keep("optimizer after train", trainer.optimizer.state_dict())
        self.keep("scheduler after train", trainer.lr_scheduler.state_dict())
        return output

    def evaluate(self, trainer: Any, *given: Any, **named: Any) -> Any:
        """Evaluate and keep the metrics."""
        metrics = trainer.evaluate(*given, **named)
        self.keep("evaluate", metrics)
        return metrics

    def predict(self, trainer: Any, *given: Any, **named: Any) -> Any:
        """Predict and keep predictions, labels and metrics."""
        output = trainer.predict(*given, **named)
        self.keep("predict", output)
        return output

    def keep(self, name: str, value: Any) -> None:
        """Add ``value`` to what is compared."""
        self.outcome.results.append({"name": name, "value": self.plain(value)})

    def stage(self, scenario: Callable[[Kit], None]) -> str:
        """Run ``scenario`` to its end under the starting library and return its output folder."""
        folder = self.folder / "earlier"
        self.outcome.earlier = run(scenario, self.starter, folder)
        _reseed()
        return str(folder / "output")

    def plain(self, value: Any) -> Any:
        """Return ``value`` as dicts, lists, tensors and scalars without times; paths start at the output."""
        if isinstance(value, Tensor):
            return _plain_tensor(value)
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value.copy())
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, str):
            return re.sub(rf"{re.escape(str(self.folder.parent))}/[^/]+/(earlier/)?output", "<output>", value)
        if hasattr(value, "_asdict"):
            value = value._asdict()
        if type(value).__name__ in PROJECTORS:
            value = vars(value)
        if isinstance(value, dict):
            names = (f"tensor {at}" if isinstance(key, Tensor) else key for at, key in enumerate(value))
            return {key: self._plain_item(str(key), item) for key, item in zip(names, value.values(), strict=True)}
        if isinstance(value, list | tuple):
            return type(value)(self.plain(item) for item in value)
        return value

    def _plain_item(self, key: str, item: Any) -> Any:
        if TIME.search(key):
            return "<time>"
        return f"<bytes: {type(item).__name__}>" if MEMORY.search(key) else self.plain(item)

    def _record_forward(self, model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        items = named.get("num_items_in_batch")
        self.outcome.trace.append(
            {
                "event": "forward",
                "mode": "train" if model.training else "eval",
                "shapes": [tuple(value.shape) for value in (*given, *named.values()) if isinstance(value, Tensor)],
                "inputs": {name: _checksum(value) for name, value in sorted(named.items())},
                "num_items_in_batch": f"{items!r} {getattr(items, 'dtype', '')}",
                "generator": _checksum(torch.get_rng_state()),
                "generators of GPUs": [_checksum(state) for state in torch.cuda.get_rng_state_all()],
                "autocast": [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
                "gradients": torch.is_grad_enabled(),
            }
        )


def fit_pieces(trainer: Any, **given: Any) -> Any:
    """Train with the pieces of ``trainer``; return what ``train`` would."""
    pieces = importlib.import_module("hf_compat.lightning")
    lightning_trainer, module, data = pieces.to_lightning(trainer, **given)
    lightning_trainer.fit(module, datamodule=data)
    return lightning_trainer.callbacks[-1].output


def run(scenario: Callable[[Kit], None], which: Which, folder: Path, *, starter: Which | None = None) -> Outcome:
    """Return what ``scenario`` did under ``which``, from the same seeds every time.

    Args:
        scenario: The function to run.
        which: The library to run it under.
        folder: Where it may write; made if missing.
        starter: The library that runs earlier stages of the scenario. Default: the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kit = Kit(which, folder, starter)
    with clean_process(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _reseed()
        scenario(kit)
        outcome = kit.outcome
        outcome.generators = kit.plain(_generators())
    outcome.trace = kit.plain(outcome.trace)
    output = Path(kit.output_dir)
    outcome.files = {
        name: kit.plain(_content(path))
        for path in sorted(output.rglob("*"))
        if path.is_file() and not OUR_FILES.search(name := str(path.relative_to(output)))
    }
    outcome.warnings = [str(item.message) for item in caught if item.category.__module__.startswith("hf_compat")]
    return outcome


def differences(expected: Outcome, actual: Outcome, *, allowed: re.Pattern[str] | None = None) -> str:
    """Return a readable list of what differs, first things first, without ``allowed`` lines; empty if nothing does."""
    lines: list[str] = []
    for name in ("trace", "results", "files", "generators"):
        for line in compare(getattr(expected, name), getattr(actual, name), name):
            if allowed is not None and allowed.search(line):
                continue
            lines.append(line)
            if len(lines) == MOST_LINES:
                return "\n".join([*lines, "..."])
    return "\n".join(lines)


def _reseed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def _generators() -> dict[str, Any]:
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    return states | {"GPUs": torch.cuda.get_rng_state_all()}


def _weights(trainer: Any) -> dict[str, Any]:
    if trainer.is_fsdp_enabled:
        return trainer.accelerator.get_state_dict(trainer.model_wrapped)  # a model's own have what the rank has
    return trainer.model.state_dict()


def _modes(model: nn.Module) -> dict[str, bool]:
    """Return whether each module trains, by its name without wrappers: FSDP, activation checkpointing, a compiler's."""
    return {
        ".".join(part for part in name.split(".") if part not in WRAPPED): module.training
        for name, module in model.named_modules()
    }


def _plain_tensor(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU, of a sharded tensor this rank's part, of a quantized one what it stands for."""
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    if is_traceable_wrapper_subclass(tensor):
        tensor = tensor.dequantize()
    return tensor.detach().cpu().clone()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def _checksum(value: Any) -> str:
    data = _bytes(value) if isinstance(value, Tensor) else value if isinstance(value, bytes) else repr(value).encode()
    return f"{zlib.crc32(data):08x}"


@contextmanager
def clean_process() -> Iterator[None]:
    """Undo what a trainer leaves behind in the process, so that runs do not depend on their order."""
    environment = dict(os.environ)
    cudnn = torch.backends.cudnn
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    switches = (cudnn.deterministic, cudnn.benchmark)
    state = importlib.import_module("accelerate.state")
    torch.set_num_threads(1)
    gc.freeze()  # both libraries collect garbage often, and the modules loaded are none
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()
    if "deepspeed" in sys.modules:
        reset_autotp()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
        cudnn.deterministic, cudnn.benchmark = switches
        os.environ.clear()
        os.environ.update(environment)
        gc.collect()


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        safetensors = importlib.import_module("safetensors")
        with safetensors.safe_open(path, "pt") as file:
            return {"metadata": file.metadata(), "tensors": {key: file.get_tensor(key) for key in file.keys()}}  # noqa: SIM118
    if path.suffix in {".pt", ".pth"} or path.name in {"optimizer.bin", "pytorch_model_fsdp.bin"}:
        return torch.load(path, weights_only=False)
    if path.suffix == ".json":
        return json.loads(path.read_text())
    # A pickle of the library's own class, and one with the folder's path: that they are there is all the two share.
    return "present" if path.name in {"training_args.bin", ".metadata"} else _checksum(path.read_bytes())


def compare(expected: Any, actual: Any, where: str) -> Iterator[str]:
    """Yield one line per difference between two trees of dicts, sequences, tensors and scalars."""
    if type(expected) is not type(actual):
        yield f"{where}: {_short(expected)} expected, got {_short(actual)} (type {type(actual).__name__})"
    elif isinstance(expected, Tensor):
        yield from _compare_tensors(expected, actual, where)
    elif isinstance(expected, dict):
        for key in sorted(expected.keys() - actual.keys(), key=str):
            yield f"{where}[{key!r}]: missing, {_short(expected[key])} expected"
        for key in sorted(actual.keys() - expected.keys(), key=str):
            yield f"{where}[{key!r}]: {_short(actual[key])} not expected"
        for key in (key for key in expected if key in actual):
            yield from compare(expected[key], actual[key], f"{where}[{key!r}]")
    elif isinstance(expected, list | tuple):
        yield from _compare_sequences(expected, actual, where)
    elif expected != actual and not (expected != expected and actual != actual):  # NaN is equal to NaN here
        gap = f", {abs(expected - actual):.3g} apart" if isinstance(expected, float) else ""
        yield f"{where}: {_short(expected)} expected, got {_short(actual)}{gap}"


def _compare_tensors(expected: Tensor, actual: Tensor, where: str) -> Iterator[str]:
    if (expected.shape, expected.dtype) != (actual.shape, actual.dtype):
        yield f"{where}: {_short(expected)} expected, got {_short(actual)}"
    elif _bytes(expected) != _bytes(actual):
        gap = (expected.double() - actual.double()).abs()
        yield f"{where}: {int((gap > 0).sum())} of {gap.numel()} elements differ, by up to {gap.max().item():.3g}"


def _compare_sequences(expected: Any, actual: Any, where: str) -> Iterator[str]:
    """Yield the first difference only: what follows it in a sequence of events or logs is usually shifted."""
    for index, (left, right) in enumerate(zip(expected, actual, strict=False)):
        found = list(compare(left, right, f"{where}[{index}]"))
        if found:
            yield from found
            if where == "trace":
                yield f"  before it: {[entry['event'] for entry in expected[max(0, index - 6) : index]]}"
                yield f"  expected:  {[entry['event'] for entry in expected[index : index + 6]]}"
                yield f"  got:       {[entry['event'] for entry in actual[index : index + 6]]}"
            return
    if len(expected) != len(actual):
        longer = expected if len(expected) > len(actual) else actual
        rest = longer[min(len(expected), len(actual))]
        yield f"{where}: {len(expected)} entries expected, got {len(actual)}; the first one over is {_short(rest)}"


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {value.dtype}"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
