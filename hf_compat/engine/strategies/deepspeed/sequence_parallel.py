"""DeepSpeed's Ulysses: attention over whole sequences of which each rank has a chunk."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup

from hf_compat.arguments.sequence_parallelism import SequenceParallelism
from hf_compat.errors import ModelError, TrainerSetupError

__all__ = ["UlyssesAttention", "sequence_parallel_limits"]

_GROUPS = ("_SEQUENCE_PARALLEL_GROUP", "_SEQUENCE_DATA_PARALLEL_GROUP")
"""Where DeepSpeed keeps the process groups of the run."""


class UlyssesAttention:
    """Exchanges chunks of the sequence for shares of the heads around each attention call in training.

    transformers looks the attention function up by its name, under which the exchange is put between :meth:`enter` and
    :meth:`leave`. Evaluations have whole sequences: they call the function itself, without a mask as in training.

    Args:
        sequences: The sizes.

    Attributes:
        group: The ranks that share sequences with this one; None before :meth:`begin` and after :meth:`end`.
    """

    def __init__(self, sequences: SequenceParallelism) -> None:
        self.sequences = sequences
        self.group: ProcessGroup | None = None
        self._groups: dict[str, ProcessGroup] = {}
        self._function: Any = None
        self._exchanging: Any = None

    def enter(self) -> None:
        """Put the exchange in the place of the attention function."""
        self.leave()
        functions, name = _attention_functions(), self.sequences.attention
        self._function, functions[name] = functions.get(name), self._attend

    def leave(self) -> None:
        """Put the attention function into its place again."""
        if self._function is not None:
            _attention_functions()[self.sequences.attention] = self._function
            self._function = None

    def begin(self, model: nn.Module, config: dict[str, Any]) -> tuple[ModuleType, dict[str, Any]]:
        """Make the process groups, and the exchange for ``model``; every rank calls it, after :meth:`enter`.

        Args:
            model: The unwrapped model.
            config: DeepSpeed's config, without ``"auto"`` values.

        Returns:
            The parallel state that ``deepspeed.initialize`` takes as ``mpu``, and the config with the samples of an
            update step, which are those of all groups.

        Raises:
            ModelError: If ``model`` cannot be trained so.
            TrainerSetupError: If DeepSpeed is too old.
        """
        if problems := [*_model_problems(model, self.sequences)]:
            raise ModelError("\n  ".join(problems))
        self.end()
        try:
            ulysses = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
        except ImportError as error:
            raise TrainerSetupError(
                f"`sp_size={self.sequences.size}` in `parallelism_config` needs DeepSpeed 0.18.2 or later: {error}."
            ) from error
        vars(_parallel_state()).update(dict.fromkeys(_GROUPS))  # another Trainer may have left its own
        importlib.import_module("deepspeed").init_distributed()  # which takes over torch's process group
        batch_size = config["train_micro_batch_size_per_gpu"]
        self.leave()  # DeepSpeed wraps what it finds
        functions, attention = _attention_functions(), self.sequences.attention
        function = functions.get(attention)
        state: ModuleType = ulysses.UlyssesSPAttentionHF.register_with_transformers(
            model_name_or_path=model,
            core_attn_implementation=attention,
            sequence_parallel_size=self.sequences.size,
            micro_batch_size=batch_size,
            seq_length=self.sequences.length,
            seq_length_is_variable=self.sequences.length is None,
        )
        self._exchanging, functions[attention] = functions[attention], function
        self.enter()
        self._groups = {name: getattr(state, name) for name in _GROUPS}
        self.group = state.get_sequence_parallel_group()
        samples = batch_size * config["gradient_accumulation_steps"] * self.sequences.data
        return state, {**config, "train_batch_size": samples}

    def _attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: object, *given: Any, **named: Any
    ) -> tuple[Tensor, Tensor | None]:
        attend = self._exchanging if module.training else self._function
        groups = getattr(module, "num_key_value_groups", None)
        result: tuple[Tensor, Tensor | None] = attend(module, query, key, value, None, *given, **named)
        if groups is not None:
            module.num_key_value_groups = groups  # the exchange sets it to that of a rank's share of the heads
        return result

    def end(self) -> None:
        """Free DeepSpeed's process groups; every rank calls it."""
        deepspeed_groups: Any = importlib.import_module("deepspeed.utils.groups")
        for name, group in self._groups.items():
            if getattr(_parallel_state(), name) is group:
                setattr(_parallel_state(), name, None)
                deepspeed_groups.mpu = None  # the engine has set it
            distributed.destroy_process_group(group)
        self.group, self._groups, self._exchanging = None, {}, None


def _parallel_state() -> ModuleType:
    return importlib.import_module("deepspeed.runtime.sequence_parallel.parallel_state_sp")


def _attention_functions() -> Any:
    return importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS


def sequence_parallel_limits(sequences: SequenceParallelism | None, model: nn.Module | None) -> Iterator[str]:
    """Yield why ``model`` cannot be trained with ``sequences``.

    Args:
        sequences: The sizes; None without sequence parallelism.
        model: The model; None if ``model_init`` has not been called yet.
    """
    if sequences is not None and model is not None:
        yield from _model_problems(model, sequences)


def _model_problems(model: nn.Module, sequences: SequenceParallelism) -> Iterator[str]:
    name, size = type(model).__name__, sequences.size
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        yield f"`model`: {name} has no config of transformers, by which `sp_size={size}` shares out the heads."
        return
    own = getattr(config, "_attn_implementation", None)
    if own != sequences.attention:
        yield (
            f"`model`: the attention of {name} is {own!r}, but that of `sp_size={size}` in `parallelism_config` is "
            f"{sequences.attention!r}. Load the model with `attn_implementation={sequences.attention!r}`, or set "
            "`sp_attn_implementation` of `sp_handler`."
        )
    text = config.get_text_config()
    heads, shared = getattr(text, "num_attention_heads", None), getattr(text, "num_key_value_heads", None)
    if heads is None or shared is None:
        missing = "num_attention_heads" if heads is None else "num_key_value_heads"
        yield f"`model`: the config of {name} has no `{missing}`, by which `sp_size={size}` shares out the heads."
    elif heads % size or (shared % size and size % shared):
        yield (
            f"`model`: {name} has `num_attention_heads={heads}` and `num_key_value_heads={shared}`, which cannot be "
            f"shared out over `sp_size={size}` ranks: the first has to be a multiple of it, the second a multiple or a "
            "divisor. Set another `sp_size`."
        )
    recurrent = sorted({kind for kind in getattr(text, "layer_types", None) or () if "linear_attention" in kind})
    if recurrent:
        yield (
            f"`model`: {name} has layers of type {', '.join(recurrent)}, whose state runs along the sequence: with "
            f"`sp_size={size}` each rank would start it anew. Use a model of attention layers, or remove `sp_size`."
        )
