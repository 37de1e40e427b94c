"""Checks of the arguments: every problem in one error."""

from datetime import timedelta

import numpy
import pytest

from hf_compat.arguments import TrainingArguments, checks
from hf_compat.arguments.checks import reports_by_default
from hf_compat.errors import ArgumentsError, UnknownArgumentError, UnsupportedArgumentsError
from tests.support.helpers import RELEASE_4, RELEASE_5

BEST = {"load_best_model_at_end": True, "eval_strategy": "steps"}

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
    "optimizer misspelt": (
        {"optim": "adamww"},
        "`optim='adamww'`: did you mean 'adamw_torch'\\? 'adamww' is not a valid OptimizerNames; choose one of",
    ),
    "optimizer in capitals": ({"optim": "AdaFactor"}, ": did you mean 'adafactor'\\? 'AdaFactor' is not a valid"),
    "schedule": ({"lr_scheduler_type": "cosin"}, ": did you mean 'cosine'\\? 'cosin' is not a valid SchedulerType;"),
    "optimizer of no name": ({"optim": ""}, "`optim=''`: '' is not a valid OptimizerNames; choose one of"),
    "schedule like no other": ({"lr_scheduler_type": "zigzag"}, ": 'zigzag' is not a valid SchedulerType; choose"),
    "log level misspelt": (
        {"log_level": "warn"},
        "`log_level='warn'`: did you mean 'warning'\\? Choose one of",
    ),
    "two strategies": (
        {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "steps"},
        r"match, .*\. `eval_strategy` is 'epoch' and `save_strategy` is 'steps': set both to the same\.$",
    ),
    "two intervals": (
        {**BEST, "save_steps": 500, "eval_steps": 200},
        "`save_steps=500`: .*round multiple .*, `eval_steps=200`; use a multiple, such as 400 or 600\\.$",
    ),
    "a shorter interval": ({**BEST, "save_steps": 100, "eval_steps": 200}, "; use a multiple, such as 200\\.$"),
    "two shares": ({**BEST, "save_steps": 0.5, "eval_steps": 0.2}, "; use a multiple, such as 0.4 or 0.6\\.$"),
    "share of the rest": ({**BEST, "save_steps": 0.3, "eval_steps": 0.6}, "; use a multiple, such as 0.6\\.$"),
    "steps and share": ({**BEST, "save_steps": 5, "eval_steps": 0.3}, "; use update steps or fractions for both"),
    "json": ({"lr_scheduler_kwargs": "{x}"}, "`lr_scheduler_kwargs='{x}'`: is not valid JSON"),
    "accelerator key": ({"accelerator_config": {"split": True}}, "`accelerator_config=.*split_batches"),
    "accelerator file": ({"accelerator_config": "none.json"}, "`accelerator_config='none.json'`"),
    "tokens": ({"include_num_input_tokens_seen": "some"}, "`include_num_input_tokens_seen='some'`"),
    "release": ({"semantics": "newest"}, "`semantics='newest'`"),
    "release before 4.57": ({"semantics": "4.46"}, "`semantics='4.46'`: .*use '4.57'"),
    "half an update step": ({"max_steps": 3.5}, "`max_steps=3.5`.*must be an integer"),
    "half a checkpoint": ({"save_total_limit": 1.5}, "`save_total_limit=1.5`.*must be an integer"),
    "checkpoints as text": ({"save_total_limit": "2"}, "`save_total_limit='2'`: must be a number; write it without"),
    "no timeout": ({"ddp_timeout": None}, r"`ddp_timeout=None`: must be a number\.$"),
    "endless timeout": ({"ddp_timeout": float("inf")}, "`ddp_timeout=inf`: must be a number of seconds"),
    "backend": ({"ddp_backend": 0}, "`ddp_backend=0`: must be a string"),
    "seed of a float": ({"seed": 1.5}, "`seed=1.5`.*must be an integer"),
    "seed as text": ({"data_seed": "x"}, "`data_seed='x'`: must be a number"),
    "labels as text": ({"label_names": "labels"}, "`label_names='labels'`: must be a list of names"),
    "no metrics": ({"include_for_metrics": 1}, "`include_for_metrics=1`: must be a list of names"),
    "no metric": (
        {"metric_for_best_model": "", "eval_strategy": "epoch"},
        "`metric_for_best_model=''`: must be the name of a metric",
    ),
    "metric of a number": ({"metric_for_best_model": 1}, "`metric_for_best_model=1`: must be a string"),
    "delay as text": ({"eval_delay": ""}, "`eval_delay=''`: must be a number"),
    "interval as text": ({"eval_strategy": "steps", "eval_steps": ""}, "`eval_steps=''`: must be a number"),
    "endless interval": ({"logging_steps": float("inf")}, "`logging_steps=inf`: --logging_steps must be an integer"),
    "no interval": ({"save_steps": float("nan")}, "`save_steps=nan`: --save_steps must be an integer"),
    "endless epochs": ({"num_train_epochs": float("inf")}, "`num_train_epochs=inf`: must be finite; .*`max_steps`"),
    "endless warmup": ({"warmup_steps": float("inf"), "semantics": RELEASE_5}, "`warmup_steps=inf`: must be finite"),
    "schedule settings": ({"lr_scheduler_kwargs": []}, r"`lr_scheduler_kwargs=\[\]`: must be a dict"),
    "optimizer settings": ({"optim_args": {"a": 1}}, "`optim_args=.*must be a string, 'name=value,name=value'"),
    "compiler": ({"torch_compile_backend": ""}, "`torch_compile_backend=''`: must be the name of a backend"),
    "folder": ({"logging_dir": 3}, "`logging_dir=3`: must be the path of a folder"),
    "size of FSDP's layers": ({"fsdp_min_num_params": "x"}, "`fsdp_min_num_params='x'`: must be a number"),
    "start method": (
        {"dataloader_multiprocessing_context": "threads", "dataloader_num_workers": 1},
        "`dataloader_multiprocessing_context='threads'`: choose one of",
    ),
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


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"max_grad_norm": None}, {"max_grad_norm": None}),
        ({"eval_delay": None, "eval_strategy": "epoch"}, {"eval_delay": 0}),
        ({"report_to": None, "semantics": RELEASE_5}, {"report_to": []}),
        ({"metric_for_best_model": ""}, {"metric_for_best_model": "", "greater_is_better": True}),
        ({"num_train_epochs": float("inf"), "max_steps": 5}, {"max_steps": 5}),
        ({"include_for_metrics": "loss"}, {"include_for_metrics": "loss"}),
        ({"label_names": ("a", "b")}, {"label_names": ("a", "b")}),
        ({"save_steps": numpy.int64(7), "save_total_limit": numpy.int64(2)}, {"save_steps": 7, "save_total_limit": 2}),
        ({"logging_steps": numpy.float32(4)}, {"logging_steps": 4}),
    ],
    ids=lambda value: next(iter(value)),
)
def test_odd_values_that_mean_something(given, fields):
    """Values of an unusual kind that say what they mean are accepted; intervals become plain integers for JSON."""
    args = TrainingArguments("out", **given)
    assert {name: getattr(args, name) for name in fields} == fields
    assert type(args.save_steps) is type(args.logging_steps) is int


def test_a_timeout_of_any_number():
    """A number of numpy is a timeout in seconds too."""
    assert TrainingArguments("out", ddp_timeout=numpy.int64(2)).ddp_timeout_delta == timedelta(seconds=2)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("name", ["save_steps", "eval_steps"])
def test_an_interval_without_multiples(name, wrong):
    """What is wrong with a number that is none is told beside what ``load_best_model_at_end`` needs."""
    with pytest.raises(ArgumentsError, match=f"`{name}={wrong}`: --{name} must be an integer") as caught:
        TrainingArguments("out", **{**BEST, "save_steps": 4, "eval_steps": 2, name: wrong})
    assert caught.value.problems[-1].endswith("; use a multiple.")


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
    "tpu_num_cores": (8, "_refused"),
    "learning_rate": ("fast", "_no_numbers"),
    "optim_args": (3, "_declared"),
    "adam_beta1": (2, "_declared"),
    "dataloader_num_workers": (-1, "_declared"),
    "log_level": ("loud", "_declared"),
    "seed": (-1, "_declared"),
    "eval_accumulation_steps": (0, "_special"),
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


def test_unknown_trackers_are_refused():
    """A name that transformers does not know either is answered with those that there are, and with the way out."""
    with pytest.raises(UnsupportedArgumentsError, match=r"`report_to='sacred'`.*tensorboard.*lightning=\{'logger'"):
        TrainingArguments("out", report_to="sacred")


@pytest.mark.parametrize("given", ["wandbb", ["tensorboard", "WandB"]], ids=str)
def test_a_misspelt_tracker(given):
    """It is answered with the nearest one, then with all of them."""
    wrong = given if isinstance(given, str) else given[1]
    with pytest.raises(
        UnsupportedArgumentsError,
        match=f"`report_to='{wrong}'`: did you mean 'wandb'\\? '{wrong}' is not supported, only azure_ml, ",
    ):
        TrainingArguments("out", report_to=given)


@pytest.mark.parametrize("semantics", [RELEASE_4, RELEASE_5])
def test_trackers_of_a_run_that_names_none(semantics):
    """They are all that are installed, or none, by release; naming the same ones is no difference."""
    args = TrainingArguments("out", use_cpu=True, semantics=semantics)
    assert reports_by_default(args)
    assert reports_by_default(TrainingArguments("out", use_cpu=True, semantics=semantics, report_to=args.report_to))
    named = TrainingArguments("out", use_cpu=True, semantics=semantics, report_to=["codecarbon"])
    assert not reports_by_default(named)
