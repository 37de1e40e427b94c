#!/usr/bin/env bash
# `map` returns the rows of a version of its function that has been edited since, if it is in a module of its own.
#
# Versions:  datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: results are cached by a hash of the function: its code in the script itself, its name alone if it is imported.
#            So an edited `preprocessing.py` changes nothing, and what the script's functions call of it neither. A data
#            set of `from_generator` is cached by the generator's code, whatever the files have that it reads.
# Seen:      a second run, after `x + 1` had become `x + 100` in the module and 1 had become 2 in the file, got x + 1 and 1.
#            A changed global of the script was noticed.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install datasets==5.2.0
cat > train.py <<'PYTHON'
import json
import sys

import preprocessing
from datasets import Dataset, load_from_disk

OFFSET = int(sys.argv[1])


def calls(row):
    return {"y": preprocessing.change(row)["y"]}


def adds(row):
    return {"y": row["x"] + OFFSET}


def lines():
    for line in open("numbers.txt"):
        yield {"x": int(line)}


rows = load_from_disk("rows")
found = {
    "imported": rows.map(preprocessing.change)["y"][0],
    "called": rows.map(calls)["y"][0],
    "global": rows.map(adds)["y"][0],
    "generated": Dataset.from_generator(lines)["x"][0],
}
with open(f"{OFFSET}.json", "w") as file:
    json.dump(found, file)
PYTHON
run <<'PYTHON'
import json
import subprocess
import sys
from pathlib import Path

from datasets import Dataset

Dataset.from_dict({"x": [0]}).save_to_disk("rows")


def found(offset, line):
    Path("preprocessing.py").write_text(f"def change(row):\n    return {{'y': row['x'] + {offset}}}\n")
    Path("numbers.txt").write_text(f"{line}\n")
    subprocess.run([sys.executable, "train.py", str(offset)], check=True, stderr=subprocess.DEVNULL)
    return json.loads(Path(f"{offset}.json").read_text())


first, second = found(1, 1), found(100, 2)
print(f"first run: {first}, after the edits: {second}")
assert first == {"imported": 1, "called": 1, "global": 1, "generated": 1}
assert second == {"imported": 1, "called": 1, "global": 100, "generated": 1}
PYTHON
