"""Evaluations that generate text."""

from __future__ import annotations

from typing import Any

from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.updates import train

GENERATES = {"predict_with_generate": True, "per_device_eval_batch_size": 2, "max_steps": 3}


def length(prediction: Any) -> dict[str, float]:
    """Return the mean of all tokens generated, and the share of labels that are scored."""
    predictions = prediction.predictions
    tokens = predictions[0] if isinstance(predictions, tuple) else predictions
    return {"mean": float(tokens.mean()), "scored": float((prediction.label_ids != -100).mean())}


def translator(kit: Kit, *, rows: int = 8, fields: Any = None, **given: Any) -> Any:
    """Return a Seq2SeqTrainer of a T5 on ragged rows; the last evaluation batch is not full."""
    data = helpers.translation_rows(rows)
    chosen = {
        "args": kit.args(seq2seq=True, **{**GENERATES, **(fields or {})}),
        "train_dataset": helpers.ListDataset(data),
        "eval_dataset": helpers.ListDataset(data[:5]),
        "data_collator": helpers.PadCollator(),
        "compute_metrics": length,
        "model": kit.model(helpers.t5),
    }
    return kit.trainer(kit.Seq2SeqTrainer, **{**chosen, **given})


@scenario()
def generation_in_evaluations(kit: Kit) -> None:
    """Generated tokens are padded and gathered without trimming; keywords go to ``generate``."""
    trainer = translator(kit, fields={"generation_max_length": 9, "eval_strategy": "steps", "eval_steps": 2})
    train(kit, trainer)
    kit.evaluate(trainer, max_length=7, num_beams=2)
    kit.predict(trainer, helpers.ListDataset(helpers.translation_rows(3, seed=5)), max_new_tokens=4)


@scenario()
def generation_config_of_the_arguments(kit: Kit) -> None:
    """A generation configuration in the arguments takes the place of the model's."""
    from transformers import GenerationConfig

    config = GenerationConfig(
        max_new_tokens=5, num_beams=2, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, bos_token_id=None
    )
    trainer = translator(kit, fields={"generation_config": config, "save_strategy": "steps", "save_steps": 3})
    train(kit, trainer)
    kit.evaluate(trainer)


@scenario()
def generation_config_is_saved_as_it_was(kit: Kit) -> None:
    """Generating leaves no trace in the file."""
    from transformers import GenerationConfig

    model = kit.model(helpers.t5)
    model.generation_config = GenerationConfig(
        max_new_tokens=4, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1
    )
    trainer = translator(kit, model=model)
    kit.evaluate(trainer)
    trainer.save_model()


@scenario()
def losses_without_generation(kit: Kit) -> None:
    """Without ``predict_with_generate`` the class evaluates as the plain Trainer, but weighs the last batch whole."""
    trainer = translator(kit, fields={"predict_with_generate": False})
    train(kit, trainer)
    kit.evaluate(trainer)
