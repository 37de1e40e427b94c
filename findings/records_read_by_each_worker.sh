#!/usr/bin/env bash
# Without an index each worker of a loader reads all records of a TFRecord file.
#
# Versions:  tfrecord 1.14.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `TFRecordDataset` divides a file among the workers by its index. With `index_path=None`, which is accepted, each
#            worker reads the whole file, without a message: an epoch is as many times as long as there are workers.
# Seen:      of six records a loader without workers has six, one with two workers twelve, each twice; with an index six.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install tfrecord==1.14.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
from tfrecord import TFRecordWriter
from tfrecord.tools.tfrecord2idx import create_index
from tfrecord.torch.dataset import TFRecordDataset
from torch.utils.data import DataLoader

writer = TFRecordWriter("numbers.tfrecord")
for number in range(6):
    writer.write({"number": (number, "int")})
writer.close()
create_index("numbers.tfrecord", "numbers.index")


def epoch(index, workers):
    records = TFRecordDataset("numbers.tfrecord", index, {"number": "int"})
    return sorted(int(batch["number"]) for batch in DataLoader(records, batch_size=1, num_workers=workers))


alone, without, divided = epoch(None, 0), epoch(None, 2), epoch("numbers.index", 2)
print("without workers:", alone, "two workers:", without, "with an index:", divided)
assert alone == divided == [0, 1, 2, 3, 4, 5]
assert without == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
PYTHON
