"""Every documented member of accelerate's ``Accelerator`` works as upstream's, or names what to use instead."""

import json

import pytest
import torch
from torch import nn

from hf_compat import Trainer, TrainingArguments
from hf_compat.accelerator.refused import HANDLERS, REFUSED
from hf_compat.errors import NotSupportedError
from tests.support.accelerator_members import CALLS, VALUES, answers, linear
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.paths import SCRIPTS
from tests.support.processes import torchrun

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

OTHERWISE = {
    "data_parallel_rank": "a number; accelerate's is an error without a ParallelismConfig",
    "data_parallel_shard_rank": "the same",
    "tensor_parallel_rank": "the same",
    "ddp_handler": "None; the settings of DDP are fields of the arguments",
    "end_training": "leaves the process group: test_end_of_training",
    "lomo_backward": "needs an optimizer that updates in the backward pass: test_lomo_backward",
}
"""Members that are not compared one by one, and why."""


def trainer_of(library, folder, **fields):
    """Return a Trainer of ``library`` on the CPU."""
    settings = {"use_cpu": True, "report_to": "none", "disable_tqdm": True} | fields
    args = library.TrainingArguments(output_dir=str(folder), **settings)
    return library.Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(8)))


@pytest.fixture
def ours():
    """The names of hf_compat, as a library."""

    class Ours:
        pass

    Ours.Trainer, Ours.TrainingArguments = Trainer, TrainingArguments
    return Ours


def test_every_member_is_accounted_for():
    """What accelerate's class and its instances have is compared with upstream, refused, or listed with a reason."""
    theirs = {*dir(accelerate.Accelerator), *vars(accelerate.Accelerator(cpu=True))}
    public = {name for name in theirs if not name.startswith("_")}
    assert public - {*VALUES, *CALLS, *REFUSED, *OTHERWISE} == set()
    assert {*VALUES, *CALLS} & REFUSED.keys() == set()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_members_of_one_process(tmp_path, ours, precision):
    """Each member has the value, or does, what it has and does in upstream's Trainer, to the last bit."""
    fields = {"bf16": precision == "bf16"}
    theirs = answers(trainer_of(transformers, tmp_path, **fields).accelerator, tmp_path / "upstream")
    found = answers(trainer_of(ours, tmp_path, **fields).accelerator, tmp_path / "ours")
    assert found == theirs


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_members_of_two_processes(tmp_path, precision):
    """On two ranks too; what is trained there is averaged over them."""
    for which in ("upstream", "ours"):
        ended = torchrun(SCRIPTS / "accelerator_members.py", which, tmp_path, precision)
        assert ended.code == 0, ended.output
    for rank in range(2):
        theirs, found = (json.loads((tmp_path / f"{which}-{rank}.json").read_text()) for which in ("upstream", "ours"))
        assert found == theirs


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_member_says_what_to_use(tmp_path, ours, name):
    """Reading it is an error with its name and a remedy; ``hasattr`` and a default of ``getattr`` answer no."""
    accelerator = trainer_of(ours, tmp_path).accelerator
    with pytest.raises(NotSupportedError, match=f"`accelerator.{name}` is not supported: .+"):
        getattr(accelerator, name)
    assert not hasattr(accelerator, name)
    assert getattr(accelerator, name, None) is None


@pytest.mark.parametrize("name", HANDLERS)
def test_a_handler_is_not_ignored(tmp_path, ours, name):
    """A handler that would have no effect cannot be assigned."""
    accelerator = trainer_of(ours, tmp_path).accelerator
    assert getattr(accelerator, name) is None
    with pytest.raises(NotSupportedError, match=f"`accelerator.{name}` cannot be set: .+"):
        setattr(accelerator, name, object())


def test_handlers_that_work(tmp_path, ours):
    """Autocast is turned off for a block by accelerate's own settings, as a script does around a loss in float32."""
    off = accelerate.utils.AutocastKwargs(enabled=False)
    for library in (transformers, ours):
        accelerator = trainer_of(library, tmp_path, bf16=True).accelerator
        with accelerator.autocast(), accelerator.autocast(off):
            assert linear()(torch.ones(1, 3)).dtype == torch.float32
        accelerator.autocast_handler = off
        with accelerator.autocast():
            assert linear()(torch.ones(1, 3)).dtype == torch.float32


def test_a_profile_is_written(tmp_path, ours):
    """A handler's folder gets the trace of the block."""
    handler = accelerate.utils.ProfileKwargs(output_trace_dir=str(tmp_path / "traces"))
    with trainer_of(ours, tmp_path).accelerator.profile(handler):
        linear()(torch.ones(1, 3))
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["profile_0.json"]


def test_end_of_training(tmp_path, ours):
    """``end_training`` finishes a script's trackers."""
    finished = []

    class Kept:
        def finish(self):
            finished.append(True)

    accelerator = trainer_of(ours, tmp_path).accelerator
    accelerator.trackers = [Kept()]
    accelerator.end_training()
    assert finished == [True]


def test_lomo_backward(tmp_path, ours):
    """Without an optimizer that updates in the backward pass, it is a plain backward pass."""
    model = linear()
    trainer_of(ours, tmp_path).accelerator.lomo_backward(model(torch.ones(1, 3)).sum(), learning_rate=0.1)
    assert model.weight.grad.tolist() == [[1.0] * 3] * 2


def compiled(model):
    """Return ``model`` compiled, by the backend that needs no compiler."""
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("wrap", [nn.DataParallel, compiled])
def test_unwrap_model_undoes_every_wrapper(tmp_path, ours, wrap):
    """A model in ``DataParallel`` or compiled, or both, is returned as it was; compiled if that is asked for."""
    accelerator, model = trainer_of(ours, tmp_path).accelerator, linear()
    assert accelerator.unwrap_model(wrap(model)) is model
    assert accelerator.unwrap_model(compiled(nn.DataParallel(model))) is model
    kept = compiled(model)
    assert accelerator.unwrap_model(kept, keep_torch_compile=True) is kept


class ReferenceModel(nn.Module):
    """Returns nested outputs in the dtype of its forward pass."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, features):
        hidden = torch.tanh(self.first(features))
        return {"logits": self.second(hidden), "states": (hidden, [hidden.argmax(-1)])}


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_a_reference_model_runs_under_autocast(tmp_path, ours, compiles):
    """Under bf16 a reference model gives accelerate's numbers to the last bit, as float32, not those of float32."""
    features, outputs = torch.tensor([row["features"] for row in vector_rows(8)]), []
    fields = {"bf16": True, "torch_compile": compiles} | ({"torch_compile_backend": "eager"} if compiles else {})
    for library in (transformers, ours):
        accelerator = trainer_of(library, tmp_path, **fields).accelerator
        model = accelerator.prepare_model(ReferenceModel(), evaluation_mode=True)
        with torch.no_grad():
            outputs.append(model(features))
    theirs, found = outputs
    assert found["logits"].dtype == theirs["logits"].dtype == torch.float32
    assert torch.equal(found["logits"], theirs["logits"])
    assert torch.equal(found["states"][0], theirs["states"][0])
    assert torch.equal(found["states"][1][0], theirs["states"][1][0])
    assert not torch.equal(found["logits"], ReferenceModel()(features)["logits"])
