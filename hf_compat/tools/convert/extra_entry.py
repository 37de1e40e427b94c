"""Content of a folder that Lightning does not know: an entry of the ``.ckpt`` file that the way back restores."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from hf_compat.errors import CheckpointError
from hf_compat.state import TrainerState

__all__ = ["OWN_KEY", "Carried"]

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
    def from_checkpoint(cls, rest: Mapping[str, Any]) -> Carried:
        """Return what the entry holds; nothing if there is none, or a run went on since.

        Raises:
            CheckpointError: If it is damaged.
        """
        entry = rest.get(OWN_KEY)
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
