#!/usr/bin/env bash
# Interleaved streams read the first rows of each source twice.
#
# Versions:  datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: for sources without known features `interleave_datasets` runs each generator for five rows, throws them
#            away, and begins again with the first iteration; generators with side effects, counters or random numbers
#            of their own are off by five.
# Seen:      ten rows made before the first one was asked for; row 0 of each source made twice.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install datasets==5.2.0
run <<'PYTHON'
from datasets import IterableDataset, interleave_datasets

made = []


def rows(name):
    for i in range(20):
        made.append((name, i))
        yield {"x": i}


sources = [IterableDataset.from_generator(rows, gen_kwargs={"name": name}) for name in "ab"]
mixed = interleave_datasets(sources)
print("before the first row is asked for, the generators made", made)
before = len(made)
first = next(iter(mixed))
print(f"for the first row {len(made) - before} more were made; source a made its row 0 "
      f"{made.count(('a', 0))} times, b {made.count(('b', 0))} times")
assert before == 10, before
assert made.count(("a", 0)) == 2
PYTHON
