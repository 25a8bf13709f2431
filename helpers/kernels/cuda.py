"""The GPU backend: checks and shapes around the Triton kernels of `cuda_kernels`.

Every function takes lengths as an int or as an integer tensor [batch] on the device. A tensor keeps a captured graph
valid while the sequences grow; an int is baked into it. Nothing here synchronises, and the number of splits depends
on shapes alone.

A cache dimension [.., capacity, ..] is a multiple of CAPACITY_MULTIPLE tokens and finite beyond the length
(`torch.zeros`): the kernels read whole tiles and mask scores, not loads.
"""

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from helpers import kernels
from helpers.kernels import Capabilities, KernelUnsupported, cuda_kernels, cuda_steps, quantize, reference
from helpers.kernels.cuda_steps import bind_finish_block, bind_norm_linear
from helpers.kernels.launches import Launch, launch, power_of_two

__all__ = [
    "CAPABILITIES",
    "BoundCache",
    "BoundRing",
    "bind_finish_block",
    "bind_norm_linear",
    "cascade_attention",
    "decode_attention",
    "decode_attention_fp8",
    "decode_attention_int4",
    "decode_attention_int8",
    "decode_attention_latent",
    "linear",
    "merge",
]

CAPACITY_MULTIPLE = 64  # tokens
CAPABILITIES = Capabilities(
    dtypes=(torch.bfloat16, torch.float16, torch.float32),
    capacity_multiple=CAPACITY_MULTIPLE,
    bound_caches=True,
    bound_blocks=True,
    bound_places=True,
    bound_tables=True,
    bound_rings=True,
    fp8=True,
)
MULTIPROCESSORS_ASSUMED = 108  # where there is no device to ask: the interpreter, a meta tensor


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [batch, in], weight [out, in] → [batch, out]; cuBLAS already streams weights near memory speed."""
    return F.linear(x, weight, bias)


def decode_attention(q, k, v, length, scale=None, return_lse=False, block_table=None):
    """Attention of the newest tokens over bf16, fp16 or fp32 keys and values.

    Args:
        q: [batch, q_heads, head_dim], or for the newest t tokens of each sequence [batch, q_heads, t, head_dim].
        k, v: [batch, kv_heads, capacity, head_dim]; with a `block_table`, [blocks of the pool, kv_heads, block_size,
            head_dim].
        length: tokens each sequence holds, int or integer tensor [batch].
        scale: of the scores; head_dim ** -0.5 if None.
        return_lse: also return the natural log of the sum of exponentials of the scores.
        block_table: int32 [batch, blocks a sequence may have], the block that holds tokens i·block_size and on.

    Returns:
        The shape and dtype of q, and with `return_lse` float32 of that shape without head_dim. A query that sees no
        token gets zeros and minus infinity.

    Raises:
        ValueError: shapes that do not fit each other.
        KernelUnsupported: a capacity, stride, alignment or dtype that the kernel does not take; the message says which.
    """
    return _attend(q, k, v, length, scale, return_lse, block_table)


def decode_attention_fp8(q, k, v, length, k_scale=None, v_scale=None, scale=None, return_lse=False, block_table=None):
    """As `decode_attention`, over float8_e4m3fn keys and values, with scales [batch, kv_heads, capacity] or none.

    V is read fastest when it is stored [.., head_dim, capacity] and passed as its `.transpose(-1, -2)`. Needs compute
    capability 8.9 or later, which converts fp8 in hardware.
    """
    return _attend(q, k, v, length, scale, return_lse, block_table, k_scale, v_scale)


def decode_attention_int8(q, k_q, k_scale, v_q, v_scale, length, scale=None, return_lse=False, block_table=None):
    """As `decode_attention`, over int8 keys and values with one scale a token and head: value = number · scale.

    Args:
        k_q, v_q: int8 [batch, kv_heads, capacity, head_dim]. V is read fastest when it is stored
            [.., head_dim, capacity] and passed as its `.transpose(-1, -2)`.
        k_scale, v_scale: [batch, kv_heads, capacity].
    """
    return _attend(q, k_q, v_q, length, scale, return_lse, block_table, k_scale, v_scale)


def decode_attention_int4(
    q, k_q, k_scale, v_q, v_scale, length, k_zero=None, v_zero=None, scale=None, return_lse=False, block_table=None
):
    """As `decode_attention`, over packed int4: byte i of a row holds number i (low nibble) and i + head_dim/2 (high).

    Args:
        k_q, v_q: uint8 [batch, kv_heads, capacity, head_dim / 2]; V preferably stored transposed, as in int8.
        k_scale, v_scale: [batch, kv_heads, capacity, groups] with one or two groups a row (head_dim 128 in groups of
            64 makes two), or [batch, kv_heads, capacity] for one.
        k_zero, v_zero: of the scales' shape, value = nibble · scale + zero; None: value = (nibble - 8) · scale.
    """
    return _attend(q, k_q, v_q, length, scale, return_lse, block_table, k_scale, v_scale, k_zero, v_zero)


def decode_attention_latent(q, latent, rank, length, scale, return_lse=False, block_table=None):
    """Multi-head latent attention in its absorbed form (DeepSeek-V2, arXiv 2405.04434).

    Args:
        q: [batch, q_heads, rank + rope_dim], queries already multiplied into the latent space.
        latent: [batch, capacity, rank + rope_dim]: the token's latent, then its rotary key; every head reads it.
        rank: kv_lora_rank; the first `rank` columns serve as values.
        scale: of the scores, which depends on the head size *before* absorption, so there is no default.

    Returns:
        [batch, q_heads, rank], still to be multiplied by the value projection; with `return_lse` also [batch, q_heads].
    """
    cache = latent[:, None]
    return _attend(q, cache, cache[..., :rank], length, scale, return_lse, block_table, latent_rank=rank)


def merge(outs: list[torch.Tensor], lses: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over several stretches of keys from the attention over each: outs [batch, q_heads, width] each, or
    [batch, q_heads, t, width], their log-sum-exps without the width → the same two over all keys."""
    shape = lses[0].shape
    parts = torch.stack([out.float().flatten(1, -2) for out in outs], dim=2)
    out, lse = _combine(parts, torch.stack([lse.flatten(1) for lse in lses], dim=2), outs[0].dtype)
    return out.view(*shape, -1), lse.view(shape)


def cascade_attention(q, prefix_k, prefix_v, prefix_length, k, v, length, scale=None):
    """Attention of sequences that share a prefix, whose cache is read once for all of them.

    Args:
        q: [batch, q_heads, head_dim], or with several newest tokens as in `decode_attention`.
        prefix_k, prefix_v: [1, kv_heads, capacity, head_dim], the shared tokens.
        prefix_length: int, or integer tensor [1].
        k, v, length: each sequence's own tokens, as in `decode_attention`.

    Returns:
        The shape of q.
    """
    return reference.cascade_attention(
        q, prefix_k, prefix_v, prefix_length, k, v, length, scale, attend=decode_attention, merge=merge
    )


class BoundCache:
    """A cache's tensors, bound: the newest tokens' way into them in one launch, their queries' answer in two.

    Args:
        kind: "float32", which here is every unquantised type, "fp8" (without scales), "int8" or "int4" (per token).
        stored, cos, sin: as in `helpers.kernels.cpu.BoundCache`; or those of a pool, keys and values [layers, blocks,
            kv_heads, block_size, head_dim], of which every call brings the `table`, int32 [batch, blocks].
    """

    def __init__(self, kind: str, stored: Sequence[torch.Tensor], cos: torch.Tensor, sin: torch.Tensor):
        self._kind, self._angles = kind, (cos, sin)
        self._layers = list(zip(*stored, strict=True))
        self.batch, self.kv_heads, self.head_dim = *stored[0].shape[1:3], cos.shape[1]

    def append(
        self,
        layer: int,
        position: int | torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        table: torch.Tensor | None = None,
    ) -> None:
        """Write k, rotated, and v [batch, kv_heads, t, head_dim] to `position` and on, which the caller has checked.

        Args:
            position: of the first of them, an int, or an integer tensor [batch] on the device.

        Raises:
            ValueError: another shape or type, or NaN or infinity for a quantised cache (not asked inside a graph's
                capture); nothing was written.
            KernelUnsupported: head_dim is no power of two of at least 16.
        """
        stored = self._layers[layer]
        _check_width("head_dim", self.head_dim)
        batch = self.batch if table is None else table.shape[0]
        for name, x in (("k", k), ("v", v)):
            if (x.shape[0], x.shape[1], x.shape[3]) != (batch, self.kv_heads, self.head_dim) or x.stride(3) != 1:
                shape = f"[{batch}, {self.kv_heads}, t, {self.head_dim}]"
                raise ValueError(f"{name} must be {shape}, contiguous along head_dim, not {list(x.shape)}")
            if self._kind == "float32" and x.dtype != stored[0].dtype:
                raise ValueError(f"{name} is {x.dtype} and this cache stores {stored[0].dtype}")
            if self._kind != "float32":
                quantize.require_finite(x)
        cuda_steps.append(stored, self._angles, position, k, v, table)

    def attend(
        self,
        layer: int,
        position: int | None,
        q: torch.Tensor,
        lengths: torch.Tensor | None = None,
        table: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of q [batch, q_heads, t, head_dim], rotated to `position` and on, each over the tokens up to its
        own. Where sequences differ there is no one position, and `lengths`, an integer tensor [batch] on the device,
        counts the tokens of each, these included."""
        stored, length = self._layers[layer], lengths if position is None else position + q.shape[2]
        half = len(stored) // 2
        (k, *of_k), (v, *of_v) = stored[:half], stored[half:]
        scales = {f"{side}_{name}": x for side, more in (("k", of_k), ("v", of_v))
                  for name, x in zip(("scale", "zero"), more, strict=False)}  # fmt: skip
        return _attend(q, k, v, length, block_table=table, angles=self._angles, **scales)


class BoundRing:
    """A ring of rows with sinks before it (`caches.sink`), whose keys are stored as they came: the newest token's way
    into it in one launch, its query's answer in three.

    Args:
        keys, values: [layers, batch, kv_heads, rows, head_dim]; the first `sinks` rows stay, `window` more are a ring.
        cos, sin: of `models.rope`, for places in the cache.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, cos, sin, sinks: int, window: int):
        self._layers = list(zip(keys, values, strict=True))
        self._angles, self._sizes = (cos, sin), (sinks, window)
        self._turned = torch.zeros_like(keys[0])  # for one layer after the other

    def append(self, layer: int, row: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write k and v [batch, kv_heads, 1, head_dim] to a row."""
        _check_width("head_dim", k.shape[3])
        cuda_steps.append(self._layers[layer], None, row, k, v)

    def attend(self, layer: int, held: int, oldest: int, q: torch.Tensor) -> torch.Tensor:
        """Attention of the newest token, q [batch, q_heads, 1, head_dim], which stands at place held - 1, over the
        `held` first rows, of whose ring the row `oldest` comes first."""
        keys, values = self._layers[layer]
        cuda_steps.rotate_rows(keys, *self._angles, held, oldest, *self._sizes, self._turned)
        return _attend(q, self._turned, values, held, angles=self._angles)


def constants(
    kind: str, settings: Launch, *, kv_heads: int, group: int, head_dim: int, splits: int, v_form: str, compute: str,
    queries: int = 1, int4: bool = False, scales: int = 0, zeros: bool = False, block: int = 0, tail: int = 0,
    ragged: bool = True, rotate: bool = False,
) -> dict:  # fmt: skip
    """The compile-time constants of `cuda_kernels.split_attention`, by name; `group` counts the rows of one KV head."""
    return {
        "KV_HEADS": kv_heads,
        "HEADS": settings.heads,
        "SEVERAL": queries > 1,
        "HEAD_TILES": -(-group // settings.heads),
        "WIDTH": head_dim // 2 if int4 else head_dim - tail,
        "TAIL": tail,
        "TILE": settings.tile,
        "SPLITS": splits,
        "BLOCK": block,
        "INT4": int4,
        "SCALES": scales,
        "ZEROS": zeros,
        "V_FORM": v_form,
        "COMPUTE": getattr(cuda_kernels.tl, compute),
        "RAGGED": ragged,
        "ROTATE": rotate,
    }


def combine_constants(parts: int, width: int) -> dict:
    """The compile-time constants of `cuda_kernels.combine`, by name."""
    padded = power_of_two(parts)
    return {"PARTS": parts, "PADDED": padded, "CHUNK": min(16, padded), "WIDTH": width}


def choose_splits(programs: int, tiles: int, multiprocessors: int) -> int:
    """Splits of the context, so that `programs` per split fill the chip about four times over.

    A power of two, at most 128 and no more than the `tiles` of tokens there can be. It does not depend on the length,
    which a captured graph could not follow.
    """
    wanted = max(1, 4 * multiprocessors // programs)
    return min(128, power_of_two(wanted), power_of_two(tiles))


def _attend(
    q, k, v, length, scale=None, return_lse=False, block_table=None,
    k_scale=None, v_scale=None, k_zero=None, v_zero=None, latent_rank=0, angles=None,
):  # fmt: skip
    shape = q.shape
    if q.dim() == 3:
        q = q[:, :, None]
    # The newest tokens' queries count as further heads.
    batch, queries, head_dim = q.shape[0], q.shape[2], q.shape[3]
    q_heads = q.shape[1] * queries
    kv_heads, capacity = k.shape[1], k.shape[2]
    int4 = k.dtype == torch.uint8
    group = q_heads // kv_heads
    block = 0 if block_table is None else capacity
    kind = "latent" if latent_rank else "wide" if k.element_size() > 1 else "narrow"
    tail = head_dim - latent_rank if latent_rank else 0
    v_form = "latent" if latent_rank else "rows" if v.stride(-1) == 1 else "columns"
    capability = _capability(q.device)
    compute = _compute_type(q.dtype, k.dtype, capability)
    settings = launch(kind, v_form, group, head_dim, block, capability, compute)
    _check(q, k, v, block_table, int4, tail, settings.tile, latent_rank)

    halves = 1
    if k_scale is not None:
        k_scale, v_scale, k_zero, v_zero = (s[..., None] if s is not None and s.dim() == 3 else s
                                            for s in (k_scale, v_scale, k_zero, v_zero))  # fmt: skip
        halves = k_scale.shape[-1]
        _check_scales(k_scale, v_scale, k_zero, v_zero, k.shape[:3], allowed=(1, 2) if int4 else (1,))
    length, lengths = _length(length, batch, capacity if not block else block * block_table.shape[1], q)

    head_tiles = -(-group // settings.heads)
    tiles = (capacity if not block else capacity * block_table.shape[1]) // settings.tile
    splits = choose_splits(batch * kv_heads * head_tiles, tiles, _multiprocessors(q.device))
    out_dim = latent_rank or head_dim
    parts = torch.empty(batch, q_heads, splits, out_dim, dtype=torch.float32, device=q.device)
    part_lses = torch.empty(batch, q_heads, splits, dtype=torch.float32, device=q.device)
    fixed = constants(
        kind, settings, kv_heads=kv_heads, group=group, head_dim=head_dim, splits=splits, v_form=v_form,
        compute=compute, queries=queries, int4=int4, scales=0 if k_scale is None else halves,
        zeros=k_zero is not None, block=block, tail=tail, ragged=lengths is not q, rotate=angles is not None,
    )  # fmt: skip
    # A pointer that a variant does not read still has to be one: q stands in.
    cuda_kernels.split_attention[(kv_heads * head_tiles, splits, batch)](
        q, k, v, *(q if s is None else s for s in (k_scale, v_scale, k_zero, v_zero)),
        q if block_table is None else block_table, lengths, parts, part_lses, *((q, q) if angles is None else angles),
        length, head_dim**-0.5 if scale is None else scale, group, queries,
        q.stride(0), q.stride(1), q.stride(2),
        k.stride(0), k.stride(1), k.stride(2),
        v.stride(0), v.stride(1), v.stride(3 if v_form == "columns" else 2),
        *((0, 0, 0, 0) if k_scale is None else k_scale.stride()),
        0 if block_table is None else block_table.stride(0),
        **fixed, num_warps=settings.warps, num_stages=settings.stages,
    )  # fmt: skip
    out, lse = _combine(parts, part_lses, q.dtype)
    out = out.view(*shape[:-1], out_dim)
    return (out, lse.view(shape[:-1])) if return_lse else out


def _length(length, batch: int, capacity: int, q: torch.Tensor) -> tuple[int, torch.Tensor]:
    """The length of all sequences and q, to stand for a pointer that is not read; or 0 and int32 lengths [batch] on the
    device. Only an int's value can be checked here."""
    if not isinstance(length, torch.Tensor):
        if not 0 <= length <= capacity:
            raise ValueError(f"length must lie between 0 and the cache's capacity of {capacity} tokens, not {length}")
        return length, q
    if length.shape != (batch,) or length.is_floating_point() or length.device != q.device:
        raise ValueError(
            f"length must be an int or an integer tensor [{batch}] on {q.device}, "
            f"not {length.dtype} {list(length.shape)} on {length.device}"
        )
    return 0, length.to(torch.int32)


def _combine(parts: torch.Tensor, lses: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 parts [batch, heads, n, width] and lses [batch, heads, n] → [batch, heads, width], [batch, heads]."""
    batch, heads, count, width = parts.shape
    out = torch.empty(batch, heads, width, dtype=dtype, device=parts.device)
    lse = torch.empty(batch, heads, dtype=torch.float32, device=parts.device)
    cuda_kernels.combine[(batch * heads,)](parts, lses, out, lse, **combine_constants(count, width))
    return out, lse


def _check(q, k, v, block_table, int4, tail, tile, latent_rank) -> None:
    batch, q_heads, _, head_dim = q.shape
    rows, kv_heads, capacity, stored_dim = k.shape
    expect = head_dim // 2 if int4 else head_dim
    if stored_dim != expect:
        raise ValueError(f"keys have rows of {stored_dim} where queries of head_dim {head_dim} need {expect}")
    if not latent_rank and v.shape != k.shape:
        raise ValueError(f"k {list(k.shape)} and v {list(v.shape)} must have one shape")
    if q_heads % kv_heads:
        raise ValueError(f"{q_heads} query heads cannot share {kv_heads} KV heads evenly")
    _check_width("head_dim", expect - tail)
    _check_width("the rotary part of the latent", tail or 16)
    if block_table is None:
        if rows != batch:
            raise ValueError(f"the cache holds {rows} sequences, the queries {batch}")
        if capacity % CAPACITY_MULTIPLE:
            raise KernelUnsupported(
                f"a capacity of {capacity} tokens is not a multiple of {CAPACITY_MULTIPLE}: allocate the next multiple"
            )
    else:
        if block_table.dim() != 2 or block_table.shape[0] != batch or block_table.dtype != torch.int32:
            raise ValueError(
                f"block_table must be int32 [{batch}, blocks], not {block_table.dtype} {list(block_table.shape)}"
            )
        if capacity < 16 or capacity % tile or block_table.stride(1) != 1:
            raise KernelUnsupported(
                f"blocks must hold 16, 32 or a multiple of {CAPACITY_MULTIPLE} tokens, not {capacity}"
            )
    if torch.bfloat16 in (q.dtype, k.dtype) and q.is_cuda and _capability(q.device) < kernels.BFLOAT16_CAPABILITY:
        raise KernelUnsupported("this GPU has no hardware for bfloat16: take float16")
    if k.dtype == torch.float8_e4m3fn and q.is_cuda and _capability(q.device) < kernels.FP8_CAPABILITY:
        raise KernelUnsupported("fp8 caches need compute capability 8.9 (Ada) or later; use int8 on this GPU")
    for name, tensor, contiguous in (("q", q, (-1,)), ("keys", k, (-1,)), ("values", v, (-1, -2))):
        _check_alignment(name, tensor, contiguous)


def _check_width(name: str, width: int) -> None:
    if width < 16 or width & (width - 1):
        raise KernelUnsupported(f"{name} must give rows of a power of two of at least 16 numbers, not {width}")


def _check_alignment(name: str, tensor: torch.Tensor, contiguous: tuple[int, ...]) -> None:
    """A pointer or a stride off the 16-byte grid does not fail: it silently turns 16-byte loads into single bytes."""
    if tensor.device.type != "meta" and tensor.data_ptr() % 16:
        raise KernelUnsupported(
            f"{name} start at an address that is not a multiple of 16 bytes: do not slice inside a row"
        )
    if not any(tensor.stride(dim) == 1 for dim in contiguous):
        raise KernelUnsupported(f"{name} must be contiguous along a row, strides are {tensor.stride()}")
    for stride in tensor.stride():
        if stride != 1 and stride * tensor.element_size() % 16:
            raise KernelUnsupported(
                f"{name} have a stride of {stride * tensor.element_size()} bytes, not a multiple of 16"
            )


def _check_scales(k_scale, v_scale, k_zero, v_zero, shape, allowed) -> None:
    present = {"k_scale": k_scale, "v_scale": v_scale}
    if k_zero is not None or v_zero is not None:
        present |= {"k_zero": k_zero, "v_zero": v_zero}
    for name, tensor in present.items():
        if tensor is None:
            raise ValueError(f"{name} is missing: keys and values are quantised alike")
        if tensor.shape[:3] != shape or tensor.shape[3] not in allowed:
            raise ValueError(
                f"{name} must be {list(shape)} by {' or '.join(map(str, allowed))}, not {list(tensor.shape)}"
            )
        if tensor.stride() != k_scale.stride():
            raise KernelUnsupported(f"{name} and k_scale must be laid out alike")


def _compute_type(query: torch.dtype, stored: torch.dtype, capability: tuple[int, int]) -> str:
    """The type of the products' operands; they are summed in float32.

    8 and 4 bits in float16, which holds all their values and which the hardware converts to directly, whatever the
    queries are, at less than half the instructions of float32. Queries and probabilities are then rounded, each by
    2^-11 of itself at most. With m the largest Σ|q·k| of a score and n tokens, the output is off by no more than
    max|v| · (e^(2m/2^11) · (1 + 2^-11) - 1) + n · 127 / 2^25, its last term for probabilities below float16's normal
    range. Before Ampere, where Triton uses no tensor cores, everything in float32.
    """
    if capability < kernels.BFLOAT16_CAPABILITY:
        return "float32"
    if stored.itemsize == 1:
        return "float16"
    if torch.float32 in (query, stored):
        return "float32"
    return "bfloat16" if stored == torch.bfloat16 else "float16"


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return MULTIPROCESSORS_ASSUMED
    return torch.cuda.get_device_properties(device).multi_processor_count
