"""accelerate's process-wide state, which code beside the Trainer reads, made equal to this process and its run.

``get_logger``, ``gather_object``, ``set_seed(device_specific=True)`` and ``AcceleratorState()`` of accelerate read two
dicts that are shared by the whole process. accelerate is optional: without it nothing here has an effect.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from hf_compat.distributed import processes

if TYPE_CHECKING:
    from hf_compat.distributed.process_state import ProcessState, RunState


def is_imported() -> bool:
    """Return whether accelerate's state is imported, so that other code may already use it."""
    return "accelerate.state" in sys.modules


def accelerate_module(name: str) -> Any | None:
    """Return the module ``name`` of accelerate; None if accelerate is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def configured_state() -> Any | None:
    """Return accelerate's ``PartialState`` if something has set it up, else None."""
    module: Any = sys.modules.get("accelerate.state")
    return module.PartialState() if module is not None and module.PartialState._shared_state else None


def configured_precision() -> str | None:
    """Return the mixed precision of accelerate's ``AcceleratorState`` if something has set it up, else None."""
    module: Any = sys.modules.get("accelerate.state")
    if module is None or module.AcceleratorState._shared_state in ({}, module.PartialState._shared_state):
        return None
    return str(module.AcceleratorState().mixed_precision)


def partial_state(process: ProcessState) -> Any:
    """Return accelerate's ``PartialState``, set up for ``process`` if it is empty; ``process`` without accelerate."""
    module = accelerate_module("accelerate.state")
    if module is None:
        return process
    if not module.PartialState._shared_state:
        share_process(process)
    return module.PartialState()


def share_process(process: ProcessState) -> None:
    """Set accelerate's ``PartialState`` to ``process``, and empty its ``AcceleratorState``, which a Trainer sets.

    The process group is not touched. Before this process has joined one, barriers of accelerate have no effect.
    """
    module = accelerate_module("accelerate.state")
    if module is None:
        return
    module.AcceleratorState._reset_state(reset_partial_state=True)
    module.PartialState._shared_state.update(_process_values(module, process))
    module.PartialState()  # sets what depends on the environment alone


def share_run(run: RunState, *, configured: bool = False) -> None:
    """Set accelerate's ``PartialState`` and ``AcceleratorState`` to ``run``.

    Args:
        run: The state of the Trainer's runs.
        configured: The script has set up accelerate's state: what there is of it is kept.
    """
    module = accelerate_module("accelerate.state")
    if module is None:
        return
    if not configured:
        share_process(run)
    if configured and configured_precision() is not None:
        return
    state, partial = module.AcceleratorState._shared_state, module.PartialState._shared_state
    partial["distributed_type"] = _kind(module, run)
    state.update(partial, **_run_values(module, run))


def _kind(module: Any, process: ProcessState) -> Any:
    """Return accelerate's ``DistributedType``; that of a single process until this one has joined the others."""
    has_joined = process.num_processes == 1 or processes.process_group() is not None
    if not has_joined:
        return module.DistributedType.NO
    kinds = module.DistributedType.__members__  # those of the installed release
    return kinds.get(process.distributed_type.name, module.DistributedType.MULTI_GPU)


def _process_values(module: Any, process: ProcessState) -> dict[str, Any]:
    return {
        "_cpu": process.device.type == "cpu",
        "backend": process.backend,
        "debug": process.debug,
        "device": process.device,
        "distributed_type": _kind(module, process),
        "local_process_index": process.local_process_index,
        "num_processes": process.num_processes,
        "process_index": process.process_index,
    }


def _run_values(module: Any, run: RunState) -> dict[str, Any]:
    values = {
        "_mixed_precision": "no" if run.deepspeed_plugin is not None else run.mixed_precision,
        "deepspeed_plugins": run.deepspeed_plugin,
        "device_mesh": run.device_mesh,
        "dynamo_plugin": _dynamo_plugin(run),
        "parallelism_config": run.parallelism_config,
        "torch_tp_plugin": None,
    }
    return values if run.fsdp_plugin is None else values | {"fsdp_plugin": run.fsdp_plugin}


def _dynamo_plugin(run: RunState) -> Any:
    """Return accelerate's plugin for compilation; the default one for a backend that it does not know."""
    utils: Any = importlib.import_module("accelerate.utils")
    chosen = run.compilation
    if chosen is None or chosen.backend.upper() not in utils.DynamoBackend.list():
        return utils.TorchDynamoPlugin()
    return utils.TorchDynamoPlugin(backend=chosen.backend, mode=chosen.mode)
