#!/usr/bin/env bash
# Numbers of a dataset that is written as JSON are rounded to ten decimals.
#
# Versions:  datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: `to_json` has pandas write its rows, which keeps ten decimals unless `double_precision` is given, and
#            fifteen at most; `to_csv` and `to_parquet` write all digits. What is small loses most: the probabilities
#            of a teacher, or learning rates.
# Seen:      1.23456e-11 comes back as 0.0, and 0.12345678901234 as 0.123456789; exactly from CSV and Parquet.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install datasets==5.2.0
run <<'PYTHON'
import datasets

datasets.disable_progress_bars()
numbers = [1.23456e-11, 0.12345678901234]
rows = datasets.Dataset.from_dict({"number": numbers})
rows.to_json("rows.json")
rows.to_csv("rows.csv")
rows.to_parquet("rows.parquet")
read = {
    "json": datasets.Dataset.from_json("rows.json")["number"][:],
    "csv": datasets.Dataset.from_csv("rows.csv")["number"][:],
    "parquet": datasets.Dataset.from_parquet("rows.parquet")["number"][:],
}
print(read)
assert read["csv"] == read["parquet"] == numbers
assert read["json"] == [0.0, 0.123456789]
rows.to_json("rows.json", double_precision=15)
assert datasets.Dataset.from_json("rows.json")["number"][1] == numbers[1]
PYTHON
