#!/usr/bin/env bash
# A row of a dataset in NumPy's format has its doubles, a batch of rows has them rounded.
#
# Versions:  datasets 5.2.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `with_format("numpy")` gives a number of a row as it is stored, in float64, and makes an array of several
#            rows in float32. A batched `map` over it stores what was rounded, in a column of another type. Whole
#            numbers become floats, and are rounded, in those batches in which one is missing.
# Seen:      16777217.0 in a row, 16777216.0 in a batch, which `map(batched=True)` writes; the ids 16777217 and None
#            are 16777216.0 and nan.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install datasets==5.2.0 numpy==2.4.6
run <<'PYTHON'
import datasets
import numpy

datasets.disable_progress_bars()
numbers = datasets.Dataset.from_dict({"x": [16777217.0, 16777217.0]}).with_format("numpy")
row, batch = numbers[0]["x"], numbers[:]["x"]
print(f"a row: {row.item()} ({row.dtype}); a batch: {batch.tolist()} ({batch.dtype})")
written = {batched: numbers.map(lambda part: {"y": part["x"]}, batched=batched) for batched in (False, True)}
for batched, copy in written.items():
    print(f"map(batched={batched}) writes {copy.with_format(None)['y'][0]}, as {copy.features['y']}")
ids = datasets.Dataset.from_dict({"id": [16777217, None]}).with_format("numpy")[:]["id"]
print("ids of a batch with a gap:", ids.tolist())
exact = numbers.with_format("numpy", dtype=numpy.float64)[:]["x"]
print("with dtype=numpy.float64:", exact.tolist())
assert row == 16777217 and batch[0] == ids[0] == 16777216 and exact[0] == 16777217
assert [copy.with_format(None)["y"][0] for copy in written.values()] == [16777217, 16777216]
PYTHON
