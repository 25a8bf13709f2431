"""The counter of memory traffic, on operations whose bytes are known by hand."""

import pytest
import torch

from helpers.exercises.traffic import Traffic


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_product_reads_both_and_writes_one(device):
    a, b = torch.ones(3, 5, device=device), torch.ones(5, 7, device=device)
    with Traffic() as seen:
        a @ b
    assert (seen.read_bytes, seen.written_bytes, seen.largest) == (4 * (15 + 35), 4 * 21, 21)
    assert seen.bytes == 4 * 71


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_views_cost_nothing_and_copies_do(device):
    a = torch.ones(4, 6, device=device)
    with Traffic() as seen:
        a.view(2, 2, 6).transpose(0, 1).reshape(24)
        a.view(24).reshape(4, 6)
    assert seen.bytes == 2 * 4 * 24  # only the reshape of a transposed view had to copy
    with Traffic() as seen:
        a[:, None].expand(4, 5, 6).reshape(20, 6)
    assert (seen.read_bytes, seen.written_bytes) == (4 * 24, 4 * 120)


def test_writing_in_place_counts():
    a = torch.zeros(8)
    with Traffic() as seen:
        a[:4].copy_(torch.ones(4))
    assert seen.written_bytes >= 16


def test_small_tensors_can_be_left_out():
    a, b = torch.ones(1, 5), torch.ones(5, 70)
    with Traffic(at_least=100) as seen:
        a @ b
    assert (seen.read_bytes, seen.written_bytes, seen.largest) == (4 * 350, 0, 70)
