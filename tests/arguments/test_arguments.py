"""What ``TrainingArguments`` takes, makes of it and refuses; test_arguments_parity compares it with upstream's."""

import dataclasses
import inspect
import json
import os
import pickle
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from hf_compat.arguments import FIELD_RULES, AcceleratorConfig, Seq2SeqTrainingArguments, TrainingArguments
from hf_compat.arguments.checking import checks
from hf_compat.arguments.fields.aliases import ALIASES
from hf_compat.arguments.fields.defaults import defaults
from hf_compat.errors import ArgumentsError, UnknownArgumentError, UnsupportedArgumentsError
from tests.support.paths import FACTS_FOLDER

FACTS = json.loads((FACTS_FOLDER / "training_arguments.json").read_text(encoding="utf-8"))
OWN_FIELDS = {"on_save_error", "save_async", "semantics"}
PACKAGE = Path(inspect.getfile(TrainingArguments)).parents[1]
NOT_WRITTEN_YET: set[str] = set()
RELEASE_4, RELEASE_5 = "4.57.6", "5.24.0"


@pytest.fixture(autouse=True)
def _launched_by_nothing(monkeypatch):
    """No launcher's variables, ours or those that transformers 4.57 leaves behind."""
    for name in list(os.environ):
        if name.startswith(("ACCELERATE_", "SLURM_")) or name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
            monkeypatch.delenv(name)


def names_of(kind):
    return [item.name for item in dataclasses.fields(kind)]


def rules(fate):
    return [rule for rule in FIELD_RULES if rule.fate == fate]


# The table of fields


def test_every_field_of_every_release():
    """All fields that any release from 4.31 to 5.24 had are there, and one of our own."""
    seq2seq = {row["name"] for row in FACTS["fields"] if row.get("seq2seq")}
    known = {row["name"] for row in FACTS["fields"]}
    assert len(known) == 155
    assert set(names_of(TrainingArguments)) == (known - seq2seq) | OWN_FIELDS
    assert set(names_of(Seq2SeqTrainingArguments)) == known | OWN_FIELDS


def test_order():
    """Positional arguments come in the order of 5.24.0, then the older fields."""
    assert names_of(TrainingArguments)[: len(FACTS["positional"])] == FACTS["positional"]
    assert TrainingArguments("out", 2).per_device_train_batch_size == 2


OTHER_DEFAULTS = {
    "optim": "goes by the installed torch",
    "report_to": "None stands for the release's default, which was 'all' before 5.0",
}


def test_defaults_are_those_of_the_last_release():
    """A field has the default of the last release that had it."""
    declared = {row["name"]: row["default"] for row in FACTS["fields"] if row["name"] not in OTHER_DEFAULTS}
    defaults = {
        item.name: item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        for item in dataclasses.fields(Seq2SeqTrainingArguments)
    }
    assert {name: defaults[name] for name in declared} == declared


def test_one_rule_per_field():
    """Every field has one rule, in the order of declaration, and no rule is for a field that is none."""
    assert [rule.field for rule in FIELD_RULES] == names_of(Seq2SeqTrainingArguments)


def test_targets_exist():
    """A rule names a keyword of Lightning's Trainer, a module of ours or a field."""
    lightning = pytest.importorskip("lightning.pytorch")
    keywords = inspect.signature(lightning.Trainer).parameters
    assert {rule.target for rule in rules("trainer")} <= set(keywords)
    assert {rule.target for rule in rules("alias")} <= set(names_of(TrainingArguments))
    missing = {rule.target for rule in rules("plan") if not (PACKAGE / rule.target).exists()}
    assert missing <= NOT_WRITTEN_YET


def test_aliases_have_rules():
    """The table of older names and the table of fields say the same."""
    by_release = {"gradient_checkpointing", "gradient_checkpointing_kwargs", "warmup_ratio"}
    by_release |= {"include_tokens_per_second", "fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap"}
    told = {(rule.field, rule.target) for rule in rules("alias") if rule.field not in by_release}
    assert {(alias.old, alias.new) for alias in ALIASES} == told


def test_every_field_has_help():
    """The command line explains every field in one line."""
    for item in dataclasses.fields(Seq2SeqTrainingArguments):
        if item.init:
            assert item.metadata["help"].endswith("."), item.name
            assert "%" not in item.metadata["help"], "argparse would read it as a format"


# Refused


def off_default(name):
    """Return a value that asks for something."""
    default = defaults()[name]
    special = {"hub_strategy": "end", "debug": "underflow_overflow", "tp_size": 2}
    if name in special:
        return special[name]
    return (not default) if isinstance(default, bool) else 3 if isinstance(default, int) else "x"


@pytest.mark.parametrize("rule", rules("unsupported"), ids=lambda rule: rule.field)
def test_unsupported_fields(rule):
    """A field that cannot be carried out is refused off its default, with advice; at its default it is not."""
    value = off_default(rule.field)
    with pytest.raises(UnsupportedArgumentsError) as caught:
        TrainingArguments("out", **{rule.field: value})
    (problem,) = caught.value.problems
    assert problem.startswith(f"`{rule.field}=")
    assert problem.endswith(f"{rule.target}.")
    for harmless in (defaults()[rule.field], *rule.harmless):
        TrainingArguments("out", **{rule.field: harmless})


WRONG = {
    "train batch": ({"per_device_train_batch_size": 0}, "`per_device_train_batch_size=0`.*1 or more"),
    "batch of a float": ({"per_device_eval_batch_size": 2.5}, "`per_device_eval_batch_size=2.5`.*integer"),
    "accumulation": ({"gradient_accumulation_steps": 0}, "`gradient_accumulation_steps=0`"),
    "rate as text": ({"learning_rate": "1e-4"}, "`learning_rate='1e-4'`: must be a number"),
    "negative rate": ({"learning_rate": -1.0}, "`learning_rate=-1.0`"),
    "not a number": ({"learning_rate": float("nan")}, "`learning_rate=nan`"),
    "beta": ({"adam_beta1": 1.5}, "`adam_beta1=1.5`.*between 0 and 1"),
    "smoothing": ({"label_smoothing_factor": 2}, "`label_smoothing_factor=2`"),
    "seed": ({"seed": -1}, "`seed=-1`"),
    "warmup ratio": ({"warmup_ratio": 1.5, "semantics": RELEASE_4}, "`warmup_ratio=1.5`"),
    "share of warmup in 4.57": ({"warmup_steps": 0.1, "semantics": RELEASE_4}, "set `warmup_ratio`"),
    "no number of batches": ({"eval_accumulation_steps": 0}, "`eval_accumulation_steps=0`.*other than 0"),
    "windows": ({"gradient_accumulation_steps": -1}, "`gradient_accumulation_steps=-1`"),
    "decay": ({"weight_decay": float("nan")}, "`weight_decay=nan`"),
    "persistent": ({"dataloader_persistent_workers": True}, "`dataloader_persistent_workers=True`"),
    "sampling": ({"train_sampling_strategy": "shuffled"}, "`train_sampling_strategy='shuffled'`.*'sequential'"),
    "sampling in 4.57": (
        {"train_sampling_strategy": "batch_rebalance", "semantics": RELEASE_4},
        "`train_sampling_strategy='batch_rebalance'`: choose one of 'random', 'sequential', 'group_by_length'",
    ),
    "log level": ({"log_level": "loud"}, "`log_level='loud'`"),
    "strategy": ({"eval_strategy": "step"}, "`eval_strategy='step'`.*IntervalStrategy"),
    "optimizer": ({"optim": "adam"}, "`optim='adam'`.*'adamw_torch'"),
    "json": ({"lr_scheduler_kwargs": "{x}"}, "`lr_scheduler_kwargs='{x}'`: is not valid JSON"),
    "accelerator key": ({"accelerator_config": {"split": True}}, "`accelerator_config=.*split_batches"),
    "accelerator file": ({"accelerator_config": "none.json"}, "`accelerator_config='none.json'`"),
    "tokens": ({"include_num_input_tokens_seen": "some"}, "`include_num_input_tokens_seen='some'`"),
    "release": ({"semantics": "newest"}, "`semantics='newest'`"),
    "bfloat16 without a gpu": ({"bf16": True}, "`bf16=True`: .*`use_cpu=True`"),
    "bfloat16 evaluation without a gpu": ({"bf16_full_eval": True}, "`bf16_full_eval=True`: .*`use_cpu=True`"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("settings", "message"), WRONG.values(), ids=WRONG)
def test_wrong_values(settings, message):
    """A value that no run could use is refused, by name and with its value, before anything is built."""
    with pytest.raises(ArgumentsError, match=message) as caught:
        TrainingArguments("out", **settings)
    assert len(caught.value.problems) == 1
    assert not isinstance(caught.value, UnsupportedArgumentsError)


def test_all_problems_in_one_error():
    """Everything wrong is told together; one contradiction makes it more than unsupported."""
    with pytest.raises(ArgumentsError) as caught:
        TrainingArguments("out", tpu_num_cores=8, seed=-1, adam_beta1=2, save_steps=2.5, report_to=["wandbee"])
    assert type(caught.value) is ArgumentsError
    assert [problem.split("=")[0] for problem in caught.value.problems] == [
        "`report_to", "`tpu_num_cores", "`adam_beta1", "`seed", "`save_steps",
    ]  # fmt: skip


ONE_OF_EACH = {
    "report_to": (["wandbee"], "_trackers"),
    "optim": ("adam", "_enums"),
    "lr_scheduler_kwargs": ("{x}", "_dicts"),
    "accelerator_config": ({"gradient_accumulation_kwargs": {"x": 1}}, "_accelerator_config"),
    "deepspeed": ("ds.json", "deepspeed_problems"),
    "tpu_num_cores": (8, "unsupported_problems"),
    "learning_rate": ("fast", "_numbers"),
    "adam_beta1": (2, "_bounds"),
    "dataloader_num_workers": (-1, "_counts"),
    "log_level": ("loud", "_choices"),
    "seed": (-1, "_length"),
    "save_steps": (2.5, "_steps"),
    "load_best_model_at_end": (True, "_best_model"),
    "lr_scheduler_type": ("reduce_lr_on_plateau", "_schedule"),
    "half_precision_backend": ("apex", "_precision"),
    "fsdp_config": ({"a": 1}, "_fsdp"),
    "parallelism_config": ({"tp_size": 0}, "_parallelism"),
}
"""Field to a wrong value, and the check that finds it; no two of them hide each other."""


def test_no_check_hides_another():
    """What every check finds is told in one error, though a number is no number; with an unknown keyword too."""
    named = {check for _, check in ONE_OF_EACH.values()} | {"_loaders"}
    named |= {"_configured_precision"}  # of the processes of a script, without `deepspeed`
    assert {check.__name__ for check in checks.CHECKS} <= named
    wrong = {name: value for name, (value, _) in ONE_OF_EACH.items()}
    wrong |= {"use_cpu": True, "dataloader_persistent_workers": True}
    with pytest.raises(ArgumentsError) as caught:
        TrainingArguments("out", **wrong)
    assert sorted(caught.value.fields) == sorted(ONE_OF_EACH)
    with pytest.raises(ArgumentsError) as caught:
        TrainingArguments("out", **{**wrong, "dataloader_num_workers": 0})
    expected = {*ONE_OF_EACH, "dataloader_persistent_workers"} - {"dataloader_num_workers"}
    assert sorted(caught.value.fields) == sorted(expected)
    assert len(caught.value.problems) == len(expected)
    with pytest.raises(UnknownArgumentError) as told:
        TrainingArguments("out", learning_rat=1, generation_config="x", **wrong)
    for name in (*ONE_OF_EACH, "learning_rat", "generation_config"):
        assert f"`{name}" in str(told.value)


@pytest.mark.parametrize("name", sorted(set(names_of(Seq2SeqTrainingArguments)) - set(names_of(TrainingArguments))))
def test_fields_of_generation_name_their_class(name):
    """A field that only the arguments for generation have is answered with their name."""
    with pytest.raises(UnknownArgumentError, match=f"`{name}` is not an argument .*: use `Seq2SeqTrainingArguments`"):
        TrainingArguments("out", **{name: 1})


def test_unknown_trackers_are_refused():
    """A name that transformers does not know either is answered with those that there are, and with the way out."""
    with pytest.raises(UnsupportedArgumentsError, match=r"`report_to='sacred'`.*tensorboard.*lightning=\{'logger'"):
        TrainingArguments("out", report_to="sacred")


def test_tokens_are_never_shown():
    """No text of the arguments, an error's included, holds a token."""
    with pytest.raises(UnsupportedArgumentsError) as caught:
        TrainingArguments("out", tpu_num_cores=8, hub_token="hf_secret")
    assert "hf_secret" not in str(caught.value)
    args = TrainingArguments("out")
    args.hub_token = "hf_secret"
    assert "hf_secret" not in f"{args} {args!r} {args.to_json_string()} {args.to_sanitized_dict()}"


@pytest.mark.parametrize(("name", "nearest"), [("learning_rat", "learning_rate"), ("eval_strategie", "eval_strategy")])
def test_unknown_keyword(name, nearest):
    """A keyword that no release knows is refused with the nearest one, as a ``TypeError``."""
    with pytest.raises(UnknownArgumentError, match=f"`{name}` is not an argument .* `{nearest}`") as caught:
        TrainingArguments("out", **{name: 1})
    assert isinstance(caught.value, TypeError)


# Use in scripts


@dataclass
class ScriptArguments(TrainingArguments):
    """As run_mae derives its arguments."""

    base_learning_rate: float = dataclasses.field(default=1e-3, metadata={"help": "Rate for 256 samples."})

    def __post_init__(self):
        super().__post_init__()
        self.learning_rate = self.base_learning_rate * self.train_batch_size / 256


def test_subclass():
    """A script's dataclass adds fields; unknown keywords are still refused and the signature is its own."""
    args = ScriptArguments("out", base_learning_rate=0.5, use_cpu=True)
    assert args.learning_rate == 0.5 * 8 / 256
    assert "base_learning_rate" in inspect.signature(ScriptArguments).parameters
    assert "base_learning_rate" not in inspect.signature(TrainingArguments).parameters
    with pytest.raises(UnknownArgumentError, match="base_learning_rate"):
        ScriptArguments("out", base_learning_rat=1)


@pytest.mark.parametrize("name", [name for name in dir(TrainingArguments) if name.startswith("set_")])
def test_setters_set_fields(name):
    """Each parameter of a method that sets the fields of a topic is a field, by its own name or by the table's."""
    args = TrainingArguments("out")
    before = vars(args).keys() - {"_setup_devices"}
    getattr(args, name)(**({"model_id": "m"} if name == "set_push_to_hub" else {}))
    assert vars(args).keys() - {"_setup_devices"} == before


def test_mutable_copyable_picklable():
    """Fields are assigned after construction; copies and pickles are equal."""
    args = TrainingArguments("out", use_cpu=True, eval_strategy="epoch")
    args.learning_rate = 0.25
    assert pickle.loads(pickle.dumps(args)) == args
    copied = dataclasses.replace(args, seed=1)
    assert (copied.learning_rate, copied.seed, copied.eval_strategy) == (0.25, 1, "epoch")


OLDER_NAMES = [
    pytest.param({"evaluation_strategy": "epoch"}, {"eval_strategy": "epoch", "do_eval": True}, True, id="eval"),
    pytest.param({"no_cuda": True}, {"use_cpu": True, "dataloader_pin_memory": False}, True, id="cpu"),
    pytest.param({"per_gpu_train_batch_size": 3}, {"per_device_train_batch_size": 3}, True, id="train batch"),
    pytest.param({"per_gpu_eval_batch_size": 3}, {"per_device_eval_batch_size": 3}, True, id="eval batch"),
    pytest.param({"adafactor": True}, {"optim": "adafactor"}, True, id="adafactor"),
    pytest.param({"group_by_length": True}, {"train_sampling_strategy": "group_by_length"}, False, id="lengths"),
    pytest.param({"include_inputs_for_metrics": True}, {"include_for_metrics": ["inputs"]}, True, id="inputs"),
    pytest.param({"include_tokens_per_second": True}, {"include_num_input_tokens_seen": "all"}, False, id="tokens"),
    pytest.param({"fp16_backend": "cpu_amp"}, {"half_precision_backend": "cpu_amp"}, True, id="amp"),
    pytest.param({"torchdynamo": "eager"}, {"torch_compile_backend": "eager"}, True, id="dynamo"),
    pytest.param({"split_batches": False}, {"accelerator_config": AcceleratorConfig()}, True, id="split batches"),
    pytest.param({"gradient_checkpointing": True}, {"activation_checkpointing": True}, True, id="checkpointing"),
    pytest.param({"warmup_ratio": 0.25}, {"warmup_steps": 0.25}, True, id="warmup"),
    pytest.param({"logging_dir": "logs"}, {"logging_dir": "logs"}, True, id="logging"),
    pytest.param(
        {"dispatch_batches": False},
        {"accelerator_config": AcceleratorConfig(dispatch_batches=False)},
        True,
        id="dispatch batches",
    ),
    pytest.param({"push_to_hub_token": "t"}, {"hub_token": "t"}, True, id="token"),
    pytest.param({"push_to_hub_model_id": "m"}, {"hub_model_id": "m"}, True, id="model"),
    pytest.param({"push_to_hub_organization": "o"}, {"hub_model_id": "o/out"}, True, id="organization"),
    pytest.param(
        {"gradient_checkpointing_kwargs": {"a": 1}}, {"activation_checkpointing_kwargs": {"a": 1}}, True, id="keywords"
    ),
    pytest.param({"fsdp_min_num_params": 5, "fsdp": True}, {"fsdp": True}, True, id="size of FSDP's layers"),
    pytest.param(
        {"fsdp_transformer_layer_cls_to_wrap": "Block", "fsdp": True}, {"fsdp": True}, True, id="class of FSDP's layers"
    ),
    pytest.param({"use_mps_device": True}, {"use_mps_device": True}, True, id="mps"),
]  # fmt: skip
"""A field's older name with a value, what it sets, and whether it warns."""


def test_every_deprecated_field_has_a_row():
    """Whatever any release has deprecated is refused, or its row below shows that it works and warns."""
    shown = {name: warned for row in OLDER_NAMES for name, warned in [(next(iter(row.values[0])), row.values[2])]}
    refused = {rule.field for rule in rules("unsupported")}
    deprecated = {row["name"] for row in FACTS["fields"] if "deprecated" in row}
    assert deprecated - refused == {name for name, warned in shown.items() if warned}
    assert {rule.field for rule in rules("alias")} <= shown.keys() | refused


@pytest.mark.parametrize(("old", "new", "warned"), OLDER_NAMES)
def test_older_names(old, new, warned, monkeypatch):
    """An older name passes its value on; it warns where upstream does, at the line that gave it."""
    monkeypatch.setattr(checks, "accelerator_type", lambda: "mps")  # stands in for a Mac
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        args = TrainingArguments("out", semantics=RELEASE_5, **old)
    assert {name: getattr(args, name) for name in new} == new
    assert [item.category for item in caught] == [FutureWarning] * warned
    assert all(item.filename == __file__ for item in caught)


@pytest.mark.parametrize("semantics", [RELEASE_4, RELEASE_5])
@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_both_names_of_checkpointing_read_the_same(name, semantics):
    """Whichever name is given, both read the same, keywords too; without either both are False."""
    given = {name: True, f"{name}_kwargs": '{"use_reentrant": "false"}'}
    args = TrainingArguments("out", semantics=semantics, **given)
    assert args.gradient_checkpointing is args.activation_checkpointing is True
    assert args.gradient_checkpointing_kwargs == args.activation_checkpointing_kwargs == {"use_reentrant": False}
    assert TrainingArguments("out").gradient_checkpointing is TrainingArguments("out").activation_checkpointing is False


@pytest.mark.parametrize(
    ("settings", "semantics", "expected"),
    [
        ({"warmup_steps": 7}, RELEASE_5, 7),
        ({"warmup_steps": 0.25}, RELEASE_5, 3),
        ({"warmup_steps": 1}, RELEASE_5, 1),
        ({"warmup_ratio": 0.25}, RELEASE_4, 3),
        ({"warmup_ratio": 0.25, "warmup_steps": 7}, RELEASE_4, 7),
        ({"warmup_ratio": 0.25}, RELEASE_5, 3),
        ({}, RELEASE_4, 0),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_warmup_steps(settings, semantics, expected):
    """Of 10 update steps a share is rounded up; what counts as a share depends on the release."""
    assert TrainingArguments("out", semantics=semantics, **settings).get_warmup_steps(10) == expected


def test_release_decides_reports_and_folders():
    """Before 5.0 no ``report_to`` meant everything and logs had a folder; since, neither."""
    older, newer = TrainingArguments("out", semantics=RELEASE_4), TrainingArguments("out", semantics=RELEASE_5)
    assert (older.report_to, newer.report_to) == (["tensorboard"], [])
    assert older.logging_dir.startswith(os.path.join("out", "runs"))
    assert newer.logging_dir is None


def test_mixed_precision(monkeypatch):
    """bfloat16 needs no GPU if the CPU is asked for; ``accelerate launch`` decides where no field does."""
    assert TrainingArguments("out").mixed_precision == "no"
    assert TrainingArguments("out", bf16=True, use_cpu=True).mixed_precision == "bf16"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert TrainingArguments("out").mixed_precision == "bf16"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    with pytest.raises(UnsupportedArgumentsError, match="ACCELERATE_MIXED_PRECISION=fp8"):
        TrainingArguments("out")


def test_accumulation_of_accelerator_config():
    """``num_steps`` stands in for ``gradient_accumulation_steps``, also in a copy."""
    config = {"gradient_accumulation_kwargs": {"num_steps": 4}}
    args = TrainingArguments("out", accelerator_config=config)
    assert args.gradient_accumulation_steps == dataclasses.replace(args).gradient_accumulation_steps == 4


def test_accelerator_config_file(tmp_path):
    """The settings are read from a JSON file; a key that is none is refused."""
    path = tmp_path / "config.json"
    path.write_text('{"even_batches": false}', encoding="utf-8")
    assert TrainingArguments("out", accelerator_config=str(path)).accelerator_config.even_batches is False
    path.write_text('{"even": false}', encoding="utf-8")
    with pytest.raises(ArgumentsError, match=r"\['even'\]"):
        TrainingArguments("out", accelerator_config=str(path))


# Processes

ONE = {"world_size": 1, "process_index": 0, "local_process_index": 0, "should_log": True, "should_save": True}
TORCHRUN = {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}
SLURM = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NNODES": "2"}
SLURM |= {"SLURM_NODELIST": "node[1-2]"}


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


def test_nothing_heavy_is_imported():
    """Making arguments loads neither torch nor lightning nor transformers."""
    script = (
        "import sys; from hf_compat.arguments import TrainingArguments; TrainingArguments('out').to_sanitized_dict;"
        "print([name for name in ('torch', 'lightning', 'transformers', 'accelerate') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_what_a_gpu_allows(monkeypatch):
    """With CUDA float16 is accepted, a process without a launcher has all GPUs, and ``use_cpu`` stays on the CPU."""
    torch = pytest.importorskip("torch")
    # Stands in for a machine with a GPU; the device is only named, never used.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    args = TrainingArguments("out", fp16=True, per_device_train_batch_size=4)
    assert (args.device, args.n_gpu, args.mixed_precision) == (torch.device("cuda", 0), 2, "fp16")
    assert (args.train_batch_size, args.parallel_mode.value) == (8, "not_distributed")
    args._n_gpu = 1  # as scripts do that want one
    assert (args.n_gpu, args.train_batch_size, args.parallel_mode.value) == (1, 4, "not_parallel")
    assert TrainingArguments("out", use_cpu=True).n_gpu == 0
    monkeypatch.setenv("LOCAL_RANK", "0")  # of a launcher, which starts a process for each GPU
    assert TrainingArguments("out").n_gpu == 1
