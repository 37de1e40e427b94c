"""Parameters in the flat parts of ZeRO's ranks: put together, and cut for another number of ranks."""

import pytest
import torch

from hf_compat.checkpoint.zero_partitions import Partitions, Piece, filled, pieces_in_a_row, pieces_of_each
from hf_compat.errors import CheckpointError

SHAPES = {"a": (3,), "b": (2, 2), "c": (1,)}
VALUES = {"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0, 7.0], "c": [8.0]}

IN_A_ROW = {
    1: [[1, 2, 3, 4, 5, 6, 7, 8]],
    2: [[1, 2, 3, 4], [5, 6, 7, 8]],
    3: [[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0]],  # filled up to a multiple of two numbers a rank
}
"""The parts of as many ranks under ZeRO-1 and 2, by hand."""
OF_EACH = {
    1: [[1, 2, 3, 4, 5, 6, 7, 8]],
    2: [[1, 2, 4, 5, 8], [3, 0, 6, 7, 0]],
    3: [[1, 4, 5, 8], [2, 6, 7, 0], [3, 0, 0, 0]],
}
"""The parts of as many ranks under ZeRO-3."""


def saved(parts, *, of_each, paddings=None):
    """Return the state dict that each rank has saved, with a state that is a hundred times the weights."""
    ranks = []
    for part in parts:
        flat = torch.tensor(part, dtype=torch.float32)
        base = {"state": {0: {"step": 3, "average": 100 * flat}}, "param_groups": [{"lr": 0.5, "params": [0]}]}
        weights = "fp32_flat_groups" if of_each else "single_partition_of_fp32_groups"
        own = {weights: [flat], "optimizer_state_dict" if of_each else "base_optimizer_state": base}
        ranks.append(own if paddings is None else {**own, "param_alignment_paddings": [paddings]})
    return Partitions(ranks, [SHAPES])


@pytest.mark.parametrize("of_each", [False, True], ids=["in a row", "of each parameter"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_put_together(of_each, ranks):
    """Weights and states have each parameter's values and shape, without what the parts are filled up with."""
    found = saved((OF_EACH if of_each else IN_A_ROW)[ranks], of_each=of_each)
    for name, value in found.weights().items():
        assert value.shape == SHAPES[name]
        assert value.flatten().tolist() == VALUES[name]
    optimizer = found.optimizer()
    assert optimizer["param_groups"] == [{"lr": 0.5, "params": ["a", "b", "c"]}]
    for name, state in optimizer["state"].items():
        assert state["average"].flatten().tolist() == [100 * value for value in VALUES[name]]
        assert state["step"] == 3


@pytest.mark.parametrize("of_each", [False, True], ids=["in a row", "of each parameter"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("others", [1, 2, 3])
def test_cut_for_other_ranks(of_each, ranks, others):
    """The parts of one number of ranks, cut for another, are those that it would have saved."""
    parts = OF_EACH if of_each else IN_A_ROW
    found = saved(parts[ranks], of_each=of_each)
    for rank, expected in enumerate(parts[others]):
        size = len(expected)
        if of_each:
            pieces = pieces_of_each(SHAPES, rank=rank, ranks=others)
        else:
            pieces = pieces_in_a_row(SHAPES, [0, 0, 0], size=size, rank=rank)
        assert filled(size, pieces, found.weight, dtype=torch.float32).tolist() == expected


def test_aligned_parameters():
    """Numbers between parameters, with which DeepSpeed aligns them, belong to none; other ranks may have others."""
    found = saved([[1, 2, 3, 0, 4], [5, 6, 7, 8, 0]], of_each=False, paddings=[1, 0, 1])
    assert {name: value.flatten().tolist() for name, value in found.weights().items()} == VALUES
    pieces = pieces_in_a_row(SHAPES, [1, 2, 0], size=6, rank=1)
    assert pieces == [Piece("b", 2, 4, 0), Piece("c", 0, 1, 4)]
    assert filled(6, pieces, found.weight, dtype=torch.float32).tolist() == [6, 7, 0, 0, 8, 0]


@pytest.mark.parametrize("of_each", [False, True], ids=["in a row", "of each parameter"])
def test_parts_of_another_save(of_each):
    """Parts with too few elements for the parameters are refused by their names."""
    with pytest.raises(CheckpointError, match="partitions have 6 elements for a, b, c, which have"):
        saved([[1, 2, 3], [4, 5, 6]], of_each=of_each).weights()


def test_options_that_were_not_saved():
    """With ``elastic_checkpoint`` the optimizer's state is a list without its options."""
    ranks = [{"single_partition_of_fp32_groups": [torch.zeros(8)], "base_optimizer_state": [{}]}]
    assert "elastic_checkpoint" in Partitions(ranks, [SHAPES]).problem
    assert saved(IN_A_ROW[2], of_each=False).problem is None
