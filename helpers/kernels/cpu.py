"""The CPU backend: checks and zero-copy views around the compiled loops of `cpu_kernels`.

Everything is float32 (caches also int8 and packed int4); torch tensors in, torch tensors out. The loops run on as many
cores as torch uses. They are compiled once per machine, in some 80 s of CPU, and kept on disk; `warm_up` does it
ahead of anything that is timed.
"""

import math
import threading
from collections.abc import Callable, Sequence

import numba
import numpy as np
import torch
import torch.nn.functional as F

from helpers.kernels import Capabilities, KernelUnsupported, cpu_kernels, quantize, reference, small_batch
from helpers.kernels.reference import decode_attention_latent, merge

__all__ = [
    "CAPABILITIES",
    "BoundCache",
    "bind_finish_block",
    "bind_norm_linear",
    "cascade_attention",
    "decode_attention",
    "decode_attention_int4",
    "decode_attention_int8",
    "decode_attention_latent",
    "linear",
    "merge",
    "multiply_few",
    "warm_up",
]

CAPABILITIES = Capabilities(dtypes=(torch.float32,), bound_caches=True, bound_blocks=True, scales_per_channel=True)
SMALL_BATCH = small_batch.kept()  # rows; with more, arithmetic is the limit, and torch's matmul is the better one
# Tokens whose keys are read, then their values. Long, for the sake of the hardware's prefetching, where one or two
# passes (of four rows of queries) do; short where more passes want to find them in a core's cache.
TILE, TILE_OF_MANY_ROWS, MANY_ROWS = 2048, 256, 8
SPLIT_TOKENS = 64  # a split of the context shorter than this costs more to hand out than it saves


class _Told(threading.local):
    """What numba was told last; like numba's own number, one for each of Python's threads."""

    asked = threads = 0


_told = _Told()


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [batch, in], weight [out, in], bias [out] → [batch, out]. Each weight is read once for the whole batch.

    Raises:
        KernelUnsupported: not float32, or not contiguous.
        ValueError: shapes that do not fit each other.
    """
    _check_matrix("weight", weight, x)
    if x.shape[0] > SMALL_BATCH:
        return F.linear(x, weight, bias)
    y = multiply_few(x, weight)
    return y if bias is None else y + bias


def multiply_few(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`linear` by the compiled loops, up to `small_batch.MOST` rows, whatever SMALL_BATCH says; nothing is checked."""
    y = torch.empty(x.shape[0], weight.shape[0])
    cpu_kernels.linear(x.contiguous().numpy(), weight.numpy(), y.numpy(), _threads())
    return y


def bind_norm_linear(norm: torch.Tensor, eps: float, weight: torch.Tensor) -> Callable:
    """A function x [batch, in] → linear(rms_norm(x), weight) [batch, out], in one launch.

    Its weights, norm [in] and weight [out, in], are checked here, once; it has little left to do at each of the
    hundred calls of a step. The same holds for what the other `bind` functions return.
    """
    _check_matrix("weight", weight, norm[None])
    outputs, inputs = weight.shape
    arrays = (norm.numpy(), cpu_kernels.f32(eps), weight.numpy())

    def norm_linear(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > SMALL_BATCH:
            return F.linear(F.rms_norm(x, norm.shape, norm, eps), weight)
        y = np.empty((x.shape[0], outputs), np.float32)
        cpu_kernels.norm_linear(_rows_of(x, inputs), *arrays, y, _threads())
        return torch.from_numpy(y)

    return norm_linear


def bind_finish_block(
    out: torch.Tensor, norm: torch.Tensor, eps: float, gate_up: torch.Tensor, down: torch.Tensor
) -> Callable:
    """A function (mixed, x) → all of a block that follows its attention: h = x + linear(mixed, out), then
    h + down(silu(gate) · up), with gate and up of rms_norm(h).

    mixed [batch, q_heads · head_dim], x [batch, hidden] → [batch, hidden]; gate_up [2 · intermediate, hidden], gate
    first, and down [hidden, intermediate].
    """
    _check_matrix("gate_up", gate_up, norm[None])
    for name, matrix in (("out", out), ("down", down)):
        _check_type(name, matrix, torch.float32)
    heads, hidden = out.shape[1], out.shape[0]
    arrays = (out.numpy(), norm.numpy(), cpu_kernels.f32(eps), gate_up.numpy(), down.numpy())

    def finish_block(mixed: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > SMALL_BATCH:
            h = x + F.linear(mixed, out)
            gate, up = F.linear(F.rms_norm(h, norm.shape, norm, eps), gate_up).chunk(2, dim=-1)
            return h + F.linear(F.silu(gate) * up, down)
        y = np.empty(x.shape, np.float32)
        cpu_kernels.finish_block(_rows_of(mixed, heads), _rows_of(x, hidden), *arrays, y, _threads())
        return torch.from_numpy(y)

    return finish_block


class BoundCache:
    """A cache's tensors, bound: the newest tokens' way into them and their queries' answer, each in one launch.

    Args:
        kind: "float32", "int8" or "int4" (per token).
        stored: keys and values [layers, batch, kv_heads, capacity, ·], each followed by its scales and zeros, in the
            forms of `decode_attention`, `decode_attention_int8` and `decode_attention_int4`.
        cos, sin: [positions, head_dim] of `helpers.models.rope`.
    """

    def __init__(self, kind: str, stored: Sequence[torch.Tensor], cos: torch.Tensor, sin: torch.Tensor):
        numbers = {"float32": torch.float32, "int8": torch.int8, "int4": torch.uint8}[kind]
        for i, tensor in enumerate(stored):
            _check_type(f"stored[{i}]", tensor, numbers if i in (0, len(stored) // 2) else torch.float32)
        self._append = getattr(cpu_kernels, f"append_{kind}")
        self._attend = getattr(cpu_kernels, f"attend_{kind}")
        self._layers = list(zip(*(tensor.numpy() for tensor in stored), strict=True))
        self._angles = (cos.numpy(), sin.numpy())
        self.batch, self.kv_heads, self.head_dim = *stored[0].shape[1:3], cos.shape[1]
        self._factor = cpu_kernels.f32(self.head_dim**-0.5) * cpu_kernels.LOG2_E

    def append(self, layer: int, position: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write k, rotated, and v [batch, kv_heads, t, head_dim] to `position` and on, which the caller has checked.

        Raises:
            ValueError: NaN or infinity for a quantised cache; nothing was written.
        """
        tokens = k.shape[2]
        k_array, v_array = self._numpy(k, self.kv_heads, tokens), self._numpy(v, self.kv_heads, tokens)
        if not self._append(k_array, v_array, *self._angles, position, *self._layers[layer]):
            quantize.require_finite(torch.cat((k, v)))

    def attend(self, layer: int, position: int, q: torch.Tensor) -> torch.Tensor:
        """Attention of q [batch, q_heads, t, head_dim], rotated to `position` and on, each over the tokens up to its
        own."""
        heads, tokens = q.shape[1] - q.shape[1] % self.kv_heads, q.shape[2]
        splits = _splits(self.batch * self.kv_heads, position + tokens)
        out = np.empty((self.batch, heads * tokens, self.head_dim), np.float32)
        tile = _tile(heads * tokens // self.kv_heads)
        arrays = (*self._angles, position, tile, self._factor, *self._layers[layer], splits, out)
        self._attend(self._numpy(q, heads, tokens), *arrays)
        return torch.from_numpy(out.reshape(self.batch, heads, tokens, self.head_dim))

    def _numpy(self, x: torch.Tensor, heads: int, tokens: int):
        expected = (self.batch, heads, tokens, self.head_dim)
        array = x.numpy()  # of which to ask the shape takes half as long
        if array.shape != expected or array.dtype != np.float32:
            raise ValueError(f"tokens of this cache are float32 {list(expected)}, not {x.dtype} {list(x.shape)}")
        return np.ascontiguousarray(array)  # a slice of q, k and v of one product, with a batch


def decode_attention(q, k, v, length, scale=None, return_lse=False, block_table=None):
    """Attention of the newest tokens over a float32 cache; see `helpers.kernels`."""
    _check_cache(q, k, v, torch.float32, k.shape[-1], block_table)
    if block_table is None:
        return _attend(cpu_kernels.attention, q, k, (k, v), length, scale, return_lse)
    return _attend(cpu_kernels.attention_paged, q, k, (k, v, block_table.contiguous()), length, scale, return_lse)


def decode_attention_int8(q, k_q, k_scale, v_q, v_scale, length, scale=None, return_lse=False):
    """As `decode_attention`, over int8 keys and values with one scale a token and head; see `helpers.kernels`."""
    _check_cache(q, k_q, v_q, torch.int8, k_q.shape[-1])
    for name, tensor in (("k_scale", k_scale), ("v_scale", v_scale)):
        _check_type(name, tensor, torch.float32)
        if tensor.shape != k_q.shape[:3]:
            raise ValueError(
                f"{name} must be [batch, kv_heads, capacity] = {list(k_q.shape[:3])}, not {list(tensor.shape)}"
            )
    return _attend(cpu_kernels.attention_int8, q, k_q, (k_q, k_scale, v_q, v_scale), length, scale, return_lse)


def decode_attention_int4(
    q, k_q, k_scale, v_q, v_scale, length, k_zero=None, v_zero=None, scale=None, return_lse=False
):
    """As `decode_attention`, over keys and values packed two to a byte; see `helpers.kernels`."""
    _check_cache(q, k_q, v_q, torch.uint8, 2 * k_q.shape[-1])
    k_scale, k_zero = _grid("k", k_q, k_scale, k_zero)
    v_scale, v_zero = _grid("v", v_q, v_scale, v_zero)
    arrays = (k_q, k_scale, k_zero, v_q, v_scale, v_zero)
    return _attend(cpu_kernels.attention_int4, q, k_q, arrays, length, scale, return_lse)


def cascade_attention(q, prefix_k, prefix_v, prefix_length, k, v, length, scale=None):
    """Attention of sequences with one common prefix, stored once as [1, kv_heads, capacity, head_dim]."""
    return reference.cascade_attention(
        q, prefix_k, prefix_v, prefix_length, k, v, length, scale, attend=decode_attention
    )


def warm_up() -> None:
    """Compile, or load from disk, every loop of this backend."""
    x, norm, w = torch.zeros(1, 16), torch.ones(16), torch.zeros(16, 16)
    linear(x, w)
    bind_norm_linear(norm, 1e-5, w)(x)
    bind_finish_block(w, norm, 1e-5, torch.zeros(32, 16), w)(x, x)
    numbers, packed = (torch.zeros(1, 1, 1, 1, n, dtype=dtype) for n, dtype in ((16, torch.int8), (8, torch.uint8)))
    table, scale, scales = torch.zeros(1, 16), torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1, 2)
    kinds = {
        "float32": [torch.zeros(1, 1, 1, 1, 16)] * 2,
        "int8": [numbers, scale] * 2,
        "int4": [packed, scales, scales] * 2,
    }
    token = torch.zeros(1, 1, 1, 16)
    for kind, stored in kinds.items():
        bound = BoundCache(kind, stored, table, table)
        bound.append(0, 0, token, token)
        bound.attend(0, 0, token)
    decode_attention(token, token, token, 1, block_table=torch.zeros(1, 1, dtype=torch.int32))


def _attend(kernel, q, k, arrays, length, scale, return_lse):
    q = q.contiguous().numpy()  # whose shapes cost a fraction of what torch's do
    shape, batch, head_dim, queries = q.shape, q.shape[0], q.shape[-1], q.shape[2] if q.ndim == 4 else 1
    views = [tensor.numpy() for tensor in arrays]
    capacity = k.shape[2] if kernel is not cpu_kernels.attention_paged else k.shape[2] * views[2].shape[1]
    lengths = _lengths(length, batch, capacity)
    rows = q.reshape(batch, -1, head_dim)
    out, lse = np.empty(rows.shape, np.float32), np.empty(rows.shape[:2], np.float32)
    factor = cpu_kernels.f32(head_dim**-0.5 if scale is None else scale) * cpu_kernels.LOG2_E
    splits = _splits(batch * k.shape[1], max(lengths))
    tile = _tile(rows.shape[1] // k.shape[1])
    if kernel(rows, queries, tile, factor, *views, np.array(lengths), splits, out, lse) is False:
        raise ValueError(f"block_table names a block that is not there: the pool holds {k.shape[0]} of them")
    if min(lengths) < queries:
        for b, tokens in enumerate(lengths):
            for i in range(queries - tokens):  # they came before the first token
                out[b, i::queries], lse[b, i::queries] = 0.0, -np.inf
    out = torch.from_numpy(out.reshape(shape))
    return (out, torch.from_numpy(lse.reshape(shape[:-1]))) if return_lse else out


def _threads() -> int:
    """Cores for this call: as many as torch uses now. Every launch asks, and numba is told only what is new to it."""
    asked = torch.get_num_threads()
    if asked != _told.asked:
        _told.asked, _told.threads = asked, min(asked, numba.config.NUMBA_NUM_THREADS)
        numba.set_num_threads(_told.threads)
    return _told.threads


def _tile(rows: int) -> int:
    return TILE if rows <= MANY_ROWS else TILE_OF_MANY_ROWS


def _splits(tasks: int, longest: int) -> int:
    """As few as share the work out evenly, since each has to be merged; none for a context of a few tiles."""
    threads = _threads()
    return threads // math.gcd(tasks, threads) if longest >= 2 * SPLIT_TOKENS else 1


def _lengths(length, batch: int, capacity: int) -> list[int]:
    lengths = (
        [int(tokens) for tokens in length]
        if isinstance(length, torch.Tensor) and length.dim()
        else [int(length)] * batch
    )
    if len(lengths) != batch:
        raise ValueError(f"{len(lengths)} lengths given for a batch of {batch}")
    if min(lengths) < 0 or max(lengths) > capacity:
        raise ValueError(f"length must lie between 0 and the cache's capacity of {capacity} tokens, not {length}")
    return lengths


def _grid(name: str, packed: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None):
    """Scale and zero as float32 [batch, kv_heads, rows, columns]."""
    if zero is None:
        zero = -8.0 * scale
    for kind, tensor in (("scale", scale), ("zero", zero)):
        _check_type(f"{name}_{kind}", tensor, torch.float32)
    if scale.dim() == 3:
        scale, zero = scale[..., None], zero[..., None]
    if zero.shape != scale.shape:
        raise ValueError(f"{name}_zero {list(zero.shape)} must have the shape of {name}_scale {list(scale.shape)}")
    batch, kv_heads, capacity, half = packed.shape
    rows, columns = scale.shape[2:] if scale.dim() == 4 else (0, 0)
    fits = (
        rows
        and columns
        and capacity % rows == 0
        and (columns in (1, 2 * half) or columns % 2 == half % (columns // 2) == 0)
    )
    if scale.shape[:2] != packed.shape[:2] or not fits:
        raise ValueError(
            f"{name}_scale {list(scale.shape)} does not tile the cache: it must be [batch, kv_heads, capacity, groups] "
            f"(per token) or [batch, kv_heads, capacity / block, head_dim] (per channel) "
            f"for packed numbers {list(packed.shape)}"
        )
    return scale, zero


def _rows_of(x: torch.Tensor, width: int):
    array = x.numpy()
    if array.shape[1:] != (width,) or array.dtype != np.float32:
        raise ValueError(f"x must be float32 [batch, {width}], not {x.dtype} {list(x.shape)}")
    return np.ascontiguousarray(array)


def _check_type(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise KernelUnsupported(
            f"{name} is {tensor.dtype}; the cpu backend reads {dtype} here. Convert it, or choose backend='reference'"
        )
    if tensor.device.type != "cpu":
        raise KernelUnsupported(f"{name} is on {tensor.device}; the cpu backend needs it in the computer's own memory")
    if not tensor.is_contiguous():
        raise KernelUnsupported(
            f"{name} {list(tensor.shape)} is not contiguous (strides {tensor.stride()}): pass the whole buffer and a "
            "length instead of a slice, or call .contiguous(), which copies it"
        )


def _check_matrix(name: str, weight: torch.Tensor, x: torch.Tensor) -> None:
    _check_type(name, weight, torch.float32)
    if x.dtype != torch.float32:
        raise KernelUnsupported(f"x is {x.dtype}; the cpu backend computes in float32. Choose backend='reference'")
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x {list(x.shape)} and {name} {list(weight.shape)} must be [batch, in] and [out, in]")


def _check_cache(q, k, v, dtype: torch.dtype, head_dim: int, block_table: torch.Tensor | None = None) -> None:
    if q.dtype != torch.float32:
        raise KernelUnsupported(f"q is {q.dtype}; the cpu backend computes in float32. Choose backend='reference'")
    _check_type("k", k, dtype)
    _check_type("v", v, dtype)
    if q.dim() not in (3, 4) or k.dim() != 4 or k.shape != v.shape:
        raise ValueError(
            f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} must be [batch, q_heads, head_dim] (or "
            "[batch, q_heads, t, head_dim]) and twice [batch, kv_heads, capacity, head_dim]"
        )
    sequences = k.shape[0] if block_table is None else block_table.shape[0]
    if q.shape[0] != sequences or q.shape[-1] != head_dim:
        raise ValueError(f"q {list(q.shape)} does not fit a cache of {sequences} sequences and head_dim {head_dim}")
    if block_table is not None and (block_table.dim() != 2 or block_table.dtype != torch.int32):
        raise ValueError(
            f"block_table must be int32 [batch, blocks], not {block_table.dtype} {list(block_table.shape)}"
        )
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads cannot share {k.shape[1]} KV heads evenly")
