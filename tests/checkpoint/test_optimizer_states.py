"""What the file of an optimizer's state lacks: said as it is saved, and restored with ``semantics="corrected"``."""

import re
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

import hf_compat
from hf_compat import HFCompatWarning, Trainer
from hf_compat.arguments.releases import installed_release
from hf_compat.checkpoint import states
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.trainers import arguments

LOST = {
    "grokadamw": ("grokadamw", "GrokAdamW keeps its averages in `param_groups`"),
    "galore_adamw": ("galore_torch", r"GaLoreProjector`\. Like transformers"),
    "apollo_adamw": ("apollo_torch", r"GradientProjector`\. Like transformers"),
    "galore_adamw_layerwise": ("galore_torch", "nothing of the AdamWs of the layers"),
    "apollo_adamw_layerwise": ("apollo_torch", "nothing of the AdamWs of the layers"),
}
"""``optim`` to its package and what is said of its checkpoints."""
QUICK = {"grokadamw", "galore_adamw", "apollo_adamw_layerwise"}


def weights_after(optim, folder, resume=None, **fields):
    """Return the weights after four update steps, with a save after two, and what was warned of."""
    torch.manual_seed(0)
    projected = {"optim_target_modules": ["body"], "optim_args": "rank=2,update_proj_gap=2"}
    fields |= projected if "_adamw" in optim and optim != "adamw_torch" else {}
    args = arguments(
        folder,
        optim=optim,
        max_steps=4,
        save_strategy="steps",
        save_steps=2,
        learning_rate=0.01,
        per_device_train_batch_size=2,
        **fields,
    )
    trainer = Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(16)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train(resume_from_checkpoint=resume)
    said = [str(one.message) for one in caught if issubclass(one.category, HFCompatWarning)]
    return [weight.detach().clone() for weight in trainer.model.parameters()], said


@pytest.mark.parametrize(
    "optim", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in LOST]
)
def test_a_lost_state_is_said_and_restored(optim, tmp_path):
    """A run warns once of what a resumed one lacks; corrected, it is silent, and that one ends with the same bits."""
    package, said = LOST[optim]
    pytest.importorskip(package)
    if "layerwise" in optim and installed_release().major < 5:
        pytest.skip("transformers 4 cannot build a schedule for these with a torch of today")
    (loss,) = (one for one in weights_after(optim, tmp_path / "as_upstream")[1] if "resumes" in one)
    assert re.search(said, loss)
    whole, warned = weights_after(optim, tmp_path / "whole", semantics="corrected")
    assert [one for one in warned if "resumes" in one] == []
    resumed, _ = weights_after(
        optim, tmp_path / "resumed", str(tmp_path / "whole" / "checkpoint-2"), semantics="corrected"
    )
    assert all(torch.equal(one, two) for one, two in zip(whole, resumed, strict=True))


@pytest.mark.parametrize("optim", ["adafactor", "sgd"])
def test_a_whole_state_is_saved_in_silence(optim, tmp_path):
    """Nothing is said of optimizers of which a run resumes to the bit, nor of SGD, which has no state."""
    whole, warned = weights_after(optim, tmp_path)
    assert warned == []
    resumed, _ = weights_after(optim, tmp_path, str(tmp_path / "checkpoint-2"))
    assert all(torch.equal(one, two) for one, two in zip(whole, resumed, strict=True))


class HalfModel(PlainModel):
    """A model with its weights in bfloat16, as ``from_pretrained`` gives most of today's."""

    def __init__(self):
        super().__init__()
        self.bfloat16()

    def forward(self, features, labels=None):
        return super().forward(features.bfloat16(), labels)


@pytest.mark.parametrize(("optim", "cast"), [("adafactor", True), ("adamw_torch", False)])
def test_averages_of_weights_in_half_precision(optim, cast, tmp_path):
    """Torch gives averages their parameter's dtype as it loads them, with a warning; corrected, they keep theirs."""

    def weights(folder, resume=None, library=hf_compat, **fields):
        torch.manual_seed(0)
        steps = {"max_steps": 12, "save_strategy": "steps", "save_steps": 4}
        args = arguments(folder, library, optim=optim, learning_rate=0.01, **steps, **fields)
        trainer = library.Trainer(HalfModel(), args, train_dataset=ListDataset(vector_rows(16)))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.train(resume_from_checkpoint=resume and str(resume / "checkpoint-4"))
        said = [str(one.message) for one in caught if "in another dtype" in str(one.message)]
        return [weight.detach().clone() for weight in trainer.model.parameters()], said

    def equal(some, others):
        return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))

    whole, _ = weights(tmp_path / "whole")
    theirs, _ = weights(tmp_path / "theirs", tmp_path / "whole", library=transformers)
    ours, said = weights(tmp_path / "ours", tmp_path / "whole")
    assert equal(ours, theirs)
    assert equal(ours, whole) != cast
    assert ["`exp_avg_sq_row`" in one for one in said] == [True] * cast
    corrected, said = weights(tmp_path / "corrected", tmp_path / "whole", semantics="corrected")
    assert equal(corrected, whole)
    assert said == []


@pytest.mark.parametrize("fields", [{}, {"semantics": "corrected"}], ids=["as upstream", "corrected"])
def test_parameters_of_a_loss_are_not_saved(fields, tmp_path):
    """A loss trains a weight of its own: its averages are in the file, the weight is nowhere; a run says so once.

    One that gets no gradient, as those of a model that guides a loss, lacks nothing.
    """
    model, scale, guide = PlainModel(), torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([*model.parameters(), scale, guide], lr=0.01)
    args = arguments(tmp_path, max_steps=2, save_strategy="steps", save_steps=1, **fields)
    trainer = Trainer(
        model,
        args,
        train_dataset=ListDataset(vector_rows(16)),
        optimizers=(optimizer, None),
        compute_loss_func=lambda outputs, labels, **_: cross_entropy(outputs["logits"], labels) * scale.sum(),
    )
    with pytest.warns(HFCompatWarning, match=r"^1 parameters of the optimizer are not the model's") as caught:
        trainer.train()
    assert sum("are not the model's" in str(one.message) for one in caught) == 1
    assert scale.item() != 1
    saved = torch.load(tmp_path / "checkpoint-2" / "optimizer.pt", weights_only=True)
    assert len(saved["state"]) == len(list(model.parameters())) + 1
    assert states.parameters_outside(torch.optim.SGD([scale, guide]), model) == 2, "SGD keeps nothing of any"


@pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning")  # grokadamw's
@pytest.mark.filterwarnings("ignore:CUDA is not available or torch_xla:UserWarning")
def test_parameters_without_averages_are_passed_over(tmp_path):
    """Of three parameters the first has had no gradient: the averages of the others go to these."""
    pytest.importorskip("grokadamw")
    from grokadamw import GrokAdamW

    from hf_compat.checkpoint.states import loads_all

    first = [torch.nn.Parameter(torch.full((2,), float(number))) for number in range(3)]
    optimizer = GrokAdamW(first)
    for parameter in first[1:]:
        parameter.grad = torch.ones(2)
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    second = [torch.nn.Parameter(parameter.detach().clone()) for parameter in first]
    resumed = GrokAdamW(second)
    with loads_all(resumed, tmp_path / "optimizer.pt"):
        resumed.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    state = resumed.param_groups[0]["state"]
    assert [id(parameter) for parameter in state] == [id(parameter) for parameter in second[1:]]
    assert [entry["step"] for entry in state.values()] == [1, 1]


def test_objects_of_other_packages_are_refused(tmp_path):
    """Corrected, too, a file is not unpickled whose objects are of another package than the optimizer's."""
    weights, _ = weights_after("adamw_torch", tmp_path, semantics="corrected")
    assert weights
    file = tmp_path / "checkpoint-2" / "optimizer.pt"
    state = torch.load(file, weights_only=True)
    torch.save(state | {"more": Path("a")}, file)
    with pytest.raises(ValueError, match="contains more than tensors"):
        weights_after("adamw_torch", tmp_path, str(file.parent), semantics="corrected")


@pytest.mark.parametrize("follows", [True, False])
def test_a_reference_that_follows_the_model_is_not_saved(follows, tmp_path):
    """TRL's `sync_ref_model` moves a model that is in no checkpoint: a run says so once; nothing of one that stands."""
    args = arguments(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    args.sync_ref_model = follows  # as TRL's classes of arguments have it
    trainer = Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(16)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    assert sum("`sync_ref_model=True`: the reference" in str(one.message) for one in caught) == follows


@pytest.mark.parametrize(("start", "is_random"), [("pissa_niter_2", True), ("pissa", False)])
def test_an_adapter_with_a_random_start_is_warned_of(start, is_random, tmp_path):
    """Resumed with other random numbers, its outputs are not those of the run; an exact one's are."""
    peft = pytest.importorskip("peft")
    features = torch.tensor([row["features"] for row in vector_rows(16)])

    def train(seed, resume=None):
        torch.manual_seed(0)
        model = PlainModel(dropout=0.0)
        torch.manual_seed(seed)
        config = peft.LoraConfig(r=1, target_modules=["body.0"], init_lora_weights=start)
        model = peft.get_peft_model(model, config)
        args = arguments(tmp_path, max_steps=2, save_strategy="steps", save_steps=1, learning_rate=0.01)
        trainer = Trainer(model, args, train_dataset=ListDataset(vector_rows(16)))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.train(resume_from_checkpoint=resume)
        said = sum(f"`init_lora_weights='{start}'` of the adapter `default`" in str(one.message) for one in caught)
        with torch.no_grad():
            return model(features=features)["logits"], said

    whole, said = train(1)
    assert said == is_random
    checkpoint = str(tmp_path / "checkpoint-1")
    (alike, _), (other, _) = train(1, checkpoint), train(2, checkpoint)
    assert torch.equal(whole, alike)
    assert torch.equal(whole, other) != is_random
