"""The options of a conversion, and what of a folder a ``.ckpt`` file carries for the way back."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_compat.errors import CheckpointError
from hf_compat.state import TrainerState
from hf_compat.tools.convert.optimizers import Groups

# The options of a conversion.


_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "B": 1, "": 1}
_OF_FOLDERS = ("batch_size", "steps_between", "max_shard_size")
"""Options that a ``.ckpt`` file has no place for."""
_OF_STATES = ("groups", "parameters", "batch_size", "steps_between")
"""Options of the training state."""


@dataclass(frozen=True)
class Options:
    """Options of a conversion; by default it finds them out, and carries over all it can."""

    weights_only: bool = False
    """Whether to leave the training state out."""
    model: Path | None = None
    """The model's folder, or its ``config.json``."""
    prefix: str | None = None
    """What the names of the model's weights begin with in the LightningModule."""
    architecture: str | None = None
    """The model's class in transformers."""
    groups: Groups | None = None
    """The optimizer's groups: as a Trainer makes them, one, or as they are."""
    parameters: Sequence[Any] | None = None
    """The names of the optimizer's parameters in its order."""
    batch_size: int | None = None
    """Samples per device in a batch of the run."""
    steps_between: tuple[int, int, int] | None = None
    """Update steps between logs, evaluations and saves of the run that resumes."""
    max_shard_size: int | None = None
    """Maximum size of a weight file, in bytes."""
    adapter: Path | None = None
    """The configuration of peft's adapters, or the folder of one or several."""

    def __post_init__(self) -> None:
        """Refuse numbers below 1.

        Raises:
            CheckpointError: If there is one.
        """
        numbers = {"batch_size": self.batch_size, "max_shard_size": self.max_shard_size}
        if self.steps_between is not None:
            numbers["steps_between"] = min(self.steps_between)
        wrong = [f"`{_flag(name)} {number}`" for name, number in numbers.items() if number is not None and number < 1]
        if wrong:
            raise CheckpointError(f"{', '.join(wrong)}: pass 1 or more.")


def refuse_ineffective(options: Options, *, to_file: bool) -> None:
    """Refuse options that the conversion would not use.

    Raises:
        CheckpointError: If there are any.
    """
    reasons = []
    if to_file:
        reasons += [(name, "a `.ckpt` file has no place for it") for name in _OF_FOLDERS]
        reasons += [("adapter", "a folder with adapters has their configurations")]
    if options.weights_only:
        reasons += [(name, "`--weights-only` leaves the training state out") for name in _OF_STATES]
    given = {name: reason for name, reason in reasons if getattr(options, name) is not None}
    if given:
        told = "; ".join(f"`{_flag(name)}`: {reason}" for name, reason in given.items())
        raise CheckpointError(f"These options have no effect; remove them: {told}.")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def options_of(arguments: argparse.Namespace) -> Options:
    """Return the options on the command line of ``hf-compat convert``.

    Raises:
        CheckpointError: If one of them cannot be used.
    """
    return Options(
        weights_only=arguments.weights_only,
        model=None if arguments.model is None else Path(arguments.model),
        prefix=arguments.prefix,
        architecture=arguments.architecture,
        groups=arguments.groups,
        parameters=None if arguments.parameters is None else _names_in(Path(arguments.parameters)),
        batch_size=arguments.batch_size,
        steps_between=None if arguments.steps_between is None else tuple(arguments.steps_between),
        adapter=None if arguments.adapter is None else Path(arguments.adapter),
        max_shard_size=None if arguments.max_shard_size is None else _bytes_of(arguments.max_shard_size),
    )


def _names_in(file: Path) -> list[Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"`--parameters {file}` cannot be read: {error}") from error
    if not isinstance(found, list):
        raise CheckpointError(f"`--parameters {file}` is not a JSON list of names.")
    return found


def _bytes_of(size: str) -> int:
    """Return the number of bytes in ``size``, such as ``"5GB"`` or ``"200MiB"``.

    Raises:
        CheckpointError: If it is no size.
    """
    match = re.fullmatch(r"([0-9]+)\s*([A-Za-z]*)", size.strip())
    if match is None or match[2].upper() not in _UNITS or int(match[1]) == 0:
        raise CheckpointError(f"`--max-shard-size {size}` is not a size: pass bytes, or a number such as `5GB`.")
    return int(match[1]) * _UNITS[match[2].upper()]


# Content of a folder that Lightning does not know: an entry of the `.ckpt` file that the way back restores.


OWN_KEY = "hf_compat"
"""The entry of the checkpoint; Lightning ignores it, and a run that resumes from the file does not save it again."""
_RNG_NAME = re.compile(r"rng_state(_[0-9]+)?\.pth")


@dataclass
class Carried:
    """The content of the entry."""

    configuration: dict[str, Any] | None = None
    """The model's configuration."""
    generation: dict[str, Any] | None = None
    """That of its generation."""
    trainer_state: TrainerState | None = None
    parameters: Sequence[Any] | None = None
    """The names of the optimizer's parameters, a list for each group."""
    random_states: dict[str, Any] = field(default_factory=dict)
    """File name → random states, without arrays of numpy, which Lightning would refuse to load."""
    lightning: dict[str, Any] = field(default_factory=dict)
    """The entries of ``lightning.pt`` besides the states of callbacks."""
    adapters: dict[str, dict[str, Any]] | None = None
    """Name → configuration of each adapter of peft."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Mapping[str, Any]) -> Carried:
        """Return what the entry holds; nothing if there is none, or a run went on since.

        Raises:
            CheckpointError: If it is damaged.
        """
        entry = checkpoint.get(OWN_KEY)
        if entry is None:
            return cls()
        try:
            state = entry["trainer_state"]
            return cls(
                entry["configuration"],
                entry["generation"],
                None if state is None else TrainerState(**state),
                entry["parameters"],
                _random_states_in(entry),
                dict(entry["lightning"]),
                entry.get("adapters"),
            )
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"The entry `{OWN_KEY}` of the checkpoint is damaged: {error!r}.") from error

    def to_entry(self) -> dict[str, Any]:
        """Return the entry for a checkpoint."""
        return {
            "configuration": self.configuration,
            "generation": self.generation,
            "trainer_state": None if self.trainer_state is None else asdict(self.trainer_state),
            "parameters": self.parameters,
            "random_states": self.random_states,
            "lightning": self.lightning,
            "adapters": self.adapters,
        }

    def add_rng(self, name: str, state: Mapping[str, Any]) -> None:
        """Take over the random states of the file ``name``."""
        kind, keys, *numbers = state["numpy"]
        self.random_states[name] = {**state, "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), *numbers]}

    def rng_files(self) -> dict[str, Any]:
        """Return file name → random states as a checkpoint has them."""
        files = {}
        for name, state in self.random_states.items():
            kind, keys, *numbers = state["numpy"]
            files[name] = {**state, "numpy": (kind, keys.numpy().astype(np.uint32), *numbers)}
        return files


def _random_states_in(entry: Mapping[str, Any]) -> dict[str, Any]:
    states = dict(entry["random_states"])
    for name in states:
        if not isinstance(name, str) or _RNG_NAME.fullmatch(name) is None:  # a path would lead out of the folder
            raise CheckpointError(
                f"The entry `{OWN_KEY}` of the checkpoint names {name!r} as a file of random states, which must be "
                "`rng_state.pth` or `rng_state_<rank>.pth`: do not trust this checkpoint."
            )
    return states
