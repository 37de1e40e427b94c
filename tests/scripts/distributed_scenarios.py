"""What two processes do under either library: scenarios of one process, and those that need several."""

from __future__ import annotations

import contextlib
import io
import itertools
import operator
import os
import resource
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader

from hf_compat.checkpoint import publish
from hf_compat.checkpoint.background import BackgroundTasks
from hf_compat.distributed import oom_consensus
from hf_compat.errors import CheckpointWriteError
from tests.scripts.sharded_common import UnwatchedWriter, held
from tests.support import helpers, scenarios
from tests.support.parity import SCENARIOS, Kit
from tests.support.presharded import mixtral, presharded
from tests.support.scenarios.common import accuracy, classifier, language_model, plain
from tests.support.scenarios.resuming import resume
from tests.support.scenarios.saving import seen_by_save
from tests.support.scenarios.updates import ACCUMULATION, train
from tests.support.watching import watching_steps

assert scenarios.__all__  # importing it has filled the table
BODIES: dict[str, Callable[[Kit], None]] = {name: row.body for name, row in SCENARIOS.items()}
"""Every scenario by the name of its function."""


def shared(body: Callable[[Kit], None]) -> Callable[[Kit], None]:
    """Enter ``body`` into ``BODIES``."""
    BODIES[body.__name__] = body
    return body


BODIES["loaded_in_shards"] = presharded(sizes={"fsdp_size": 2})
BODIES["loaded_with_experts"] = presharded(mixtral, sizes={"fsdp_size": 2, "ep_size": 2})


def _sharing(**settings: Any) -> dict[str, Any]:
    return {"accelerator_config": settings, "num_train_epochs": 2}


@shared
def everything_at_once(kit: Kit) -> None:
    """Accumulation with a short last window, ragged token counts, dropout, evaluation, saving, the best model."""
    cadence = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    best = {"load_best_model_at_end": True, "save_total_limit": 2, "num_train_epochs": 3}
    counts = {"include_num_input_tokens_seen": "all", "weight_decay": 0.1}
    train(kit, language_model(kit, rows=27, fields={**ACCUMULATION, **cadence, **best, **counts}))


@shared
def batches_are_split(kit: Kit) -> None:
    fields = {**_sharing(split_batches=True), "per_device_eval_batch_size": 2}
    train(kit, language_model(kit, fields=fields))


@shared
def batches_are_dispatched(kit: Kit) -> None:
    train(kit, plain(kit, fields=_sharing(dispatch_batches=True)))


@shared
def dispatched_batches_are_split(kit: Kit) -> None:
    fields = {**_sharing(dispatch_batches=True, split_batches=True), "per_device_eval_batch_size": 2}
    train(kit, plain(kit, fields=fields))


@shared
def batches_stay_uneven(kit: Kit) -> None:
    """Two batches for each process, the last of them shorter."""
    kit.train(plain(kit, fields=_sharing(even_batches=False)))


@shared
def order_of_a_generator(kit: Kit) -> None:
    train(kit, plain(kit, fields=_sharing(use_seedable_sampler=False)))


@shared
def stream_is_shared_out(kit: Kit) -> None:
    """Every process reads the stream and takes its batches of it."""
    fields = {"accelerator_config": {"dispatch_batches": False}, "max_steps": 5, "per_device_train_batch_size": 2}
    trainer = plain(kit, fields=fields, train_dataset=helpers.Stream(helpers.vector_rows(11)))
    train(kit, trainer)


@shared
def stream_is_dispatched(kit: Kit) -> None:
    """The main process reads the stream for all; evaluations gather each sample once."""
    streams = {
        "train_dataset": helpers.Stream(helpers.vector_rows(11)),
        "eval_dataset": helpers.Stream(helpers.vector_rows(7, seed=1)),
    }
    fields = {"max_steps": 5, "per_device_train_batch_size": 2}
    train(kit, plain(kit, fields=fields, compute_metrics=accuracy, **streams))


@shared
def tokens_of_each_process(kit: Kit) -> None:
    """Each process divides by the tokens of its own windows."""
    train(kit, language_model(kit, fields={**ACCUMULATION, "average_tokens_across_devices": False}))


@shared
def settings_of_the_wrapper(kit: Kit) -> None:
    fields = {"ddp_find_unused_parameters": False, "ddp_bucket_cap_mb": 1, "ddp_broadcast_buffers": False}
    train(kit, language_model(kit, fields={**fields, "ddp_timeout": 1200, "ddp_backend": "gloo"}))


@shared
def objects_are_gathered(kit: Kit) -> None:
    """Predictions of different widths, gathered as objects and kept apart."""
    fields = {"eval_use_gather_object": True, "eval_do_concat_batches": False}

    def sizes(prediction: Any) -> dict[str, float]:
        return {"rows": sum(len(part) for batch in prediction.predictions for part in batch)}

    trainer = classifier(kit, fields=fields, compute_metrics=sizes)
    kit.evaluate(trainer)


@shared
def one_batch_is_gathered_as_objects(kit: Kit) -> None:
    """Evaluate four rows at once, a batch of two on each process, and again with the losses kept on the CPU."""
    model = helpers.PlainModel()
    for by_object, steps in ((True, None), (True, 1), (False, None)):
        fields = {"eval_use_gather_object": by_object, "eval_accumulation_steps": steps}
        fields["per_device_eval_batch_size"] = 2
        trainer = plain(kit, fields=fields, model=model, eval_dataset=helpers.vector_rows(4, seed=1))
        kit.keep("as objects" if by_object else "as tensors", trainer.evaluate()["eval_loss"])


@shared
def save_is_called_on_each_rank(kit: Kit) -> None:
    """An override of ``_save`` sees the calls of its rank: of two checkpoints, and of the script."""
    seen: list[int] = []
    fields = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    trainer = language_model(kit, rows=27, fields=fields, subclass=seen_by_save(kit, seen))
    kit.train(trainer)
    trainer.save_model()
    kit.keep("seen", seen)


@shared
def resume_two_processes(kit: Kit) -> None:
    fields = {**ACCUMULATION, "num_train_epochs": 3, "save_strategy": "steps", "save_steps": 1}
    resume(kit, lambda each: language_model(each, rows=27, fields=fields), 4)


def _unwatched(kit: Kit) -> Any:
    """Return a Trainer that waits for no save, though the kit's callback is told of them."""

    class Unwatched(kit.Trainer):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.checkpoint_writer = UnwatchedWriter()

    return Unwatched


@shared
def resume_what_was_saved_in_the_background(kit: Kit) -> None:
    fields = {**ACCUMULATION, "num_train_epochs": 3, "save_strategy": "steps", "save_steps": 1, "save_async": True}
    resume(kit, lambda each: held(language_model(each, rows=27, fields=fields)), 4)


def _train_on_a_failing_disk(kit: Kit, rank: int, **fields: Any) -> None:
    """While the fourth and fifth update steps are made, process ``rank`` cannot write files of more than 20 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Spoils(kit.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if args.process_index == rank and state.global_step in (3, 5):
                self.saver._thread.join()  # what is written of the step before meets the disk as it was
                limit = 20_000 if state.global_step == 3 else limits[0]
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))

    for answer in ("raise", "warn"):
        settings = {"save_strategy": "steps", "save_steps": 2, "save_async": True, "on_save_error": answer, **fields}
        settings["output_dir"] = f"{fields.get('output_dir', kit.output_dir)}/{answer}"
        trainer = language_model(kit, rows=56, fields=settings, subclass=_unwatched(kit))
        spoils = Spoils()
        spoils.saver = trainer.checkpoint_writer.saver
        trainer.add_callback(spoils)
        try:
            trainer.train()
        except CheckpointWriteError as error:
            kit.keep("error", str(error))
            kit.keep("errno", error.errno)
            kit.keep("file", error.filename)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        kit.keep(f"update steps under {answer}", trainer.state.global_step)


@shared
def disk_fails_in_the_background(kit: Kit) -> None:
    _train_on_a_failing_disk(kit, 0)


@shared
def nodes_without_a_shared_disk(kit: Kit) -> None:
    """Each process takes itself for a node, with a folder of its own; at the end the second one's disk fails."""
    disk = Path(kit.output_dir, os.environ["LOCAL_RANK"])
    disk.mkdir(parents=True)
    os.chdir(disk)
    os.environ.update(LOCAL_WORLD_SIZE="1", LOCAL_RANK="0")
    for by, each_saves in (("one", False), ("each", True)):
        for when, later in (("at once", False), ("later", True)):
            torch.manual_seed(0)
            fields = {"save_strategy": "steps", "save_steps": 2, "save_on_each_node": each_saves, "save_async": later}
            held(language_model(kit, rows=28, fields={**fields, "output_dir": f"{by}/{when}"})).train()
    _train_on_a_failing_disk(kit, 1, save_on_each_node=True, output_dir="fails")


@shared
def nodes_with_a_shared_disk(kit: Kit) -> None:
    """Each process takes itself for a node; keep whether all was written whenever one flushes what it sees."""
    os.environ.update(LOCAL_WORLD_SIZE="1", LOCAL_RANK="0")
    flush, seen = publish.flush, []

    def watched(folder: Path) -> None:
        seen.append((folder / "trainer_state.json").is_file())
        flush(folder)

    publish.flush = watched
    try:
        for when, later in (("at once", False), ("later", True)):
            torch.manual_seed(0)
            fields = {"save_strategy": "steps", "save_steps": 2, "save_async": later}
            held(language_model(kit, rows=28, fields={**fields, "output_dir": f"{kit.output_dir}/{when}"})).train()
    finally:
        publish.flush = flush
    kit.keep("all was there", seen)


class _OwnError(Exception):
    """Of no use to another process: ``pickle`` does not find it by its name."""


_OwnError.__qualname__ = "somewhere.<locals>._OwnError"


@shared
def unknown_error_in_the_background(kit: Kit) -> None:
    """What follows a save fails on the first process, with an exception that cannot be pickled."""

    def fail() -> None:
        raise _OwnError("of my own")

    language_model(kit)  # the processes find each other
    saver = BackgroundTasks()
    saver.start(fail if torch.distributed.get_rank() == 0 else lambda: None)
    try:
        publish.wait_for(saver)
    except Exception as error:
        kit.keep("error", f"{type(error).__name__}: {error}")


def one_global_batch(kit: Kit, *, size: int) -> None:
    """Train without dropout on 8 samples an update step, ``size`` of them at a time in each process."""
    fields = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 2, "num_train_epochs": 3}
    model = kit.model(helpers.gpt2, dropout=0.0)
    kit.train(language_model(kit, rows=24, fields=fields, model=model))


@shared
def output_folder_becomes_a_file(kit: Kit) -> None:
    """When the run begins there is a file where the Trainer had made its output folder."""
    trainer = language_model(kit, fields={"output_dir": f"{kit.output_dir}/taken"})
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        folder = Path(trainer.args.output_dir)
        folder.rmdir()
        folder.write_text("")
    torch.distributed.barrier()
    try:
        trainer.train()
    except OSError as error:
        kit.keep("error", f"{type(error).__name__}: {error}")


@shared
def half_a_global_batch(kit: Kit) -> None:
    one_global_batch(kit, size=2)


@shared
def outputs_have_the_loss(kit: Kit) -> None:
    """An override of ``compute_loss`` reads the loss from the outputs."""
    seen: list[float] = []

    class Watches(kit.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, *args: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            loss, outputs = super().compute_loss(*args, return_outputs=True, **kwargs)
            seen.append(outputs["loss"].item())
            return (loss, outputs) if return_outputs else loss

    kit.train(language_model(kit, rows=24, fields={"gradient_accumulation_steps": 2}, subclass=Watches))
    kit.keep("losses of the outputs", seen)


@shared
def reductions_are_counted(kit: Kit) -> None:
    """The wrapper is what ``compute_loss`` is given; a hook counts how often gradients are exchanged."""
    counted: list[int] = []
    given: set[str] = set()

    class Watches(kit.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            given.add(type(model).__name__)
            return super().compute_loss(model, *args, **kwargs)

    class Counts(kit.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            trainer.model_wrapped.register_comm_hook(None, exchange)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            counted.append(len(exchanged))
            exchanged.clear()

    exchanged: list[int] = []

    def exchange(_, bucket):
        exchanged.append(bucket.index())
        work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0] / 2)

    trainer = plain(kit, rows=26, fields=ACCUMULATION, subclass=Watches, callbacks=[Counts()])
    kit.train(trainer)
    kit.keep("reductions", counted)
    kit.keep("given", sorted(given))


@shared
def steady_steps_are_watched(kit: Kit) -> None:
    """Accumulating, without a log, an evaluation or a save."""
    _watched_steps(kit, save_steps=100)


@shared
def a_save_in_the_background_is_watched(kit: Kit) -> None:
    """The same steps, with a save after the 4th and the 8th."""
    _watched_steps(kit, save_steps=4, save_async=True)


def _watched_steps(kit: Kit, **saving: Any) -> None:
    watch = watching_steps(kit.TrainerCallback, 3, 9)
    fields = {"save_strategy": "steps", "logging_strategy": "no", "eval_strategy": "no", **saving}
    fields |= {"ddp_find_unused_parameters": False, "gradient_accumulation_steps": 2, "max_steps": 12}
    clock, oom_consensus.time = oom_consensus.time, SimpleNamespace(monotonic=lambda: 0.0)  # steps that take no time
    try:
        plain(kit, rows=240, fields=fields, subclass=_unwatched(kit), callbacks=[watch]).train()
    finally:
        oom_consensus.time = clock
    kit.keep("seen", dict(watch.seen))


@shared
def uneven_training_is_refused(kit: Kit) -> None:
    """Three batches for two processes: one would wait for the other's gradients for ever."""
    trainer = plain(kit, rows=12, fields=_sharing(even_batches=False))
    try:
        trainer.train()
    except ValueError as error:
        kit.keep("refused", str(error))


@shared
def uneven_evaluation_is_refused(kit: Kit) -> None:
    """Two batches for each process, the last one of the second process a sample shorter: they cannot be gathered."""
    trainer = plain(kit, fields=_sharing(even_batches=False))
    rows = helpers.ListDataset(helpers.vector_rows(4 * trainer.args.eval_batch_size - 1))
    for name, call in (("evaluate", trainer.evaluate), ("predict", trainer.predict)):
        try:
            call(rows)
        except ValueError as error:
            kit.keep(name, str(error))


class _Averages(nn.Module):
    """Takes the number of items in an update step, and averages its loss over a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(helpers.WIDTH, helpers.CLASSES)
        nn.init.eye_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, features: torch.Tensor, labels: torch.Tensor, **given: Any) -> dict[str, torch.Tensor]:
        logits = self.layer(features)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@shared
def losses_of_a_model_that_averages(kit: Kit, *settings: str) -> None:
    """Losses in training and evaluation, multiplied by the ranks or not."""
    for name, fields in {
        "by default": {},
        "apart": {"average_tokens_across_devices": False},
        **{wish: {"semantics": wish} for wish in settings},
    }.items():
        fields = {"max_steps": 1, "logging_steps": 1, "save_strategy": "no", **fields}
        trainer = plain(kit, model=kit.model(_Averages), fields=fields)
        trainer.train()
        log = {key: value for key, value in trainer.state.log_history[0].items() if key in ("loss", "grad_norm")}
        kit.keep(name, {**log, "eval_loss": trainer.evaluate()["eval_loss"]})


@shared
def losses_of_a_model_that_averages_corrected(kit: Kit) -> None:
    losses_of_a_model_that_averages(kit, "corrected")


class _PartlyUsed(helpers.PlainModel):
    """Has a layer that its loss does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(1, 1)


@shared
def parameters_without_gradients(kit: Kit) -> None:
    """The second forward pass is an error of torch's."""
    trainer = plain(kit, model=kit.model(_PartlyUsed), fields={"ddp_find_unused_parameters": False, "max_steps": 2})
    try:
        trainer.train()
    except RuntimeError as error:
        kit.keep("error", [type(error).__name__, str(error)])
        kit.keep("notes", getattr(error, "__notes__", []))


def _seeing(kit: Kit, seen: list[list[int]]) -> Any:
    """Return a Trainer that appends to ``seen`` the numbers in each batch."""

    class Sees(kit.Trainer):  # type: ignore[misc, name-defined]
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            seen.append(inputs["features"][:, 0].int().tolist())
            return super().training_step(model, inputs, num_items_in_batch)

    return Sees


def numbered(kit: Kit, size: int, **train_arguments: Any) -> None:
    """Train on 26 numbered samples and keep the numbers of each batch that this process was given."""
    seen: list[list[int]] = []
    rows = helpers.ListDataset([{"features": [float(n)] * helpers.WIDTH, "labels": 0} for n in range(26)])
    # transformers 4.57 takes the batch size from the checkpoint, whatever the arguments say.
    fields = {"semantics": "5.23", "per_device_train_batch_size": size, "save_strategy": "steps", "save_steps": 2}
    trainer = plain(kit, subclass=_seeing(kit, seen), fields=fields | {"num_train_epochs": 2}, train_dataset=rows)
    trainer.train(**train_arguments)
    kit.keep("seen", seen)
    kit.keep("epoch", trainer.state.epoch)


@shared
def streams_go_on_at_their_state(kit: Kit) -> None:
    """A stream of 37 rows, of which 28 are used when the run is gone on with.

    One process reads it for both, or both read it, or each its shards of a stream of ``datasets``.
    """
    rows = [{"features": [float(number)] * helpers.WIDTH, "labels": 0} for number in range(37)]
    rank = os.environ["RANK"]
    kinds = [*itertools.product(("one reads", "both read"), (0, 2)), ("shards", 0)]
    for kind, workers in kinds:
        place = kit.folder / f"{kind}, {workers} workers"
        place.mkdir(exist_ok=True)
        for part in ("whole", "rest"):
            seen: list[list[int]] = []
            fields = {
                "output_dir": str(place / part),
                "accelerator_config": {"dispatch_batches": kind == "one reads"},
                "dataloader_num_workers": workers,
                "per_device_train_batch_size": 2,
                "max_steps": 10,
                "save_strategy": "steps",
                "save_steps": 7,
            }
            data: Any = helpers.Reading(rows, notes := place / f"{part}-{rank}")
            if kind == "shards":
                data = Dataset.from_list(rows[:36]).to_iterable_dataset(num_shards=4).with_format("torch")
            trainer = plain(kit, subclass=_seeing(kit, seen), fields=fields, train_dataset=data)
            trainer.train(resume_from_checkpoint=None if part == "whole" else str(place / "whole" / "checkpoint-7"))
            read = {int(number) for number in notes.read_text().split()} if notes.exists() else set()
            weights = kit.plain(trainer.model.state_dict())
            kit.keep(f"{place.name}: {part}", {"seen": seen, "read": sorted(read), "weights": weights})


class _Writes(helpers.PlainModel):
    """Adds one to the features that it is given, in place."""

    def forward(self, features: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return super().forward(features.add_(1), labels)


@shared
def inputs_that_the_model_writes_to(kit: Kit) -> None:
    """Batches are the data set's own tensors; what the model writes to is a copy, as for a GPU."""
    numbers = [torch.full((2, helpers.WIDTH), float(n)) for n in range(8)]
    rows = [{"features": features, "labels": torch.tensor([0, 1])} for features in numbers]
    seen: list[list[int]] = []
    fields = {"per_device_train_batch_size": 1, "num_train_epochs": 2, "logging_steps": 1}
    data = {"train_dataset": helpers.ListDataset(rows), "data_collator": operator.itemgetter(0)}
    kit.train(plain(kit, subclass=_seeing(kit, seen), model=kit.model(_Writes), fields=fields, **data))
    kit.keep("data set", rows)
    kit.keep("seen", seen)


@shared
def another_number_of_processes(kit: Kit) -> None:
    """Go on from the checkpoint of a run of one process, in ``one`` beside this process's folder."""
    checkpoint = kit.folder.parent / "one" / "output" / "checkpoint-2"
    numbered(kit, 3, resume_from_checkpoint=str(checkpoint))


@shared
def search_that_ends_early(kit: Kit) -> None:
    """The pruner ends the second of nine trials at its first evaluation, and the study the search after the third."""
    import optuna

    class Second(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            return bool(trial.number == 1)

    class Ends(kit.TrainerCallback):
        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            kit.keep("end", [state.trial_params["seed"], state.epoch])

    def space(trial: Any) -> dict[str, Any]:
        if trial.number == 2 and hasattr(trial, "study"):
            trial.study.stop()
        return {"seed": trial.suggest_int("seed", trial.number, trial.number)}

    fields = {"eval_strategy": "epoch", "num_train_epochs": 2}
    trainer = plain(kit, fields=fields, model_init=lambda: kit.model(helpers.PlainModel), callbacks=[Ends()])
    best = trainer.hyperparameter_search(space, lambda _: 0.5, n_trials=9, backend="optuna", pruner=Second())
    kit.keep("best", best and [best.run_id, best.objective, best.hyperparameters])


@shared
def members_of_the_accelerator(kit: Kit) -> None:
    """What subclasses call on ``trainer.accelerator``, each with values that differ between the processes."""
    trainer = plain(kit)
    accelerator = trainer.accelerator
    _keep_facts(kit, accelerator)
    weight = torch.ones(2)  # one in a file that is mapped leaves it
    copied = weight.to(trainer.args.device).data_ptr() != weight.data_ptr()
    kit.keep("device", [str(trainer.args.device), str(accelerator.device), copied])
    rank = accelerator.process_index
    rows = torch.arange(4.0).reshape(2, 2) + 10 * rank
    nested = {"a": rows, "b": [torch.tensor(rank), (rows[:1],)]}
    kit.keep("gather", accelerator.gather(nested))
    kit.keep("gather_for_metrics", accelerator.gather_for_metrics([f"text {rank}", rank]))
    ragged = torch.ones(2, 2 + rank)
    for dim in (0, 1, -1, 2):
        kit.keep(f"pad {dim}", accelerator.pad_across_processes(ragged.T if dim == 0 else ragged, dim=dim))
    kit.keep("pad", accelerator.pad_across_processes({"a": ragged}, dim=1, pad_index=-100, pad_first=True))
    for reduction in ("sum", "mean", "max"):
        kit.keep(reduction, accelerator.reduce({"a": rows}, reduction=reduction))
    for inputs in ([1, 2, 3], (1, 2, 3), torch.arange(5), {"a": [1, 2, 3], "b": [4, 5, 6]}, [1]):
        with accelerator.split_between_processes(inputs) as part:
            kit.keep("split", part)
    with accelerator.split_between_processes([1, 2, 3], apply_padding=True) as part:
        kit.keep("split evenly", part)
    column = Dataset.from_dict({"text": ["a", "b", "c"]})["text"]  # a list before datasets 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which tells that they are not split
        for inputs in (np.arange(3), "abc", column, {"a": [1, 2, 3], "b": column}):
            with accelerator.split_between_processes(inputs) as part:
                parts = part if isinstance(part, dict) else {"": part}
                kit.keep(
                    "split if known", {name: list(values) for name, values in parts.items()} | {"": part is inputs}
                )
    mark = Path(kit.output_dir, "mark")
    with accelerator.main_process_first():
        kit.keep("main process was first", mark.exists() or accelerator.is_main_process)
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        accelerator.print("once")
        accelerator.on_main_process(print)("main")
        accelerator.on_last_process(print)("last")
    kit.keep("said", said.getvalue())
    accelerator.wait_for_everyone()
    loader = accelerator.prepare(DataLoader(range(7), batch_size=2))
    kit.keep("batches", [(batch, accelerator.gather(batch)) for batch in loader])
    kit.keep("freed", list(accelerator.free_memory(loader)))
    _keep_gradients(kit, accelerator)


def _keep_facts(kit: Kit, accelerator: Any) -> None:
    names = ("num_processes", "process_index", "local_process_index", "is_main_process", "is_local_main_process")
    facts = {name: getattr(accelerator, name) for name in (*names, "is_last_process", "sync_gradients")}
    state = {name: getattr(accelerator.state, name) for name in names}
    kit.keep("facts", {**facts, "state": state, "device": accelerator.device.type})
    kit.keep("distributed_type", accelerator.distributed_type.value)
    if kit.release.major >= 5:
        kit.keep("accumulation", accelerator.gradient_accumulation_steps)


def _keep_gradients(kit: Kit, accelerator: Any) -> None:
    """Keep gradients that stay on their process, then those that are averaged."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    prepared = accelerator.prepare(model)
    kit.keep("unwrapped", accelerator.unwrap_model(prepared) is model)
    inputs = torch.tensor([[1.0, 2.0]]) * (1 + accelerator.process_index)
    with accelerator.no_sync(prepared):
        accelerator.backward(prepared(inputs).sum())
    kit.keep("held back", model.weight.grad)
    with accelerator.accumulate(prepared):
        accelerator.backward(prepared(inputs).sum())
    kit.keep("averaged", model.weight.grad)
    kit.keep("norm", accelerator.clip_grad_norm_(prepared.parameters(), 1.0))
    kit.keep("state", accelerator.get_state_dict(prepared))
