"""The model card, and methods that say that they are not carried out yet."""

import pytest
from helpers import ListDataset, PlainModel, vector_rows

from hf_compat import Trainer, TrainingArguments
from hf_compat.errors import NotCarriedOutError
from hf_compat.model_card import evaluation_rows


def trained(tmp_path):
    """Return a Trainer after two update steps with an evaluation each."""
    args = TrainingArguments(
        output_dir=str(tmp_path / "line"),
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
        max_steps=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=1,
    )
    rows = ListDataset(vector_rows(8))
    trainer = Trainer(PlainModel(), args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    return trainer


def test_card_tells_of_the_run(tmp_path):
    """The card has the metadata given, a row an evaluation and the hyperparameters; huggingface_hub reads it."""
    from huggingface_hub import ModelCard

    trainer = trained(tmp_path)
    trainer.create_model_card(language="en", tags="mine", finetuned_from="base/model", dataset_tags=["a/b"])
    card = ModelCard.load(tmp_path / "line" / "README.md")
    assert card.data.base_model == "base/model"
    assert card.data.datasets == ["a/b"]
    assert card.data.tags == ["generated_from_trainer", "mine"]
    assert "# line" in card.text
    assert "- learning_rate: 5e-05" in card.text
    assert card.text.count("| 1 |") + card.text.count("| 2 |") >= 2


def test_rows_of_evaluations():
    """Each evaluation is one row with the training loss logged last and its metrics, times left out."""
    history = [
        {"loss": 2.0, "step": 1},
        {"eval_loss": 1.5, "eval_runtime": 9.0, "epoch": 0.5, "step": 1},
        {"train_loss": 1.0, "step": 2},
    ]
    assert evaluation_rows(history) == [{"step": 1, "epoch": 0.5, "training loss": 2.0, "loss": 1.5}]


@pytest.mark.parametrize("name", ["push_to_hub", "hyperparameter_search"])
def test_what_is_not_there_yet_says_so(tmp_path, name):
    """A method that is not carried out names itself and what to do."""
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(NotCarriedOutError, match=f"`{name}` is not carried out yet"):
        getattr(Trainer(PlainModel(), args), name)()
