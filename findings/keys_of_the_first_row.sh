#!/usr/bin/env bash
# A list of rows becomes a dataset without the keys that its first row does not have.
#
# Versions:  datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: `Dataset.from_list` takes its columns from the first row. What other rows have besides is dropped, without
#            a message; a JSON file with the same rows keeps it.
# Seen:      of [{"prompt"}, {"prompt", "weight": 3}] there is no weight; read from a file it is None and 3.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install datasets==5.2.0
run <<'PYTHON'
import json
import pathlib

import datasets

datasets.disable_progress_bars()
rows = [{"prompt": "a"}, {"prompt": "b", "weight": 3}]
given = datasets.Dataset.from_list(rows)
pathlib.Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
read = datasets.load_dataset("json", data_files="rows.jsonl", split="train")
print("from a list:", given[:])
print("from a file:", read[:])
assert given.column_names == ["prompt"]
assert read["weight"][:] == [None, 3]
PYTHON
