"""Ray Train: the numbers of transformers' Trainer, failures and restarts, and Ray's classes for Lightning."""

import importlib.util
import json
import re
import sys

import pytest
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy

from hf_compat import Trainer, TrainingArguments
from hf_compat.engine.strategies.choice import deepspeed_meant
from hf_compat.engine.strategy_table import is_of_ray
from hf_compat.errors import TrainerSetupError
from tests.support.helpers import PlainModel, vector_rows
from tests.support.paths import ROOT, SCRIPTS
from tests.support.processes import finish, start

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='ray is missing: pip install "hf-compat[ray]"'
)
SCRIPT = SCRIPTS / "ray_script.py"


@pytest.fixture(scope="module")
def seen_by_ray(tmp_path_factory):
    """Return a function from the name of a training to what its rank 0 has seen; each is run once."""
    folder = tmp_path_factory.mktemp("ray")

    def run(name):
        result = folder / f"{name}.json"
        if not result.exists():
            (ended,) = finish([start([sys.executable, "-W", "ignore", SCRIPT, folder, name])])
            assert ended.code == 0, ended.output
        return json.loads(result.read_text())

    return run


@pytest.mark.slow
def test_the_numbers_of_transformers(seen_by_ray):
    """With Ray's callback and ``prepare_trainer``, losses, norms, evaluations and weights are bit for bit the same."""
    ours, theirs = seen_by_ray("ours"), seen_by_ray("upstream")
    assert ours["logs"] == theirs["logs"]
    assert ours["weights"] == theirs["weights"]
    assert ours["wrapped"] == theirs["wrapped"] == "DistributedDataParallel"


@pytest.mark.slow
def test_a_worker_is_killed(seen_by_ray):
    """Ray starts both again, which go on from the checkpoint that Ray has kept to the end of the undisturbed run."""
    lost, ours = seen_by_ray("ours_lost"), seen_by_ray("ours")
    assert lost["resumed"]
    assert not ours["resumed"]
    assert lost["logs"] == ours["logs"]
    assert lost["weights"] == ours["weights"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "same_as"), [("ddp_of_ray", "ours"), ("fsdp_of_ray", "fsdp"), ("zero_of_ray", "zero")]
)
def test_strategies_of_ray(seen_by_ray, name, same_as):
    """Ray's strategies, with ``RayLightningEnvironment``, are those of the arguments."""
    if "zero" in name:
        pytest.importorskip("deepspeed")
    found, expected = seen_by_ray(name), seen_by_ray(same_as)
    assert found["wrapped"] == expected["wrapped"]
    assert found["logs"] == expected["logs"]
    assert found["weights"] == expected["weights"]


@pytest.mark.slow
def test_parts_of_a_run(seen_by_ray):
    """A Lightning trainer that ``ray.train.lightning.prepare_trainer`` accepts trains as the Trainer does."""
    found = seen_by_ray("pieces_ours")
    assert found["step"] == 10
    assert found["weights"] == seen_by_ray("ours")["weights"]


def run_blocks(folder, pattern, *words):
    """Run the blocks of the page that ``pattern`` finds as one script; return its output."""
    found = re.findall(pattern, (ROOT / "docs" / "ray.md").read_text(encoding="utf-8"), re.DOTALL)
    script = "\n".join("".join(block) for block in found).replace("n_trials=8", "n_trials=2")
    (folder / "script.py").write_text(script, encoding="utf-8")
    (ended,) = finish([start([sys.executable, "-W", "ignore", "script.py", *words], folder)])
    assert ended.code == 0, ended.output
    return ended.output


@pytest.mark.slow
def test_the_page(tmp_path):
    """The script of the page learns the line."""
    output = run_blocks(tmp_path, r"```python\n(import sys\n.*?)```", tmp_path / "storage")
    assert float(re.findall(r"^loss (\S+) checkpoint", output, re.MULTILINE)[-1]) < 0.1


@pytest.mark.slow
def test_the_search_of_the_page(tmp_path):
    """The search of the page has a best trial, with a rate of its space."""
    output = run_blocks(tmp_path, r"<!-- before the search\n(.*?)\n-->|```python\n(from ray import tune\n.*?)```")
    loss, rate = re.search(r"^loss (\S+) with {'learning_rate': (\S+)}", output, re.MULTILINE).groups()
    assert float(loss) > 0
    assert 1e-2 <= float(rate) <= 1.0


def test_rays_classes_in_a_process_of_its_own(tmp_path):
    """``RayDDPStrategy`` is DDP; the environment gets ranks from Ray, so it is refused where there is no worker."""
    lightning = pytest.importorskip("ray.train.lightning")
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    rows = vector_rows(4)
    Trainer(PlainModel(), args, train_dataset=rows, lightning={"strategy": lightning.RayDDPStrategy()})
    plugins = [lightning.RayLightningEnvironment()]
    with pytest.raises(TrainerSetupError, match=r"RayLightningEnvironment\(\).*Remove it from the plugins"):
        Trainer(PlainModel(), args, train_dataset=rows, lightning={"plugins": plugins})


def test_prepare_trainer_for_lightning(tmp_path):
    """``ray.train.lightning.prepare_trainer`` looks for a strategy; the error says which function is meant."""
    lightning = pytest.importorskip("ray.train.lightning")
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    trainer = Trainer(PlainModel(), args, train_dataset=vector_rows(4))
    with pytest.raises(AttributeError, match=r"use `ray\.train\.huggingface\.transformers\.prepare_trainer`"):
        lightning.prepare_trainer(trainer)


def test_rays_deepspeed_is_lightnings():
    """``RayDeepSpeedStrategy`` means the DeepSpeed config that Lightning's own class means with the same options."""
    lightning = pytest.importorskip("ray.train.lightning")
    pytest.importorskip("deepspeed")
    options = {"stage": 2, "offload_optimizer": True, "allgather_bucket_size": 1000}
    theirs, own = lightning.RayDeepSpeedStrategy(**options), DeepSpeedStrategy(**options)
    meant = deepspeed_meant(theirs, use_cpu=True)
    assert meant == deepspeed_meant(own, use_cpu=True)
    assert meant["zero_optimization"]["allgather_bucket_size"] == 1000


def test_classes_of_ones_own():
    """What derives from a class of Ray's may override anything, and is looked at like any other class."""
    lightning = pytest.importorskip("ray.train.lightning")

    class Own(lightning.RayDDPStrategy):
        pass

    assert is_of_ray(lightning.RayDDPStrategy())
    assert not is_of_ray(Own())
    assert not is_of_ray(DDPStrategy())
