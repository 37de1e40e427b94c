"""What a program does with Python's warnings stays as it is."""

import warnings

import pytest
import transformers

import hf_compat
from tests.support.helpers import ListDataset, PlainModel, vector_rows


class Warns(PlainModel):
    def forward(self, features, labels=None):
        warnings.warn("of the model", FutureWarning, stacklevel=1)
        return super().forward(features, labels)


@pytest.mark.parametrize("package", [transformers, hf_compat], ids=["transformers", "hf_compat"])
def test_filters_stay_and_a_warning_is_shown_once(package, tmp_path):
    """Evaluations leave filters that were set during one, and show no warning a second time."""

    def metrics(prediction):
        warnings.filterwarnings("ignore", message="of a library")
        return {}

    args = package.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True)
    trainer = package.Trainer(Warns(), args, eval_dataset=ListDataset(vector_rows(4)), compute_metrics=metrics)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        trainer.evaluate()
        trainer.compute_metrics = None
        shown.clear()  # Python forgets what it has shown when there is another filter
        warnings.warn("of a library", FutureWarning, stacklevel=1)
        for _ in range(3):
            trainer.evaluate()
    assert [str(one.message) for one in shown if one.category is FutureWarning] == ["of the model"]
