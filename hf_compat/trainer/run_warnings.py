"""Warnings of what a run loses or counts wrong, as transformers' would: of its data, precision, norms and schedule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hf_compat.arguments.releases import Semantics
from hf_compat.data.loader import DispatchingDataLoader, PreparedDataLoader
from hf_compat.errors import LoaderError
from hf_compat.overriding import WarnOnce


def warn_of_untold_epochs(loader: object, rest_of_epoch: object, semantics: Semantics, warn_once: WarnOnce) -> None:
    """Warn if the data set behind ``loader`` has a ``set_epoch`` that is not called in each epoch.

    Args:
        loader: The train loader.
        rest_of_epoch: The loader of the rest of a resumed epoch; ``loader`` in others.
        semantics: The release whose calls are reproduced.
        warn_once: Warns.
    """
    if _leaves_out(loader):
        where = "on several processes"
    elif _leaves_out(rest_of_epoch) and semantics.skips_before_telling_epoch:
        where = "in an epoch that is resumed in the middle"
    else:
        return
    warn_once(
        f"`train_dataset` has a `set_epoch`, which transformers {semantics.release} does not call {where}; neither "
        "does this run. Set `TrainingArguments(semantics='corrected')` to have it called in every epoch."
    )


def _leaves_out(loader: object) -> bool:
    return isinstance(loader, PreparedDataLoader) and hasattr(loader.dataset, "set_epoch") and not loader.tells_dataset


def warn_of_untold_workers(loader: object, warn_once: WarnOnce) -> None:
    """Warn if ``loader`` has workers from an earlier epoch, whose copies of the data set are not told of this one."""
    dataset = getattr(loader, "dataset", None)
    dataset = getattr(dataset, "unsharded", dataset)
    is_kept = getattr(loader, "persistent_workers", False) and getattr(loader, "_iterator", None) is not None
    attributes = getattr(dataset, "__dict__", {})
    if is_kept and hasattr(dataset, "set_epoch") and not any(map(_is_shared, attributes.values())):
        warn_once(
            "`dataloader_persistent_workers=True` keeps workers that have copies of `train_dataset` from an earlier "
            "epoch. Its `set_epoch` does not reach them, as in transformers, so that epochs may have the same order. "
            "Set `dataloader_persistent_workers=False`, or keep the epoch in shared memory, as a tensor after "
            "`share_memory_()`."
        )


def _is_shared(value: object) -> bool:
    if isinstance(value, Tensor):
        return bool(value.is_shared())  # type: ignore[no-untyped-call]
    return type(value).__module__.startswith("multiprocessing.")  # such as a `Value`


def warn_of_shares_in_shares(loader: object, field: str, warn_once: WarnOnce) -> None:
    """Warn if ``loader`` shares a stream, of ``field``, among the ranks that gives each rank a share already.

    Raises:
        LoaderError: If one rank is to read for all a stream of mosaicml-streaming, which waits for the others to read.
    """
    stream: Any = getattr(loader, "dataset", None)
    stream = getattr(stream, "unsharded", stream)
    if isinstance(loader, DispatchingDataLoader) or stream is not getattr(loader, "dataset", None):
        config = getattr(stream, "_distributed", None)  # of `datasets`, by `split_dataset_by_node`
        names = {(base.__module__.partition(".")[0], base.__name__) for base in type(stream).__mro__}
        remedy = "Pass `Trainer(lightning={'use_distributed_sampler': False})` to have each rank read its own"
        if ("streaming", "StreamingDataset") in names and isinstance(loader, DispatchingDataLoader):
            raise LoaderError(
                f"`{field}` is a `StreamingDataset` of mosaicml-streaming, in which ranks wait for one another, but "
                f"rank 0 is to read it for all: they would wait for ever. {remedy}."
            )
        if getattr(config, "world_size", 1) > 1 or names & _STREAMS_WITH_SHARES:
            warn_once(
                f"`{field}` gives each rank samples of its own, which are shared among the ranks once more, as in "
                f"transformers: some are never read. {remedy}, or pass the whole stream."
            )


_STREAMS_WITH_SHARES = {("litdata", "StreamingDataset"), ("streaming", "StreamingDataset")}
"""Package and name of the streams that look up the rank themselves: litdata's, mosaicml-streaming's."""


def warn_of_unseeded_shuffle(loader: object, batches: int, warn_once: WarnOnce) -> None:
    """Warn if a run resumes after ``batches`` batches of an epoch of a ``WebDataset`` that is shuffled without a seed.

    Of other streams it is not known: batches that are read again may differ by random augmentation alone.
    """
    stream: Any = getattr(loader, "dataset", None)
    stages = getattr(getattr(stream, "unsharded", stream), "pipeline", ())
    given = [
        dict(zip(_OF_SHUFFLE, stage.args, strict=False)) | stage.kw
        for stage in stages
        if getattr(getattr(stage, "f", None), "__name__", "") == "_shuffle"  # `detshuffle` has no function
        and stage.f.__module__ == "webdataset.filters"
    ]
    if batches and any(each.get("rng") is None and each.get("seed") is None for each in given):
        warn_once(
            "`train_dataset` is a `WebDataset` that is shuffled without a seed, now in another order than before the "
            "checkpoint: the rest of this epoch repeats some samples and leaves out others. Pass a `seed` to "
            "`shuffle`, and to `WebDataset` if it shuffles shards."
        )


_OF_SHUFFLE = ("bufsize", "initial", "rng", "seed")
"""The parameters of webdataset's ``shuffle``, in their order."""


def is_inside_of_autocast(device: torch.device, mixed_precision: str) -> bool:
    """Return whether the script trains inside of an autocast, which keeps its copies of the weights to its end."""
    is_inside = torch.autocast_increment_nesting() > 1
    torch.autocast_decrement_nesting()
    makes_copies = torch.is_autocast_enabled(device.type) or mixed_precision != "no"
    return is_inside and makes_copies and torch.is_autocast_cache_enabled()


def warn_of_outer_autocast(device: torch.device, mixed_precision: str, warn_once: WarnOnce) -> None:
    """Warn of an autocast around the run, unless update steps clear its copies, as if ``semantics`` is corrected."""
    if is_inside_of_autocast(device, mixed_precision):
        warn_once(
            "`train` is called inside of `torch.autocast`, which copies weights to half precision once, and keeps the "
            "copies to its end: linear layers and convolutions compute with the weights of the first update step in "
            "all others, as in transformers. Call it outside: with `bf16=True` or `fp16=True` the forward pass is in "
            "half precision. Or set `TrainingArguments(semantics='corrected')`."
        )


def warn_of_lost_masks(warn_once: WarnOnce) -> None:
    """Warn that a resumed run has no masks of Lightning's ``ModelPruning``."""
    warn_once(
        "`callbacks`: ModelPruning keeps its masks in no checkpoint, as in Lightning: weights that were pruned are "
        "trained again until the end of the next epoch, and fewer than in an unbroken run are zero at the end. Train "
        "without interruption, or prune once, after `train`."
    )


def warn_of_narrowed_model(model: nn.Module, full: str | None, warn_once: WarnOnce) -> None:
    """Warn if trainable weights of ``model`` are in the dtype ``full``, to which an evaluation has cast them."""
    if full and any(each.requires_grad and each.dtype is getattr(torch, full) for each in model.parameters()):
        field = "bf16" if full == "bfloat16" else "fp16"
        warn_once(
            f"`{field}_full_eval=True`: an evaluation before this run has cast the model to {full}, as in "
            "transformers: it is trained in that, so that small updates are rounded away. Train with a new Trainer and "
            f"a model in float32, or with `{field}=True` in place of it: that casts no weights."
        )


def warn_of_rounded_average(model: nn.Module, average: str | None, warn_once: WarnOnce) -> None:
    """Warn if the callback named ``average`` averages trainable weights of ``model`` that are in half precision."""
    if average is None:
        return
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    halves = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes & {torch.bfloat16, torch.float16})
    if halves:
        warn_once(
            f"{average} averages weights in {halves[0]}, to which small steps of the average are rounded: it may stay "
            "where it began, and the model after the run is the average. Train weights in float32, with `bf16=True`."
        )


def warn_of_norms_counted_twice(model: nn.Module, warn_once: WarnOnce) -> None:
    """Warn if a layer of ``model`` with activation checkpointing contains a BatchNorm with running statistics."""
    for name, layer in model.named_modules():
        kinds = (kind.__name__ for kind in type(layer).__mro__)
        if getattr(layer, "gradient_checkpointing", False) and "GradientCheckpointingLayer" in kinds:
            for inner, norm in layer.named_modules():
                if isinstance(norm, _BatchNorm) and norm.track_running_stats and norm.momentum:
                    warn_once(
                        f"`activation_checkpointing` computes `{name}` twice for each batch, so that the running "
                        f"statistics of the BatchNorm `{inner}` in it are updated twice, as in transformers: "
                        "evaluations differ from those of a run without it, the trained weights do not. Set "
                        "`activation_checkpointing=False`, or a smaller `momentum` of the norms: "
                        "`1 - sqrt(1 - momentum)`."
                    )
                    return


def warn_of_negative_plateau(scheduler: object, metric: float, warn_once: WarnOnce) -> None:
    """Warn if ``scheduler`` is torch's plateau schedule and takes a value that is no better than ``metric`` for better.

    Args:
        scheduler: The schedule of the run.
        metric: What it is about to be stepped with.
        warn_once: Warns.
    """
    if isinstance(scheduler, ReduceLROnPlateau) and scheduler.threshold_mode == "rel" and metric < 0:
        warn_once(
            "The plateau schedule is stepped with a metric below 0, where its relative `threshold` counts the same "
            "value again, and a slightly worse one, as an improvement: the learning rate may never fall. Set "
            "`lr_scheduler_kwargs={'threshold_mode': 'abs'}`."
        )
