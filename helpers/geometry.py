"""Shapes of real decoders, and the bytes and FLOPs that follow from them.

Byte counts are sums of `.nbytes` over tensors on torch's "meta" device: the tensors have the real shape and
dtype and take no memory. FLOP counts come from torch's own counter, run over matrix products of those
tensors.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from helpers import data


@dataclasses.dataclass(frozen=True)
class MLA:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): widths in elements.

    A token's cache row is one latent of `kv_lora_rank` plus one shared rotary key of `qk_rope_head_dim`.
    `q_lora_rank` is 0 where queries are not compressed.
    """

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int = 0

    def __post_init__(self):
        for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"):
            _check_int("MLA", name, getattr(self, name), minimum=1)
        _check_int("MLA", "q_lora_rank", self.q_lora_rank, minimum=0)


@dataclasses.dataclass(frozen=True)
class MoE:
    """Mixture of experts: `per_token` of `experts` run for a token, and `shared` ones always.

    `dense_layers` counts the layers that keep an ordinary MLP of the geometry's `intermediate` width.
    """

    experts: int
    per_token: int
    expert_intermediate: int
    shared: int = 0
    dense_layers: int = 0

    def __post_init__(self):
        for name in ("experts", "per_token", "expert_intermediate"):
            _check_int("MoE", name, getattr(self, name), minimum=1)
        for name in ("shared", "dense_layers"):
            _check_int("MoE", name, getattr(self, name), minimum=0)
        if self.per_token > self.experts:
            raise ValueError(f"MoE: per_token={self.per_token} is more than experts={self.experts}")


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The shape of one decoder-only transformer; frozen, checked when made.

    `head_dim` is its own number: in many models it is not hidden / q_heads. `sliding_layers` of the `layers`
    see only the last `sliding_window` tokens. Under MLA, `kv_heads` equals `q_heads` and `head_dim` is the
    query-key width. `rope_theta` is None where positions are learned. `gated_mlp` is False for the older
    two-matrix MLP. Raises TypeError or ValueError that names the field.
    """

    name: str
    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied_embeddings: bool = False
    rope_theta: float | None = 10000.0
    norm_eps: float = 1e-5
    max_positions: int | None = None
    sliding_window: int | None = None
    sliding_layers: int = 0
    qk_norm: bool = False
    attn_bias: bool = False
    rope_scaling: dict | None = dataclasses.field(default=None, hash=False)
    mla: MLA | None = None
    moe: MoE | None = None
    gated_mlp: bool = True
    source: str = ""

    def __post_init__(self):
        who = f"geometry {self.name!r}"
        for name in ("layers", "hidden", "q_heads", "kv_heads", "head_dim", "intermediate", "vocab"):
            _check_int(who, name, getattr(self, name), minimum=1)
        for name in ("max_positions", "sliding_window"):
            if getattr(self, name) is not None:
                _check_int(who, name, getattr(self, name), minimum=1)
        _check_int(who, "sliding_layers", self.sliding_layers, minimum=0)
        if self.q_heads % self.kv_heads:
            raise ValueError(
                f"{who}: q_heads={self.q_heads} is not a multiple of kv_heads={self.kv_heads}; "
                "each KV head serves the same number of query heads"
            )
        if self.sliding_layers > self.layers:
            raise ValueError(f"{who}: sliding_layers={self.sliding_layers} is more than layers={self.layers}")
        if bool(self.sliding_layers) != (self.sliding_window is not None):
            raise ValueError(f"{who}: sliding_window and sliding_layers go together; one of them is missing")
        if self.moe and self.moe.dense_layers > self.layers:
            raise ValueError(
                f"{who}: moe.dense_layers={self.moe.dense_layers} is more than layers={self.layers}"
            )
        for name in ("rope_theta", "norm_eps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{who}: {name}={value!r} must be a positive number")

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.q_heads // self.kv_heads

    @property
    def attention(self) -> str:
        """ "mha", "gqa", "mqa" or "mla"."""
        if self.mla:
            return "mla"
        if self.group_size == 1:
            return "mha"
        return "mqa" if self.kv_heads == 1 else "gqa"

    def replace(self, **changes) -> Geometry:
        """A copy with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)


def get(name: str) -> Geometry:
    """The catalogue's geometry of that name. Raises LookupError with the closest names."""
    known = catalogue()
    if name in known:
        return known[name]
    by_folded = {key.casefold(): key for key in known}
    close = difflib.get_close_matches(str(name).casefold(), by_folded, n=3, cutoff=0.5)
    hint = " or ".join(repr(by_folded[match]) for match in close)
    hint = f"did you mean {hint}?" if hint else "geometry.catalogue() lists all names."
    raise LookupError(f"no model named {name!r} in the catalogue: {hint}")


def catalogue() -> dict[str, Geometry]:
    """All models of helpers/data/models.json by name."""
    return dict(_catalogue())


@functools.cache
def _catalogue() -> dict[str, Geometry]:
    return {row["id"]: _from_row(row) for row in data.load("models")}


def _from_row(row: Mapping) -> Geometry:
    fields = {field.name for field in dataclasses.fields(Geometry)} - {"name", "mla", "moe", "source"}
    return Geometry(
        name=row["id"],
        mla=MLA(**row["mla"]) if row.get("mla") else None,
        moe=MoE(**row["moe"]) if row.get("moe") else None,
        source=row["sources"][0]["source"],
        **{key: value for key, value in row.items() if key in fields},
    )


def from_hf_config(config) -> Geometry:
    """Read a Hugging Face config.json: a dict, or a path to the file or to its directory.

    Raises ValueError for an architecture this course does not know or a config that lacks a size,
    FileNotFoundError for a path that is not there.
    """
    from helpers import hf_config

    return hf_config.read(config)


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
    _check_int("kv_tensors", "tokens", tokens, minimum=0)
    _check_int("kv_tensors", "batch", batch, minimum=1)
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


@functools.lru_cache(maxsize=256)  # a Decoder, even without bytes, takes a tenth of a second to build
def weight_bytes(geometry: Geometry, dtype: torch.dtype = torch.bfloat16) -> int:
    """Bytes of weights that one batch-1 decode step streams.

    The input embedding is not among them (a step reads one row of it) unless it is tied to the output head,
    which is read whole, once. Of a mixture of experts, the router and the experts of one token count; a
    larger batch touches more experts. Dense models are counted on a Decoder on the "meta" device, the others
    matrix by matrix.
    """
    if geometry.mla or geometry.moe or not geometry.gated_mlp:
        return sum(matrix.nbytes for matrix in _step_matrices(geometry, dtype))
    from helpers.decoder import Decoder

    return Decoder(geometry, dtype=dtype, device="meta").weight_bytes


def decode_flops(geometry: Geometry, context: int, batch: int = 1) -> int:
    """FLOPs of one decode step whose query sees `context` tokens, itself included (matrix products only).

    Sliding layers see at most their window. MLA is counted in the absorbed form, which works on the latent
    itself.
    """
    _check_int("decode_flops", "context", context, minimum=1)
    _check_int("decode_flops", "batch", batch, minimum=1)
    pairs = [_tokens_seen(geometry, layer, context) for layer in range(geometry.layers)]
    return batch * _count(geometry, tokens=1, pairs=pairs, absorbed=True)


def prefill_flops(geometry: Geometry, tokens: int, batch: int = 1) -> int:
    """FLOPs of the prefill of `tokens` tokens (matrix products only; the head for the last position).

    Attention is causal: token i meets i keys, tokens * (tokens + 1) / 2 pairs a layer. A kernel that computes
    the masked half as well does more.
    """
    _check_int("prefill_flops", "tokens", tokens, minimum=1)
    _check_int("prefill_flops", "batch", batch, minimum=1)
    pairs = []
    for layer in range(geometry.layers):
        seen = _tokens_seen(
            geometry, layer, tokens
        )  # the first `seen` tokens meet 1, 2, ..., the others `seen` each
        pairs.append(seen * (seen + 1) // 2 + (tokens - seen) * seen)
    return batch * _count(geometry, tokens=tokens, pairs=pairs, absorbed=False)


def _count(geometry: Geometry, tokens: int, pairs: list[int], absorbed: bool) -> int:
    """Run the products of one sequence on meta tensors under torch's counter.

    Every (query, key) pair costs the same, so a layer's attention is one query against `pairs` keys.
    """
    meta = functools.partial(torch.empty, device="meta")
    if not geometry.mla:
        score_width, value_width = geometry.head_dim, geometry.head_dim
    elif absorbed:
        score_width = geometry.mla.kv_lora_rank + geometry.mla.qk_rope_head_dim
        value_width = geometry.mla.kv_lora_rank
    else:
        score_width = geometry.mla.qk_nope_head_dim + geometry.mla.qk_rope_head_dim
        value_width = geometry.mla.v_head_dim
    *matrices, head = _step_matrices(geometry, torch.float32)
    with FlopCounterMode(display=False) as counter:
        for matrix in matrices:
            F.linear(meta(tokens, matrix.shape[1]), matrix)
        F.linear(meta(1, geometry.hidden), head)
        for keys in pairs:
            scores = meta(geometry.q_heads, 1, score_width) @ meta(geometry.q_heads, score_width, keys)
            scores @ meta(geometry.q_heads, keys, value_width)
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

    def mlp(width):
        return [(width, g.hidden)] * (2 if g.gated_mlp else 1) + [(g.hidden, width)]

    dense_layers = moe.dense_layers if moe else g.layers
    shapes = g.layers * attention + dense_layers * mlp(g.intermediate)
    if moe:
        experts = (moe.per_token + moe.shared) * mlp(moe.expert_intermediate)
        shapes += (g.layers - dense_layers) * ([(moe.experts, g.hidden)] + experts)
    shapes.append((g.vocab, g.hidden))
    return [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]


def _tokens_seen(geometry: Geometry, layer: int, tokens: int) -> int:
    """Tokens that a layer attends to. Sliding layers come first: bytes do not depend on their order."""
    return min(tokens, geometry.sliding_window) if layer < geometry.sliding_layers else tokens


def _check_int(who: str, name: str, value, minimum: int):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{who}: {name} must be an int, got {value!r}")
    if value < minimum:
        raise ValueError(f"{who}: {name}={value} must be at least {minimum}")
