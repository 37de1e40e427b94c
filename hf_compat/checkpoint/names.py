"""The names of checkpoint folders and the files in them.

All but the two of Lightning are those of transformers, peft and accelerate.
"""

from __future__ import annotations

PREFIX_CHECKPOINT_DIR = "checkpoint"

SAFE_WEIGHTS_NAME = "model.safetensors"
SAFE_WEIGHTS_INDEX_NAME = "model.safetensors.index.json"
WEIGHTS_NAME = "pytorch_model.bin"
WEIGHTS_INDEX_NAME = "pytorch_model.bin.index.json"
ADAPTER_CONFIG_NAME = "adapter_config.json"
ADAPTER_SAFE_WEIGHTS_NAME = "adapter_model.safetensors"
ADAPTER_WEIGHTS_NAME = "adapter_model.bin"

OPTIMIZER_NAME = "optimizer.pt"
SCHEDULER_NAME = "scheduler.pt"
SCALER_NAME = "scaler.pt"
TRAINER_STATE_NAME = "trainer_state.json"
TRAINING_ARGS_NAME = "training_args.bin"

FULL_OPTIMIZER_NAME = "optimizer.bin"
"""The optimizer's state of an FSDP run by the names of parameters, as accelerate writes it."""
FULL_FSDP_WEIGHTS_NAME = "pytorch_model_fsdp.bin"
"""A copy of the weights, in the file from which transformers resumes an FSDP run."""
SHARDED_WEIGHTS_NAME = "pytorch_model_fsdp_0"
"""A folder of torch.distributed.checkpoint, as accelerate calls it; so is the next."""
SHARDED_OPTIMIZER_NAME = "optimizer_0"
SHARDED_METADATA_NAME = ".metadata"
"""The metadata of such a folder."""

LIGHTNING_STATE_NAME = "lightning.pt"
"""The states of Lightning's callbacks and loops."""
LIGHTNING_MARKER_NAME = "lightning.json"
"""The completion marker, written last; see ``completeness.py``."""


def checkpoint_name(step: int) -> str:
    """Return the name of the folder for update step ``step``."""
    return f"{PREFIX_CHECKPOINT_DIR}-{step}"


def rng_state_name(rank: int, world_size: int) -> str:
    """Return the name of the file with the random states of ``rank`` out of ``world_size``."""
    return "rng_state.pth" if world_size <= 1 else f"rng_state_{rank}.pth"


def name_outside_units(name: str) -> str:
    """Return the ``name`` of a parameter or a module without what the units of FSDP 1 have added to it."""
    return ".".join(part for part in name.split(".") if part != "_fsdp_wrapped_module")
