"""Tensor parallelism on two processes: the numbers of one process, from matrices of which each holds a part."""

import re
import sys

import pytest
import torch
from torch import nn

from hf_compat import Trainer, TrainingArguments
from hf_compat.arguments.parallelism import ParallelSizes
from hf_compat.engine.process_layout import place_run
from hf_compat.engine.strategies.choice import StrategyRequest, fsdp_limits
from hf_compat.engine.strategies.sharding import check_plan
from hf_compat.errors import ModelError, TrainerSetupError, UnsupportedArgumentsError
from tests.scripts import tensor_parallel_script
from tests.support import helpers, sharded
from tests.support.paths import SCRIPTS
from tests.support.processes import finish, start
from tests.support.sharded import TOLERANCE, assert_other_members, check_in_background, launch, run_alone, seen

SCRIPT = "tensor_parallel_script.py"


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Return the folder of what two processes saw of every scenario."""
    return launch(SCRIPT, tmp_path_factory.mktemp("together"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the folder of what one process saw that holds all."""
    return run_alone(tensor_parallel_script.ONE_PROCESS | tensor_parallel_script.BF16, tmp_path_factory.mktemp("alone"))


def check(found, expected):
    """Fail unless logs, counts and weights agree."""
    sharded.check(found, expected)
    assert found["flos"] == pytest.approx(expected["flos"])


@pytest.mark.slow
@pytest.mark.parametrize("name", tensor_parallel_script.ONE_PROCESS)
def test_numbers_of_one_process(together, alone, name):
    """Losses, gradient norms, evaluations, token counts and weights are those of one process with the same batches."""
    found = seen(together, name)
    check(found, seen(alone, name))
    assert found["split"]


@pytest.mark.slow
def test_processes_stay_equal(together):
    """What both processes hold whole stays the same to the last bit, and so does what they log."""
    for name in tensor_parallel_script.ONE_PROCESS:
        found, other = seen(together, name), seen(together, name, rank=1)
        assert other["logs"] == found["logs"]
        assert not other["weights"]
        for weight, whole in found["whole"].items():
            assert torch.equal(other["whole"][weight], whole), weight


@pytest.mark.slow
def test_what_is_split(together):
    """The matrices that the plan names are split; tied embeddings are not, nor are norms."""
    split = seen(together, "everything")["split"]
    assert len([name for name in split if name.endswith("_proj.weight")]) == 2 * 7
    assert not [name for name in split if name.endswith("norm.weight")]
    with_ties = seen(together, "norms_of_heads")["split"]
    assert "model.layers.0.self_attn.q_norm.weight" in with_ties  # of which each process has the gradient of its heads
    assert not {"lm_head.weight", "model.embed_tokens.weight"} & set(with_ties)


@pytest.mark.slow
def test_both_see_the_same_batches(together, alone):
    """Each sample counts once, in update steps, evaluations and predictions."""
    found, expected = seen(together, "everything"), seen(alone, "everything")
    assert found["facts"] == (True, 2, 8)
    assert found["rows"] == expected["rows"] == 7
    assert found["before"] == pytest.approx(expected["before"], rel=TOLERANCE)
    assert found["again"] == found["after"]
    assert found["logits"] == pytest.approx(expected["logits"], rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_members_of_the_accelerator(together):
    """A trigger reaches ranks with the same batches, the state dict is always whole, a second model is not trained."""
    for rank in range(2):
        assert seen(together, "everything", rank=rank)["triggered"] == [True, False]
    assert_other_members(together, "everything")


@pytest.mark.slow
def test_saved_model_is_read_by_from_pretrained(together):
    """What ``save_model`` writes is a whole model of the class that was trained."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(together / "everything" / "model")
    assert type(model).__name__ == "LlamaForCausalLM" == model.config.architectures[0]
    for name, weight in seen(together, "everything")["weights"].items():
        assert torch.equal(model.state_dict()[name], weight), name


@pytest.mark.slow
def test_a_resumed_run_is_the_same_run(together):
    """Weights, optimizer, schedule, order of samples and dropout go on where the checkpoint was written."""
    found = seen(together, "resumed")
    assert found["resumed"]["logs"][-3:-1] == found["whole"]["logs"][-3:-1]
    for name, weight in found["whole"]["weights"].items():
        assert torch.equal(found["resumed"]["weights"][name], weight), name


@pytest.mark.slow
def test_saved_in_the_background(together):
    """Written by threads of both processes while they train on, checkpoints are byte for byte those saved at once."""
    check_in_background(together, "in_background", "resumed")


@pytest.mark.slow
def test_bf16(together, alone):
    """Under bf16 weights stay float32, and losses are near those of one process under autocast."""
    found, expected = seen(together, "in_bf16"), seen(alone, "in_bf16")
    assert {weight.dtype for weight in found["weights"].values()} == {torch.float32}
    sharded.check(found, expected, tolerance=0.05)
    assert found["logs"] == seen(together, "in_bf16", rank=1)["logs"]


@pytest.fixture(scope="module")
def in_two_dimensions(tmp_path_factory):
    """Return the folder of what four processes saw."""
    names = ("everything", "resumed", "in_background")
    return launch(SCRIPT, tmp_path_factory.mktemp("two_dimensions"), *names, processes=4)


@pytest.mark.slow
def test_a_run_in_two_dimensions_is_resumed(in_two_dimensions):
    """Parts of what two processes share go on bit for bit, from checkpoints saved at once or in the background."""
    found = seen(in_two_dimensions, "resumed")
    assert found["resumed"]["logs"][-3:-1] == found["whole"]["logs"][-3:-1]
    assert all(torch.equal(found["resumed"]["weights"][key], value) for key, value in found["whole"]["weights"].items())
    check_in_background(in_two_dimensions, "in_background", "resumed")


@pytest.mark.slow
def test_two_dimensions(in_two_dimensions, alone):
    """Of four processes two see other batches and shard what two hold; the numbers stay those of one process."""
    found, expected = seen(in_two_dimensions, "everything"), seen(alone, "everything")
    for line, other in zip(found["logs"], expected["logs"], strict=True):
        # An evaluation averages over batches, which are smaller here.
        names = [name for name in other if name != "eval_loss"]
        assert {name: line[name] for name in names} == pytest.approx({name: other[name] for name in names}, rel=1e-5)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, rtol=TOLERANCE, atol=TOLERANCE, msg=name)
    assert (found["facts"], found["rows"]) == ((True, 2, 8), 7)
    assert len(found["split"]) == len(expected["weights"])


def test_a_model_split_by_others_is_refused(tmp_path):
    """Its processes would be given different batches, or it would be split once more."""
    model = tensor_parallel_script.Plain()
    model._tp_size = 2  # as ``from_pretrained(tp_plan="auto")`` leaves it
    with pytest.raises(ModelError, match=r"split or sharded already.*parallelism_config"):
        Trainer(model, TrainingArguments(str(tmp_path), use_cpu=True))


FSDP1 = {"fsdp": True, "fsdp_config": {"version": 1}}


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        pytest.param({"dp_replicate_size": 2}, "replicas of FSDP need a `dp_shard_size` above 1", id="FSDP"),
        pytest.param({"dp_replicate_size": 2, "tp_size": 2}, "need a `dp_shard_size` above 1", id="tensor parallelism"),
    ],
)
def test_replicas_of_nothing_sharded(sizes, text, tmp_path):
    """Neither FSDP nor tensor parallelism has replicas unless there are shards of each, as in accelerate."""
    with pytest.raises(UnsupportedArgumentsError, match=text):
        TrainingArguments(str(tmp_path), fsdp=True, parallelism_config=sizes)


def strategy(data, tensor, **others):
    """Return the keyword of Lightning's strategy."""
    from lightning.pytorch.strategies import ModelParallelStrategy

    return {"strategy": ModelParallelStrategy(data, tensor, **others)}


@pytest.mark.parametrize(
    ("fields", "keywords", "text"),
    [
        pytest.param(
            {"parallelism_config": {"tp_size": 2}}, {}, "to 2, but the world size is 1", id="too few processes"
        ),
        pytest.param({}, strategy(2, 2), "to 4, but the world size is 1", id="Lightning's strategy"),
        pytest.param(
            {"parallelism_config": {"tp_size": 3, "dp_shard_size": 2, "dp_replicate_size": 5}, "fsdp": True},
            {"devices": 4},
            "`dp_replicate_size=5` x `dp_shard_size=2` x `tp_size=3` .* to 30, but the world size is 4",
            id="no product of the sizes",
        ),
        pytest.param(
            {"parallelism_config": {"dp_replicate_size": 2, "dp_shard_size": 2}, **FSDP1},
            {"devices": 4},
            r"needs `version` 2 in `fsdp_config` \(now 1\)",
            id="FSDP 1",
        ),
        pytest.param(
            {"parallelism_config": {"cp_size": 2, "dp_shard_size": 2}, "fsdp": True, "fsdp_config": {"version": 2}},
            {"devices": 8},
            "`dp_shard_size=2` x `cp_size=2` multiply to 4, but the world size is 8",
            id="shared sequences",
        ),
        pytest.param(
            {"parallelism_config": {"cp_size": 2}, **FSDP1},
            {"devices": 2},
            r"`fsdp` with `cp_size=2` needs `version` 2 in `fsdp_config` \(now 1\)",
            id="shared sequences with FSDP 1",
        ),
        pytest.param(
            {"parallelism_config": {"cp_size": 2}, "fsdp": True, "fsdp_config": {"version": 2}},
            {"devices": 2},
            "`cp_size=2` needs GPUs, but the run is on cpu",
            id="shared sequences on the CPU",
        ),
        pytest.param({}, strategy("auto", "auto"), "it is FSDP", id="one process"),
        pytest.param({}, strategy(1, 2, process_group_backend="gloo"), "ddp_backend", id="backend"),
        pytest.param({"parallelism_config": {"tp_size": 4}}, strategy(1, 2), "contradicts it", id="contradiction"),
        pytest.param({"parallelism_config": {"tp_size": 2}}, {"strategy": "ddp"}, "set only one", id="DDP"),
    ],
)
def test_processes_that_do_not_fit(fields, keywords, text, tmp_path):
    """Sizes have to multiply to the processes that were started, and to be said once."""
    with pytest.raises(TrainerSetupError, match=text):
        place_run(TrainingArguments(str(tmp_path), use_cpu=True, **fields), keywords)


def planned(plan, **modules):
    """Return a module with a plan."""
    model = nn.ModuleDict(modules or {"up": nn.Linear(4, 6), "down": nn.Linear(6, 4)})
    model.tp_plan = plan
    return model


PAIR = {"up": "colwise", "down": "rowwise"}


cannot_be_shared = pytest.mark.parametrize(
    ("case", "text"),
    [
        pytest.param("matrices", "`config.num_attention_heads=4` is not a multiple of 3", id="matrices"),
        pytest.param("chunks", r"`num_attention_heads=4`.*over `sp_size=3` ranks", id="sequences"),
    ],
)
"""Models whose heads three ranks cannot share, and what the error says."""


@pytest.mark.slow
@cannot_be_shared
def test_no_process_is_started_for_a_model_that_cannot_be_shared(case, text, tmp_path):
    """Where the Trainer is to start the processes, more ranks than can share the heads are one error ahead of that."""
    if case == "chunks":
        pytest.importorskip("deepspeed")
    output = finish([start([sys.executable, SCRIPTS / "shares_script.py", tmp_path, case, "model"])])[0].output
    (line,) = [line for line in output.splitlines() if line.startswith("PROCESS")]
    assert re.search(rf"^PROCESS None: ModelError: .*{text}", line), line


@pytest.mark.slow
@cannot_be_shared
def test_no_trainer_is_made_of_a_model_init_that_cannot_be_shared(case, text, tmp_path):
    """What `model_init` returns is looked at as each process makes its Trainer, and is the same error in each."""
    if case == "chunks":
        pytest.importorskip("deepspeed")
    output = finish([start([sys.executable, SCRIPTS / "shares_script.py", tmp_path, case, "model_init"])])[0].output
    assert sorted(re.findall(rf"PROCESS (\w+): \w+Error: .*?{text}", output)) == ["0", "1", "2"], output


@pytest.mark.parametrize(
    ("build", "text"),
    [
        pytest.param(lambda: helpers.gpt2(), "has no tensor-parallel plan", id="a model without a plan"),
        pytest.param(
            lambda: planned({"layers.*.up": "colwise"}), "has no tensor-parallel plan", id="a plan of other modules"
        ),
        pytest.param(lambda: planned({"up": "diagonal"}), "style 'diagonal'", id="another style"),
        pytest.param(lambda: planned(["up"]), "dict from name patterns", id="no dict"),
        pytest.param(lambda: planned(PAIR), "has 6 rows.*has 6 columns", id="sizes"),
        pytest.param(lambda: planned({"up": "colwise"}, up=nn.Bilinear(2, 2, 8)), "is a Bilinear", id="no matrix"),
        pytest.param(
            lambda: planned(PAIR, up=nn.Linear(4, 8), norm=nn.LayerNorm(8), down=nn.Linear(8, 4)),
            "`norm.weight` is used between",
            id="between",
        ),
        pytest.param(lambda: tensor_parallel_script.llama(num_key_value_heads=2), "num_key_value_heads=2", id="heads"),
    ],
)
def test_models_that_cannot_be_split(build, text):
    """Each is refused with what to do, over four processes."""
    with pytest.raises(ModelError, match=text):
        check_plan(build(), 4)


def test_float16_is_refused(tmp_path):
    """As the Trainer is made: torch's gradient scaler takes no gradients on several device meshes."""
    args = TrainingArguments(str(tmp_path), use_cpu=True, fp16=True)
    [text] = fsdp_limits(StrategyRequest(args, None, False, None, None, ParallelSizes(tp=2)))
    assert text.startswith("`fp16=True` is not supported with `tp_size=2`")
    assert fsdp_limits(StrategyRequest(args, None, False, None, None, ParallelSizes(dp_shard=2))) == []
