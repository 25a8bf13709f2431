"""Bytes and FLOPs that follow from a model's shape.

Byte counts are sums of `.nbytes` over tensors on torch's "meta" device: the tensors have the real shape and
dtype and take no memory. FLOP counts come from torch's own counter, run over matrix products of those
tensors.
"""

import functools
from collections import Counter

import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers.models.decoder import Decoder
from helpers.models.geometry import Geometry
from helpers.numbers import check_int


def kv_tensors(
    geometry: Geometry,
    tokens: int,
    batch: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    *,
    windowed: bool = False,
) -> list[torch.Tensor]:
    """The tensors a cache of `tokens` tokens holds, on the "meta" device, layer after layer.

    Keys and values are [batch, kv_heads, tokens, head_dim] each; under MLA a layer holds one tensor,
    [batch, tokens, kv_lora_rank + qk_rope_head_dim]. With `windowed`, the layers that slide keep the last
    `sliding_window` tokens only (they come first in the list); without it, every layer keeps all.
    """
    check_int("kv_tensors", "tokens", tokens, minimum=0)
    check_int("kv_tensors", "batch", batch, minimum=1)
    tensors = []
    for layer in range(geometry.layers):
        kept = _tokens_seen(geometry, layer, tokens) if windowed else tokens
        if geometry.mla:
            row = geometry.mla.kv_lora_rank + geometry.mla.qk_rope_head_dim
            tensors.append(torch.empty(batch, kept, row, dtype=dtype, device="meta"))
        else:
            shape = (batch, geometry.kv_heads, kept, geometry.head_dim)
            tensors += [torch.empty(shape, dtype=dtype, device="meta") for _ in range(2)]
    return tensors


def kv_bytes(
    geometry: Geometry,
    tokens: int,
    batch: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    *,
    windowed: bool = False,
) -> int:
    """Bytes of the tensors of `kv_tensors`."""
    return sum(t.nbytes for t in kv_tensors(geometry, tokens, batch, dtype, windowed=windowed))


def weight_bytes(geometry: Geometry, dtype: torch.dtype = torch.bfloat16) -> int:
    """Bytes of weights that one batch-1 decode step streams; what has to lie in memory is `resident_bytes`.

    The input embedding is not among them (a step reads one row of it) unless it is tied to the output head,
    which is read whole, once. Of a mixture of experts, the router and the experts of one token count; a
    larger batch touches more experts.
    """
    return _weights(geometry, dtype, geometry.moe.per_token if geometry.moe else 0)


def resident_bytes(geometry: Geometry, dtype: torch.dtype = torch.bfloat16) -> int:
    """Bytes of all weights of a model: every expert, and the input embedding, once where it is also the head."""
    weights = _weights(geometry, dtype, geometry.moe.experts if geometry.moe else 0)
    if geometry.tied_embeddings:
        return weights
    return weights + torch.empty(geometry.vocab, geometry.hidden, dtype=dtype, device="meta").nbytes


@functools.lru_cache(maxsize=512)
def _weights(geometry: Geometry, dtype: torch.dtype, experts: int) -> int:
    """Bytes of a model with that many routed experts in each layer that has any, without an untied input embedding.

    Counted on a Decoder on the "meta" device, norms and biases included. It runs gated, dense layers, all alike, so two
    of them tell of any number; what an older MLP lacks and what experts add is counted on the matrices themselves.
    """
    g, moe = geometry, geometry.moe
    dense = g.replace(moe=None, gated_mlp=True, sliding_window=None, sliding_layers=0)
    # In float32, since a decoder refuses dtypes that weights are stored in and nothing computes in, such as int8.
    one, two = (Decoder(dense.replace(layers=n), device="meta").weight_bytes for n in (1, 2))
    one, two = (size // torch.float32.itemsize * dtype.itemsize for size in (one, two))
    total = one + (g.layers - 1) * (two - one)

    def nbytes(shapes):
        return sum(torch.empty(shape, dtype=dtype, device="meta").nbytes for shape in shapes)

    gated = nbytes(_mlp(dense, g.intermediate))
    with_experts = g.layers - moe.dense_layers if moe else 0
    total += (g.layers - with_experts) * (nbytes(_mlp(g, g.intermediate)) - gated)
    if moe:
        expert = nbytes(_mlp(g, moe.expert_intermediate))
        total += with_experts * (nbytes([(moe.experts, g.hidden)]) + (experts + moe.shared) * expert - gated)
    return total


def decode_flops(geometry: Geometry, context: int, batch: int = 1) -> int:
    """FLOPs of one decode step whose query sees `context` tokens, itself included (matrix products only).

    Sliding layers see at most their window. MLA is counted in the absorbed form, which works on the latent
    itself.
    """
    check_int("decode_flops", "context", context, minimum=1)
    check_int("decode_flops", "batch", batch, minimum=1)
    pairs = [_tokens_seen(geometry, layer, context) for layer in range(geometry.layers)]
    return batch * _count(geometry, tokens=1, pairs=pairs, absorbed=True)


def prefill_flops(geometry: Geometry, tokens: int, batch: int = 1) -> int:
    """FLOPs of the prefill of `tokens` tokens (matrix products only; the head for the last position).

    Attention is causal: token i meets i keys, tokens * (tokens + 1) / 2 pairs a layer. A kernel that computes
    the masked half as well does more.
    """
    check_int("prefill_flops", "tokens", tokens, minimum=1)
    check_int("prefill_flops", "batch", batch, minimum=1)
    pairs = []
    for layer in range(geometry.layers):
        seen = _tokens_seen(geometry, layer, tokens)  # the first `seen` tokens meet 1, 2, ..., the others `seen` each
        pairs.append(seen * (seen + 1) // 2 + (tokens - seen) * seen)
    return batch * _count(geometry, tokens=tokens, pairs=pairs, absorbed=False)


def _count(geometry: Geometry, tokens: int, pairs: list[int], absorbed: bool) -> int:
    """All products of one sequence, each kind counted once.

    Every (query, key) pair costs the same, so a layer's attention is one query against `pairs` keys.
    """
    if not geometry.mla:
        score_width, value_width = geometry.head_dim, geometry.head_dim
    elif absorbed:
        score_width = geometry.mla.kv_lora_rank + geometry.mla.qk_rope_head_dim
        value_width = geometry.mla.kv_lora_rank
    else:
        score_width = geometry.mla.qk_nope_head_dim + geometry.mla.qk_rope_head_dim
        value_width = geometry.mla.v_head_dim
    *matrices, head = _step_matrices(geometry, torch.float32)
    heads = geometry.q_heads
    total = _product_flops((1, geometry.hidden), (geometry.hidden, head.shape[0]))
    for (outputs, inputs), times in Counter(tuple(matrix.shape) for matrix in matrices).items():
        total += times * _product_flops((tokens, inputs), (inputs, outputs))
    for keys, layers in Counter(pairs).items():
        total += layers * _product_flops((heads, 1, score_width), (heads, score_width, keys))
        total += layers * _product_flops((heads, 1, keys), (heads, keys, value_width))
    return total


@functools.cache
def _product_flops(*shapes: tuple[int, ...]) -> int:
    """FLOPs of the product of two tensors of these shapes, by torch's counter; on "meta", where nothing is computed."""
    with FlopCounterMode(display=False) as counter:
        torch.matmul(*(torch.empty(shape, device="meta") for shape in shapes))
    return counter.get_total_flops()


def _step_matrices(geometry: Geometry, dtype: torch.dtype) -> list[torch.Tensor]:
    """The matrices [out, in] one token's step multiplies by, on "meta"; the output head is last."""
    g, moe = geometry, geometry.moe
    if g.mla:
        query_key = g.mla.qk_nope_head_dim + g.mla.qk_rope_head_dim
        query_in = g.mla.q_lora_rank or g.hidden
        attention = [(g.mla.q_lora_rank, g.hidden)] if g.mla.q_lora_rank else []
        attention += [
            (g.q_heads * query_key, query_in),
            (g.mla.kv_lora_rank + g.mla.qk_rope_head_dim, g.hidden),
            (g.q_heads * (g.mla.qk_nope_head_dim + g.mla.v_head_dim), g.mla.kv_lora_rank),
            (g.hidden, g.q_heads * g.mla.v_head_dim),
        ]
    else:
        query, key = g.q_heads * g.head_dim, g.kv_heads * g.head_dim
        attention = [(query, g.hidden), (key, g.hidden), (key, g.hidden), (g.hidden, query)]

    dense_layers = moe.dense_layers if moe else g.layers
    shapes = g.layers * attention + dense_layers * _mlp(g, g.intermediate)
    if moe:
        experts = (moe.per_token + moe.shared) * _mlp(g, moe.expert_intermediate)
        shapes += (g.layers - dense_layers) * ([(moe.experts, g.hidden)] + experts)
    shapes.append((g.vocab, g.hidden))
    return [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]


def _mlp(g: Geometry, width: int) -> list[tuple[int, int]]:
    """Shapes [out, in] of an MLP of that width."""
    return [(width, g.hidden)] * (2 if g.gated_mlp else 1) + [(g.hidden, width)]


def _tokens_seen(geometry: Geometry, layer: int, tokens: int) -> int:
    """Tokens that a layer attends to. Sliding layers come first: bytes do not depend on their order."""
    window = geometry.sliding_window
    return tokens if window is None or layer >= geometry.sliding_layers else min(tokens, window)
