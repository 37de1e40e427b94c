"""Which release's numbers a run reproduces, and the numbers that upstream gets wrong."""

import warnings

import pytest
import torch
from packaging.version import Version
from torch.utils.data import DataLoader

from hf_compat import Trainer, TrainingArguments
from hf_compat.arguments import releases
from hf_compat.arguments.releases import Semantics, resolve_semantics
from hf_compat.data.samplers import BatchRebalanceSampler
from hf_compat.engine.process_layout import ProcessLayout
from hf_compat.errors import ArgumentsError, HFCompatWarning
from hf_compat.model_facts import accepts_loss_kwargs, ignores_item_count
from tests.support.helpers import (
    ListDataset,
    PadCollator,
    PlainModel,
    bert_classifier,
    gpt2,
    labelled_rows,
    t5,
    vector_rows,
)
from tests.support.trainers import arguments, new_trainer

RELEASE_4 = "4.57.6"
RELEASE_5 = "5.24.0"
DIVIDES_ONCE = {"semantics": RELEASE_5} if resolve_semantics().divides_gradients_twice else {}
"""Arguments with which accumulated gradients are not divided twice, whatever is installed."""


def test_installed_release_decides():
    """Without a wish the installed transformers is followed."""
    transformers = pytest.importorskip("transformers")
    assert resolve_semantics().release == Version(transformers.__version__)


def test_environment_overrides_and_the_argument_wins(monkeypatch):
    """The environment variable overrides the installation; the argument overrides both."""
    monkeypatch.setenv(releases.ENVIRONMENT_VARIABLE, RELEASE_4)
    assert not resolve_semantics().logs_unrounded_loss
    assert resolve_semantics(RELEASE_5).logs_unrounded_loss


@pytest.fixture
def installed(monkeypatch):
    """Return a function that has a version of transformers, or with None no transformers, seem to be installed."""

    def pretend(version):
        def of_package(name):
            if version is None:
                raise releases.metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr(releases.metadata, "version", of_package)
        releases.installed_release.cache_clear()
        releases._warn_of_older.cache_clear()

    yield pretend
    releases.installed_release.cache_clear()
    releases._warn_of_older.cache_clear()


def test_an_older_installation_follows_the_oldest_known_and_warns_once(installed, tmp_path):
    """With transformers 4.46 installed runs follow 4.57, which is said once; chosen by name, it is not said."""
    installed("4.46.3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_semantics("4.57").release == Version("4.57")
    with pytest.warns(HFCompatWarning, match=r"transformers 4\.46\.3 is installed.*4\.57 and later") as caught:
        args = [TrainingArguments(str(tmp_path), report_to="none") for _ in range(2)]
    assert len(caught) == 1
    assert resolve_semantics(args[0].semantics) == resolve_semantics("4.57")


def test_a_release_before_the_oldest_known_is_refused(monkeypatch):
    """A run cannot follow 4.46, whether the argument names it or the environment; the error names which of them."""
    for call in (lambda: resolve_semantics("4.46"), lambda: TrainingArguments("out", semantics="4.46")):
        with pytest.raises(
            ArgumentsError, match=r"`semantics='4\.46'`: .*before 4\.57 are not reproduced; use '4\.57'"
        ):
            call()
    monkeypatch.setenv(releases.ENVIRONMENT_VARIABLE, "4.46")
    with pytest.raises(ArgumentsError, match=r"`HF_COMPAT_SEMANTICS='4\.46'`: .*before 4\.57 are not reproduced"):
        TrainingArguments("out")
    assert TrainingArguments("out", semantics="4.57").semantics == "4.57"


def test_without_transformers_the_newest_is_followed(installed):
    """With no transformers installed, every change up to the newest known release is on."""
    installed(None)
    assert resolve_semantics() == resolve_semantics(RELEASE_5)


@pytest.mark.parametrize("wish", ["newest", 0.5])
def test_a_wish_that_is_no_release(wish):
    """Anything else is refused with what would do."""
    with pytest.raises(ArgumentsError, match="'corrected' or a transformers release"):
        resolve_semantics(wish)


def test_every_row_says_since_when():
    """Each behaviour has the release that brought it, none after the newest known."""
    rows = [item for item in Semantics.__dataclass_fields__.values() if item.metadata]
    assert len(rows) == len(Semantics.__dataclass_fields__) - 2
    assert all(Version("4.57") < row.metadata["since"] <= releases.NEWEST_RELEASE for row in rows)


class MeanOverBatch(torch.nn.Module):
    """A classifier that takes any keyword but averages its loss over the batch: what 5.x's heads do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(2, 3)

    def forward(self, features, labels=None, **kwargs):
        logits = self.layer(features)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def gradient_norm(tmp_path, accumulate, **settings):
    """Return the first gradient norm of a run over the same 8 samples in ``accumulate`` batches."""
    rows = [{"features": [float(i), 1.0], "labels": i % 3} for i in range(8)]
    args = arguments(
        tmp_path,
        save_strategy="no",
        logging_steps=1,
        max_steps=1,
        per_device_train_batch_size=8 // accumulate,
        gradient_accumulation_steps=accumulate,
        **settings,
    )
    trainer = Trainer(MeanOverBatch(), args, train_dataset=ListDataset(rows))
    trainer.train()
    return trainer.state.log_history[0]


def test_corrected_divides_what_upstream_does_not(tmp_path):
    """Corrected, four accumulated batches give the gradient of one whole batch; upstream's is four times as large."""
    whole = gradient_norm(tmp_path, 1)
    corrected = gradient_norm(tmp_path, 4, semantics="corrected")
    with pytest.warns(HFCompatWarning, match=r"MeanOverBatch.*semantics='corrected'"):
        upstream = gradient_norm(tmp_path, 4, **DIVIDES_ONCE)
    assert corrected["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-5)
    assert corrected["loss"] == pytest.approx(whole["loss"], rel=1e-3)
    assert upstream["grad_norm"] == pytest.approx(4 * whole["grad_norm"], rel=1e-5)


def test_ranks_of_a_model_that_averages(tmp_path, monkeypatch):
    """Upstream multiplies such a loss by the ranks, whose gradients are averaged; corrected, it is that of one alone.

    An evaluation without a training has the same loss, and its own warning.
    """

    def losses(**settings):
        rows = ListDataset([{"features": [float(i), 1.0], "labels": i % 3} for i in range(8)])
        trainer = Trainer(MeanOverBatch(), arguments(tmp_path, save_strategy="no", **settings), eval_dataset=rows)
        return trainer.evaluate()["eval_loss"], gradient_norm(tmp_path, 1, **settings)["loss"]

    alone = losses()
    monkeypatch.setattr(ProcessLayout, "loss_group_size", 2)
    assert losses(semantics="corrected") == alone
    with pytest.warns(HFCompatWarning, match=r"up to 2 times too large \(2 ranks\).*semantics='corrected'") as caught:
        assert losses() == pytest.approx([2 * loss for loss in alone], abs=1e-4)  # logs of 4.57 have four digits
    assert len(caught) == 2
    assert losses(average_tokens_across_devices=False) == alone


def test_warning_is_given_once_and_only_where_it_matters(tmp_path):
    """No warning without accumulation and other ranks; one warning for several ``train`` calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", HFCompatWarning)
        gradient_norm(tmp_path, 1)
    rows = ListDataset(labelled_rows(8))
    args = arguments(
        tmp_path,
        save_strategy="no",
        max_steps=1,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        remove_unused_columns=False,
        **DIVIDES_ONCE,
    )
    model = bert_classifier()
    trainer = Trainer(model, args, train_dataset=rows, data_collator=PadCollator())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
        trainer.train()
    ours = [item for item in caught if issubclass(item.category, HFCompatWarning)]
    assert len(ours) == int(accepts_loss_kwargs(model))


class OwnLoader(Trainer):
    """Evaluates on a plain loader."""

    def get_eval_dataloader(self, eval_dataset=None):
        return DataLoader(self.eval_dataset, batch_size=4, collate_fn=self.data_collator)


@pytest.mark.parametrize("per_batch", [False, True])
def test_a_loader_of_ones_own_is_evaluated_whole_when_corrected(per_batch, tmp_path):
    """Upstream keeps, of each batch of 4, the 2 samples that the train loader's last batch has; corrected, all 7."""
    seen = []

    def count(prediction, compute_result=True):
        seen.append((len(prediction.label_ids), compute_result))
        return {}

    def evaluated(**settings):
        seen.clear()
        args = TrainingArguments(
            str(tmp_path), use_cpu=True, report_to="none", save_strategy="no", per_device_train_batch_size=4, **settings
        )
        rows = ListDataset(vector_rows(6))
        data = {"train_dataset": rows, "eval_dataset": ListDataset(vector_rows(7))}
        trainer = OwnLoader(PlainModel(), args, compute_metrics=count, **data)
        trainer.train()
        trainer.evaluate()
        return list(seen)

    fields = {"num_train_epochs": 1, "disable_tqdm": True, "batch_eval_metrics": per_batch}
    assert evaluated(semantics="corrected", **fields) == ([(4, False), (3, True)] if per_batch else [(7, True)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HFCompatWarning)
        assert evaluated(**fields) == ([(2, True), (2, True)] if per_batch else [(4, True)])
    messages = [str(item.message) for item in caught if issubclass(item.category, HFCompatWarning)]
    assert "truncates each batch to 2 samples" in messages[0]
    assert [("compute_result=True" in message) for message in messages[1:]] == [True] * per_batch


@pytest.mark.parametrize("max_steps", [0, 2])
def test_a_step_too_many_is_left_out_when_corrected(tmp_path, max_steps):
    """With all update steps made within an epoch, upstream makes one more; a corrected run makes none."""

    def steps(**settings):
        args = arguments(tmp_path, save_steps=1, max_steps=max_steps, per_device_train_batch_size=2, **settings)
        trainer = Trainer(MeanOverBatch(), args, train_dataset=ListDataset(rows))
        return trainer.train(resume_from_checkpoint=max_steps > 0).global_step

    rows = [{"features": [float(i), 1.0], "labels": i % 3} for i in range(8)]
    if max_steps:
        args = arguments(tmp_path, max_steps=max_steps, save_steps=max_steps, per_device_train_batch_size=2)
        Trainer(MeanOverBatch(), args, train_dataset=ListDataset(rows)).train()
    assert steps(semantics="corrected") == max_steps
    with pytest.warns(HFCompatWarning, match="makes one extra step"):
        assert steps() == max_steps + 1


def test_a_second_division_is_reproduced_and_corrected():
    """5.2 to 5.5 divided accumulated gradients twice; neither the releases around them nor a corrected run do."""
    by_release = {
        release: resolve_semantics(release).divides_gradients_twice for release in ("5.1", "5.2", "5.5.4", "5.6")
    }
    assert by_release == {"5.1": False, "5.2": True, "5.5.4": True, "5.6": False}
    assert not resolve_semantics("corrected").divides_gradients_twice


@pytest.mark.parametrize(
    ("wish", "counted"),
    [("5.9", 8), ("5.10", 6), ("5.14", 6), ("5.15", 8), ("corrected", 8)],
    ids=lambda value: str(value),
)
def test_an_encoder_decoder_model_scores_every_label(wish, counted, tmp_path):
    """5.10 to 5.14 leave the first label of each row out of the count, as of a model that predicts the next token."""
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", semantics=wish)
    trainer = Trainer(t5(), args)
    trainer.model_accepts_loss_kwargs = True  # that of 4.57 does not
    labels = torch.ones(2, 4, dtype=torch.int64)
    assert trainer._get_num_items_in_batch([{"labels": labels}], args.device) == counted


def test_language_models_use_the_count():
    """A causal language model hands the count to its loss, so nothing is corrected."""
    assert not ignores_item_count(gpt2())


@pytest.mark.parametrize(
    ("wish", "counted"),
    [
        pytest.param(RELEASE_4, 4, id="4.57: all of the run"),
        pytest.param(RELEASE_5, 2, id="5.24: this session's"),
        pytest.param("corrected", 2, id="corrected: this session's, whatever is installed"),
    ],
)
def test_train_loss_of_a_resumed_run(wish, counted, tmp_path):
    """The final ``train_loss`` is the sum of this session's losses over its own update steps, or over all of them."""
    settings = {"logging_steps": 1, "save_steps": 2, "per_device_train_batch_size": 4, "semantics": wish}
    for steps, resume in ((2, None), (4, str(tmp_path / "checkpoint-2"))):
        args = arguments(tmp_path, max_steps=steps, **settings)
        torch.manual_seed(0)
        trainer = Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(8)))
        output = trainer.train(resume_from_checkpoint=resume)
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    assert sorted(losses) == [1, 2, 3, 4]
    assert output.training_loss == pytest.approx((losses[3] + losses[4]) / counted, abs=1e-4)
    assert output.metrics["train_loss"] == output.training_loss


class ByEpoch:
    """A batch sampler whose only sample of each batch is the epoch, as far as it is told."""

    batch_size, drop_last, epoch = 1, False, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 4

    def __iter__(self):
        return iter([[self.epoch]] * len(self))


@pytest.mark.parametrize(("wish", "told"), [("5.16", 0), ("5.17", 1), ("corrected", 1)])
def test_a_batch_sampler_is_told_the_epoch_on_several_ranks(wish, told, tmp_path):
    """The second epoch has an order of its own, which before 5.17 it had in a single process alone."""
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", semantics=wish)
    accelerator = Trainer(PlainModel(), args).accelerator
    for ranks, expected in ((1, 1), (2, told)):
        accelerator.data_parallel_size = ranks
        loader = accelerator.prepare(DataLoader(range(3), batch_sampler=ByEpoch()))
        batches = [[int(batch) for batch in loader] for _ in range(2)]
        assert batches == [[0] * (4 // ranks), [expected] * (4 // ranks)]


@pytest.mark.parametrize(("release", "rate"), [("4.57", 0.5), ("5.24", 0.25), ("corrected", None)])
def test_the_last_evaluation_steps_a_plateau_schedule(release, rate, tmp_path):
    """A loss that stays halves the rate at each evaluation but the first: of steps 2 and 4, and since 5.4 of step 5."""
    fields = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}}
    cadence = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 5, "save_strategy": "no", "learning_rate": 1.0}
    trainer = new_trainer(tmp_path, model=Unmoved(), semantics=release, **fields, **cadence)
    trainer.train()
    expected = rate or (0.25 if resolve_semantics().evaluates_last_step else 0.5)
    assert trainer.optimizer.param_groups[0]["lr"] == expected


class Unmoved(torch.nn.Module):
    """A model whose loss is 1, whatever its weight is."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, features, labels):
        return {"loss": 1 + 0 * self.weight}


def balanced(folder, **fields):
    """Return what each batch of an epoch of balanced batches had, by the lengths of its samples."""
    rows = [{"input_ids": [1] * length, "labels": length} for length in range(1, 13)]
    settings = {"train_sampling_strategy": "batch_rebalance", "per_device_train_batch_size": 2, "save_strategy": "no"}
    trainer = new_trainer(folder, model=PlainModel(), train_dataset=ListDataset(rows), **settings, **fields)
    return list(trainer._get_train_sampler())


@pytest.mark.skipif(resolve_semantics("corrected").release < Version("5.17"), reason="a strategy of transformers 5.17")
@pytest.mark.parametrize("name", ["seed", "data_seed"])
def test_balanced_batches_depend_on_the_seed_when_corrected(name, tmp_path):
    """The order is that of the seed; in transformers, and by default, it is that of seed 42 for every run."""
    with pytest.warns(
        HFCompatWarning, match=r"`seed` and `data_seed` do not .*corrected.*_batch_size=2` .* on average"
    ):
        reproduced = [balanced(tmp_path, semantics=RELEASE_5, **{name: seed}) for seed in (1, 2)]
    corrected = [balanced(tmp_path, semantics="corrected", **{name: seed}) for seed in (1, 2, 42)]
    lengths = list(range(1, 13))
    assert reproduced == [list(BatchRebalanceSampler(lengths, 2, 1, 1, seed=42, drop_last=False))] * 2
    assert corrected == [
        list(BatchRebalanceSampler(lengths, 2, 1, 1, seed=seed, drop_last=False)) for seed in (1, 2, 42)
    ]
    assert corrected[0] != corrected[1]
