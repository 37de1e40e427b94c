#!/usr/bin/env bash
# Files of a folder are not read once the name of another one says a split.
#
# Versions:  datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: `load_dataset("folder")` reads all files as `train`, if no name has a word for a split in it. If one has,
#            such as `user_test.csv`, only the files with such words are read, and the others are left out, without a
#            message.
# Seen:      of january.csv and february.csv two rows; with user_test.csv beside them one split, `test`, with one row.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install datasets==5.2.0
run <<'PYTHON'
import pathlib

import datasets

datasets.disable_progress_bars()


def splits(folder, *names):
    pathlib.Path(folder).mkdir()
    for name in names:
        pathlib.Path(folder, name).write_text(f"name\n{name}\n")
    loaded = datasets.load_dataset(folder)
    print(f"{names}: {({split: part['name'][:] for split, part in loaded.items()})}")
    return {split: len(part) for split, part in loaded.items()}


assert splits("one", "january.csv", "february.csv") == {"train": 2}
assert splits("two", "january.csv", "february.csv", "user_test.csv") == {"test": 1}
PYTHON
