"""What a launcher's variables say about a process."""

import pytest

from hf_compat.arguments import TrainingArguments

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
