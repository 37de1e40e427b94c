#!/usr/bin/env bash
# Labels of graphs that are named `class_index` are other numbers in a batch.
#
# Versions:  torch-geometric 2.8.1, torch 2.13.0; Python 3.11 on a CPU
# Behaviour: what has "index" in its name is taken for numbers of nodes, to which the nodes of the graphs before are added;
#            to what has "batch" in it, its own maximum plus one. So `class_index`, `sample_index`, `indexed` or
#            `batch_number` of a graph are right in a batch for the first graph alone. No message says so.
# Seen:      three graphs of three nodes with the labels 0, 1 and 2: as `y` they are these in a batch, as `class_index` 0, 4
#            and 8; three times 5 as `batch_number` is 5, 11 and 17.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torch-geometric==2.8.1 torch==2.13.0
run <<'PYTHON'
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader


def graph(label):
    edges = torch.tensor([[0, 1], [1, 2]])
    return Data(x=torch.zeros(3, 1), edge_index=edges, y=torch.tensor([label]), class_index=torch.tensor([label]),
                batch_number=torch.tensor([5]))


batch = next(iter(DataLoader([graph(label) for label in range(3)], batch_size=3)))
print("y:", batch.y.tolist(), "class_index:", batch.class_index.tolist(), "batch_number:", batch.batch_number.tolist())
assert batch.y.tolist() == [0, 1, 2]
assert batch.class_index.tolist() == [0, 4, 8]
assert batch.batch_number.tolist() == [5, 11, 17]
PYTHON
