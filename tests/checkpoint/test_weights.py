"""Weights go from hf_compat to transformers and back without a bit changed."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers
from packaging.version import Version
from safetensors.torch import load_file, save_file
from torch import nn

from hf_compat.checkpoint import names
from hf_compat.checkpoint.weights import load_weights, save_weights
from hf_compat.errors import CheckpointError
from tests.support.checkpoints import upstream_trainer
from tests.support.helpers import PlainModel, bert_classifier, gpt2, t5

WRITES_PICKLES = Version(transformers.__version__) < Version("5")

MODELS = {"tied language model": gpt2, "classifier": bert_classifier, "tied encoder-decoder": t5, "plain": PlainModel}


class Tied(nn.Module):
    """A plain module whose two ends share a matrix, as language models do, and a part of another."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.part = nn.Parameter(torch.randn(6, 4))
        self.register_buffer("first_rows", self.part.detach()[:2])
        self.register_buffer("turned", torch.randn(3, 5).t())


class SavesItselfElsewhere(PlainModel):
    """A plain module with a `save_pretrained` of another library, whose files are laid out differently."""

    def save_pretrained(self, folder, **options):
        raise AssertionError("transformers' Trainer does not call it either")


@pytest.fixture(params=MODELS)
def make(request):
    return MODELS[request.param]


def assert_equal_weights(left, right):
    expected, actual = left.state_dict(), right.state_dict()
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        assert torch.equal(value, actual[name]), name


def tensors_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".safetensors", ".bin")}


def test_same_files_as_upstream(make, tmp_path):
    """What is written for a model is what transformers' Trainer writes for it, byte by byte."""
    model = make()
    upstream_trainer(model, tmp_path)._save(str(tmp_path / "upstream"))
    (tmp_path / "upstream" / "training_args.bin").unlink()
    (tmp_path / "ours").mkdir()
    save_weights(model, tmp_path / "ours")
    files = [{path.name: path.read_bytes() for path in (tmp_path / side).iterdir()} for side in ("ours", "upstream")]
    assert files[0] == files[1]
    assert "model.safetensors" in files[0]


def test_upstream_loads_ours(make, tmp_path):
    """The Trainer of transformers, and from_pretrained, read what we wrote."""
    model, fresh = make(), make()
    save_weights(model, tmp_path)
    upstream_trainer(fresh, tmp_path / "run")._load_from_checkpoint(str(tmp_path))
    assert_equal_weights(model, fresh)
    if make is not PlainModel:
        assert_equal_weights(model, type(model).from_pretrained(tmp_path))


def test_ours_loads_upstream(make, tmp_path):
    """We read what transformers' Trainer wrote, with nothing missing or unexpected; tied weights are not missing."""
    model, fresh = make(), make()
    upstream_trainer(model, tmp_path / "run")._save(str(tmp_path))
    assert load_weights(fresh, tmp_path) == ([], [])
    assert_equal_weights(model, fresh)


@pytest.mark.parametrize("make", [gpt2, bert_classifier])
@pytest.mark.parametrize(
    "safe", [True, pytest.param(False, marks=pytest.mark.skipif(not WRITES_PICKLES, reason="safetensors only"))]
)
def test_shards(make, safe, tmp_path):
    """A large model in shards with an index goes both ways."""
    model, fresh, theirs = make(), make(), make()
    save_weights(model, tmp_path, max_shard_size="10KB", safe_serialization=safe)
    assert len(tensors_in(tmp_path)) > 1
    assert (tmp_path / (names.SAFE_WEIGHTS_INDEX_NAME if safe else names.WEIGHTS_INDEX_NAME)).is_file()
    assert load_weights(fresh, tmp_path) == ([], [])
    assert_equal_weights(model, fresh)
    upstream_trainer(theirs, tmp_path / "run")._load_from_checkpoint(str(tmp_path))
    assert_equal_weights(model, theirs)


@pytest.mark.parametrize("make", [PlainModel, Tied, *([gpt2] if WRITES_PICKLES else [])])
def test_pickled_weights(make, tmp_path):
    """With `save_safetensors=False` pytorch_model.bin holds the state, and is read."""
    model, fresh = make(), make()
    save_weights(model, tmp_path, safe_serialization=False)
    assert list(tensors_in(tmp_path)) == ["pytorch_model.bin"]
    assert load_weights(fresh, tmp_path) == ([], [])
    assert_equal_weights(model, fresh)


def test_plain_module_with_shared_weights(tmp_path):
    """Upstream cannot save it; ours can, and both read it."""
    model, fresh, theirs = Tied(), Tied(), Tied()
    with pytest.raises(RuntimeError, match="share"):
        upstream_trainer(model, tmp_path / "run")._save(str(tmp_path / "upstream"))
    save_weights(model, tmp_path)
    assert sorted(load_file(tmp_path / "model.safetensors")) == ["embed.weight", "first_rows", "part", "turned"]
    assert load_weights(fresh, tmp_path) == ([], [])
    assert_equal_weights(model, fresh)
    theirs._keys_to_ignore_on_save = None  # which transformers asks any module for when a name is missing
    upstream_trainer(theirs, tmp_path / "run")._load_from_checkpoint(str(tmp_path))
    assert_equal_weights(model, theirs)


def test_given_state_is_written(tmp_path):
    """A `state_dict` gathered elsewhere is written in place of the model's own."""
    state = {name: torch.full_like(value, 2.0) for name, value in PlainModel().state_dict().items()}
    save_weights(PlainModel(), tmp_path, state_dict=state)
    assert all(bool((value == 2.0).all()) for value in load_file(tmp_path / "model.safetensors").values())


def test_save_pretrained_of_another_library_is_not_called(tmp_path):
    """Only the classes that transformers' Trainer asks to save themselves do so."""
    save_weights(SavesItselfElsewhere(), tmp_path)
    assert list(tensors_in(tmp_path)) == ["model.safetensors"]


def test_state_with_more_than_tensors(tmp_path):
    """A module's extra state is nothing for safetensors: the error names it."""

    class WithExtraState(PlainModel):
        def get_extra_state(self):
            return "text"

    with pytest.raises(CheckpointError, match="_extra_state"):
        save_weights(WithExtraState(), tmp_path)


def test_missing_and_unexpected_names(tmp_path):
    """Names are reported as `load_state_dict` reports them; what fits is loaded."""
    model = PlainModel()
    state = {f"new.{name}" if name == "body.4.bias" else name: value for name, value in model.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    fresh = PlainModel()
    assert load_weights(fresh, tmp_path) == (["body.4.bias"], ["new.body.4.bias"])
    assert torch.equal(fresh.body[4].weight, model.body[4].weight)


def test_weights_fused_by_transformers(tmp_path):
    """A mixture of experts, which transformers 5 writes apart and keeps fused, comes back whole."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_local_experts": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.MixtralConfig(vocab_size=32, max_position_embeddings=32, **sizes, **heads)
    model, fresh = (transformers.MixtralForCausalLM(config) for _ in range(2))
    save_weights(model, tmp_path)
    state = torch.get_rng_state()
    assert load_weights(fresh, tmp_path) == ([], [])
    assert_equal_weights(model, fresh)
    assert torch.equal(state, torch.get_rng_state())


def lora(*more, rank=2):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(gpt2(), peft.LoraConfig(r=rank, target_modules=["c_attn"], init_lora_weights=False))
    for name in more:
        model.add_adapter(name, peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False))
    return model


PEFT_WARNINGS = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning", "ignore:.*fan_in_fan_out"
)


@PEFT_WARNINGS
@pytest.mark.parametrize("more", [(), ("second",)], ids=["one adapter", "two adapters"])
def test_adapters(more, tmp_path):
    """The adapters of a peft model go both ways; the active one stays active and trainable."""
    model, fresh, theirs = lora(*more), lora(*more), lora(*more)
    save_weights(model, tmp_path)
    upstream_trainer(model, tmp_path / "run")._save(str(tmp_path / "upstream"))
    assert tensors_in(tmp_path) == {
        name: content for name, content in tensors_in(tmp_path / "upstream").items() if name != "training_args.bin"
    }
    for loaded in (fresh, theirs):
        loaded.get_base_model().load_state_dict(model.get_base_model().state_dict(), strict=False)
        loaded.get_base_model().eval()  # as `from_pretrained` returns it, within an adapter's model that trains
    shutil.rmtree(tmp_path / "upstream")
    assert load_weights(fresh, tmp_path) == ([], [])
    assert_equal_weights(model, fresh)
    assert fresh.active_adapter == "default"
    trainable = [name for name, weight in fresh.named_parameters() if weight.requires_grad]
    assert trainable == [name for name, weight in model.named_parameters() if weight.requires_grad]
    upstream_trainer(theirs, tmp_path / "run")._load_from_checkpoint(str(tmp_path))
    assert_equal_weights(model, theirs)
    assert [module.training for module in fresh.modules()] == [module.training for module in theirs.modules()]


@PEFT_WARNINGS
@pytest.mark.parametrize("trains_on", [True, False])
def test_adapters_that_are_active_together(tmp_path, trains_on):
    """Both stay active, and can be trained, so that a run resumes with the parameters that its optimizer has."""
    model, fresh = lora("second"), lora("second")
    for each in (model, fresh):
        each.base_model.set_adapter(["default", "second"])
    save_weights(model, tmp_path)
    fresh.get_base_model().load_state_dict(model.get_base_model().state_dict(), strict=False)
    load_weights(fresh, tmp_path, trains_on=trains_on)
    assert_equal_weights(model, fresh)
    assert fresh.active_adapters == ["default", "second"]
    for name, weight in fresh.named_parameters():
        assert weight.requires_grad == ("lora_" in name), name


@PEFT_WARNINGS
def test_adapter_for_evaluation(tmp_path):
    """The best adapter is loaded at the end as transformers does it: the model is in evaluation mode then."""
    model, fresh = lora(), lora()
    save_weights(model, tmp_path)
    load_weights(fresh, tmp_path, trains_on=False)
    assert not fresh.training


@PEFT_WARNINGS
@pytest.mark.parametrize(("trains_on", "names"), [(True, ["default", "adapter_model"]), (False, ["default"])])
def test_a_folder_of_an_adapter_that_the_model_lacks(tmp_path, trains_on, names):
    """A folder becomes a new adapter where training continues, not for the best model, as in transformers 5.24."""
    save_weights(lora(), tmp_path)
    lora().save_pretrained(str(tmp_path / "adapter_model"))
    fresh = lora()
    load_weights(fresh, tmp_path, trains_on=trains_on)
    assert list(fresh.peft_config) == names


@PEFT_WARNINGS
def test_adapter_of_another_shape(tmp_path):
    """An adapter that does not fit: the error names the file and the shapes."""
    save_weights(lora(), tmp_path)
    with pytest.raises(CheckpointError, match=r"(?s)adapter_model\.safetensors` do not fit .*size mismatch"):
        load_weights(lora(rank=4), tmp_path)


def write_bytes(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def write_index(content):
    return lambda folder: (folder / "model.safetensors.index.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        pytest.param(lambda folder: None, "Can't find a valid checkpoint", id="nothing"),
        pytest.param(lambda folder: folder.rmdir(), "checkpoint folder .* does not exist", id="no folder"),
        pytest.param(write_bytes("model.safetensors", b""), r"model\.safetensors` cannot be read", id="empty"),
        pytest.param(write_bytes("model.safetensors", b"\xff" * 99), r"model\.safetensors` cannot", id="garbage"),
        pytest.param(write_bytes("pytorch_model.bin", b""), r"pytorch_model\.bin` cannot be read", id="empty pickle"),
        pytest.param(write_bytes("pytorch_model.bin", b"\xff" * 99), r"pytorch_model\.bin` is refused", id="no pickle"),
        pytest.param(
            lambda folder: torch.save([1], folder / "pytorch_model.bin"),
            "contains a list, not a state dict",
            id="no dict",
        ),
        pytest.param(
            lambda folder: save_file({"body.4.bias": torch.zeros(99)}, folder / "model.safetensors"),
            r"model\.safetensors` do not fit PlainModel: .*body\.4\.bias",
            id="another shape",
        ),
        pytest.param(write_index({"weight_map": {"a": "../model.safetensors"}}), "outside its folder", id="traversal"),
        pytest.param(write_index({"weight_map": {"a": "one.safetensors"}}), "The shard .* is missing", id="no shard"),
        pytest.param(write_index([]), "not a JSON object", id="index is a list"),
        pytest.param(write_index({}), "no `weight_map`", id="index without a map"),
    ],
)
def test_weights_that_cannot_be_read(prepare, message, tmp_path):
    """Every way in which weights can be unreadable ends in a CheckpointError that says where and why."""
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    prepare(folder)
    with pytest.raises(CheckpointError, match=f"(?s){message}"):
        load_weights(PlainModel(), folder)


@PEFT_WARNINGS
@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_model.bin"])
def test_adapter_without_a_weight(name, tmp_path):
    """A file as transformers writes it under FSDP 1 with peft 0.21 is an error, not an adapter that stays as it was."""
    save_weights(lora(), tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    (save_file if name.endswith("safetensors") else torch.save)({}, tmp_path / name)
    with pytest.raises(CheckpointError, match="has no weight of the adapter"):
        load_weights(lora(), tmp_path)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: torch.compile(model, backend="eager"),
        nn.DataParallel,
        lambda model: torch.compile(nn.DataParallel(model), backend="eager"),
    ],
    ids=["compiled", "replicated", "both"],
)
def test_names_of_wrappers_are_taken_off(wrap, tmp_path):
    """All weights of a plain module are found, also if transformers has saved it under the names of a wrapper."""
    model, other = PlainModel(), PlainModel()
    save_file(wrap(model).state_dict(), tmp_path / "model.safetensors")
    assert load_weights(other, tmp_path) == ([], [])
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


def test_names_that_begin_as_those_of_wrappers_stay(tmp_path):
    """A part that a model calls ``module`` is the model's own, with or without another of the same name beside it."""
    model, other = (nn.ModuleDict({"module": nn.Linear(2, 2), "weight": nn.Linear(1, 1)}) for _ in range(2))
    save_file({**model.state_dict(), "module.absent": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert load_weights(other, tmp_path) == ([], ["module.absent"])
    assert torch.equal(model["module"].weight, other["module"].weight)
