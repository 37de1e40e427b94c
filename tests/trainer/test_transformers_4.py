"""Evaluations that transformers 4 had, under every release: the older loop, traced models."""

from __future__ import annotations

from functools import partial

import pytest

from hf_compat import Trainer
from hf_compat.errors import DataError
from tests.support import helpers, trainers

trainer_of = partial(
    trainers.new_trainer,
    save_strategy="no",
    per_device_train_batch_size=2,
    per_device_eval_batch_size=4,
    num_train_epochs=2,
)


def test_the_older_loop_needs_a_length(tmp_path):
    """Data without length is refused before the first batch."""
    trainer = trainer_of(tmp_path, model=helpers.PlainModel(), use_legacy_prediction_loop=True)
    with pytest.raises(DataError, match=r"`use_legacy_prediction_loop=True`.*working __len__"):
        trainer.evaluate(helpers.Stream(helpers.vector_rows(4)))
    assert trainer.evaluate()["eval_loss"] > 0


def test_overrides_are_called(tmp_path):
    """A subclass's own loop and trace are what `evaluate` and `predict` run, with transformers' arguments."""
    called = []

    class Mine(Trainer):
        def prediction_loop(self, dataloader, description, **named):
            called.append((description, *sorted(named)))
            return super().prediction_loop(dataloader, description, **named)

        def torch_jit_model_eval(self, model, dataloader, training=False):
            called.append((model is self.model, len(dataloader), training))
            return model

    fields = {"use_legacy_prediction_loop": True, "jit_mode_eval": True}
    trainer = trainer_of(tmp_path, model=helpers.PlainModel(), kind=Mine, **fields)
    assert trainer.evaluate()["eval_loss"] > 0
    assert len(trainer.predict(trainer.eval_dataset).predictions) == 8
    common = ("ignore_keys", "metric_key_prefix")
    trace = (True, 2, False)
    evaluation = ("Evaluation", *common, "prediction_loss_only")
    assert called == [evaluation, trace, ("Prediction", *common), trace]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:FutureWarning")  # of torch, since 2.14
def test_traced_models_give_the_same_loss(tmp_path, caplog):
    """A traced model evaluates to the same loss and reports how long it took; one that cannot be traced runs."""
    plain = trainer_of(tmp_path, model=helpers.PlainModel(), jit_mode_eval=True)
    metrics = plain.evaluate()
    assert "eval_jit_compilation_time" in metrics
    assert "eval_model_preparation_time" not in metrics
    plain.args.jit_mode_eval = False
    assert metrics["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-6)
    assert caplog.messages == []

    class Untraceable(helpers.PlainModel):
        def forward(self, features, labels=None):
            return {**super().forward(features, labels), "note": "text"}

    assert trainer_of(tmp_path, model=Untraceable(), jit_mode_eval=True).evaluate()["eval_loss"] > 0
    (message,) = caplog.messages
    assert message.startswith("`jit_mode_eval=True`: failed to use PyTorch jit mode")
