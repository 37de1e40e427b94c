"""Facts of this process in ``TrainingArguments``: its device, its launcher and its log level."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from hf_compat.arguments.derived import compile_keywords
from hf_compat.arguments.fsdp import read_fsdp
from hf_compat.arguments.releases import LOG_LEVELS
from hf_compat.distributed import accelerate_state, processes
from hf_compat.distributed.accelerate_state import configured_precision
from hf_compat.distributed.accelerators import (
    accelerator_type,
    default_backend,
    device_index,
    lacks_tf32,
    set_tf32,
    wants_cpu,
)
from hf_compat.distributed.launch import BY_TRAINER, Launch, is_launched, read_launch
from hf_compat.errors import TrainerSetupError
from hf_compat.log_files import library_logger, set_level, write_log_file

if TYPE_CHECKING:
    import torch

    from hf_compat.arguments.releases import Semantics
    from hf_compat.arguments.training_arguments import TrainingArguments
    from hf_compat.distributed.process_state import ProcessState, RunState

logger = logging.getLogger(__name__)


def set_up_device(args: TrainingArguments) -> torch.device:
    """Return the device of this process, which has joined the others unless the Trainer starts them."""
    device = choose_device(args)
    logger.info("PyTorch: setting up devices")
    if args._n_gpu < 0:  # otherwise a script has set it
        args._n_gpu = _count_gpus(args, device)
    if read_launch().launcher != BY_TRAINER:  # there rank 0 joins only after it has built its Trainer
        args.join_processes(device)
    if uses_configured_state(args):
        _check_configured_state(args)
    elif accelerate_state.is_imported():
        accelerate_state.share_process(_process_state(args, device))
    if args.launch.launcher == "the script" and args.world_size == 1 and args.deepspeed_plugin is None:
        logger.warning(
            "torch.distributed process group is initialized, but parallel_mode != ParallelMode.DISTRIBUTED: it has one "
            "process. Start more with `torchrun`."
        )
    return device


def _count_gpus(args: TrainingArguments, device: torch.device) -> int:
    """Return the number of GPUs that this process may use: all that it sees, unless a launcher has started it."""
    import torch

    has_launcher = args.launch.launcher not in (None, "the script") or is_single_rank(args)
    if device.type != "cuda" or has_launcher or args.world_size > 1 or args.deepspeed_plugin is not None:
        return int(device.type != "cpu")
    return torch.cuda.device_count()


def is_single_rank(args: TrainingArguments) -> bool:
    """Return whether this process has been launched as the only one, as by ``torchrun --nproc-per-node 1``."""
    return args.world_size == 1 and os.environ.get("LOCAL_RANK", "-1") != "-1"


def share_early(args: TrainingArguments) -> None:
    """Set up device and processes now if other code may use accelerate's state, as upstream's constructor does.

    Several processes wait for each other there, so that they have to know where: a launcher without these variables is
    left to the first use of the device.
    """
    if not accelerate_state.is_imported():
        return
    launch = find_launch()
    if launch.launcher in (None, BY_TRAINER, "the script") or {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        _ = args.device


def distributed_state(args: TrainingArguments) -> Any:
    """Return the state of this process; see the property of ``TrainingArguments``."""
    return accelerate_state.partial_state(_process_state(args, args.device))


def _process_state(args: TrainingArguments, device: torch.device) -> ProcessState:
    from hf_compat.distributed.process_state import ProcessState

    plugin = None if device.type == "cpu" else args.deepspeed_plugin  # as upstream's; a Trainer's state has it
    return ProcessState(device, args.launch, plugin)


def run_state(args: TrainingArguments, precision: str, **plugins: Any) -> RunState:
    """Return device, ranks, precision and plugins of a Trainer's runs; ``plugins`` are more keywords of the state."""
    from hf_compat.distributed.process_state import Compilation, RunState

    keywords = compile_keywords(args)
    return RunState(
        args.device,
        args.launch,
        precision,
        deepspeed_plugin=args.deepspeed_plugin,
        compilation=None if keywords is None else Compilation(**keywords),
        **plugins,
    )


def uses_configured_state(args: TrainingArguments) -> bool:
    """Return whether the script has set up accelerate's state; in processes that the Trainer starts, it does."""
    return bool(args.accelerator_config.use_configured_state) and read_launch().launcher != BY_TRAINER


def _check_configured_state(args: TrainingArguments) -> None:
    """Raise if the script has set up accelerate's state for another kind of run."""
    state, size = accelerate_state.configured_state(), args.launch.world_size
    if state is None:
        return  # checked when the arguments were built; emptied since, so that the Trainer sets it up
    if args.deepspeed_plugin is not None and state.distributed_type != "DEEPSPEED":
        raise TrainerSetupError(
            "Tried to use an already configured `Accelerator` or `PartialState`, because `use_configured_state=True`: "
            f"it is set up for {state.distributed_type}, but `deepspeed` is set. Pass the DeepSpeed plugin to "
            "`Accelerator`, or do not set `use_configured_state`."
        )
    if state.num_processes != size:
        raise TrainerSetupError(
            f"`accelerator_config={{'use_configured_state': True}}`: accelerate is set up for {state.num_processes} "
            f"processes, but the launcher has started {size}. Call `PartialState(cpu=True)` on the CPU, or do not set "
            "`use_configured_state`."
        )


def choose_device(args: TrainingArguments) -> torch.device:
    """Return the device that ``use_cpu``, a configured state, the local rank and this machine decide."""
    import torch

    state = accelerate_state.configured_state() if uses_configured_state(args) else None
    # As accelerate has it: torch copies whatever is moved to this device. Weights leave the file that they are mapped
    # from, and a model that writes to its inputs does not write to the data set.
    cpu = torch.device("cpu", 0) if args.world_size > 1 or is_single_rank(args) else torch.device("cpu")
    if wants_cpu(args.use_cpu) or (state is not None and state.device.type == "cpu"):
        return cpu
    kind = accelerator_type()
    if kind is None:
        _refuse_xla()
        return cpu
    if kind == "mps":
        os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"  # as accelerate: what MPS cannot do, the CPU does
        return torch.device(kind)
    return torch.device(kind, device_index(kind, args.local_process_index))


def _refuse_xla() -> None:
    """Raise if torch_xla is installed, with which transformers trains on the devices of XLA alone."""
    if find_spec("torch_xla") is not None:
        raise TrainerSetupError(
            "`use_cpu=False`: `torch_xla` is installed, with which transformers trains on an XLA device such as a TPU. "
            "That is not supported: set `use_cpu=True` to train on the CPU, or uninstall `torch_xla`."
        )


def join_processes(args: TrainingArguments, device: torch.device) -> None:
    """Initialize the process group on ``device``; see the method of ``TrainingArguments``."""
    fsdp = read_fsdp(args)
    processes.join_processes(
        args.launch,
        device,
        backend=args.ddp_backend,
        offloads=fsdp is not None and fsdp.cpu_offload,
        timeout=args.ddp_timeout_delta,
    )
    if is_single_rank(args) and _has_backend(args, device):  # as accelerate: scripts call torch.distributed
        processes.join_alone(device, backend=args.ddp_backend)


def _has_backend(args: TrainingArguments, device: torch.device) -> bool:
    """Return whether this build of torch has the process group's backend; on Windows there is no NCCL."""
    from torch import distributed

    backend = args.ddp_backend or default_backend(device)
    return backend is not None and distributed.is_available() and distributed.is_backend_available(backend)


def find_launch() -> Launch:
    """Return the launcher and the ranks, from a process group of the script or from the environment."""
    group, launch = processes.process_group(), read_launch()
    if group is None or launch.launcher is not None:
        return launch
    size, rank = int(group.get_world_size()), int(group.get_rank())
    if size == 1 and is_launched():  # that of a process started alone, see `join_processes`
        return launch
    return Launch("the script", world_size=size, rank=rank, local_rank=rank, local_world_size=size)


def process_log_level(args: TrainingArguments) -> int:
    """Return the log level of this process; without one in the fields, that of transformers' logger."""
    level = LOG_LEVELS[args.log_level if args.should_log else args.log_level_replica]
    return library_logger().getEffectiveLevel() if level == LOG_LEVELS["passive"] else level


def set_log_level(args: TrainingArguments) -> None:
    """Set the level of hf_compat's and transformers' loggers on this rank, and open its log file."""
    level = args.get_process_log_level()
    if (args.log_level if args.should_log else args.log_level_replica) != "passive":
        set_level(level)
    write_log_file(args.process_index, level)


@contextmanager
def main_process_first(args: TrainingArguments, *, local: bool, desc: str) -> Iterator[None]:
    """Run the block on the main process first; see the method of ``TrainingArguments``."""
    if args.world_size == 1:
        yield
        return
    _ = args.device  # the barrier needs the process group
    is_main = (args.local_process_index if local else args.process_index) == 0
    # A process that a Trainer started has no process group here yet; rank 0 ran the block before it started.
    with processes.main_first(args.process_index, is_main=is_main, desc=desc):
        yield


# The precision of a run: mixed precision, that of evaluations, and TF32 for the process.


PRECISION_VARIABLE = "ACCELERATE_MIXED_PRECISION"
"""Set by ``accelerate launch --mixed_precision``; used if neither ``fp16`` nor ``bf16`` is set."""


def mixed_precision(args: TrainingArguments, semantics: Semantics) -> str:
    """Return ``"fp16"``, ``"bf16"`` or ``"no"``: from the fields, the script's own state, or the launcher."""
    if args.fp16:
        return "fp16"
    if args.bf16:
        return "bf16"
    adopts = uses_configured_state(args) and not semantics.compares_configured_precision
    adopted = configured_precision() if adopts else None
    return adopted or os.environ.get(PRECISION_VARIABLE, "no")


def full_evaluation_precision(args: TrainingArguments) -> Literal["float16", "bfloat16"] | None:
    """Return the dtype in which a model is evaluated as a whole, None where its weights stay as they are."""
    if args.fp16_full_eval:
        return "float16"
    return "bfloat16" if args.bf16_full_eval else None


def amp_backend(args: TrainingArguments) -> str:
    """Return the name of the half precision backend that transformers 4.57 chooses for ``half_precision_backend``."""
    by_default = args.half_precision_backend == "auto"
    return "cpu_amp" if by_default and args.device.type == "cpu" and not args.fp16 else args.half_precision_backend


def uses_cpu_amp(args: TrainingArguments) -> bool:
    """Return whether transformers 4.57 has an autocast around the loss on the CPU.

    It has one if that is requested, and by default for ``bf16`` in a lone process.
    """
    if args.half_precision_backend == "auto":
        return args.bf16 and args.device.type == "cpu" and args.world_size == 1
    return args.half_precision_backend == "cpu_amp" and (args.fp16 or args.bf16)


def allow_tf32(args: TrainingArguments) -> None:
    """Set TF32 for the process, as upstream does: if the field is set, and for compiled models."""
    if args.tf32 is not None:
        if not lacks_tf32():
            set_tf32(args.tf32)
    elif args.torch_compile and lacks_tf32():
        logger.warning("The speedups for torchdynamo mostly come with GPU Ampere or higher, and this machine has none.")
    elif args.torch_compile and (args.bf16 or not args.fp16):
        set_tf32(True)
