#!/usr/bin/env bash
# Labels of a regression lose their fractions in each batch that begins with a whole number.
#
# Versions:  transformers 5.24.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `default_data_collator`, with which a Trainer without a tokenizer makes batches, takes all labels of a batch for
#            classes if that of the first sample is an `int`, and converts the others. So it does with `label_ids`. A list of
#            samples whose labels are 0, 0.5 and 1, as read from JSON, has them; a `Dataset` has one type for all.
# Seen:      [0, 0.5, 1] is [0, 0, 1] in a batch, [0.5, 0, 1] stays; no message.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install transformers==5.24.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import json

from transformers import default_data_collator


def labels(values):
    rows = json.loads(json.dumps([{"input": 1.0, "label": value} for value in values]))
    return default_data_collator(rows)["labels"].tolist()


whole, half = labels([0, 0.5, 1]), labels([0.5, 0, 1])
print("the first is whole:", whole, "the first is not:", half)
assert whole == [0, 0, 1] and half == [0.5, 0, 1]
assert default_data_collator([{"label_ids": [0, 0.5]}])["labels"].tolist() == [[0, 0]]
PYTHON
