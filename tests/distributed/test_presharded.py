"""Models that ``from_pretrained(distributed_config=...)`` has sharded, on two and four processes over gloo.

Compared with transformers in ``test_distributed`` over gloo, and on fake GPUs in ``tests/gpu/test_scenarios.py``.
"""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import transformers
from packaging.version import Version
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from hf_compat import Trainer, TrainingArguments
from hf_compat.arguments.fsdp import FsdpSettings
from hf_compat.arguments.parallelism import ParallelSizes
from hf_compat.engine.process_layout import ProcessLayout
from hf_compat.engine.strategies import device_mesh
from hf_compat.engine.strategies.choice import StrategyRequest, presharded_limits
from hf_compat.engine.strategies.device_mesh import presharded_layout
from hf_compat.errors import ModelError
from tests.scripts import presharded_script
from tests.scripts.sharded_common import llama
from tests.support import helpers
from tests.support.sharded import check_in_background, launch, run_alone, seen

pytestmark = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.24"), reason="older releases have no `DistributedConfig` of sizes"
)
SCRIPT = "presharded_script.py"


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Return the folder of what two processes saw of every scenario."""
    return launch(SCRIPT, tmp_path_factory.mktemp("together"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the folder of what one process saw with the whole model."""
    return run_alone(presharded_script.ONE_PROCESS, tmp_path_factory.mktemp("alone"))


@pytest.mark.slow
@pytest.mark.parametrize("name", presharded_script.ONE_PROCESS)
def test_numbers_of_one_process(together, alone, name):
    """Losses, gradient norms and weights are those of one process with the whole model and the same batches."""
    found, expected = seen(together, name), seen(alone, name)
    for line, other in zip(found["logs"], expected["logs"], strict=True):
        # An evaluation averages over batches, which are smaller here, unless all ranks have the same ones.
        names = [key for key in other if key != "eval_loss" or name == "tensor"]
        assert {key: line[key] for key in names} == pytest.approx({key: other[key] for key in names}, rel=1e-4)
    if name == "tensor":
        assert found["before"] == pytest.approx(expected["before"], rel=1e-4)
    assert list(found["weights"]) == list(expected["weights"])
    for key, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][key], weight, rtol=1e-3, atol=1e-4, msg=key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "facts"), [("tensor", (2, False, 8)), ("shards", (1, False, 8)), ("experts", (1, False, 8))]
)
def test_ranks_agree(together, name, facts):
    """Ranks log the same numbers, and what each has whole is equal to the last bit."""
    found, other = seen(together, name), seen(together, name, rank=1)
    assert found["logs"] == other["logs"]
    assert (found["facts"], found["rows"]) == (facts, 8)
    assert all(torch.equal(other["whole"][key], value) for key, value in found["whole"].items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensor", "shards", "experts"])
def test_saved_whole(together, name):
    """Before training and after it, what is saved is the whole model."""
    for folder, of in (("before", None), ("after", seen(together, name)["weights"])):
        model = transformers.AutoModelForCausalLM.from_pretrained(together / name / folder)
        build = presharded_script.mixtral if name == "experts" else presharded_script.heads
        for key, weight in (of or build().state_dict()).items():
            assert torch.equal(model.state_dict()[key], weight), key


@pytest.mark.slow
def test_experts_that_cannot_be_shared(together):
    """Every rank reads both numbers as the model is loaded, from transformers; there is no Trainer yet."""
    for rank in (0, 1):
        assert re.search(r"\b3 experts\b.*\b2\b", seen(together, "experts_that_cannot_be_shared", rank)["error"])


@pytest.mark.slow
def test_adapters_become_equal(together):
    """Adapters that were added after sharding start with rank 0's values, and their gradients are averaged."""
    found, other = seen(together, "adapters"), seen(together, "adapters", rank=1)
    trained = [key for key in found["whole"] if "lora" in key]
    assert trained
    assert all(torch.equal(other["whole"][key], found["whole"][key]) for key in trained)


def check_resumed(folder, name):
    """Fail unless a run that was resumed ends as the one that was not interrupted."""
    found = seen(folder, name)
    assert found["resumed"]["logs"][-3:-1] == found["whole"]["logs"][-3:-1]
    assert found["whole"]["weights"]
    for key, weight in found["whole"]["weights"].items():
        assert torch.equal(found["resumed"]["weights"][key], weight), key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resumed", "resumed_shards", "resumed_experts", "resumed_by_model_init"])
def test_a_resumed_run_is_the_same_run(together, name):
    """Weights and optimizer go on where the checkpoint was written, which transformers cannot."""
    check_resumed(together, name)


@pytest.mark.slow
def test_saved_in_the_background(together):
    """Written while the run trains on, checkpoints are byte for byte those saved synchronously."""
    check_in_background(together, "in_background", "resumed")


@pytest.mark.slow
def test_save_is_called_on_every_rank(together):
    """An override of ``_save`` may call ``save_pretrained``, in which all ranks take part."""
    found = seen(together, "saved_by_an_override")
    newest = together / "saved_by_an_override" / "output" / f"checkpoint-{len(found['logs']) - 3}"
    model = transformers.AutoModelForCausalLM.from_pretrained(newest)
    assert all(torch.equal(model.state_dict()[key], weight) for key, weight in found["weights"].items())


@pytest.mark.slow
def test_four_processes_are_resumed(tmp_path):
    """So is a run whose matrices are split and sharded, and one with replicas of shards."""
    folder = launch(SCRIPT, tmp_path, *presharded_script.FOUR, processes=4)
    for name in presharded_script.FOUR:
        check_resumed(folder, name)


def loaded_model(**sizes):
    """Return a model that says that it was sharded by ``sizes``."""
    from transformers.distributed import DistributedConfig

    model = helpers.gpt2()
    model._is_distributed_loading_by_transformers = True
    model.config.distributed_config = DistributedConfig(**sizes)
    return model


@pytest.mark.parametrize(
    ("sizes", "keywords", "text"),
    [
        pytest.param({"tp_size": 2}, {"strategy": "ddp"}, "contradicts `strategy` of `lightning`", id="DDP too"),
        pytest.param({"tp_size": 2}, {}, "`tp_size=2` .* to 2, but the world size is 1", id="too few processes"),
        pytest.param({"pp_size": 2}, {}, "`pp_size=2`", id="a pipeline"),
    ],
)
def test_models_that_cannot_be_trained(sizes, keywords, text, tmp_path):
    """Each is refused, with the numbers, as the Trainer is made."""
    with pytest.raises(ModelError, match=text):
        Trainer(loaded_model(**sizes), TrainingArguments(str(tmp_path), use_cpu=True), lightning=keywords)


@pytest.mark.parametrize(
    ("requested", "text"),
    [
        pytest.param({"fsdp": FsdpSettings(version=2)}, "contradicts `fsdp`", id="FSDP too"),
        pytest.param(
            {"sizes": ParallelSizes(tp=4), "mesh": object()},
            "`dp_shard_size=2` x `tp_size=2` .* contradicts `parallelism_config` with `tp_size=4`",
            id="other sizes",
        ),
    ],
)
def test_sharding_that_is_requested_twice(requested, text, tmp_path):
    """It is refused: a model that is sharded already is not sharded once more."""
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    layout = ProcessLayout(args.launch, "fsdp2", **requested)
    with pytest.raises(ModelError, match=text):
        presharded_layout(layout, loaded_model(tp_size=2, fsdp_size=2), args, "auto")


def test_float16_of_split_matrices(tmp_path):
    """It is refused: in transformers the gradient scaler fails at the first step."""
    args = TrainingArguments(str(tmp_path), use_cpu=True, fp16=True)
    [text] = presharded_limits(StrategyRequest(args, loaded_model(tp_size=2), False, None, None, ParallelSizes()))
    assert text.startswith("`fp16=True` is not supported with a model that was loaded with `tp_size=2`")
    assert presharded_limits(StrategyRequest(args, loaded_model(fsdp_size=2), False, None, None, ParallelSizes())) == []


@pytest.mark.parametrize(
    ("heads", "text"),
    [
        pytest.param({"num_attention_heads": 3, "num_key_value_heads": 3}, "heads=3` and `num_key_v", id="all"),
        pytest.param(
            {"num_attention_heads": 2, "num_key_value_heads": 1}, "divide `num_key_value_heads=1", id="shared"
        ),
        pytest.param({"num_attention_heads": 2, "num_key_value_heads": 2}, None, id="neither"),
    ],
)
def test_heads_that_cannot_be_shared(heads, text, tmp_path):
    """Of a model whose attention is split, they are refused: its first forward pass would fail."""
    model, args = llama(hidden_size=24, **heads), TrainingArguments(str(tmp_path), use_cpu=True)
    model.config.distributed_config = SimpleNamespace(tp_size=2)
    request = StrategyRequest(args, model, False, None, None, ParallelSizes())
    assert presharded_limits(request) == []
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
        for name in ("q_proj", "k_proj", "v_proj"):
            projection = getattr(model.model.layers[0].self_attn, name)
            projection.weight = nn.Parameter(DTensor.from_local(projection.weight.data, mesh, [Shard(0)]))
        found = presharded_limits(request)
    finally:
        distributed.destroy_process_group()
    assert len(found) == (text is not None)
    assert text is None or text in found[0]


def test_a_model_init_that_splits(tmp_path, monkeypatch):
    """It is refused without a ``parallelism_config``: which ranks share batches is decided before it is called."""
    model, args = loaded_model(tp_size=2), TrainingArguments(str(tmp_path), use_cpu=True)
    with monkeypatch.context() as patched:
        patched.setattr(device_mesh, "presharded_layout", lambda layout, *_: replace(layout, sizes=ParallelSizes(tp=2)))
        text = r"`model_init` returned a model with `tp_size=2`.*`parallelism_config=\{'tp_size': 2\}`.*as `model`"
        with pytest.raises(ModelError, match=text):
            Trainer(model_init=lambda: model, args=args)
