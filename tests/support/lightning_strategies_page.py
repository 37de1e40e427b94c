"""``docs/lightning_strategies.md``, made by ``python -m tests.support.lightning_strategies_page``."""

from pathlib import Path

from hf_compat.engine.keywords import FABRIC_VARIABLES
from hf_compat.engine.strategies.choice import REFUSED_OPTIONS
from hf_compat.engine.strategy_table import REFUSED_STRATEGIES
from tests.support.lightning_keywords_page import Row

PAGE = Path(__file__).parents[2] / "docs" / "lightning_strategies.md"
INTRODUCTION = """\
# Lightning's strategies and clusters

`Trainer(lightning={"strategy": ..., "plugins": [...]})` takes names and instances of strategies, and cluster
environments. Each of Lightning's either works or is refused before training, with the reason and what to use instead.
By default the training arguments choose the strategy: `deepspeed`, `fsdp`, `parallelism_config`; otherwise DDP or, in
one process, `DataParallel` or a single device.

This page is generated from `tests/support/lightning_strategies_page.py` and `hf_compat/engine/strategy_table.py`.
"""
OF_INSTANCES = """\
A name registered in Lightning's `StrategyRegistry` stands for an instance. A strategy named twice, here and by a field
of the training arguments, is refused.

A subclass of yours works if it overrides nothing but the constructor; it may define more, and libraries may mark it.
hf_compat uses its own strategy classes, so other overrides would never be called and are refused by name.
"""
OF_OPTIONS = """\
What each argument of a strategy's constructor becomes. A refused one is an error off its default.
"""
OF_ENVIRONMENTS = """\
Rank and world size are read from the launcher's environment variables as soon as the training arguments need them:
`args.process_index`, `args.device`, `args.main_process_first()`. You need not pass an environment then; one that you do
pass must agree with the variables. An environment that provides more information, or one of your own, must be
registered first:

<!-- first
from hf_compat.distributed.launch import Launch
from hf_compat.engine.process_layout import LaunchedEnvironment


class MyCluster(LaunchedEnvironment):
    def __init__(self):
        super().__init__(Launch())
-->
```python
from hf_compat import TrainingArguments
from hf_compat.lightning import use_cluster_environment

use_cluster_environment(MyCluster())  # before there are training arguments
args = TrainingArguments("out")
```

If it is only passed to the Trainer, it takes effect from then on; until then the arguments assume a single process.
The ranks on a node must be consecutive, which is the default of launchers.
"""
OF_VARIABLES = """\
`fabric run --strategy ddp --devices 2 script.py` starts the script with torchrun, and sets variables that
`lightning.Trainer` does not read. hf_compat's Trainer treats them as the keywords below, and refuses the same values,
with the name and value of the variable. If the script sets such a keyword to a different value, that is refused too.
"""


def _deepspeed(stage: int, offloaded: str = "") -> Row:
    offloading = f", offloading {offloaded}" if offloaded else ""
    return Row(f"DeepSpeed, ZeRO stage {stage}{offloading}; as `DeepSpeedStrategy`.", "`deepspeed` set too")


CLASSES: dict[str, Row] = {
    "DDPStrategy": Row(
        "DDP with its keywords for torch's wrapper, communication hooks and `model_averaging_period`; `start_method` "
        "says how `devices` processes are started without a launcher.",
        "`fsdp`, `deepspeed` or `parallelism_config` set too",
    ),
    "DeepSpeedStrategy": Row(
        "The DeepSpeed config that it makes of its options is the field `deepspeed`. Under ZeRO-3 a `model` is sharded "
        "when training begins, one of `model_init` while it is created.",
        "`deepspeed` set too; a config that contradicts training arguments",
    ),
    "FSDPStrategy": Row(
        "FSDP version 1 with its wrapping, sharding and offloading, on several processes.",
        "`fsdp` set too; policies that no field can express",
    ),
    "ModelParallelStrategy": Row(
        "Tensor parallelism of its sizes, by the model's own plan; with `fsdp` FSDP version 2 across the data-parallel "
        "ranks.",
        "`tensor_parallel_size=1`; other sizes than those of `parallelism_config`",
    ),
    "SingleDeviceStrategy": Row(
        "One process on one device, without a wrapper.", "a device other than that of the arguments; several processes"
    ),
}
"""Each strategy class that ``lightning.pytorch.strategies`` exports and that works → what becomes of an instance."""

_STARTS = {
    "ddp": "DDP; without a launcher the Trainer runs the script again for the other `devices`",
    "ddp_spawn": "DDP; `train()` spawns `devices` fresh processes",
    "ddp_fork": "DDP; `train()` forks `devices` processes",
    "ddp_notebook": "As `ddp_fork`, also inside a notebook",
}
_UNUSED = {
    "": ".",
    "_find_unused_parameters_false": ". `find_unused_parameters=False`.",
    "_find_unused_parameters_true": ". `find_unused_parameters=True`.",
}

NAMES: dict[str, Row] = {
    "auto": Row(
        "Chosen by the training arguments: `deepspeed`, `fsdp`, `parallelism_config`; otherwise DDP, `DataParallel` "
        "for several GPUs of one process, or a single device."
    ),
    **{f"{name}{end}": Row(note + more) for name, note in _STARTS.items() for end, more in _UNUSED.items()},
    "deepspeed": _deepspeed(2),
    "deepspeed_stage_1": _deepspeed(1),
    "deepspeed_stage_2": _deepspeed(2),
    "deepspeed_stage_2_offload": _deepspeed(2, "the optimizer's state"),
    "deepspeed_stage_3": _deepspeed(3),
    "deepspeed_stage_3_offload": _deepspeed(3, "parameters and the optimizer's state"),
    "deepspeed_stage_3_offload_nvme": _deepspeed(3, "parameters and the optimizer's state to `/local_nvme`"),
    "fsdp": Row("FSDP version 1, as `fsdp` and `fsdp_config` say; on several processes."),
    "fsdp_cpu_offload": Row("The same with the parameters offloaded to the CPU; on GPUs."),
    "single_device": Row("As `SingleDeviceStrategy`, on the device that the arguments choose.", "several processes"),
}
"""``"auto"`` and each name in Lightning's ``StrategyRegistry`` that works → what becomes of it."""

ENVIRONMENTS: dict[str, Row] = {
    "ClusterEnvironment": Row(
        "Your subclass determines rank and world size: from `use_cluster_environment` on, or from the creation of the "
        "Trainer that it is passed to.",
        "answers that contradict a launcher's variables; one that starts processes itself",
    ),
    "KubeflowEnvironment": Row("RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; each pod is a node of one process."),
    "LightningEnvironment": Row(
        "Lightning's default: the Trainer starts processes as Lightning does. Also where LOCAL_RANK is set, as "
        "`torchrun` does.",
        "a launcher that does not set LOCAL_RANK: each of its processes would start more",
    ),
    "LSFEnvironment": Row("The variables of `jsrun`, JSM_NAMESPACE_*, and the hosts in LSB_DJOB_RANKFILE."),
    "MPIEnvironment": Row(
        "The variables of `mpirun` (Open MPI, MPICH, Intel MPI, MVAPICH). If passed, it also chooses address and port "
        "of the rendezvous, which are otherwise MASTER_ADDR and MASTER_PORT."
    ),
    "SLURMEnvironment": Row(
        "The variables of `srun`, SLURM_*; if passed, also its `auto_requeue` and `requeue_signal`. Jobs named `bash` "
        "or `interactive` have one process, unless a launcher is used in them."
    ),
    "TorchElasticEnvironment": Row("The variables of `torchrun`, `fabric run` and `accelerate launch`."),
}
"""Each class that ``lightning.fabric.plugins.environments`` exports and that works → what becomes of it."""
REFUSED_ENVIRONMENTS = {"XLAEnvironment": REFUSED_STRATEGIES["XLAStrategy"]}

_PLUGINS = {
    "checkpoint_io": "As in `plugins`: for Lightning's own checkpoints.",
    "cluster_environment": "As in `plugins`.",
    "precision_plugin": "As in `plugins`.",
}
_WITH_HOOK = "As in Lightning, on CPUs too; `ddp_comm_state` and `ddp_comm_wrapper` need a `ddp_comm_hook`."
_OFFLOAD = "`zero_optimization.offload_optimizer` in the DeepSpeed config, if `offload_optimizer` is set."
_OFFLOAD_WEIGHTS = "`zero_optimization.offload_param` in the DeepSpeed config, if `offload_parameters` is set."
_LOSS_SCALE = "The key of that name in `fp16` of the DeepSpeed config, which `fp16=True` enables."


def _in_section(section: str) -> str:
    return f"The key of that name in `{section}` of the DeepSpeed config."


OPTIONS: dict[str, dict[str, str]] = {
    "DDPStrategy": {
        **_PLUGINS,
        **dict.fromkeys(("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper"), _WITH_HOOK),
        "model_averaging_period": "As in Lightning, with a `PostLocalSGDState` as `ddp_comm_state`.",
        "start_method": "How `devices` processes are started without a launcher.",
        "kwargs": "Keywords of torch's `DistributedDataParallel`; they override the fields `ddp_...`.",
    },
    "DeepSpeedStrategy": {
        "cluster_environment": _PLUGINS["cluster_environment"],
        "config": (
            "The DeepSpeed config. Batch size, accumulation, clipping, `fp16` and `bf16` are `'auto'`, unless it has "
            "them: they follow the training arguments. Lightning itself drops the options that its constructor makes "
            "a config of (`stage` and those of offloading, `aio` and checkpointing) if it is given one."
        ),
        "zero_optimization": "False is stage 0.",
        "logging_batch_size_per_gpu": (
            "`train_micro_batch_size_per_gpu` in the DeepSpeed config, which must be `per_device_train_batch_size`."
        ),
        "zero_allow_untested_optimizer": (
            "The key of that name in the DeepSpeed config; true for an optimizer that is not in the config."
        ),
        **dict.fromkeys(
            (
                *("stage", "sub_group_size", "contiguous_gradients", "overlap_comm", "allgather_partitions"),
                *("reduce_scatter", "allgather_bucket_size", "reduce_bucket_size"),
            ),
            _in_section("zero_optimization"),
        ),
        **dict.fromkeys(("offload_optimizer", "offload_optimizer_device", "optimizer_buffer_count"), _OFFLOAD),
        **dict.fromkeys(
            ("offload_parameters", "offload_params_device", "params_buffer_count", "params_buffer_size", "max_in_cpu"),
            _OFFLOAD_WEIGHTS,
        ),
        **dict.fromkeys(("nvme_path", "pin_memory"), "The key of that name in both sections of offloading."),
        **dict.fromkeys(
            ("block_size", "queue_depth", "single_submit", "overlap_events", "thread_count"), _in_section("aio")
        ),
        **dict.fromkeys(
            (
                *("partition_activations", "cpu_checkpointing"),
                *("contiguous_memory_optimization", "synchronize_checkpoint_boundary"),
            ),
            _in_section("activation_checkpointing"),
        ),
        **dict.fromkeys(
            ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"), _LOSS_SCALE
        ),
    },
    "FSDPStrategy": {
        "cluster_environment": _PLUGINS["cluster_environment"],
        "cpu_offload": "`cpu_offload` of `fsdp_config`; on GPUs.",
        "auto_wrap_policy": (
            "A set of layer classes is `transformer_layer_cls_to_wrap`, torch's size-based policy `min_num_params` of "
            "`fsdp_config`; others are refused."
        ),
        **dict.fromkeys(
            ("activation_checkpointing", "activation_checkpointing_policy"),
            "`activation_checkpointing` of `fsdp_config`, for the layers of `auto_wrap_policy` and no others.",
        ),
        "sharding_strategy": "`reshard_after_forward` of `fsdp_config`, by its name.",
        "state_dict_type": "`state_dict_type` of `fsdp_config`.",
        "kwargs": (
            "`backward_prefetch`, `forward_prefetch`, `limit_all_gathers`, `use_orig_params` and `sync_module_states` "
            "of `fsdp_config`; others are refused."
        ),
    },
    "ModelParallelStrategy": {
        "data_parallel_size": "`dp_shard_size` of `parallelism_config`; by default the number of nodes.",
        "tensor_parallel_size": (
            "`tp_size` of `parallelism_config`; by default the number of ranks of a node. 1 is refused: set `fsdp`."
        ),
        "save_distributed_checkpoint": "Checkpoints are those of the training arguments: whole, as if False.",
    },
    "SingleDeviceStrategy": {
        "checkpoint_io": _PLUGINS["checkpoint_io"],
        "precision_plugin": _PLUGINS["precision_plugin"],
        "device": "Has to be the device that the training arguments choose.",
    },
}
"""Strategy class → each argument of its constructor that is not refused → what becomes of it."""


def _section(title, what, works, refused, text=""):
    lines = [f"\n## {title}\n"]
    if text:
        lines += [text]
    lines += [f"| {what} | what it does here | refused with |", "|---|---|---|"]
    lines += [f"| `{name}` | {works[name].note} | {works[name].refuses} |" for name in sorted(works, key=str.lower)]
    lines += [f"\n| refused {what} | reason | instead |", "|---|---|---|"] if refused else []
    return lines + [f"| `{name}` | {one.reason} | {one.instead} |" for name, one in sorted(refused.items())]


def _options():
    lines = [f"\n## Options\n\n{OF_OPTIONS.rstrip()}"]
    for name, options in OPTIONS.items():
        refused = {key: f"Refused: {one.reason}. Use {one.instead}." for key, one in REFUSED_OPTIONS[name].items()}
        lines += [f"\n### `{name}`\n", "| option | what it becomes |", "|---|---|"]
        lines += [f"| `{option}` | {note} |" for option, note in sorted((options | refused).items())]
    return lines


def page() -> str:
    """Return the text of the page."""
    classes = {name: why for name, why in REFUSED_STRATEGIES.items() if name[0].isupper()}
    names = {name: why for name, why in REFUSED_STRATEGIES.items() if name not in classes}
    variables = [f"| `{variable}` | `{keyword}` |" for variable, keyword in FABRIC_VARIABLES.items()]
    return "\n".join(
        [
            INTRODUCTION.rstrip(),
            *_section("Names", "name", NAMES, names),
            *_section("Instances", "class", CLASSES, classes, OF_INSTANCES),
            *_options(),
            *_section("Cluster environments", "environment", ENVIRONMENTS, REFUSED_ENVIRONMENTS, OF_ENVIRONMENTS),
            f"\n## `fabric run`\n\n{OF_VARIABLES}",
            "| variable | keyword |\n|---|---|",
            *variables,
            "\n`LT_ACCELERATOR=cpu` is `use_cpu=True` for the training arguments.\n",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
