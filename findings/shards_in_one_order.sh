#!/usr/bin/env bash
# `shardshuffle` shuffles the shards of a WebDataset once: each epoch has the same order, and short ones the same shards.
#
# Versions:  torch 2.13.0, numpy 2.4.6, webdataset 1.0.2; Python 3.11 on a CPU
# Behaviour: a `WebDataset` draws one seed when it is made, by which each pass shuffles the shards anew, into the same order.
#            `with_epoch(n)` begins each pass at the first shard. With fewer samples than the data set has, the shards at
#            the end are not read in any epoch, however many there are.
# Seen:      the shards of five passes over eight are in one order; twenty epochs `with_epoch(8)` of 32 samples, shuffled
#            in buffers too, saw 15 of them. With `detshuffle=True` orders differ, and all 32 are seen.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6 webdataset==1.0.2
run <<'PYTHON'
import webdataset

for shard in range(8):
    with webdataset.TarWriter(f"{shard}.tar") as tar:
        for number in range(4):
            tar.write({"__key__": f"{shard}{number}", "x.cls": 4 * shard + number})


def samples(**fields):
    return webdataset.WebDataset("{0..7}.tar", shardshuffle=100, **fields).decode().map(lambda row: row["x.cls"])


def orders(data):
    return {tuple(value // 4 for value in list(data)[::4]) for _ in range(5)}


def seen(data):
    return {value for _ in range(20) for value in data}


once, anew = orders(samples()), orders(samples(detshuffle=True))
print(f"five passes: orders of shards {once}; with detshuffle {len(anew)} orders")
short, all_seen = seen(samples().shuffle(8).with_epoch(8)), seen(samples(detshuffle=True).shuffle(8).with_epoch(8))
print(f"20 epochs of 8 of 32 samples: saw {len(short)}; with detshuffle {len(all_seen)}")
assert len(once) == 1 and len(anew) > 1
assert len(short) <= 24, short
assert len(all_seen) == 32
PYTHON
