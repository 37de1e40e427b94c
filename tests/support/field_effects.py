"""What test_field_effects looks at: a tiny Trainer, and functions that say what one field changed in it."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hf_compat import ExportableState, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback
from hf_compat.errors import ArgumentsError
from tests.support.helpers import (
    ListDataset,
    PadCollator,
    PlainModel,
    gpt2,
    t5,
    token_rows,
    translation_rows,
    vector_rows,
)

ROWS = vector_rows(8)
QUIET = {
    "output_dir": "output",
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
    "save_strategy": "no",
    "dataloader_pin_memory": False,
    "per_device_train_batch_size": 4,
    "max_steps": 4,
    "logging_steps": 1,
}
"""Two batches an epoch, two epochs."""
NUMBERS = {round(torch.tensor(row["features"][0]).item(), 5): index for index, row in enumerate(ROWS)}


class Bench:
    """Trainers made of the same fields, and what their models were given.

    Attributes:
        folder: The working directory.
        batches: Of each forward pass, whether it trained and the numbers of its rows.
    """

    def __init__(self, folder: Path, fields: dict[str, Any], monkeypatch: Any) -> None:
        self.folder, self.fields, self.monkeypatch = folder, fields, monkeypatch
        self.batches: list[tuple[bool, list[int]]] = []

    def args(self) -> Any:
        return Seq2SeqTrainingArguments(**self.fields)

    def trainer(self, model: Any = None, kind: Any = Trainer, **given: Any) -> Any:
        """Return a Trainer of a plain model; its eval set has one row less than its train set."""
        torch.manual_seed(0)
        if model is None:
            model = PlainModel(dropout=0.0)
            model.register_forward_pre_hook(self._record, with_kwargs=True)
        chosen = {"train_dataset": ListDataset(ROWS), "eval_dataset": ListDataset(ROWS[:7])}
        return kind(model, **{"args": self.args(), **chosen, **given})

    def trained(self, *model: Any, **given: Any) -> Any:
        """Return such a Trainer after its run."""
        trainer = self.trainer(*model, **given)
        trainer.train()
        return trainer

    def _record(self, model: Any, given: Any, named: dict[str, Any]) -> None:
        features = named["features"][:, 0].float().tolist()
        self.batches.append((model.training, [NUMBERS.get(round(value, 5), -1) for value in features]))


# A run


def train_sizes(bench: Bench) -> list[int]:
    bench.trained()
    return [len(rows) for trains, rows in bench.batches if trains]


def batches_per_update(bench: Bench) -> float:
    return len(train_sizes(bench)) / bench.fields["max_steps"]


def order(bench: Bench) -> list[int]:
    """Rows of the first epoch, in the order of training."""
    bench.trained()
    return [row for _, rows in bench.batches for row in rows][: len(ROWS)]


def update_steps(bench: Bench) -> int:
    return bench.trained().state.global_step


def logged(key: str) -> Any:
    """Return an observer of the update steps whose logs hold ``key``."""

    def see(bench: Bench) -> list[int]:
        return [log["step"] for log in bench.trained().state.log_history if key in log]

    return see


def rates(bench: Bench) -> list[float]:
    return [round(log["learning_rate"], 4) for log in bench.trained().state.log_history if "learning_rate" in log]


def clipped_norm(bench: Bench) -> bool:
    """Whether the gradients that the optimizer sees are short."""
    norms = []

    class Measure(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            norms.append(math.sqrt(sum(item.grad.square().sum().item() for item in model.parameters())))

    bench.trained(callbacks=[Measure()])
    return max(norms) < 0.0011


def smoothing(bench: Bench) -> float:
    """The smoothing that gives the first loss logged: 0 or a half."""
    model = PlainModel(dropout=0.0)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = bench.trained(model)
    model.load_state_dict(start)
    rows = next(iter(trainer.get_train_dataloader()))
    labels, logits = rows.pop("labels"), model(**rows)["logits"].log_softmax(-1)
    hard, soft = -logits.gather(1, labels[:, None]).mean(), -logits.mean()
    (found,) = {
        part
        for part in (0.0, 0.5)
        if abs((1 - part) * hard + part * soft - trainer.state.log_history[0]["loss"]) < 1e-4
    }
    return found


def computed_dtype(bench: Bench) -> torch.dtype:
    """The type in which a layer computes while training."""
    model, seen = PlainModel(), []
    model.body[0].register_forward_hook(lambda layer, given, output: seen.append(output.dtype))
    bench.trained(model)
    return seen[0]


def evaluated_dtype(bench: Bench) -> torch.dtype:
    trainer = bench.trainer(gpt2(), data_collator=PadCollator())
    trainer.evaluate(ListDataset(token_rows(4)))
    return next(trainer.model.parameters()).dtype


def logs_nan(bench: Bench) -> bool:
    class Breaks(Trainer):
        def compute_loss(self, *given, **named):
            return super().compute_loss(*given, **named) * (float("nan") if self.state.global_step == 1 else 1.0)

    return any(math.isnan(log.get("loss", 0.0)) for log in bench.trained(kind=Breaks).state.log_history)


# Language models


def _language(bench: Bench, **given: Any) -> Any:
    rows = ListDataset(token_rows(8, shortest=5, longest=5))
    model = given.pop("model", None) or gpt2(dropout=0.0)
    return bench.trained(model, train_dataset=rows, eval_dataset=rows, data_collator=PadCollator(), **given)


def block_passes(bench: Bench) -> float:
    """How often a block of the model is computed in one update step."""
    model, calls = gpt2(dropout=0.0), []
    model.transformer.h[0].mlp.register_forward_pre_hook(lambda *given: calls.append(1))
    _language(bench, model=model)
    return len(calls) / bench.fields["max_steps"]


def is_noisy(bench: Bench) -> bool:
    """Whether the model goes on with something else than what its tables of embeddings hold."""
    model, sums = gpt2(dropout=0.0), []
    parts = model.transformer

    def look(layer, given):
        expected = parts.wte.weight[tokens[-1]] + parts.wpe.weight[: tokens[-1].shape[1]]
        sums.append(torch.equal(given[0], expected))

    tokens: list[torch.Tensor] = []
    parts.wte.register_forward_pre_hook(lambda layer, given: tokens.append(given[0]))
    parts.drop.register_forward_pre_hook(look)
    _language(bench, model=model)
    return not all(sums)


def tokens_seen(bench: Bench) -> int:
    return _language(bench).state.num_input_tokens_seen


def cache_setting(bench: Bench) -> bool:
    return bench.trainer(gpt2()).model.config.use_cache


def compilations(bench: Bench) -> list[tuple[str, str | None]]:
    """Backend and mode of what is compiled; the compiler itself is spared."""
    asked, compile_model = [], torch.compile

    def spy(target=None, **named):
        if not isinstance(target, torch.nn.Module) or "mode" not in named:  # torch's own
            return compile_model(target, **named)
        asked.append((named["backend"], named["mode"]))
        return compile_model(target, backend="eager")

    bench.monkeypatch.setattr(torch, "compile", spy)
    bench.trained()
    return asked


# Loaders, optimizers, surroundings


def loader(name: str) -> Any:
    """Return an observer of a setting of the train loader."""

    def see(bench: Bench) -> Any:
        value = getattr(bench.trainer().get_train_dataloader(), name)
        return value.get_start_method() if hasattr(value, "get_start_method") else value

    return see


def optimizer(name: str) -> Any:
    """Return an observer of a setting of the optimizer's groups."""

    def see(bench: Bench) -> list[Any]:
        return [group[name] for group in bench.trainer().create_optimizer().param_groups]

    return see


def optimizer_class(bench: Bench) -> str:
    return type(bench.trainer().create_optimizer()).__name__


def columns(bench: Bench) -> list[str]:
    rows = ListDataset([{**row, "extra": 1} for row in ROWS])
    return sorted(next(iter(bench.trainer(train_dataset=rows).get_train_dataloader())))


def lengths(bench: Bench) -> list[int]:
    from datasets import Dataset

    columns = {"features": [row["features"] for row in ROWS], "length": [1] * 8, "size": [2] * 8}
    return bench.trainer(train_dataset=Dataset.from_dict(columns))._get_train_sampler().lengths


def callbacks(bench: Bench) -> str:
    return type(bench.trainer().callback_handler.callbacks[-1]).__name__


def log_folders(bench: Bench) -> list[str]:
    bench.trained()
    found = bench.folder.rglob("events.out.tfevents.*")
    return sorted({path.relative_to(bench.folder).parts[0] for path in found})


def our_log_level(bench: Bench) -> int:
    loggers = [logging.getLogger(name) for name in ("hf_compat", "transformers")]
    before = [item.level for item in loggers]
    try:
        loggers[0].setLevel(logging.NOTSET)
        bench.trainer()
        return loggers[0].getEffectiveLevel()
    finally:
        for item, level in zip(loggers, before, strict=True):
            item.setLevel(level)


def _launched(bench: Bench, rank: int, local_rank: int) -> Any:
    told = {"WORLD_SIZE": 4, "RANK": rank, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "10.0.0.1"}
    for name, value in told.items():
        bench.monkeypatch.setenv(name, str(value))
    return bench.args()


def level_on_another_node(bench: Bench) -> int:
    return _launched(bench, 2, 0).get_process_log_level()


def level_of_a_replica(bench: Bench) -> int:
    return _launched(bench, 1, 1).get_process_log_level()


def saves_on_another_node(bench: Bench) -> bool:
    return _launched(bench, 2, 0).should_save


def is_deterministic(bench: Bench) -> bool:
    from hf_compat import seeding

    for name in seeding._DETERMINISM_VARIABLES:
        bench.monkeypatch.setenv(name, "0")
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    try:
        bench.trainer()
        return torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn


def seeded(bench: Bench) -> int:
    bench.trainer()
    return torch.initial_seed()


def is_refused(bench: Bench) -> bool:
    try:
        bench.args()
    except ArgumentsError:
        return True
    return False


# Evaluations


def eval_sizes(bench: Bench) -> list[int]:
    bench.trainer().evaluate()
    return [len(rows) for trains, rows in bench.batches if not trains]


def keeps_predictions(bench: Bench) -> bool:
    return bench.trainer().predict(ListDataset(ROWS)).predictions is not None


def label_shape(bench: Bench) -> tuple[int, ...]:
    return bench.trainer().predict(ListDataset(ROWS)).label_ids.shape


def metric_calls(bench: Bench) -> list[tuple[str, bool]]:
    """Of each call of ``compute_metrics``, the kind of the predictions and whether losses are there."""
    calls = []

    def compute(prediction, compute_result=True):
        calls.append((type(prediction.predictions).__name__, prediction.losses is not None))
        return {"calls": len(calls)}

    bench.trainer(compute_metrics=compute).evaluate()
    return calls


def gathers_objects(bench: Bench) -> bool:
    trainer = bench.trainer()
    return trainer.gather_function.keywords["use_gather_object"]


def moves_to_the_cpu(bench: Bench) -> int:
    """How often the predictions kept are moved while an evaluation runs."""
    from hf_compat.trainer.outputs import EvalAccumulator

    moves, move = [], EvalAccumulator._move

    def spy(self):
        moves.append(self)
        return move(self)

    bench.monkeypatch.setattr(EvalAccumulator, "_move", spy)
    bench.trainer(compute_metrics=lambda prediction: {}).evaluate()
    return len(moves) // len({id(item) for item in moves})


# Checkpoints


def checkpoints(bench: Bench) -> list[str]:
    """Update steps of the checkpoints left, behind the folder they are in."""
    bench.trained()
    found = sorted(bench.folder.rglob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return [f"{path.parent.name}/{path.name.split('-')[1]}" for path in found]


def checkpoint_files(bench: Bench) -> set[str]:
    bench.trained()
    return {path.name for path in next(bench.folder.rglob("checkpoint-4")).iterdir()}


def _scored(bench: Bench) -> Any:
    """Return a trained Trainer whose metric falls with each evaluation, and another that rises."""
    calls: list[int] = []

    def compute(prediction):
        calls.append(1)
        return {"falling": -len(calls), "rising": len(calls)}

    return bench.trained(compute_metrics=compute)


def best(bench: Bench) -> str:
    return Path(_scored(bench).state.best_model_checkpoint).name


def ends_with_the_first_checkpoint(bench: Bench) -> bool:
    model = _scored(bench).model.state_dict()
    weights = load_file(bench.folder / "output" / "checkpoint-1" / "model.safetensors")
    return all(torch.equal(model[name], value) for name, value in weights.items())


def first_rows_after_a_resume(bench: Bench) -> list[int]:
    """Rows of the first batch of a run that goes on after the first of two batches."""
    bench.trained()
    bench.batches.clear()
    bench.trainer().train(resume_from_checkpoint="output/checkpoint-1")
    return bench.batches[0][1]


class Counts(TrainerCallback, ExportableState):
    """A callback with a state: how many update steps it saw."""

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1

    def state(self):
        return {"args": {"steps": self.steps}, "attributes": {}}


def counted_over_a_resume(bench: Bench) -> int:
    bench.trained(callbacks=[Counts()])
    trainer = bench.trainer(callbacks=[Counts()])
    trainer.train(resume_from_checkpoint="output/checkpoint-1")
    return trainer.pop_callback(Counts).steps


# Generation


def _translator(bench: Bench) -> Any:
    rows = ListDataset(translation_rows(2))
    return bench.trainer(t5(), Seq2SeqTrainer, data_collator=PadCollator()), rows


def predicted_axes(bench: Bench) -> int:
    trainer, rows = _translator(bench)
    predictions = trainer.predict(rows).predictions
    return (predictions[0] if isinstance(predictions, tuple) else predictions).ndim


def _generations(bench: Bench) -> list[tuple[Any, int]]:
    """The beams asked for, and the tokens of what was generated, of each call of ``generate``."""
    trainer, rows = _translator(bench)
    trainer.model.generation_config.eos_token_id = None
    generate, calls = trainer.model.generate, []

    def spy(*given, **named):
        tokens = generate(*given, **named)
        calls.append((named.get("num_beams"), tokens.shape[1]))
        return tokens

    bench.monkeypatch.setattr(trainer.model, "generate", spy)
    trainer.predict(rows)
    return calls


def generated_length(bench: Bench) -> int:
    return _generations(bench)[0][1]


def beams(bench: Bench) -> int | None:
    return _generations(bench)[0][0]
