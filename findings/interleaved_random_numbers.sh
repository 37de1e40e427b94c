#!/usr/bin/env bash
# Interleaved streams whose `map` draws from a global generator are other streams each time.
#
# Versions:  datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: `interleave_datasets` reads each source in a thread of its own, one row ahead, so that threads draw from the
#            global generator in an order that no seed decides. A source alone is the same each time.
# Seen:      in most of 20 readings of one mixture after `random.seed(0)` other numbers than in the first (20 different
#            streams of 20); one stream in 20 readings of a source alone.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install datasets==5.2.0
run <<'PYTHON'
import random

from datasets import Dataset, Features, Value, disable_progress_bars, interleave_datasets

disable_progress_bars()
features = Features({"x": Value("int64"), "r": Value("float64")})


def source():
    numbers = Dataset.from_dict({"x": list(range(200))}).to_iterable_dataset()
    return numbers.map(lambda row: {"x": row["x"], "r": random.random()}, features=features)


def readings(stream):
    seen = set()
    for _ in range(20):
        random.seed(0)
        seen.add(tuple(row["r"] for row in stream))
    return len(seen)


alone, mixed = readings(source()), readings(interleave_datasets([source(), source()]))
print(f"20 readings, each after random.seed(0): {alone} different of the source, {mixed} of two interleaved")
assert alone == 1, alone
assert mixed > 1, mixed
PYTHON
