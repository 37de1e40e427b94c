"""DeepSpeed's tensor parallelism (AutoTP): the engine splits the model's matrices over ranks."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from hf_compat.arguments.deepspeed.config import HfTrainerDeepSpeedConfig
from hf_compat.distributed.processes import import_deepspeed
from hf_compat.errors import TrainerSetupError

__all__ = ["request_autotp", "reset_autotp"]

_RECORD = "deepspeed.runtime.tensor_parallel.init_utils"
_GROUPS = ("mpu", "_TENSOR_MODEL_PARALLEL_GROUP", "_MODEL_PARALLEL_GROUP", "_DATA_PARALLEL_GROUP")
"""Where DeepSpeed keeps the process groups of the last model that it has split."""


def request_autotp(model: nn.Module, settings: HfTrainerDeepSpeedConfig, device: torch.device) -> None:
    """Have the next engine split ``model`` as the section ``tensor_parallel`` of ``settings`` requests, or not at all.

    Raises:
        TrainerSetupError: If DeepSpeed is too old.
    """
    reset_autotp()
    size = settings.tensor_parallel_size
    if size == 1:
        return
    deepspeed = import_deepspeed(device)
    try:
        importlib.import_module(_RECORD)  # before, `tp_model_init` split the model itself
    except ImportError as error:
        raise TrainerSetupError(
            f"`tensor_parallel.autotp_size={size}` in the DeepSpeed config needs DeepSpeed 0.18.6 or later, but "
            f"{deepspeed.__version__} is installed."
        ) from error
    deepspeed.tp_model_init(model=model, tp_size=size, dtype=settings.dtype(), config=settings.config)


def reset_autotp() -> None:
    """Have later engines of this process split no model, and use no process groups of an earlier one.

    DeepSpeed, and transformers' Trainer with it, would otherwise split each of them. A model that has been split keeps
    its groups.
    """
    groups = importlib.import_module("deepspeed.utils.groups")
    if getattr(groups, "_TENSOR_MODEL_PARALLEL_GROUP", None) is None:  # older releases have no such group
        return
    for name in _GROUPS:
        setattr(groups, name, None)
    record: Any = importlib.import_module(_RECORD)
    record._TP_MODEL_INIT_ARGS = None
    importlib.import_module("deepspeed.module_inject.layers").set_autotp_mode(training=False)
