#!/usr/bin/env bash
# Rows for which the function of `map` returns nothing are deleted, or undo what it returned for all others.
#
# Versions:  datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: a function that returns None says that `map` changes nothing, and the last row's word holds for all: if it
#            gets None the result is the data set as it was. If it gets a row, those with None are left out. So are whole
#            batches with `batched=True`. No message says so. A stream raises a `TypeError`.
# Seen:      of five rows, one of which the function meant to leave as it is, four were left when it was the third, and the
#            other four were unchanged when it was the last.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install datasets==5.2.0
run <<'PYTHON'
from datasets import Dataset

rows = Dataset.from_dict({"x": [0, 1, 2, 3, 4]})


def all_but(kept):
    def change(row):
        if row["x"] != kept:
            return {"x": row["x"] + 10}

    return change


def by_two(batch):
    if 2 not in batch["x"]:
        return {"x": [x + 10 for x in batch["x"]]}


third, last = rows.map(all_but(2))["x"][:], rows.map(all_but(4))["x"][:]
batches = rows.map(by_two, batched=True, batch_size=2)["x"][:]
print(f"nothing for the third row: {third}; for the last: {last}; for the second of three batches: {batches}")
assert third == [10, 11, 13, 14]
assert last == [0, 1, 2, 3, 4]
assert batches == [10, 11, 14]
try:
    list(rows.to_iterable_dataset().map(all_but(2)))
except TypeError as error:
    print(f"a stream: {error}")
else:
    raise AssertionError("a stream takes None")
PYTHON
