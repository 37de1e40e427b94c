"""``docs/lightning_callbacks.md``, from the table in the code: ``python -m tests.support.lightning_callbacks_page``."""

from pathlib import Path

from hf_compat.engine.lightning_callbacks import NEVER_CALLED, OF_OTHERS, OF_SANITY_CHECK, SUPPORT

PAGE = Path(__file__).parents[2] / "docs" / "lightning_callbacks.md"
INTRODUCTION = """\
# Lightning's callbacks

`Trainer(callbacks=[...])` takes callbacks of transformers and of Lightning, mixed; `add_callback`, `pop_callback` and
`remove_callback` take both too. Each callback of `lightning.pytorch.callbacks` either works or is
refused before training, with the reason and what to use instead. The same holds for subclasses.

One update step is one Lightning batch: hooks, `global_step` and `every_n_train_steps` count update steps. Evaluations
inside the fit reach callbacks as validations, and their metrics as `eval_*` in `callback_metrics`. An evaluation at the
end of an epoch comes after `on_train_epoch_end` of callbacks, where plain Lightning's comes before: it measures what
they have changed there, such as averaged or pruned weights.

What a callback logs is at the update step that is under way, counted from 1 as in the Trainer's logs, where plain
Lightning counts from 0. In a run that resumes within an epoch `batch_idx`, `trainer.is_last_batch` and all counters go
on as in plain Lightning, which does not call `on_train_epoch_start` there either; a `TrainerCallback` gets
`on_epoch_begin`, as in transformers.

The states of callbacks, and what they add to checkpoints in `on_save_checkpoint`, are in a checkpoint's `lightning.pt`;
weights that they put into its `state_dict` become the checkpoint's weights.

This page is generated from `hf_compat/engine/lightning_callbacks.py`.

## Several runs of one Trainer

Each run begins with its Lightning callbacks as they were given: a second `train()`, the trials of a search, a restart
of `auto_find_batch_size`. One that resumes restores the checkpoint's states into them. You pass a callback once and
read it after each run (`best_model_path`, a list of losses); what you have read stays as it is, and what you assign
between two runs counts as given.

Only what a callback has for itself is put back: numbers, strings, tensors, metrics, and lists, dicts and objects of
these. What you hold too, such as a list that you passed to the callback to write to, a model or a logger, goes on
through all runs. Files of an earlier run stay, so that `ModelCheckpoint` appends `-v1` to a name that exists.
"""


def page() -> str:
    """Return the text of the page."""
    works = [
        f"| `{name}` | {one.note} | {one.refuses} |"
        for name, one in sorted({**SUPPORT, **OF_OTHERS}.items(), key=lambda item: item[0].lower())
        if one.works
    ]
    refused = [
        f"| `{name}` | {one.note} | {one.instead} |"
        for name, one in sorted(SUPPORT.items(), key=lambda item: item[0].lower())
        if not one.works
    ]
    never = ", ".join(f"`{hook}`" for hook in NEVER_CALLED)
    checked = " and ".join(f"`{hook}`" for hook in OF_SANITY_CHECK)
    return "\n".join(
        [
            INTRODUCTION,
            "## Supported\n\n| callback | what it does here | refused with |\n|---|---|---|",
            *works,
            "\n## Refused\n\n| callback | reason | instead |\n|---|---|---|",
            *refused,
            f"\n## Hooks that no run calls\n\n{never}. A callback that defines no other hook is refused.",
            f"\n{checked} are only called with `lightning={{'num_sanity_val_steps': n}}`.\n",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
