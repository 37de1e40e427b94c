"""Scenarios of both libraries on several GPUs in one process, where torch's ``DataParallel`` replicates the model."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from tests.gpu.overrides import overrides
from tests.gpu.scenarios import CADENCE, Body, resuming, training
from tests.support import helpers, scenarios
from tests.support.parity import SCENARIOS, Kit
from tests.support.scenarios.common import classifier, language_model, plain
from tests.support.scenarios.generating import translator
from tests.support.scenarios.updates import ACCUMULATION, train


def in_any_order(body: Body) -> Body:
    """Return ``body`` with the forward passes of each batch sorted: replicas run in threads, in any order."""

    def sorted_after(kit: Kit) -> None:
        body(kit)
        trace: list[dict[str, Any]] = []
        for is_forward, entries in groupby(kit.outcome.trace, lambda entry: entry["event"] == "forward"):
            # What a thread sees of the CPU's generator depends on what the others draw on the fake GPUs meanwhile.
            alike = [{**entry, "generator": None, "generators of GPUs": None} for entry in entries]
            trace += sorted(alike, key=str) if is_forward else alike
        kit.outcome.trace[:] = trace

    return sorted_after


def as_on_one_gpu(name: str) -> Body:
    """Return the scenario ``name`` of the other folders."""
    assert scenarios.__all__  # importing it has filled the table
    return SCENARIOS[name].body


def sizes(kit: Kit) -> None:
    """What the arguments say of the GPUs."""
    args = kit.args()
    names = ("n_gpu", "_n_gpu", "train_batch_size", "eval_batch_size", "world_size", "device")
    kit.keep("arguments", [str(getattr(args, name)) for name in names] + [args.parallel_mode.value])


class Watched(nn.Module):
    """Outputs of several kinds.

    Args:
        outputs: What ``forward`` returns: ``"tuple"``, ``"output"`` (a ``ModelOutput``), or ``"losses"``, one a sample.
    """

    def __init__(self, outputs: str) -> None:
        super().__init__()
        self.outputs = outputs
        self.body = helpers.PlainModel(dropout=0.0).body

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Any:
        """Return loss and logits."""
        from transformers.modeling_outputs import SequenceClassifierOutput

        logits = self.body(features)
        reduction = "none" if self.outputs == "losses" else "mean"
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels, reduction=reduction)
        if self.outputs == "output":
            return SequenceClassifierOutput(loss=loss, logits=logits)
        return (logits,) if loss is None else (loss, logits)


def outputs(kind: str) -> Body:
    """Return a scenario of a module that is not transformers'; the last batch has one sample, for one GPU."""
    return lambda kit: train(kit, plain(kit, rows=17, model=kit.model(Watched, outputs=kind), fields=CADENCE))


def without_wrapper(kit: Kit) -> None:
    """A subclass keeps the model on one GPU, in bf16."""

    class OneGPU(kit.Trainer):  # type: ignore[misc,name-defined]
        def _wrap_model(self, model: Any, *given: Any, **named: Any) -> Any:
            return model

    train(kit, plain(kit, subclass=OneGPU, fields={**CADENCE, "bf16": True}))


def chosen_number(kit: Kit) -> None:
    """A script that sets the number of GPUs trains on one."""
    args = kit.args(**CADENCE)
    args._n_gpu = 1
    kit.keep("number", args.n_gpu)
    train(kit, plain(kit, args=args))


def wrapped_by_the_script(kit: Kit) -> None:
    """A model that the script has put in ``DataParallel`` is prepared as any other."""
    fields = {"bf16": True, "remove_unused_columns": False, "label_names": ["labels"]}
    train(kit, plain(kit, model=nn.DataParallel(kit.model(helpers.PlainModel).to("cuda")), fields=fields))


def quantized(kit: Kit) -> None:
    """A model with quantized weights is not replicated, but gets the batches of all GPUs."""
    model = kit.model(helpers.PlainModel)
    model.is_loaded_in_8bit = True
    train(kit, plain(kit, model=model, fields=CADENCE))


def on_another_gpu(kit: Kit) -> None:
    """A model that the script has put on the second GPU is moved to the first."""
    train(kit, plain(kit, model=kit.model(helpers.PlainModel).to("cuda:1")))


def exhausted(kit: Kit) -> None:
    """Memory runs out with 8 rows on each GPU, and does not with 4."""

    class Wide(helpers.PlainModel):
        def forward(self, features: Any, labels: Any = None) -> dict[str, Any]:
            if features.shape[0] > 4:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().forward(features=features, labels=labels)

    fields = {"auto_find_batch_size": True, "per_device_train_batch_size": 8, "save_strategy": "epoch"}
    trainer = plain(kit, rows=32, fields=fields, model=kit.model(Wide))
    kit.train(trainer)
    kit.keep("batch size", [trainer._train_batch_size, trainer.args.train_batch_size])


def own_loss(**fields: Any) -> Body:
    """Return a scenario with ``compute_loss_func``, which gets a row of the item count for each GPU."""

    def body(kit: Kit) -> None:
        def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
            summed = nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), reduction="sum")
            return summed / num_items_in_batch

        train(kit, language_model(kit, compute_loss_func=loss, fields={**ACCUMULATION, **fields}))

    return body


def by_length(kit: Kit) -> None:
    """Batches of rows of like lengths, without a short one."""
    train(kit, language_model(kit, fields={"group_by_length": True, "dataloader_drop_last": True, **CADENCE}))


def translated(kit: Kit) -> None:
    """Text is generated by the model itself, on the first GPU."""
    fields = {"predict_with_generate": True, "eval_strategy": "epoch"}
    train(kit, translator(kit, fields=fields))


def full_evaluation(kit: Kit) -> None:
    """A model in bfloat16 is evaluated, before training and after."""
    trainer = classifier(kit, fields={"bf16_full_eval": True})
    kit.evaluate(trainer)
    train(kit, trainer)


def checkpointed(kit: Kit) -> None:
    """Without dropout: replicas that compute again in threads of the backward pass would share generators."""
    fields = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}, **CADENCE}
    train(kit, language_model(kit, fields={**ACCUMULATION, **fields}, model=kit.model(helpers.gpt2, dropout=0.0)))


REPLICA_SCENARIOS: dict[str, Body] = {
    name: in_any_order(body)
    for name, body in {
        "replicated_sizes": sizes,
        "replicated_plain": training(),
        "replicated_without_averaging_over_devices": training(average_tokens_across_devices=False),
        "replicated_label_smoothing": training(label_smoothing_factor=0.1),
        "replicated_label_smoothing_without_averaging": training(
            label_smoothing_factor=0.1, average_tokens_across_devices=False
        ),
        "replicated_own_loss": own_loss(),
        "replicated_own_loss_without_averaging": own_loss(average_tokens_across_devices=False),
        "replicated_bf16": training(bf16=True),
        "replicated_fp16": training(fp16=True),
        "replicated_compiled": training(torch_compile=True, torch_compile_backend="eager"),
        "replicated_without_clipping": training(max_grad_norm=0.0),
        "replicated_embedding_noise": training(neftune_noise_alpha=5.0),
        "replicated_gradient_checkpointing": checkpointed,
        "replicated_best_model": training(
            load_best_model_at_end=True, metric_for_best_model="loss", save_total_limit=1
        ),
        "replicated_token_counts": training(include_num_input_tokens_seen="all"),
        "replicated_workers": training(dataloader_num_workers=2, eval_accumulation_steps=1),
        "replicated_resumed": resuming(step=2),
        "replicated_resumed_in_fp16": resuming(step=2, fp16=True),
        "replicated_resumed_stream": as_on_one_gpu("resume_within_an_epoch_with_random_draws_in_the_collator"),
        "replicated_adapters": as_on_one_gpu("lora"),
        "replicated_new_models": as_on_one_gpu("model_init"),
        "replicated_by_length": by_length,
        "replicated_generated": translated,
        "replicated_full_evaluation": full_evaluation,
        "replicated_inputs_and_losses_for_metrics": as_on_one_gpu("inputs_and_losses_for_metrics"),
        "replicated_metrics_batch_by_batch": as_on_one_gpu("metrics_batch_by_batch"),
        "replicated_ragged_predictions": as_on_one_gpu("ragged_predictions_are_padded"),
        "replicated_tuple": outputs("tuple"),
        "replicated_model_output": outputs("output"),
        "replicated_a_loss_for_each_sample": outputs("losses"),
        "replicated_overrides": overrides(),
        "replicated_overrides_in_fp16": overrides(fp16=True),
        "replicated_without_wrapper": without_wrapper,
        "replicated_chosen_number": chosen_number,
        "replicated_wrapped_by_the_script": wrapped_by_the_script,
        "replicated_quantized": quantized,
        "replicated_on_another_GPU": on_another_gpu,
        "replicated_memory_runs_out": exhausted,
    }.items()
}
"""Name → what to do with a kit where two GPUs are visible."""
