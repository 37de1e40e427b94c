"""A warning where, as in transformers, a data set's ``set_epoch`` is not called."""

from __future__ import annotations

from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.data.loader import PreparedDataLoader
from hf_compat.overriding import WarnOnce

__all__ = ["warn_of_untold_epochs"]


def warn_of_untold_epochs(loader: object, rest: object, semantics: Semantics, warn_once: WarnOnce) -> None:
    """Warn if the data set behind ``loader`` has a ``set_epoch`` that is not called in each epoch.

    Args:
        loader: The train loader.
        rest: The loader of the rest of a resumed epoch; ``loader`` in others.
        semantics: The release whose calls are reproduced.
        warn_once: Warns.
    """
    if _leaves_out(loader):
        where = "on several processes"
    elif _leaves_out(rest) and semantics.skips_before_telling_epoch:
        where = "in an epoch that is resumed in the middle"
    else:
        return
    warn_once(
        f"`train_dataset` has a `set_epoch`, which transformers {semantics.release} does not call {where}; neither "
        "does this run. Set `TrainingArguments(semantics='corrected')` to have it called in every epoch."
    )


def _leaves_out(loader: object) -> bool:
    return isinstance(loader, PreparedDataLoader) and hasattr(loader.dataset, "set_epoch") and not loader.tells_dataset
