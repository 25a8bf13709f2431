"""Shapes of real decoders: what a Geometry is, and the catalogue of helpers/data/models.json."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Mapping

from helpers import data
from helpers.numbers import check_int


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
            check_int("MLA", name, getattr(self, name), minimum=1)
        check_int("MLA", "q_lora_rank", self.q_lora_rank, minimum=0)


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
            check_int("MoE", name, getattr(self, name), minimum=1)
        for name in ("shared", "dense_layers"):
            check_int("MoE", name, getattr(self, name), minimum=0)
        if self.per_token > self.experts:
            raise ValueError(f"MoE: per_token={self.per_token} is more than experts={self.experts}")


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The shape of one decoder-only transformer; frozen, checked when made.

    `head_dim` is its own number: in many models it is not hidden / q_heads. `sliding_layers` of the `layers`
    see only the last `sliding_window` tokens. Under MLA, `kv_heads` equals `q_heads` and `head_dim` is the
    query-key width. `rope_theta` is None where positions are learned. `gated_mlp` is False for the older
    two-matrix MLP. Raises ValueError that names the field.
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
            check_int(who, name, getattr(self, name), minimum=1)
        for name in ("max_positions", "sliding_window"):
            if getattr(self, name) is not None:
                check_int(who, name, getattr(self, name), minimum=1)
        check_int(who, "sliding_layers", self.sliding_layers, minimum=0)
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
            raise ValueError(f"{who}: moe.dense_layers={self.moe.dense_layers} is more than layers={self.layers}")
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
