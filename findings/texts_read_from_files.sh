#!/usr/bin/env bash
# A text "None" read from a CSV file is nothing, and a text "2024-01-01" read from a JSON file is a datetime.
#
# Versions:  datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: the CSV reader takes the words None, null, NA, nan and n/a for a missing text. The JSON reader makes
#            timestamps of a column whose texts are all dates, in the messages of a chat, too. Neither says so.
# Seen:      five of seven texts of a CSV file are None; an answer "2024-01-01" is datetime(2024, 1, 1, 0, 0), unless
#            another row of the file has an answer that is no date. With `keep_default_na=False` the words are texts.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install datasets==5.2.0
run <<'PYTHON'
import datetime
import json
import pathlib

import datasets

datasets.disable_progress_bars()
texts = ["yes", "None", "null", "NA", "nan", "n/a", "no"]
pathlib.Path("texts.csv").write_text("\n".join(["text", *texts]) + "\n")
csv = datasets.load_dataset("csv", data_files="texts.csv", split="train")["text"][:]
kept = datasets.load_dataset("csv", data_files="texts.csv", split="train", keep_default_na=False)["text"][:]
print("from CSV:", csv)
print("with keep_default_na=False:", kept)


def answers(name, *contents):
    rows = [{"messages": [{"role": "assistant", "content": content}]} for content in contents]
    pathlib.Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = datasets.load_dataset("json", data_files=name, split="train")
    return [row["messages"][0]["content"] for row in read]


dates, mixed = answers("dates.jsonl", "2024-01-01", "2025-06-30"), answers("mixed.jsonl", "2024-01-01", "I do not know")
print("answers from JSON, all dates:", dates)
print("answers from JSON, not all:", mixed)
assert csv == ["yes", None, None, None, None, None, "no"] and kept == texts
assert dates == [datetime.datetime(2024, 1, 1), datetime.datetime(2025, 6, 30)]
assert mixed == ["2024-01-01", "I do not know"]
PYTHON
