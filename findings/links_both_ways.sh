#!/usr/bin/env bash
# `RandomLinkSplit` leaves the links to be predicted in the graph for training, the other way round.
#
# Versions:  torch-geometric 2.8.1, torch 2.13.0; Python 3.11 on a CPU
# Behaviour: an undirected graph has each link twice. Unless it is told by `is_undirected=True`, the split draws directions
#            one by one: the other direction of nearly every link of the test is in the graph that is trained on, and a model
#            that has learned to look there is right. `data.is_undirected()` would say so; no message does.
# Seen:      of a random graph's test links more than eight in ten are in the graph for training the other way round; none
#            with `is_undirected=True`.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torch-geometric==2.8.1 torch==2.13.0
run <<'PYTHON'
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import RandomLinkSplit
from torch_geometric.utils import erdos_renyi_graph, to_undirected

torch.manual_seed(0)
data = Data(x=torch.zeros(50, 1), edge_index=to_undirected(erdos_renyi_graph(50, 0.1)))
assert data.is_undirected()


def leaked(is_undirected):
    train, _, test = RandomLinkSplit(num_val=0.1, num_test=0.1, is_undirected=is_undirected)(data)
    trained = {tuple(link) for link in train.edge_index.T.tolist()}
    tested = test.edge_label_index[:, test.edge_label == 1].T.tolist()
    return sum((target, source) in trained for source, target in tested) / len(tested)


plain, told = leaked(False), leaked(True)
print(f"test links in the graph for training: {plain:.0%}, with is_undirected=True: {told:.0%}")
assert plain > 0.6 and told == 0
PYTHON
