"""Combinations of strategy, precision, accumulation, checkpoint, resume and evaluation, and tests that compare them.

``docs/combinations.md`` has those whose tests have passed when they were last recorded: see ``recording``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.drawn import BACKGROUND, SEEDS, draw
from tests.support.drawn_runs import RUN_SEEDS, draw_run

__all__ = ["KILLED_IN_THE_BACKGROUND", "MOMENTS", "ROWS", "Row"]

BITS, ROUNDED = "bit for bit", "up to rounding"
UPSTREAM, UNBROKEN, ONE = "transformers", "the unbroken run", "one process"


@dataclass(frozen=True)
class Row:
    """A combination and what it is equal to; fields that a test does not vary are None."""

    strategy: str
    equal_to: str
    how: str
    tests: tuple[str, ...]
    """Ids of the tests that compare it."""
    device: str = "CPU"
    precision: str = "float32"
    accumulation: bool = False
    checkpoint: str | None = None
    """The kind of checkpoint that is written, if the files are compared or resumed from."""
    resume: str | None = None
    """With what processes, or after what, the run is resumed."""
    evaluation: bool = False


_DDP, _DEEPSPEED = "tests/distributed/test_distributed.py", "tests/distributed/test_deepspeed.py"
_FSDP1, _FSDP2 = "tests/distributed/test_fsdp1.py", "tests/distributed/test_fsdp2.py"
_TENSOR, _WORLDS = "tests/distributed/test_tensor_parallel.py", "tests/distributed/test_other_world_sizes.py"
_RESTARTS, _GPU = "tests/distributed/test_restarts.py", "tests/gpu/test_scenarios.py"
_DRAWN, _RAY = "tests/distributed/test_drawn_combinations.py", "tests/distributed/test_ray_train.py"
_SEQUENCES = "tests/distributed/test_sequence_parallel.py"
_CONTEXT, _RUNS = "tests/gpu/test_context_parallel.py", "tests/distributed/test_drawn_runs.py"
_PARTS = "shared sequences and FSDP 2"
_REPLICAS = "replicas of FSDP 2, on 4 processes"
_OF_REPLICAS = (
    ("float32", "full", None),
    ("bf16", "sharded", None),
    ("fp16", "full", None),
    ("float32", "full", "4 processes from 4"),
    ("bf16", "full", "4 processes from 4"),
)
"""Precision, checkpoint and what the run is resumed with, of each scenario of replicas on four GPUs."""
_DEEPSPEED_GPU, _ZERO_3_GPU = "deepspeed, slow", "deepspeed, parameters in parts, slow"
_SPLIT = {"accumulation": True, "evaluation": True}
_FULL_TOO = "DeepSpeed's and full weights"
MOMENTS = ("begin", "backward", "saving", "saved")
"""Of ``elastic_script.Request``: when a rank is killed."""
KILLED_IN_THE_BACKGROUND = ("ddp", "fsdp2", "zero_2", "zero_3")
"""Strategies under which a rank is killed while checkpoints are saved in the background."""
_SEVERAL = {
    "ddp": "DDP",
    "fsdp1": "FSDP 1",
    "fsdp2": "FSDP 2",
    "zero_1": "ZeRO-1",
    "zero_2": "ZeRO-2",
    "zero_3": "ZeRO-3",
}
"""The strategies of ``elastic_script`` that run on any number of processes."""
_KINDS = {
    **dict.fromkeys(("ddp", "fsdp1", "tensor", "loaded"), "full"),
    **dict.fromkeys(("fsdp2", "hsdp"), "sharded"),
}
"""Their checkpoints; DeepSpeed's otherwise."""


def _resumed(name: str) -> tuple[Row, ...]:
    """Return the rows of what is done under every strategy for any number of processes."""
    strategy, kind = _SEVERAL[name], _KINDS.get(name, "DeepSpeed's")

    def row(how: str, resume: str, test: str) -> Row:
        tests = (f"{_WORLDS}::{test}",)
        return Row(strategy, UNBROKEN, how, tests, accumulation=True, checkpoint=kind, resume=resume)

    return (
        row(BITS, "2 processes from 2", "test_as_the_unbroken_run[2]"),
        row(ROUNDED, "1 process from 2", "test_as_the_unbroken_run[1]"),
        row(ROUNDED, "3 processes from 2", "test_as_the_unbroken_run[3]"),
    )


def _killed(name: str, strategy: str) -> tuple[Row, ...]:
    """Return the rows of a strategy of ``elastic_script`` under which a rank is killed."""
    kind = _KINDS.get(name, "DeepSpeed's")

    def row(kind: str, moment: str, test: str) -> Row:
        resume = f"a rank killed, {moment}"
        return Row(strategy, UNBROKEN, BITS, (f"{_RESTARTS}::{test}",), checkpoint=kind, resume=resume)

    moments = (row(kind, moment, f"test_killed_at_any_moment[{name}-{moment}]") for moment in MOMENTS)
    background = f"test_killed_while_saving_in_the_background[{name}]"
    more = (row(kind + BACKGROUND, "begin", background),) if name in KILLED_IN_THE_BACKGROUND else ()
    return (*moments, *more)


def _drawn(seed: int) -> Row:
    """Return the row of a combination that is drawn at random."""
    drawn = draw(seed)
    names, equal_to, how = ("test_as_the_unbroken_run",), UNBROKEN, BITS
    if drawn.has_upstream:
        names, equal_to = (*names, "test_as_transformers"), UPSTREAM
    elif drawn.processes != 2:
        how = ROUNDED if drawn.precision == "float32" else "within 5 %"
    return Row(
        *(_SEVERAL[drawn.strategy], equal_to, how),
        tests=tuple(f"{_DRAWN}::{name}[{seed}]" for name in names),
        precision=drawn.precision,
        accumulation=True,
        checkpoint=drawn.checkpoint,
        resume=f"{drawn.processes} process{'es' * (drawn.processes > 1)} from 2",
    )


def _drawn_run(seed: int) -> Row:
    """Return the row of a run that is drawn at random."""
    run = draw_run(seed)
    return Row(
        *(f"{_SEVERAL[run.strategy]}, {run.processes} processes", UPSTREAM, BITS),
        tests=(f"{_RUNS}::test_as_transformers[{seed}]",),
        precision="bf16" if run.fields.get("bf16") else "float32",
        accumulation=run.fields["gradient_accumulation_steps"] > 1,
        checkpoint="full" if run.strategy == "ddp" else "DeepSpeed's",
        resume=None if run.resumed_at is None else f"{run.processes} processes from {run.processes}",
        evaluation=run.fields["eval_strategy"] != "no",
    )


def _shared(test: str, processes: int, precision: str, kind: str, *, resumes: bool = False) -> Row:
    """Return the row of ranks that share sequences by ring attention."""
    return Row(
        *(f"{_PARTS}, on {processes} processes", UPSTREAM, BITS, (f"{_GPU}::{test}",)),
        device="fake GPUs",
        precision=precision,
        accumulation=True,
        checkpoint=kind,
        resume=f"{processes} processes from {processes}" if resumes else None,
        evaluation=True,
    )


def _trained(strategy: str, equal_to: str, how: str, *tests: str, **more: object) -> Row:
    return Row(strategy, equal_to, how, tests, **{"evaluation": True, **more})  # type: ignore[arg-type]


ROWS: tuple[Row, ...] = (
    _trained("DDP", UPSTREAM, BITS, f"{_DDP}::test_scenario[everything_at_once]", accumulation=True, checkpoint="full"),
    _trained("DDP", UPSTREAM, BITS, f"{_DDP}::test_scenario[bf16]", precision="bf16"),
    Row(
        *("DDP", UPSTREAM, BITS, (f"{_DDP}::test_resuming_ends_where_the_whole_run_ends",)),
        **{"accumulation": True, "checkpoint": "full", "resume": "2 processes from 2"},
    ),
    Row(
        *("DDP", "synchronous saves", BITS, (f"{_DDP}::test_saving_in_the_background",)),
        **{"accumulation": True, "checkpoint": "full, in the background", "resume": "2 processes from 2"},
    ),
    _trained("DDP", UPSTREAM, BITS, f"{_GPU}::test_two_gpus[ddp]", device="fake GPUs", precision="float32, fp16"),
    _trained("FSDP 1", ONE, ROUNDED, f"{_FSDP1}::test_numbers_of_one_process[everything]", accumulation=True),
    *(
        Row(
            *("FSDP 1", UNBROKEN, BITS, (f"{_FSDP1}::test_resumed_run_is_the_uninterrupted_one[resume_{name}]",)),
            **{"checkpoint": kind, "resume": "2 processes from 2"},
        )
        for name, kind in (("whole", "full"), ("sharded", "sharded"))
    ),
    *(
        Row(
            *("FSDP 1", "synchronous saves", BITS, (f"{_FSDP1}::test_saved_in_the_background[{name}]",)),
            **{"checkpoint": f"{kind}, in the background"},
        )
        for name, kind in (("whole", "full"), ("sharded", "sharded"))
    ),
    _trained(
        *("FSDP 2", ONE, ROUNDED),
        f"{_FSDP2}::test_numbers_of_one_process[layers of a Llama, clipping, token counts]",
        accumulation=True,
    ),
    _trained("FSDP 2", ONE, "within 5 %", f"{_FSDP2}::test_bf16", precision="bf16"),
    *(
        Row(
            *("FSDP 2", UNBROKEN, BITS, (f"{_FSDP2}::test_a_resumed_run_is_the_uninterrupted_one[resumed_{kind}]",)),
            **{"checkpoint": kind, "resume": "2 processes from 2"},
        )
        for kind in ("full", "sharded")
    ),
    *(
        Row(
            *("FSDP 2", "synchronous saves", BITS, (f"{_FSDP2}::test_saved_in_the_background[{kind}]",)),
            **{"checkpoint": f"{kind}, in the background"},
        )
        for kind in ("full", "sharded")
    ),
    *(
        _trained(
            *(strategy, UPSTREAM, BITS, f"{_GPU}::test_two_gpus[{group}]"),
            **{"device": "fake GPUs", "precision": precision, "checkpoint": kind},
        )
        for strategy, group, precision, kind in (
            ("FSDP 1", "fsdp", "bf16", "sharded"),
            ("FSDP 1", "fsdp 1, slow", "float32", "full"),
            ("FSDP 1", "fsdp 1, slow", "float32", "sharded"),
            ("FSDP 1", "fsdp 1, slow", "bf16", "full"),
            ("FSDP 1", "fsdp 1, slow", "fp16", "full"),
            ("FSDP 1", "fsdp 1, slow", "fp16", "sharded"),
            ("FSDP 2", "fsdp", "fp16", "full"),
            ("FSDP 2", "fsdp 2, slow", "float32", "full"),
            ("FSDP 2", "fsdp 2, slow", "float32", "sharded"),
            ("FSDP 2", "fsdp 2, slow", "bf16", "full"),
            ("FSDP 2", "fsdp 2, slow", "bf16", "sharded"),
            ("FSDP 2", "fsdp 2, slow", "fp16", "sharded"),
        )
    ),
    *(
        Row(
            *(f"ZeRO-{stage}", UPSTREAM, BITS, (f"{_GPU}::test_two_gpus[{group}]",)),
            **{"device": "fake GPUs", "precision": precision, "accumulation": True, "evaluation": True},
            **{"checkpoint": "DeepSpeed's", "resume": resume},
        )
        for stage, precision, group, resume in (
            (1, "float32", _DEEPSPEED_GPU, None),
            (1, "bf16", _DEEPSPEED_GPU, None),
            (1, "fp16", _DEEPSPEED_GPU, None),
            (2, "float32", _DEEPSPEED_GPU, "2 processes from 2"),
            (2, "bf16", _DEEPSPEED_GPU, "2 processes from 2"),
            (2, "fp16", "deepspeed", None),
            (2, "fp16", _DEEPSPEED_GPU, "2 processes from 2"),
            (3, "float32", _ZERO_3_GPU, "2 processes from 2"),
            (3, "bf16", "deepspeed", "2 processes from 2"),
            (3, "fp16", _ZERO_3_GPU, "2 processes from 2"),
        )
    ),
    _trained("ZeRO-1", UPSTREAM, BITS, f"{_DEEPSPEED}::test_scenario[zero_1]", accumulation=True),
    _trained(
        *("ZeRO-2", UPSTREAM, BITS, f"{_DEEPSPEED}::test_scenario[optimizer_and_schedule_of_the_config]"),
        accumulation=True,
    ),
    Row("ZeRO-3", UPSTREAM, BITS, (f"{_DEEPSPEED}::test_scenario[weights_stay_in_parts]",), checkpoint="DeepSpeed's"),
    Row(
        *("ZeRO-3", UPSTREAM, BITS, (f"{_DEEPSPEED}::test_scenario[resume_zero_3]",)),
        **{"accumulation": True, "checkpoint": "DeepSpeed's", "resume": "2 processes from 2"},
    ),
    Row(
        *("ZeRO-2", "synchronous saves", BITS, (f"{_DEEPSPEED}::test_saved_in_the_background",)),
        **{"accumulation": True, "checkpoint": "DeepSpeed's, in the background"},
    ),
    *(
        _trained(
            *(f"ZeRO-{stage}", UPSTREAM, BITS, f"{_DEEPSPEED}::test_scenario_thoroughly[{name}]"),
            **{"accumulation": True, "precision": precision},
        )
        for name, stage, precision in (
            ("deepspeed_in_bf16", 2, "bf16"),
            ("deepspeed_in_fp16_without_a_gpu", 2, "fp16"),
            ("zero_2", 2, "float32"),
            ("zero_3", 3, "float32"),
        )
    ),
    *(
        Row(*(f"{strategy}, split matrices", UPSTREAM, BITS, (f"{_DEEPSPEED}::{test}",)), **facts)
        for strategy, test, facts in (
            ("ZeRO-1", "test_matrices_are_split[split_by_zero_1]", {**_SPLIT, "checkpoint": _FULL_TOO}),
            ("ZeRO-1", "test_matrices_are_split[resume_split]", {**_SPLIT, "resume": "2 processes from 2"}),
            ("DeepSpeed without ZeRO", "test_matrices_are_split_thoroughly[split_by_zero_0]", _SPLIT),
            ("ZeRO-2", "test_matrices_are_split_thoroughly[split_by_zero_2]", {**_SPLIT, "checkpoint": _FULL_TOO}),
            ("ZeRO-1", "test_matrices_are_split_thoroughly[split_in_bf16]", {**_SPLIT, "precision": "bf16"}),
            ("ZeRO-1", "test_matrices_are_split_thoroughly[split_parts_stay]", {**_SPLIT, "checkpoint": "DeepSpeed's"}),
        )
    ),
    _trained("tensor parallel", ONE, ROUNDED, f"{_TENSOR}::test_numbers_of_one_process[everything]", accumulation=True),
    Row(
        *("tensor parallel", UNBROKEN, BITS, (f"{_TENSOR}::test_a_resumed_run_is_the_same_run",)),
        **{"checkpoint": "full", "resume": "2 processes from 2"},
    ),
    Row("tensor parallel and FSDP 2", ONE, ROUNDED, (f"{_TENSOR}::test_two_dimensions",), accumulation=True),
    *(
        Row(
            *(
                _REPLICAS,
                UPSTREAM,
                BITS,
                (f"{_GPU}::test_four_gpus[replicas of shards, slow]",),
            ),
            **{"device": "fake GPUs", "precision": precision, "checkpoint": kind, "resume": resume},
        )
        for precision, kind, resume in _OF_REPLICAS
    ),
    *(
        _trained(f"sharded as it is loaded: {what}", UPSTREAM, BITS, test, device=device, checkpoint="full")
        for what, device, test in (
            ("FSDP 2", "CPU", f"{_DDP}::test_scenario[loaded_in_shards]"),
            ("experts", "CPU", f"{_DDP}::test_more_scenarios"),
        )
    ),
    *(
        _trained(
            *(f"shared sequences and ZeRO-{stage}", UPSTREAM, BITS, f"{_SEQUENCES}::{test}"),
            **{"accumulation": accumulation, "precision": precision},
        )
        for stage, accumulation, precision, test in (
            (1, True, "float32", "test_scenario_thoroughly[sequences_under_zero_1_accumulated]"),
            (2, True, "float32", "test_scenario[sequences_under_zero_2]"),
            (3, True, "float32", "test_scenario_thoroughly[sequences_under_zero_3]"),
            (2, False, "bf16", "test_scenario_thoroughly[sequences_in_bf16]"),
        )
    ),
    _shared("test_two_gpus[context parallel]", 2, "float32", "full"),
    _shared("test_two_gpus[context parallel, slow]", 2, "fp16", "full"),
    _shared("test_two_gpus[context parallel, slow]", 2, "bf16", "sharded"),
    _shared("test_two_gpus[context parallel, slow]", 2, "float32", "full", resumes=True),
    _shared("test_two_gpus[context parallel, slow]", 2, "bf16", "sharded", resumes=True),
    _shared("test_four_gpus[context parallel, slow]", 4, "float32", "full"),
    _shared("test_four_gpus[context parallel, slow]", 4, "float32", "full", resumes=True),
    _trained(
        *(f"{_PARTS}, replicas", UPSTREAM, BITS, f"{_GPU}::test_eight_gpus[context parallel, slow]"),
        **{"device": "fake GPUs", "accumulation": True, "checkpoint": "full"},
    ),
    _trained(
        *(f"{_PARTS}, tensor parallel", UPSTREAM, ROUNDED, f"{_CONTEXT}::test_matrices_are_split_too"),
        **{"device": "fake GPUs", "accumulation": True},
    ),
    _trained(
        *(f"{_PARTS}, on 2 processes", ONE, ROUNDED, f"{_CONTEXT}::test_numbers_of_one_process"),
        **{"device": "fake GPUs", "accumulation": True},
    ),
    *(row for name in _SEVERAL for row in _resumed(name)),
    *(row for name, strategy in _SEVERAL.items() for row in _killed(name, strategy)),
    *_killed("hsdp", _REPLICAS),
    *_killed("tensor", "tensor parallel"),
    *_killed("loaded", "sharded as it is loaded: FSDP 2"),
    *_killed("sequences", "shared sequences and ZeRO-2"),
    *_killed("split", "ZeRO-1, split matrices"),
    Row(
        *("DDP under Ray", UPSTREAM, BITS, (f"{_RAY}::test_the_numbers_of_transformers",)),
        **{"checkpoint": "full", "evaluation": True},
    ),
    Row(
        *("DDP under Ray", UNBROKEN, BITS, (f"{_RAY}::test_a_worker_is_killed",)),
        **{"checkpoint": "full", "resume": "a worker killed", "evaluation": True},
    ),
    *(_drawn(seed) for seed in SEEDS),
    *(_drawn_run(seed) for seed in RUN_SEEDS),
)
