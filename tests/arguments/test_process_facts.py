"""What a launcher's variables say about a process."""

import logging

import pytest

from hf_compat.arguments import TrainingArguments, process_facts

ONE = {"world_size": 1, "process_index": 0, "local_process_index": 0, "should_log": True, "should_save": True}
TORCHRUN = {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}
SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "2",
    "SLURM_NODELIST": "node[1-2]",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({}, ONE, id="alone"),
        pytest.param(TORCHRUN, ONE | {"world_size": 4, "process_index": 2, "should_save": False}, id="torchrun"),
        pytest.param(
            SLURM,
            {"world_size": 4, "process_index": 3, "local_process_index": 1, "should_log": False, "should_save": False},
            id="slurm",
        ),
        pytest.param(SLURM | {"SLURM_NTASKS": "1"}, ONE, id="slurm, one task"),
        pytest.param(SLURM | {"SLURM_JOB_NAME": "interactive"}, ONE, id="slurm, typed in"),
    ],
)
def test_processes(environment, expected, monkeypatch):
    """The launcher's variables say which process this is."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    args = TrainingArguments("out", use_cpu=True)
    assert {name: getattr(args, name) for name in expected} == expected
    assert args.parallel_mode.value == ("distributed" if args.world_size > 1 else "not_parallel")


@pytest.mark.parametrize(
    ("environment", "fields", "level"),
    [
        pytest.param({}, {"log_level": "info"}, logging.INFO, id="main"),
        pytest.param(TORCHRUN, {"log_level": "info"}, logging.INFO, id="main of a node"),
        pytest.param(TORCHRUN | {"RANK": "3", "LOCAL_RANK": "1"}, {"log_level": "info"}, logging.WARNING, id="replica"),
        pytest.param({}, {}, logging.CRITICAL, id="passive"),
    ],
)
def test_log_level(environment, fields, level, monkeypatch):
    """The field of the process decides; ``passive`` leaves the level that there was."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    logger = logging.getLogger("transformers")
    before = logger.level
    try:
        logger.setLevel(logging.CRITICAL)
        process_facts.set_log_level(TrainingArguments("out", use_cpu=True, **fields))
        assert logger.level == level
    finally:
        logger.setLevel(before)


def test_state_of_the_runs():
    """It has the precision that is passed, and how models are compiled: None, or by the backend that is the default."""
    plain = process_facts.run_state(TrainingArguments("out", use_cpu=True), "bf16")
    assert (plain.device.type, plain.mixed_precision, plain.compilation) == ("cpu", "bf16", None)
    args = TrainingArguments("out", use_cpu=True, torch_compile=True)
    compiled = process_facts.run_state(args, "no").compilation
    assert (compiled.backend, compiled.mode) == ("inductor", None)
    args.torch_compile_backend, args.torch_compile_mode = "eager", "max-autotune"
    compiled = process_facts.run_state(args, "no").compilation
    assert (compiled.backend, compiled.mode) == ("eager", "max-autotune")
