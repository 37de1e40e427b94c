#!/usr/bin/env bash
# Two datasets with transforms have none once they are concatenated, and a `map` of one is transformed twice.
#
# Versions:  datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: `concatenate_datasets`, and `interleave_datasets`, keep a transform if all parts have the very same object. Two
#            functions that do the same, such as two `functools.partial`, are not: the result has no transform, without a
#            message, so that a column is not normalized or augmented. `map` gets rows that are transformed already, and the
#            result transforms what it has returned once more.
# Seen:      columns that are multiplied by ten when they are read: not multiplied after `concatenate_datasets`, unless both
#            parts have one function; by a hundred after a `map` that returns the row.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install datasets==5.2.0
run <<'PYTHON'
import functools

import datasets

datasets.disable_progress_bars()


def multiply(batch, by):
    return {"value": [value * by for value in batch["value"]]}


def part(values, transform):
    return datasets.Dataset.from_dict({"value": values}).with_transform(transform)


apart = [part(values, functools.partial(multiply, by=10)) for values in ([1, 2], [3, 4])]
one = functools.partial(multiply, by=10)
together = [part(values, one) for values in ([1, 2], [3, 4])]
lost = datasets.concatenate_datasets(apart)[:]["value"]
interleaved = datasets.interleave_datasets(apart)[:]["value"]
kept = datasets.concatenate_datasets(together)[:]["value"]
mapped = apart[0].map(lambda row: {"value": row["value"]})[:]["value"]
print("two functions:", lost, interleaved, "one function:", kept, "mapped:", mapped)
assert apart[0][:]["value"] == [10, 20]
assert lost == [1, 2, 3, 4] and interleaved == [1, 3, 2, 4]
assert kept == [10, 20, 30, 40] and mapped == [100, 200]
PYTHON
