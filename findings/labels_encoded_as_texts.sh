#!/usr/bin/env bash
# Labels that are numbers already are numbered anew, in the order of their texts.
#
# Versions:  datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: `class_encode_column` makes a `ClassLabel` of a column: its names are the values as texts, sorted as
#            texts. With more than ten classes "10" comes before "2", so that a label is another number than it was, and
#            than it is for a model, or in a file, that has the old ones.
# Seen:      of the labels 0 to 11 the label 2 becomes 4 and 10 becomes 2; of the labels 0 to 9 all stay.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install datasets==5.2.0
run <<'PYTHON'
import datasets

datasets.disable_progress_bars()


def encoded(classes):
    rows = datasets.Dataset.from_dict({"label": list(range(classes))})
    return rows.class_encode_column("label")["label"][:]


print(encoded(12))
assert encoded(10) == list(range(10))
assert encoded(12) == [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 2, 3]
PYTHON
