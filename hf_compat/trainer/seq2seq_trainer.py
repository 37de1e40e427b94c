"""``Seq2SeqTrainer``: a Trainer that evaluates generated text."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_compat.arguments.training_arguments import TrainingArguments
from hf_compat.errors import ArgumentsError, ModelError
from hf_compat.trainer.loss import computing_loss
from hf_compat.trainer.outputs import PredictionOutput
from hf_compat.trainer.trainer import Trainer


class Seq2SeqTrainer(Trainer):
    """A ``Trainer`` that evaluates generated text with ``predict_with_generate``.

    The constructor's arguments are those of ``Trainer``, in transformers' order; ``optimizer_cls_and_kwargs`` is
    keyword-only. ``args`` are ``Seq2SeqTrainingArguments``. ``evaluate`` and ``predict`` take keywords of ``generate``;
    the defaults are ``generation_max_length`` and ``generation_num_beams``, then the model's generation configuration,
    which ``args.generation_config`` replaces.

    References:
        Same predictions and numbers as transformers' class, whose evaluation loss weights a partial last batch like a
        full one.
    """

    _gen_kwargs: dict[str, Any]

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., Tensor] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            model,
            args,
            data_collator,
            train_dataset,
            eval_dataset,
            processing_class,
            model_init,
            compute_loss_func,
            compute_metrics,
            callbacks,
            optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            **kwargs,
        )
        self._gen_kwargs = {}
        wanted = getattr(self.args, "generation_config", None)
        if wanted is not None:
            self.model.generation_config = self.load_generation_config(wanted)

    @staticmethod
    def load_generation_config(gen_config_arg: Any) -> Any:
        """Return a ``GenerationConfig``: a copy, or loaded from a file, a folder or a model's name on the Hub.

        Args:
            gen_config_arg: One, or the place to load it from.

        Raises:
            ArgumentsError: If its values contradict each other.
        """
        kind = importlib.import_module("transformers").GenerationConfig
        if isinstance(gen_config_arg, kind):
            config = copy.deepcopy(gen_config_arg)
        else:
            path = Path(gen_config_arg)
            folder, file = (path.parent, path.name) if path.is_file() else (gen_config_arg, None)
            config = kind.from_pretrained(str(folder), file)
        try:
            config.validate(strict=True)
        except ValueError as error:
            raise ArgumentsError(
                [f"`generation_config={gen_config_arg!r}`: {error}\nFix these issues to train your model."]
            ) from error
        return config

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Evaluate, log and return the metrics; see ``Trainer.evaluate``.

        Args:
            eval_dataset: The dataset, or a dict of several.
            ignore_keys: Model outputs excluded from the predictions.
            metric_key_prefix: Prefix of metric names.
            **gen_kwargs: Keywords of ``generate``, such as ``max_length`` and ``num_beams``.
        """
        self._set_gen_kwargs(gen_kwargs)
        return super().evaluate(eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """Return the predictions on ``test_dataset``; see ``Trainer.predict``.

        Args:
            test_dataset: The dataset.
            ignore_keys: Model outputs excluded from the predictions.
            metric_key_prefix: Prefix of metric names.
            **gen_kwargs: Keywords of ``generate``.
        """
        self._set_gen_kwargs(gen_kwargs)
        return super().predict(test_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def _set_gen_kwargs(self, gen_kwargs: dict[str, Any]) -> None:
        chosen = dict(gen_kwargs)
        longest = getattr(self.args, "generation_max_length", None)
        beams = getattr(self.args, "generation_num_beams", None)
        if longest is not None and chosen.get("max_length") is None and chosen.get("max_new_tokens") is None:
            chosen["max_length"] = longest
        if beams is not None and chosen.get("num_beams") is None:
            chosen["num_beams"] = beams
        self.gather_function = self.accelerator.gather
        self._gen_kwargs = chosen

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Tensor | None, Any, Any]:
        """Return the loss, ``()``, the generated tokens and the labels of one batch, both ``(batch, length)``.

        Args:
            model: The model.
            inputs: One batch.
            prediction_loss_only: Return only the loss.
            ignore_keys: Outputs excluded if no text is generated.
            **gen_kwargs: Keywords of ``generate``. Default: those of the current evaluation.
        """
        if not getattr(self.args, "predict_with_generate", False) or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
        inputs = self._prepare_inputs(inputs)
        tokens = self._generate(inputs, gen_kwargs or self._gen_kwargs)
        config = self._generation_config()
        tokens = self._pad_to_generation_length(tokens, config)
        labels = inputs.get("labels")
        loss = None if labels is None else self._generation_loss(model, inputs)
        if self.args.prediction_loss_only:
            return loss, None, None
        return loss, tokens, None if labels is None else self._pad_to_generation_length(labels, config)

    def _generate(self, inputs: dict[str, Any], gen_kwargs: dict[str, Any]) -> Tensor:
        chosen = {
            name: value
            for name, value in gen_kwargs.items()
            if value is not None or name not in ("max_length", "num_beams")
        }
        given = dict(inputs)
        labels, decoder = given.get("labels"), given.get("decoder_input_ids")
        if labels is not None and decoder is not None and labels.shape == decoder.shape:
            # Decoder inputs that were made from the labels: the model would continue the answer.
            given = {key: given[key] for key in given if key not in ("decoder_input_ids", "decoder_attention_mask")}
        with self.lightning_backend.strategy.gathered(self.model):
            tokens: Tensor = self.model.generate(
                **given, **{"synced_gpus": self.lightning_backend.traits.shards_model} | chosen
            )
        return tokens

    def _generation_config(self) -> Any:
        """Return the model's generation configuration with its defaults."""
        config = self.model.generation_config
        if config._from_model_config:
            config._from_model_config = False  # else each ``generate`` would create it again
        if hasattr(config, "_get_default_generation_params"):
            config.update(**config._get_default_generation_params(), defaults_only=True)
        return config

    def _pad_to_generation_length(self, tensor: Tensor, config: Any) -> Tensor:
        if tensor.shape[-1] < config.max_length:
            return self._pad_tensors_to_max_len(tensor, config.max_length)
        if config.max_new_tokens is not None and tensor.shape[-1] < config.max_new_tokens + 1:
            return self._pad_tensors_to_max_len(tensor, config.max_new_tokens + 1)
        return tensor

    def _generation_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        with torch.no_grad():
            with computing_loss(self):
                outputs = model(**inputs)
            if self.label_smoother is not None:
                loss = self.label_smoother(outputs, inputs["labels"])
            else:
                loss = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
        mean: Tensor = loss.detach().mean()
        return mean

    def _pad_tensors_to_max_len(self, tensor: Tensor, max_length: int) -> Tensor:
        """Return ``tensor``, ``(batch, length)``, padded on the right to ``max_length``.

        Raises:
            ModelError: If neither the processing class nor the model has a padding token.
        """
        source = self.processing_class
        pad = getattr(source, "pad_token_id", None)
        if pad is None:
            pad = getattr(source, "eos_token_id", None)
        if pad is None:
            pad = getattr(self.model.config, "pad_token_id", None)
        if pad is None:
            raise ModelError(
                "`model.config.pad_token_id=None`: generated text cannot be padded. Pad_token_id must be set there, or "
                "in the `processing_class`."
            )
        padded = tensor.new_full((tensor.shape[0], max_length), pad)
        padded[:, : tensor.shape[-1]] = tensor
        return padded
