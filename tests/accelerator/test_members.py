"""Every documented member of accelerate's ``Accelerator`` works as upstream's, or names what to use instead."""

import inspect
import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hf_compat import Trainer, TrainingArguments
from hf_compat.accelerator import Accelerator
from hf_compat.accelerator.plugins import FIXED, REFUSED
from hf_compat.errors import CheckpointError, ModelError, NotSupportedError
from tests.support.accelerator_members import CALLS, OF_GRADIENTS, VALUES, answers, linear, plain
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.paths import SCRIPTS
from tests.support.processes import forked_ranks
from tests.support.trainers import arguments, new_trainer

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

OTHERWISE = {
    "data_parallel_rank": "a number; accelerate's is an error without a ParallelismConfig",
    "data_parallel_shard_rank": "the same",
    "tensor_parallel_rank": "the same",
    "ddp_handler": "None; the settings of DDP are fields of the arguments",
    "end_training": "leaves the process group: test_end_of_training, and at the end of the script on two processes",
    "lomo_backward": "needs an optimizer that updates in the backward pass: test_lomo_backward",
}
"""Members that are not compared one by one, and why."""


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


@pytest.mark.parametrize("name", sorted(name for name in CALLS if callable(getattr(Accelerator, name, None))))
def test_methods_take_what_accelerates_take(name):
    """Parameters have the names and the defaults of accelerate's; a function to decorate has none, as it needs one."""
    theirs, ours = (inspect.signature(getattr(kind, name)).parameters for kind in (accelerate.Accelerator, Accelerator))
    for parameter in theirs.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        assert parameter.name in ours
        if parameter.name != "function":
            assert ours[parameter.name].default == parameter.default


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_members_of_one_process(tmp_path, ours, precision):
    """Each member has the value, or does, what it has and does in upstream's Trainer, to the last bit."""
    fields = {"bf16": precision == "bf16"}
    theirs = answers(new_trainer(tmp_path, library=transformers, **fields).accelerator, tmp_path / "upstream")
    found = answers(new_trainer(tmp_path, library=ours, **fields).accelerator, tmp_path / "ours")
    assert found == theirs


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_members_of_two_processes(tmp_path, precision):
    """On two ranks too; what is trained there is averaged over them."""
    for which in ("upstream", "ours"):
        ended = forked_ranks(SCRIPTS / "accelerator_members.py", which, tmp_path, precision)
        assert ended.code == 0, ended.output
    for rank in range(2):
        theirs, found = (json.loads((tmp_path / f"{which}-{rank}.json").read_text()) for which in ("upstream", "ours"))
        assert found == theirs


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_member_says_what_to_use(tmp_path, ours, name):
    """Reading it is an error with its name and a remedy; ``hasattr`` and a default of ``getattr`` answer no."""
    accelerator = new_trainer(tmp_path, library=ours).accelerator
    with pytest.raises(NotSupportedError, match=f"`accelerator.{name}` is not supported: .+"):
        getattr(accelerator, name)
    assert not hasattr(accelerator, name)
    assert getattr(accelerator, name, None) is None


@pytest.mark.parametrize("path", FIXED)
def test_a_setting_is_not_ignored(tmp_path, ours, path):
    """A setting that would have no effect keeps its value: no other can be assigned, and a list is not changed."""
    holder = new_trainer(tmp_path, library=ours).accelerator
    *within, name = path.split(".")
    for part in within:
        holder = getattr(holder, part)
    setattr(holder, name, getattr(holder, name))
    if isinstance(getattr(holder, name), list):
        getattr(holder, name).append("other")
    assert getattr(holder, name) == FIXED[path][0]
    with pytest.raises(NotSupportedError, match=f"`accelerator.{path}='other'` cannot be set: .+"):
        setattr(holder, name, "other")


def test_settings_of_accelerate_are_taken_over(tmp_path, ours):
    """Accelerate's own objects may be assigned, if all that they set has its effect."""
    accelerator = new_trainer(tmp_path, library=ours).accelerator
    accelerator.project_configuration = accelerate.utils.ProjectConfiguration("there")
    assert (accelerator.project_dir, accelerator.logging_dir) == ("there", "there")
    accelerator.dataloader_config = accelerate.DataLoaderConfiguration(split_batches=True)
    assert accelerator.split_batches
    with pytest.raises(NotSupportedError, match=r"total_limit=3` .*`save_total_limit`"):
        accelerator.project_configuration = accelerate.utils.ProjectConfiguration(total_limit=3)
    with pytest.raises(NotSupportedError, match=r"`accelerator\.dataloader_config\.use_stateful_dataloader=True`"):
        accelerator.use_stateful_dataloader = True


def test_arguments_of_prepare_are_accelerates(tmp_path, ours):
    """What accelerate's ``prepare`` does not take is an error, as there."""
    for library in (transformers, ours):
        with pytest.raises(TypeError, match="device_placements"):
            new_trainer(tmp_path, library=library).accelerator.prepare(linear(), device_placements=[False])


def test_an_error_of_a_property_is_its_own(tmp_path, ours):
    """An ``AttributeError`` inside a member names what is missing, not the member."""
    accelerator = new_trainer(tmp_path, library=ours).accelerator
    del accelerator.state
    with pytest.raises(AttributeError, match="'state'"):
        _ = accelerator.mixed_precision


def test_handlers_that_work(tmp_path, ours):
    """Autocast is turned off for a block by accelerate's own settings, as a script does around a loss in float32."""
    off = accelerate.utils.AutocastKwargs(enabled=False)
    for library in (transformers, ours):
        accelerator = new_trainer(tmp_path, library=library, bf16=True).accelerator
        with accelerator.autocast(), accelerator.autocast(off):
            assert linear()(torch.ones(1, 3)).dtype == torch.float32
        accelerator.autocast_handler = off
        with accelerator.autocast():
            assert linear()(torch.ones(1, 3)).dtype == torch.float32


def test_a_profile_is_written(tmp_path, ours):
    """A handler's folder gets the trace of the block."""
    handler = accelerate.utils.ProfileKwargs(output_trace_dir=str(tmp_path / "traces"))
    with new_trainer(tmp_path, library=ours).accelerator.profile(handler):
        linear()(torch.ones(1, 3))
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["profile_0.json"]


def test_end_of_training(tmp_path, ours):
    """``end_training`` finishes a script's trackers."""
    finished = []

    class Kept:
        def finish(self):
            finished.append(True)

    accelerator = new_trainer(tmp_path, library=ours).accelerator
    accelerator.trackers = [Kept()]
    accelerator.end_training()
    assert finished == [True]


def test_lomo_backward(tmp_path, ours):
    """Without an optimizer that updates in the backward pass, it is a plain backward pass."""
    model = linear()
    new_trainer(tmp_path, library=ours).accelerator.lomo_backward(model(torch.ones(1, 3)).sum(), learning_rate=0.1)
    assert model.weight.grad.tolist() == [[1.0] * 3] * 2


class Fused(torch.optim.SGD):
    """Updates parameters in the backward pass, as LOMO does."""

    def fused_backward(self, loss, learning_rate):
        self.told = (loss, learning_rate)


def test_lomo_backward_with_lomo(tmp_path, ours):
    """In a fit the optimizer runs the backward pass, with the rate that is given."""
    seen = []

    class Updates(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = self.compute_loss(model, inputs)
            self.accelerator.lomo_backward(loss, learning_rate=0.25)
            seen.append((self.optimizer.told == (loss, 0.25), self.accelerator.has_lomo_optimizer))
            return loss.detach()

    model = PlainModel()
    args = arguments(tmp_path, max_steps=1)
    rows = ListDataset(vector_rows(8))
    trainer = Updates(model, args, train_dataset=rows, optimizers=(Fused(model.parameters(), lr=0.1), None))
    trainer.train()
    assert seen == [(True, True)]
    assert not trainer.accelerator.has_lomo_optimizer


@pytest.mark.parametrize("rows", [8, 7])
def test_gradient_state_of_each_batch(tmp_path, ours, rows):
    """Within a pass it tells what upstream's tells: the loader, its end, and whether an update step ends."""

    def seen_by(library):
        seen = []

        class Watches(library.Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                state = self.accelerator.gradient_state
                loader = state.active_dataloader
                values = {name: plain(getattr(state, name)) for name in OF_GRADIENTS if name != "active_dataloader"}
                seen.append((model.training, loader is not None, values))
                return super().compute_loss(model, inputs, return_outputs)

        fields = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 3}
        settings = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "num_train_epochs": 1} | fields
        args = library.TrainingArguments(output_dir=str(tmp_path), eval_strategy="epoch", **settings)
        data = {"train_dataset": ListDataset(vector_rows(rows)), "eval_dataset": ListDataset(vector_rows(7))}
        Watches(PlainModel(), args, **data).train()
        return seen

    theirs = seen_by(transformers)
    assert len(theirs) == 4 + 3
    assert seen_by(ours) == theirs


class Scaled(Trainer):
    """Runs ``in_fit(accelerator)`` in its first batch, where there is a gradient scaler."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if not hasattr(self, "seen"):
            self.seen = self.in_fit(self.accelerator)
        return super().compute_loss(model, inputs, return_outputs)


def scaled_steps(prepared, unscale, backward):
    """Return what four steps leave, of which the second has an infinite gradient and the last a closure."""
    model, optimizer, schedule = prepared
    seen, calls = [], []
    for factor, given in ((1.0, ()), (float("inf"), ()), (2.0, ()), (1.0, (lambda: calls.append(True),))):
        backward(model(torch.ones(1, 3)).sum() * factor)
        unscale(optimizer)
        gradient = model.weight.grad.tolist()
        optimizer.step(*given)
        schedule.step()
        seen.append((gradient, optimizer.step_was_skipped, model.weight.tolist(), schedule.get_last_lr()))
        optimizer.zero_grad()
    return seen, calls


@pytest.mark.parametrize("is_in_fit", [True, False], ids=["in a fit", "outside"])
def test_steps_by_the_scaler(is_in_fit, tmp_path):
    """With fp16 gradients are unscaled, a step with an infinite one is skipped, and so is the schedule's, as theirs."""
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
    from lightning.pytorch.plugins.precision import MixedPrecision

    def own():
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    def in_fit(accelerator):
        model, optimizer, schedule = own()
        model, optimizer, schedule = model, accelerator.prepare_optimizer(optimizer), accelerator.prepare(schedule)
        found = scaled_steps((model, optimizer, schedule), accelerator.unscale_gradients, accelerator.backward)
        return found, accelerator.scaler.get_scale(), accelerator.optimizer_step_was_skipped

    args = arguments(tmp_path, max_steps=1)
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    trainer = Scaled(PlainModel(), args, train_dataset=ListDataset(vector_rows(8)), lightning={"plugins": [plugin]})
    trainer.in_fit = in_fit
    if is_in_fit:
        trainer.train()
    seen = trainer.seen if is_in_fit else in_fit(trainer.accelerator)
    accelerate.Accelerator(cpu=True)
    scaler = torch.amp.GradScaler("cpu")
    model, optimizer, schedule = own()
    optimizer = AcceleratedOptimizer(optimizer, scaler=scaler)
    theirs = scaled_steps(
        (model, optimizer, AcceleratedScheduler(schedule, optimizer)),
        lambda optimizer: scaler.unscale_(optimizer.optimizer),
        lambda loss: scaler.scale(loss).backward(),
    )
    assert [skipped for _, skipped, *_ in theirs[0]] == [False, True, False, False]
    assert seen == (theirs, scaler.get_scale(), False)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_a_scaler_needs_float16(bf16, tmp_path, ours):
    """A scaler of the script is refused where nothing is scaled, None is not; ``tests/gpu`` trains with one."""
    accelerator = new_trainer(tmp_path, library=ours, bf16=bf16).accelerator
    with pytest.raises(NotSupportedError, match="for float16, which this Trainer does not compute in"):
        accelerator.scaler = torch.amp.GradScaler("cpu")
    accelerator.scaler = None
    assert accelerator.scaler is None


def test_safetensors_hold_a_state_dict(tmp_path, ours):
    """Tied weights are saved once; what a file cannot hold is an error, and no file."""
    accelerator = new_trainer(tmp_path, library=ours).accelerator
    weight = torch.ones(2, 2)
    accelerator.save({"a": weight, "b": weight, "c": weight.T}, tmp_path / "tied", safe_serialization=True)
    loaded = load_file(tmp_path / "tied")
    assert {name: item.tolist() for name, item in loaded.items()} == {"a": weight.tolist(), "c": weight.tolist()}
    for value, reason in (({"a": weight, "step": 3}, "not tensors.* cannot contain: step"), ([weight], "is a list")):
        with pytest.raises(CheckpointError, match=f"`accelerator.save.*`obj` .*{reason}"):
            accelerator.save(value, tmp_path / "none", safe_serialization=True)
    assert not (tmp_path / "none").exists()


def test_a_device_map_of_one_device(tmp_path, ours):
    """A model with a map of several entries, all on one device, is prepared on several ranks, as it is not spread."""
    accelerator, model = new_trainer(tmp_path, library=ours).accelerator, linear()
    accelerator.state.num_processes = 2
    model.hf_device_map = {"first": "cpu", "second": "cpu"}
    assert accelerator.verify_device_map(model)
    assert accelerator.prepare_model(model) is model
    model.hf_device_map = {"first": "cpu", "second": "meta"}
    with pytest.raises(ModelError, match="several devices"):
        accelerator.prepare_model(model)


def compiled(model):
    """Return ``model`` compiled, by the backend that needs no compiler."""
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("wrap", [nn.DataParallel, compiled])
def test_unwrap_model_undoes_every_wrapper(tmp_path, ours, wrap):
    """A model in ``DataParallel`` or compiled, or both, is returned as it was; one that is compiled if asked."""
    accelerator, model = new_trainer(tmp_path, library=ours).accelerator, linear()
    assert accelerator.unwrap_model(wrap(model), keep_torch_compile=False) is model
    assert accelerator.unwrap_model(compiled(nn.DataParallel(model)), keep_torch_compile=False) is model
    kept = compiled(model)
    assert accelerator.unwrap_model(kept) is kept


class ReferenceModel(nn.Module):
    """Returns nested outputs in the dtype of its forward pass."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, features):
        hidden = torch.tanh(self.first(features))
        return {"logits": self.second(hidden), "states": (hidden, [hidden.argmax(-1)])}


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_a_reference_model_runs_under_autocast(tmp_path, ours, compiles):
    """Under bf16 a reference model gives accelerate's numbers to the last bit, as float32, not those of float32."""
    features, outputs = torch.tensor([row["features"] for row in vector_rows(8)]), []
    fields = {"bf16": True, "torch_compile": compiles} | ({"torch_compile_backend": "eager"} if compiles else {})
    for library in (transformers, ours):
        accelerator = new_trainer(tmp_path, library=library, **fields).accelerator
        model = accelerator.prepare_model(ReferenceModel(), evaluation_mode=True)
        with torch.no_grad():
            outputs.append(model(features))
    theirs, found = outputs
    assert found["logits"].dtype == theirs["logits"].dtype == torch.float32
    assert torch.equal(found["logits"], theirs["logits"])
    assert torch.equal(found["states"][0], theirs["states"][0])
    assert torch.equal(found["states"][1][0], theirs["states"][1][0])
    assert not torch.equal(found["logits"], ReferenceModel()(features)["logits"])
