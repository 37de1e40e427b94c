"""``auto_find_batch_size``: what counts as running out of memory, and which sizes are tried."""

import pytest
import torch
import transformers
from accelerate.utils import find_executable_batch_size
from accelerate.utils.memory import should_reduce_batch_size
from torch.distributed.fsdp import FSDPModule

import hf_compat
from hf_compat import Trainer, TrainerCallback, TrainingArguments
from hf_compat.arguments.fsdp import FsdpSettings
from hf_compat.engine.process_layout import ProcessLayout
from hf_compat.errors import BatchSizeError
from hf_compat.trainer.batch_size import batch_size_problems, is_out_of_memory, with_smaller_batches
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.trainers import arguments

ERRORS = [
    (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
    (torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB."), True),
    (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), True),
    (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. Not contiguous"), True),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
    (RuntimeError("FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size"), True),
    (RuntimeError("CUDA out of memory"), False),
    (RuntimeError("CUDA out of memory.", 1), False),
    (MemoryError("CUDA out of memory."), False),
    (ValueError(" out of memory."), False),
    (RuntimeError(), False),
]


@pytest.mark.parametrize(("error", "counts"), ERRORS, ids=repr)
def test_errors_that_count(error, counts):
    """The errors that accelerate takes for a lack of memory are those that we take for one."""
    assert is_out_of_memory(error) is should_reduce_batch_size(error) is counts


def test_sizes_tried():
    """Each size is nine tenths of the last, rounded down, as accelerate's."""

    def attempts(find):
        tried = []

        def run(batch_size):
            tried.append(batch_size)
            if batch_size > 51:
                raise RuntimeError("CUDA out of memory.")
            return f"done with {batch_size}"

        return find(run), tried

    ours = attempts(lambda run: with_smaller_batches(run, 64))
    assert ours == attempts(lambda run: find_executable_batch_size(run, 64)()) == ("done with 51", [64, 57, 51])


class RunsOut(TrainerCallback):
    """Raises an error at an event."""

    def __init__(self, event, error):
        self.error = error
        self.sizes = []
        setattr(self, event, self._fail)

    def _fail(self, args, state, control, **kwargs):
        self.sizes.append(state.train_batch_size)
        raise self.error


@pytest.mark.parametrize(
    ("event", "text", "expected", "sizes"),
    [
        ("on_step_end", "CUDA out of memory.", (BatchSizeError, "no executable batch size found from 3 down to 1"), 3),
        ("on_evaluate", "CUDA out of memory.", (BatchSizeError, "`per_device_eval_batch_size` below 8"), 1),
        ("on_step_end", "shapes do not fit", (RuntimeError, "^shapes do not fit$"), 1),
    ],
    ids=["too large a sample", "evaluation", "another error"],
)
def test_errors_that_end_the_run(tmp_path, event, text, expected, sizes):
    """Memory that does not suffice for one sample or for an evaluation is told; other errors pass at once."""
    callback = RunsOut(event, RuntimeError(text))
    args = arguments(
        tmp_path, auto_find_batch_size=True, per_device_train_batch_size=3, eval_strategy="steps", eval_steps=1
    )
    rows = ListDataset(vector_rows(4))
    trainer = Trainer(PlainModel(), args, train_dataset=rows, eval_dataset=rows, callbacks=[callback])
    kind, message = expected
    with pytest.raises(kind, match=message):
        trainer.train()
    assert callback.sizes == [3, 2, 1][:sizes]
    assert args.per_device_train_batch_size == 3


def test_without_the_field_memory_errors_pass(tmp_path):
    """A run that is not asked to look for a batch size fails with the error itself."""
    callback = RunsOut("on_step_end", RuntimeError("CUDA out of memory."))
    args = arguments(tmp_path)
    trainer = Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(4)), callbacks=[callback])
    with pytest.raises(RuntimeError, match=r"^CUDA out of memory\.(\n|$)"):
        trainer.train()


@pytest.mark.parametrize("library", [transformers, hf_compat], ids=lambda library: library.__name__)
def test_a_compiled_model_stays_compiled(library, tmp_path):
    """The run that starts again with a smaller batch compiles the model anew; that of transformers does not."""

    class RunsOutOnce(library.TrainerCallback):
        """Runs out of memory in the first update step, and notes what trains in those after it."""

        def __init__(self):
            self.trained = []

        def on_step_end(self, args, state, control, **kwargs):
            self.trained.append(type(self.trainer.model_wrapped).__name__)
            if len(self.trained) == 1:
                raise RuntimeError("CUDA out of memory.")

    callback = RunsOutOnce()
    args = arguments(
        tmp_path,
        library,
        auto_find_batch_size=True,
        per_device_train_batch_size=4,
        max_steps=2,
        torch_compile=True,
        torch_compile_backend="eager",
    )
    callback.trainer = library.Trainer(
        PlainModel(dropout=0.0), args, train_dataset=ListDataset(vector_rows(8)), callbacks=[callback]
    )
    callback.trainer.train()
    after = "OptimizedModule" if library is hf_compat else "PlainModel"
    assert callback.trained == ["OptimizedModule", after, after]
    assert callback.trainer._train_batch_size == 3


@pytest.mark.parametrize(
    "place",
    [{"strategy": "presharded"}, {"strategy": "fsdp2", "fsdp": FsdpSettings(version=2)}],
    ids=["sharded by `from_pretrained`", "sharded by the Trainer"],
)
def test_shards_that_cannot_begin_again(place, tmp_path, monkeypatch):
    """With an older torch sharded models are refused: they cannot begin again in the middle of a pass."""
    layout = ProcessLayout(TrainingArguments(str(tmp_path), use_cpu=True).launch, **place)
    assert not batch_size_problems(layout, PlainModel(), syncs_norms=False)
    monkeypatch.delattr(FSDPModule, "reset_iter_state")
    [text] = batch_size_problems(layout, PlainModel(), syncs_norms=False)
    assert "torch before 2.13" in text
