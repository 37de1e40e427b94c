"""The model card: transformers' metadata, sections and tables, with versions of our own."""

import re

import datasets
import pytest
import torch
import transformers
import yaml
from transformers.modelcard import TASK_MAPPING, TASK_TAG_TO_NAME_MAPPING

import hf_compat
from hf_compat.arguments.releases import resolve_semantics
from hf_compat.model_card import (
    TrainingSummary,
    evaluation_rows,
    final_results,
    metric_tags,
    rounded,
    table,
    task_of,
    task_titles,
)
from tests.support.helpers import (
    ListDataset,
    PadCollator,
    PlainModel,
    bert_classifier,
    gpt2,
    labelled_rows,
    token_rows,
    vector_rows,
)
from tests.support.hub_server import local_hub
from tests.support.parity import clean_process

__all__ = ["local_hub"]

SETTINGS = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "dataloader_pin_memory": False}
RUN = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 3, "save_strategy": "no"}


def accuracy(prediction):
    """Return two metrics, one of which the Hub has a tag for."""
    hits = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": float(hits.mean()), "odd_share": 0.123456}


def classifier_of(library, folder, **fields):
    rows = datasets.Dataset.from_list(labelled_rows(12))
    rows.info.builder_name, rows.info.config_name = "glue", "mrpc"
    torch.manual_seed(0)
    model = bert_classifier()
    model.config._name_or_path = "base/model"
    return library.Trainer(
        model,
        library.TrainingArguments(str(folder / "out"), **{**SETTINGS, **RUN, **fields}),
        data_collator=PadCollator(),
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=accuracy,
    )


def parts(text):
    """Return a card's metadata, and the lines that hold facts under each of its headings."""
    _, front, body = text.split("---\n", 2)
    sections, heading = {}, ""
    for line in body.splitlines():
        if line.startswith("#"):
            heading = line
            sections[heading] = []
        elif re.match(r"- |\| |\|:", line):
            sections[heading].append(re.sub(r"Use OptimizerNames\.(\w+)", lambda m: f"Use {m[1].lower()}", line))
    return yaml.safe_load(front), sections


def cards(tmp_path, make, **described):
    """Return the parts of transformers' card and of ours."""
    written = []
    for library in (transformers, hf_compat):
        with clean_process():
            trainer = make(library, tmp_path / library.__name__)
            trainer.create_model_card(**described)
        written.append(parts((tmp_path / library.__name__ / "out" / "README.md").read_text()))
    return written


def classifier_after_its_run(**fields):
    def make(library, folder):
        trainer = classifier_of(library, folder, **fields)
        trainer.train()
        return trainer

    return make


def same(expected, actual):
    """Compare all but the versions, to which we add."""
    versions = "### Framework versions"
    assert actual[0] == expected[0]
    ours, theirs = actual[1].pop(versions), expected[1].pop(versions)
    assert list(actual[1]) == list(expected[1])
    assert actual[1] == expected[1]
    assert ours[: len(theirs)] == theirs
    assert [line.split()[1] for line in ours[len(theirs) :]] == ["Lightning", "hf_compat"]


@pytest.mark.filterwarnings("ignore:BertForSequenceClassification takes:hf_compat.errors.HFCompatWarning")
@pytest.mark.parametrize(
    ("fields", "described"),
    [
        ({}, {}),
        (
            {
                "gradient_accumulation_steps": 2,
                "warmup_steps": 1,
                "label_smoothing_factor": 0.1,
                "optim": "sgd",
                "logging_steps": 1,
                "max_steps": -1,
                "num_train_epochs": 2,
                "lr_scheduler_type": "cosine",
            },
            {
                "language": ["en", "fr"],
                "license": "mit",
                "tags": "mine",
                "model_name": "Name",
                "finetuned_from": "other/model",
                "tasks": ["text-classification", "text2text-generation", "odd"],
                "dataset_tags": ["a/b", "c/d"],
                "dataset": ["B", "D"],
                "dataset_args": ["first"],
            },
        ),
        ({}, {"tags": ["generated_from_trainer", "x"], "dataset": "B"}),
    ],
    ids=["found out", "given", "one given"],
)
def test_card_is_upstreams(tmp_path, fields, described):
    """Metadata, sections, results, hyperparameters and tables are those of transformers' card of the same run."""
    given = {name: list(value) if isinstance(value, list) else value for name, value in described.items()}
    expected, actual = cards(tmp_path, classifier_after_its_run(**fields), **described)
    same(expected, actual)
    mine = [name for name in given if given[name] != described[name]]
    assert mine in ([], ["tags"])  # transformers appends to a list it is given


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks for the older name
def test_card_of_an_adapter(tmp_path):
    """To the card of a folder that peft wrote, peft adds what it knows, as under transformers."""
    peft = pytest.importorskip("peft")

    def make(library, folder):
        torch.manual_seed(0)
        config = peft.LoraConfig(r=2, task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)
        adapted = peft.get_peft_model(gpt2(), config)
        rows = ListDataset(token_rows(8))
        args = library.TrainingArguments(str(folder / "out"), **SETTINGS, max_steps=1, save_strategy="no")
        trainer = library.Trainer(adapted, args, train_dataset=rows, data_collator=PadCollator())
        trainer.train()
        trainer.save_model()
        return trainer

    expected, actual = cards(tmp_path, make, tags=["mine"])
    assert actual[0]["library_name"] == "peft"
    assert "lora" in actual[0]["tags"]
    assert actual[0] == expected[0]
    assert actual[1].keys() == expected[1].keys()


def test_card_of_a_plain_module(tmp_path):
    """A model without configuration gets a card that huggingface_hub reads; nothing is said that is not known."""
    from huggingface_hub import ModelCard

    rows = ListDataset(vector_rows(8))
    args = hf_compat.TrainingArguments(str(tmp_path / "line"), **SETTINGS)
    hf_compat.Trainer(PlainModel(), args, train_dataset=rows).create_model_card()
    card = ModelCard.load(tmp_path / "line" / "README.md")
    assert card.data.tags == ["generated_from_trainer"]
    assert card.data.library_name is None
    assert "# line\n\nTrained from scratch" in card.text
    assert "### Training results" not in card.text


@pytest.mark.parametrize(
    ("tags", "expected"), [(["license:mit", "en"], "mit"), ([], None), (None, None)], ids=["known", "none", "no answer"]
)
def test_license_of_the_base_model(local_hub, tags, expected):
    """The licence is the base model's, if the Hub answers; one that is given is not asked for."""
    if tags is None:
        local_hub.fails = lambda method, path: 404
    else:
        local_hub.tags["base/model"] = tags
    assert TrainingSummary("name", finetuned_from="base/model").license == expected
    assert TrainingSummary("name", finetuned_from="base/model", license="gpl").license == "gpl"
    # Others may knock: a push that failed in an earlier test is tried again where its server was.
    assert [path for _, path in local_hub.requests if "base/model" in path] == ["/api/models/base/model"]


def test_tasks_are_upstreams():
    """Every class of transformers' tables has the task that its own cards give it, and the task has that title."""
    names = {
        name
        for mapping in TASK_MAPPING.values()
        for value in mapping.values()
        for name in ((value,) if isinstance(value, str) else value)
    }

    def upstreams(name):
        found = [
            task
            for task, mapping in TASK_MAPPING.items()
            if any(name == value or (not isinstance(value, str) and name in value) for value in mapping.values())
        ]
        return found[-1]

    assert len(names) > 300
    assert {name: task_of(type(name, (), {})()) for name in names} == {name: upstreams(name) for name in names}
    assert task_titles(resolve_semantics()) == TASK_TAG_TO_NAME_MAPPING
    assert task_of(PlainModel()) is None


def test_rows_of_evaluations():
    """Each evaluation in training is one row with the training loss logged last and its metrics, times left out."""
    history = [
        {"eval_a_loss": 1.5, "eval_runtime": 9.0, "epoch": 0.5, "step": 1},
        {"loss": 2.0, "step": 2},
        {"eval_loss": 1.25, "eval_f1": 0.5, "epoch": 1.0, "step": 2},
        {"train_runtime": 1.0, "step": 2},
        {"eval_loss": 1.0, "eval_f1": 0.75, "step": 2},
    ]
    assert evaluation_rows(history) == [
        {"Training Loss": "No log", "Epoch": 0.5, "Step": 1, "A Loss": 1.5},
        {"Training Loss": 2.0, "Epoch": 1.0, "Step": 2, "Validation Loss": 1.25, "F1": 0.5},
    ]
    assert final_results(history) == {"Loss": 1.0, "F1": 0.75}
    assert (final_results([{"loss": 1.0}]), evaluation_rows([])) == (None, [])
    assert metric_tags({"F1": 1, "Rouge1": 1, "Odd": 1}) == {"f1": "F1", "rouge": "Rouge1"}


def test_table():
    """Columns are as wide as their longest cell; a row may lack one; four decimals are kept."""
    lines = ["| A      | B |", "|:------:|:-:|", "| 0.1235 |   |", "| 1      | x |"]
    assert table([{"A": 0.123456}, {"A": 1, "B": "x"}]).splitlines() == lines
    assert [rounded(value) for value in (1e-05, 0.25, 7, None)] == ["1e-05", "0.25", "7", ""]
