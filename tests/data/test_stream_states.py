"""Streams that say where they are go on there."""

from types import SimpleNamespace

import datasets
import pytest
import torch
from datasets.distributed import split_dataset_by_node

from hf_compat.data.loader import DispatchingDataLoader, PreparedDataLoader
from hf_compat.data.stream_states import StreamStates
from hf_compat.errors import CheckpointError, LoaderError
from hf_compat.trainer.run_warnings import warn_of_shares_in_shares, warn_of_unseeded_shuffle
from tests.support.helpers import WIDTH, Reading
from tests.support.trainers import seeing_trainer


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [3, 4, 9], ids=["in the middle of a round", "after a round", "in the second pass"])
def test_a_stream_that_says_where_it_is_is_not_read_again(workers, step, tmp_path):
    """The run goes on with the batches of the whole run; of those before, at most those of a round are read again."""

    def trainer(name, **fields):
        def data(rows):
            return Reading(rows, tmp_path / name)

        settings = {"per_device_train_batch_size": 2, "max_steps": 11, "dataloader_num_workers": workers}
        return seeing_trainer(tmp_path / f"{name}-out", data=data, **settings | fields)

    whole = trainer("whole", save_steps=step)
    whole.train()
    resumed = trainer("rest", save_strategy="no")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole-out" / f"checkpoint-{step}"))
    assert resumed.seen == whole.seen[step:]
    assert all(torch.equal(a, b) for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True))
    read = (tmp_path / "rest").read_text().split()
    needed = sum(len(batch) for batch in resumed.seen)
    ahead = 2 * (1 + 2 * workers) * 2  # one batch ahead; workers fetch two each before they are asked
    again = 2 * max(workers - 1, 0)
    assert needed <= len(read) <= needed + ahead + again


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_of_datasets_goes_on_at_its_state(workers, tmp_path):
    """A stream of ``datasets`` without a shuffle buffer is resumed by its state, in its shards too."""
    table = datasets.Dataset.from_dict({"features": [[float(n)] * WIDTH for n in range(24)], "labels": [0] * 24})

    def trainer(name):
        fields = {"per_device_train_batch_size": 2, "max_steps": 9, "dataloader_num_workers": workers, "save_steps": 5}
        made = seeing_trainer(tmp_path / name, **fields)
        made.train_dataset = table.to_iterable_dataset(num_shards=4).with_format("torch")
        return made

    whole = trainer("whole")
    whole.train()
    checkpoint = tmp_path / "whole" / "checkpoint-5"
    assert torch.load(checkpoint / "lightning.pt")["stream"]["workers"] == workers
    resumed = trainer("rest")
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.seen == whole.seen[5:]


def numbered(first=0):
    """Yield 24 samples from number ``first`` on."""
    for number in range(first, first + 24):
        yield {"features": [float(number)] * WIDTH, "labels": 0}


FEATURES = datasets.Features(
    {"features": datasets.Sequence(datasets.Value("float32")), "labels": datasets.Value("int64")}
)


def source(first=0, **given):
    """Return a stream of 24 samples."""
    return datasets.IterableDataset.from_generator(
        numbered, **{"features": FEATURES, "gen_kwargs": {"first": first}, **given}
    )


def shuffled_source(first=0):
    """Return a stream with a shuffle buffer."""
    return source(first).shuffle(seed=0, buffer_size=8)


BUFFERED = {
    "shuffled": shuffled_source,
    "interleaved": lambda: datasets.interleave_datasets([source(), shuffled_source(24)]),
    "concatenated": lambda: datasets.concatenate_datasets([shuffled_source(), source(24)]),
    "mixed and changed": lambda: datasets.interleave_datasets([shuffled_source(), source(24)]).map(dict),
}


@pytest.mark.parametrize("stream", BUFFERED.values(), ids=BUFFERED)
def test_a_shuffle_buffer_is_filled_again(stream, tmp_path):
    """The state of a stream that shuffles, itself or in a source, lacks the buffer: it is read from its beginning."""

    def trainer(name):
        made = seeing_trainer(tmp_path / name, per_device_train_batch_size=2, max_steps=9, save_steps=5)
        made.train_dataset = stream().with_format("torch")
        return made

    whole = trainer("whole")
    whole.train()
    checkpoint = tmp_path / "whole" / "checkpoint-5"
    assert "stream" not in torch.load(checkpoint / "lightning.pt")
    resumed = trainer("rest")
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.seen == whole.seen[5:]


@pytest.mark.parametrize(
    "stream", [3, {"workers": 0, "states": {0: {"moon": 1}}, "since": 0}], ids=["damaged", "other"]
)
def test_a_state_of_a_stream_that_does_not_fit_is_refused(stream, tmp_path):
    """A state that is none, or another stream's, is an error that names the checkpoint."""
    fields = {"per_device_train_batch_size": 2, "max_steps": 3, "save_steps": 2}
    whole = seeing_trainer(tmp_path / "whole", data=lambda rows: Picky(rows, tmp_path / "notes"), **fields)
    whole.train()
    path = tmp_path / "whole" / "checkpoint-2" / "lightning.pt"
    torch.save({**torch.load(path), "stream": stream}, path)
    resumed = seeing_trainer(tmp_path / "rest", data=lambda rows: Picky(rows, tmp_path / "notes"), **fields)
    with pytest.raises(CheckpointError, match="checkpoint-2"):
        resumed.train(resume_from_checkpoint=str(path.parent))


ONE = {"workers": 0, "states": {0: {"next": 1}}, "since": 0}
TWO = {"workers": 0, "states": {0: {"next": 2}}, "since": 0}


@pytest.mark.parametrize(
    ("saved", "process", "processes", "alone", "following"),
    [
        pytest.param(ONE, 0, 1, False, 1, id="one process"),
        pytest.param([ONE, TWO], 1, 2, False, 2, id="each its own"),
        pytest.param([ONE, None], 0, 2, True, 1, id="one reads for all"),
        pytest.param([ONE, None], 0, 2, False, None, id="one did not say"),
        pytest.param([ONE, TWO], 0, 1, False, None, id="one process after two"),
        pytest.param(ONE, 0, 2, True, None, id="two processes after one"),
    ],
)
def test_states_of_several_processes(saved, process, processes, alone, following):
    """A process takes its own states, if there are as many processes as before and all said where they were."""
    found = StreamStates.of_process(saved, process, processes, alone=alone)
    assert (None if found is None else found.states[0]["next"]) == following


class Picky(Reading):
    """Takes its own state alone."""

    def load_state_dict(self, state):
        super().load_state_dict({"next": state["next"], "epoch": state["epoch"]})


class CountingStream(torch.utils.data.IterableDataset):
    """A stream as mosaicml-streaming's: shuffled by the number of its passes, with a state that asks for a count."""

    def __init__(self):
        self.next_epoch = 0

    def __len__(self):
        return 8

    def __iter__(self):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(self.next_epoch)).tolist()
        self.next_epoch += 1
        yield from ({"features": torch.full((WIDTH,), float(number)), "labels": torch.tensor(0)} for number in order)

    def state_dict(self, num_samples, from_beginning):
        raise AssertionError("the Trainer does not count its samples")

    def load_state_dict(self, state):
        raise AssertionError("nothing was saved")


@pytest.mark.parametrize("step", [3, 4, 6], ids=["in the first pass", "after it", "in the second"])
@pytest.mark.parametrize("built_before", [False, True])
def test_a_stream_that_counts_its_passes_is_told_where_the_run_goes_on(step, built_before, tmp_path):
    """Each pass has the order of the whole run's, in a new process or not; transformers begins with the first."""

    def trainer(name, stream):
        made = seeing_trainer(tmp_path / name, per_device_train_batch_size=2, num_train_epochs=3, save_steps=step)
        made.train_dataset = stream
        return made

    stream = CountingStream()
    whole = trainer("whole", stream)
    whole.train()
    assert whole.seen[:4] != whole.seen[4:8]
    resumed = trainer("rest", stream if built_before else CountingStream())
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
    assert resumed.seen == whole.seen[step:]


@pytest.mark.parametrize("splits", [True, False])
def test_a_stream_of_shares_is_not_to_be_shared_again(splits):
    """Rank 0 reads for all: of a stream that gives it half of the samples the others are read by no rank."""
    stream = datasets.Dataset.from_dict({"features": [0.0] * 8}).to_iterable_dataset(num_shards=2)
    if splits:
        stream = split_dataset_by_node(stream, rank=0, world_size=2)
    warnings = []
    dispatching = DispatchingDataLoader(stream, split=False, num_processes=2, process_index=0)
    for loader in (dispatching, PreparedDataLoader(stream)):
        warn_of_shares_in_shares(loader, "eval_dataset", warnings.append)
    assert len(warnings) == splits
    assert all(text.startswith("`eval_dataset` gives each rank samples of its own") for text in warnings)
    assert all("use_distributed_sampler" in text for text in warnings)


def test_a_stream_that_waits_for_all_ranks():
    """One of mosaicml-streaming is not read by one rank for all; where each reads its own, or all of it, it is."""
    kind = type("StreamingDataset", (CountingStream,), {"__module__": "streaming.base.dataset"})
    warnings = []
    with pytest.raises(LoaderError, match=r"`eval_dataset` is a `StreamingDataset`.*use_distributed_sampler"):
        warn_of_shares_in_shares(
            DispatchingDataLoader(kind(), num_processes=2, process_index=0), "eval_dataset", warnings.append
        )
    warn_of_shares_in_shares(PreparedDataLoader(kind()), "eval_dataset", warnings.append)
    assert not warnings


def _shuffle(data, bufsize=1000, initial=100, rng=None, seed=None, handler=None):
    """What webdataset has by this name; without a generator and a seed it shuffles by the time."""


@pytest.mark.parametrize(
    ("stages", "warns"),
    [
        ([((10,), {})], True),
        ([((3,), {"seed": 7}), ((10, 5), {"initial": 5})], True),
        ([((3,), {"seed": 7}), ((10,), {"seed": 0})], False),
        ([((10, 5, None, 0), {})], False),
        ([], False),
    ],
    ids=str,
)
def test_a_web_dataset_that_shuffles_by_the_time(stages, warns, monkeypatch):
    """A run that goes on within a pass warns of an order that is never the same, and not of one with a seed."""
    monkeypatch.setattr(_shuffle, "__module__", "webdataset.filters")
    stream = CountingStream()
    stream.pipeline = [SimpleNamespace(f=_shuffle, args=args, kw=keywords) for args, keywords in stages]
    warnings = []
    for batches in (0, 3):
        warn_of_unseeded_shuffle(PreparedDataLoader(stream), batches, warnings.append)
    assert len(warnings) == warns
    assert all("Pass a `seed` to `shuffle`" in text for text in warnings)
