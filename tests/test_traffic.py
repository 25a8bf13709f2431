"""The counter of memory traffic, on operations whose bytes are known by hand."""

import pytest
import torch

from helpers import check
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


def test_small_parts_and_copies_of_a_cache_are_counted_and_scores_are_not():
    q, k = torch.ones(3, 8), torch.ones(20, 8)
    for part in (1, 5, 20):
        with Traffic(at_least=1000, of=[k]) as seen:
            for s in range(0, 20, part):
                q @ k[s : s + part].T
        assert (seen.read_bytes, seen.written_bytes) == (k.nbytes, 0)
    with Traffic(at_least=1000, of=[k]) as seen:
        for s in range(0, 20, 4):
            mine = k[s : s + 4].clone()
            for head in q:
                mine @ head
    assert (seen.read_bytes, seen.written_bytes) == (4 * k.nbytes, k.nbytes)


def test_small_tensors_can_be_left_out():
    a, b = torch.ones(1, 5), torch.ones(5, 70)
    with Traffic(at_least=100) as seen:
        a @ b
    assert (seen.read_bytes, seen.written_bytes, seen.largest) == (4 * 350, 0, 70)


def test_copies_no_larger_than_the_queries_do_not_hide_behind_one_read_of_all():
    def grouped_attention(q, k, v):
        k.sum() + v.sum()
        rows = q.view(*k.shape[:2], -1, q.shape[-1]) * q.shape[-1] ** -0.5
        scores = [rows @ part.clone().mT for part in k.split(8, dim=2)]
        return (torch.cat(scores, -1).softmax(-1) @ v).view(q.shape)

    with pytest.raises(check.Wrong, match="3 times the bytes of K and V were read or copied"):
        check.grade("03.4", grouped_attention)
