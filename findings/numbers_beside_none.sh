#!/usr/bin/env bash
# Whole numbers of a dataset in torch's format become floats, and are rounded, in a batch that contains a None.
#
# Versions:  datasets 5.2.0, torch 2.13.0; Python 3.11 on a CPU
# Behaviour: a None in a column of integers is NaN, which needs floats, and floats are float32: the other numbers of the
#            same batch are rounded above 2**24. By itself the same row is an exact int64, as in a batch without a None. So
#            the type and the value depend on what else is in the batch; NumPy's format does the same. No message says so.
# Seen:      the number 16,777,217 is an int64 by itself, and 16,777,216 as a float32 beside a None.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install datasets==5.2.0 torch==2.13.0
run <<'PYTHON'
import torch
from datasets import Dataset

rows = Dataset.from_dict({"id": [16777217, None, 5]})
for kind in ("torch", "numpy"):
    formatted = rows.with_format(kind)
    alone, beside, apart = formatted[0]["id"], formatted[:2]["id"], formatted[[0, 2]]["id"]
    print(kind, "alone:", alone, alone.dtype, "beside None:", beside, beside.dtype, "without:", apart, apart.dtype)
    assert int(alone) == 16777217 and apart.tolist() == [16777217, 5]
    assert str(alone.dtype).endswith("int64") and str(apart.dtype).endswith("int64")
    assert str(beside.dtype).endswith("float32") and int(beside[0]) == 16777216
loader = torch.utils.data.DataLoader(rows.with_format("torch"), batch_size=2)
first = next(iter(loader))["id"]
print("in a DataLoader:", first)
PYTHON
