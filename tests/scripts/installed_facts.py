"""Prints, as JSON, what holds before, during and after ``hf_compat.install()`` in one process."""

import json
import pickle
import sys
import warnings
from unittest import mock

import hf_compat


def holders_of_ours():
    """Return the places in modules of transformers that hold an object of hf_compat."""
    return [
        f"{key}.{name}"
        for key, module in list(sys.modules.items())
        if key.partition(".")[0] == "transformers" and module is not None
        for name, value in list(vars(module).items())
        if str(getattr(value, "__module__", "")).startswith("hf_compat")
    ]


def finders():
    """Return how many of the import finders are those of ``install()``."""
    return sum(type(finder).__module__.startswith("hf_compat.installing") for finder in sys.meta_path)


def facts_in_place():
    """Return what holds once transformers' trainer is imported under hf_compat."""
    import transformers
    from transformers import Seq2SeqTrainer, Trainer, TrainerCallback, TrainingArguments
    from transformers.integrations.integration_utils import TensorBoardCallback, TrainerCallback as OfIntegrations

    theirs = type("Theirs", (TensorBoardCallback,), {"__init__": lambda self: None})()
    mine = type("Mine", (TrainerCallback,), {})
    transformers.trainer.DEFAULT_PROGRESS_CALLBACK = hf_compat.PrinterCallback
    assigned = hf_compat.DEFAULT_PROGRESS_CALLBACK is hf_compat.PrinterCallback
    transformers.trainer.DEFAULT_PROGRESS_CALLBACK = hf_compat.ProgressCallback
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for name in ("get_scheduler", "PREFIX_CHECKPOINT_DIR", "RandomSampler", "logger", "Trainer", "get_scheduler"):
            with mock.patch.object(transformers.trainer, name, mine):
                pass
    reference = b"ctransformers.training_args\nTrainingArguments\n."
    wrong = [
        name
        for name in hf_compat.__all__
        for module in (transformers, transformers.trainer, transformers.trainer_utils, transformers.training_args)
        if name not in ("__version__", "Adafactor", "GreedyLR", "ExplicitEnum")
        and not name.isupper()
        and hasattr(module, name)
        and getattr(module, name) is not getattr(hf_compat, name)
    ]
    return {
        "not ours": wrong,
        "ours": [kind.__module__.partition(".")[0] for kind in (Trainer, Seq2SeqTrainer, TrainingArguments)],
        "a copied name is ours": OfIntegrations is TrainerCallback,
        "their callback is one of ours": [
            isinstance(theirs, TrainerCallback),
            issubclass(type(theirs), TrainerCallback),
        ],
        "it is none of a script's own": isinstance(theirs, mine),
        "an integer is none": isinstance(3, TrainerCallback),
        "their classes derive from theirs": [base.__module__ for base in TensorBoardCallback.__mro__[1:2]],
        "an assigned default is ours": assigned,
        "assigned without effect": [[each.category.__name__, str(each.message).split("`")[1]] for each in told],
        "a pickled reference is ours": pickle.loads(reference) is TrainingArguments,
        "version": transformers.__version__ != hf_compat.__version__,
        "source is found": transformers.trainer.__spec__.loader is transformers.trainer.__loader__,
    }


def late():
    """Return the message of an install that comes after a class of a library."""
    from transformers import Trainer

    kind = type("LateTrainer", (Trainer,), {"__module__": "some_library.training"})
    try:
        hf_compat.install()
    except RuntimeError as error:
        return [str(error), kind.__name__]
    return ["", ""]


def main():
    facts = {}
    hf_compat.uninstall()
    hf_compat.install()
    hf_compat.install()
    facts["loaded by install"] = sorted({"torch", "transformers", "lightning", "accelerate"} & set(sys.modules))
    facts["finders"] = finders()
    import transformers

    facts["loaded with transformers"] = sorted({"lightning"} & set(sys.modules))
    facts |= facts_in_place()
    hf_compat.uninstall()
    facts["left behind"] = holders_of_ours()
    facts["finders after"] = finders()
    theirs = (transformers.Trainer, transformers.Seq2SeqTrainer, transformers.TrainerCallback)
    facts["theirs again"] = [kind.__module__ for kind in theirs]
    facts["their class as it was"] = transformers.Seq2SeqTrainer.__mro__[1] is transformers.Trainer
    facts["their defaults"] = transformers.trainer.DEFAULT_CALLBACKS[0].__module__
    facts["late"] = late()
    facts["nothing done when late"] = [holders_of_ours(), transformers.Trainer is theirs[0]]
    imported_before(facts)
    print(json.dumps(facts))


def imported_before(facts):
    """Install once more, with transformers' trainer and one of its classes imported before, under two names."""
    import gc

    import transformers

    gc.collect()  # the class of ``late``
    here = sys.modules["__main__"]
    here.TrainerState = transformers.TrainerState
    here.TheirState = transformers.TrainerState
    kept = [transformers.TrainerState]
    hf_compat.install(announce=False)
    facts["imported before"] = [
        transformers.Trainer is hf_compat.Trainer,
        here.TrainerState is hf_compat.TrainerState,
        here.TheirState is hf_compat.TrainerState,
        kept[0] is not hf_compat.TrainerState,
        isinstance(kept[0](), here.TrainerState),
    ]
    hf_compat.uninstall()
    facts["all put back"] = [holders_of_ours(), here.TrainerState is here.TheirState is kept[0]]


if __name__ == "__main__":
    main()
