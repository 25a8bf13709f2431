"""Quantised caches: int8 and int4 per token, int4 with keys per channel (as in KIVI), and fp8.

Keys are quantised after rotation, which is what a kernel can use as it reads. `fused=False` is the naive way: make
full-precision copies of everything, then attend. It saves memory and costs time.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from helpers.caches.base import KVCache, OverwritingCache, Places
from helpers.caches.full import FullCache
from helpers.kernels import FEW, quantize, reads_fp8, reference
from helpers.models import rope
from helpers.models.attention import causal
from helpers.models.geometry import Geometry


class QuantizedCache(KVCache):
    """What the quantised caches share: rotation, the naive path, and byte counts of the tensors they hold.

    A subclass names its tensors in `stored`, each [layers, batch, kv_heads, tokens or blocks of tokens, …], and says
    how to write, to read back and to attend.
    """

    any_float = True

    def __init__(
        self,
        geometry: Geometry,
        capacity: int,
        batch: int = 1,
        device="cpu",
        fused: bool = True,
        backend: str | None = None,
    ):
        super().__init__(geometry, capacity, batch, torch.float32, device, backend)
        self.fused = fused
        self.rows = self._allocated(capacity)
        self.cos, self.sin = rope.tables(capacity, geometry.head_dim, geometry.rope_theta, device)
        self.stored: dict[str, torch.Tensor] = {}

    def _store(self, name: str, rows: int, columns: int | None, dtype: torch.dtype) -> None:
        g = self.geometry
        shape = (g.layers, self.batch, g.kv_heads, rows) + (() if columns is None else (columns,))
        self.stored[name] = torch.zeros(shape, dtype=dtype, device=self.device)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        if self._takes(k):
            return self._append_bound(layer, k, v)
        self._check_entry(k, v)
        quantize.require_finite(k)
        quantize.require_finite(v)
        places = self._claimed(layer, k, v)
        self._write(layer, places.rotate(k), v, places)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        if self.fused and self._takes(q):
            return self._attend_bound(layer, q)
        places = self._asked(layer, q)
        q = places.rotate(q)
        if q.shape[2] > self._few(places):
            return causal(q, *self.dequantize(layer, places.longest), places.lengths)
        if self.fused:
            return self._attend_packed(layer, q, places)
        # As many rows as the kernel wants of a cache, and no more.
        k, v = (x.contiguous() for x in self.dequantize(layer, self._allocated(places.longest)))
        return self.kernels.decode_attention(q, k, v, places.lengths)

    def _few(self, places: Places) -> int:
        """Newest tokens that can attend to what is stored as it is."""
        return FEW

    def _layer(self, layer: int, *names: str) -> list[torch.Tensor]:
        return [self.stored[name][layer] for name in names]

    def _write(self, layer: int, k: torch.Tensor, v: torch.Tensor, places: Places) -> None:
        """Quantise k, rotated, and v [batch, kv_heads, t, head_dim] and put them in their places."""
        raise NotImplementedError

    def _attend_packed(self, layer: int, q: torch.Tensor, places: Places) -> torch.Tensor:
        """Attention of q [batch, q_heads, t, head_dim], rotated, a few tokens, over what is stored as it is."""
        raise NotImplementedError

    def dequantize(self, layer: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first `rows` rows of the layer, keys rotated, and no more: twice float32 [batch, kv_heads, rows,
        head_dim]."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of numbers, scales and zero points alike."""
        return sum(tensor.nbytes for tensor in self.stored.values())

    def _read_bytes(self, tokens: int) -> int:
        return self.nbytes // (self.rows * self.batch) * tokens


class Int8Cache(QuantizedCache):
    """Symmetric int8, one float32 scale per token and head: head_dim + 4 bytes instead of 4 · head_dim."""

    def __init__(self, geometry: Geometry, capacity: int, batch: int = 1, **options):
        super().__init__(geometry, capacity, batch, **options)
        for name in ("k", "v"):
            self._store(name, self.rows, geometry.head_dim, torch.int8)
            self._store(f"{name}_scale", self.rows, None, torch.float32)
        self.bound = self._bind("int8", *self.stored.values())

    def _write(self, layer, k, v, places):
        for name, x in (("k", k), ("v", v)):
            numbers, scale = quantize.int8_per_token(x)
            places.write(self.stored[name][layer], numbers)
            places.write(self.stored[f"{name}_scale"][layer], scale)

    def _attend_packed(self, layer, q, places):
        stored = self._layer(layer, "k", "k_scale", "v", "v_scale")
        return self.kernels.decode_attention_int8(q, *stored, places.lengths)

    def dequantize(self, layer, rows):
        k, k_scale, v, v_scale = (x[:, :, :rows] for x in self._layer(layer, "k", "k_scale", "v", "v_scale"))
        return k * k_scale[..., None], v * v_scale[..., None]


class Int4TokenCache(QuantizedCache):
    """Asymmetric int4 in groups of a token's dims, keys and values alike: simple, and wrong for keys (unit 06)."""

    def __init__(self, geometry: Geometry, capacity: int, batch: int = 1, group: int = 32, **options):
        super().__init__(geometry, capacity, batch, **options)
        self.group = group
        for name in ("k", "v"):
            self._store(name, self.rows, geometry.head_dim // 2, torch.uint8)
            for part in ("scale", "zero"):
                self._store(f"{name}_{part}", self.rows, geometry.head_dim // group, torch.float32)
        self.bound = self._bind("int4", *self.stored.values())

    def _write(self, layer, k, v, places):
        for name, x in (("k", k), ("v", v)):
            write_per_token(self.stored, name, layer, x, places, self.group)

    def _attend_packed(self, layer, q, places):
        stored, zeros = self._layer(layer, "k", "k_scale", "v", "v_scale"), self._layer(layer, "k_zero", "v_zero")
        return self.kernels.decode_attention_int4(q, *stored, places.lengths, *zeros)

    def dequantize(self, layer, rows):
        return tuple(
            reference.unpack_int4(*(x[:, :, :rows] for x in self._layer(layer, name, f"{name}_scale", f"{name}_zero")))
            for name in ("k", "v")
        )


def write_per_token(stored, name: str, layer: int, x: torch.Tensor, places: Places, group: int) -> None:
    """Quantise x to int4 per token and put numbers, scales and zero points in their places."""
    levels, scale, zero = quantize.per_token(x, 4, group)
    for suffix, numbers in (("", quantize.pack_int4(levels)), ("_scale", scale), ("_zero", zero)):
        places.write(stored[name + suffix][layer], numbers)


class Int4ChannelCache(OverwritingCache, QuantizedCache):
    """int4, keys per channel over blocks of tokens, values per token in groups (KIVI, arXiv 2402.02750).

    A channel's scale needs a whole block, so the newest, unfinished block of keys waits in float32. The block before it
    is kept in float32 as well, so that the last `block` tokens at least can be taken back one by one; further back, a
    sequence can be cut where blocks meet.
    """

    _exact = 0  # the first token from which on the keys are kept in float32

    def __init__(self, geometry: Geometry, capacity: int, batch: int = 1, group: int = 32, block: int = 32, **options):
        super().__init__(geometry, -(-capacity // block) * block, batch, **options)
        self.fused = self.fused and self.kernels.CAPABILITIES.scales_per_channel
        self.group, self.block = group, block
        for name in ("k", "v"):
            self._store(name, self.rows, geometry.head_dim // 2, torch.uint8)
        for part in ("scale", "zero"):
            self._store(f"k_{part}", self.rows // block, geometry.head_dim, torch.float32)
            self._store(f"v_{part}", self.rows, geometry.head_dim // group, torch.float32)
        # Token p waits in row p % (2 · block).
        self._store("recent", 2 * block, geometry.head_dim, torch.float32)

    def _write(self, layer, k, v, places):
        write_per_token(self.stored, "v", layer, v, places, self.group)
        recent, end = self.stored["recent"][layer], places.longest
        start = end - k.shape[2]
        first = start - start % self.block
        waiting = torch.cat((self._waiting(layer, first, start), k), dim=2)
        whole = waiting.shape[2] // self.block * self.block
        if whole:
            levels, scale, zero = quantize.per_channel(waiting[:, :, :whole], 4, self.block)
            self.stored["k"][layer, :, :, first : first + whole] = quantize.pack_int4(levels)
            blocks = slice(first // self.block, (first + whole) // self.block)
            self.stored["k_scale"][layer, :, :, blocks] = scale
            self.stored["k_zero"][layer, :, :, blocks] = zero
        newest = waiting[:, :, -2 * self.block :]
        recent[:, :, torch.arange(end - newest.shape[2], end, device=self.device) % (2 * self.block)] = newest.float()
        self._exact = max(self._exact, end - 2 * self.block)

    def _waiting(self, layer: int, first: int, end: int) -> torch.Tensor:
        """Keys first … end-1 of an unfinished block, float32."""
        row = first % (2 * self.block)
        return self.stored["recent"][layer][:, :, row : row + end - first]

    def _attend_packed(self, layer, q, places):
        end = places.longest
        whole = end - end % self.block
        v = self._layer(layer, "v", "v_scale", "v_zero")
        k, k_scale, k_zero = self._layer(layer, "k", "k_scale", "k_zero")
        parts = []
        if whole:
            rows = q.flatten(1, 2)  # whose tokens all come after the whole blocks: none is to be hidden from any
            out, lse = self.kernels.decode_attention_int4(
                rows, k, k_scale, *v[:2], whole, k_zero, v[2], return_lse=True
            )
            parts.append((out.view(q.shape), lse.view(q.shape[:-1])))
        if whole < end:
            recent_v = reference.unpack_int4(*(x[:, :, whole:end].contiguous() for x in v))
            recent_k = self._waiting(layer, whole, end).contiguous()
            parts.append(self.kernels.decode_attention(q, recent_k, recent_v, end - whole, return_lse=True))
        return self.kernels.merge(*zip(*parts, strict=True))[0]

    def _few(self, places):
        """Those of the last, unfinished block: one before it must not see all of the block that is packed with it."""
        return min(FEW, max(1, places.longest % self.block))

    def dequantize(self, layer, rows):
        end = self._ends[layer]
        whole = end - end % self.block
        keys = [self._waiting(layer, whole, end)]
        if whole:
            k, scale, zero = self._layer(layer, "k", "k_scale", "k_zero")
            blocks = whole // self.block
            keys = [reference.unpack_int4(k[:, :, :whole], scale[:, :, :blocks], zero[:, :, :blocks]), *keys]
        v = reference.unpack_int4(*(x[:, :, :rows] for x in self._layer(layer, "v", "v_scale", "v_zero")))
        return F.pad(torch.cat(keys, dim=2), (0, 0, 0, max(0, rows - end)))[:, :, :rows], v

    def _read_bytes(self, tokens: int) -> int:
        """Whole blocks as packed, the keys of the last one in float32."""
        whole = tokens - tokens % self.block
        each = {name: x.nbytes // (x.shape[3] * self.batch) for name, x in self.stored.items()}  # of one row
        keys = each["k"] * whole + (each["k_scale"] + each["k_zero"]) * (whole // self.block)
        values = (each["v"] + each["v_scale"] + each["v_zero"]) * tokens
        return keys + values + each["recent"] * (tokens - whole)

    def _missing(self, length: int, came: int) -> str | None:
        begins = length - length % self.block
        lost = length % self.block and begins < self._exact
        return f"the keys of its last, unfinished block of {self.block} are no longer held in float32" if lost else None

    def _move(self, lengths: list[int]) -> None:
        super()._move(lengths)
        self._exact = min(self._exact, lengths[0] - lengths[0] % self.block if lengths[0] else 0)

    def fill(self, length: int) -> None:
        super().fill(length)
        self._drawn, self._came = length, None


class Fp8Cache(QuantizedCache):
    """fp8 e4m3 without scales: one byte a number, as vLLM stores it by default.

    A storage format everywhere. Only a GPU of compute capability 8.9 or later converts it as it reads; elsewhere all of
    it is converted first.
    """

    def __init__(self, geometry: Geometry, capacity: int, batch: int = 1, **options):
        super().__init__(geometry, capacity, batch, **options)
        self.fused = self.fused and reads_fp8(self.device) and self.kernels.CAPABILITIES.fp8
        for name in ("k", "v"):
            self._store(name, self.rows, geometry.head_dim, quantize.FP8)
        self.bound = self._bind("fp8", *self.stored.values()) if self.fused else None

    def _write(self, layer, k, v, places):
        for name, x in (("k", k), ("v", v)):
            places.write(self.stored[name][layer], quantize.to_fp8(x))

    def _attend_packed(self, layer, q, places):
        return self.kernels.decode_attention_fp8(q, *self._layer(layer, "k", "v"), places.lengths)

    def dequantize(self, layer, rows):
        return tuple(x[:, :, :rows].float() for x in self._layer(layer, "k", "v"))


class RoundTripCache(FullCache):
    """A full cache of what a quantiser gives back: the error of a scheme, without packing anything.

    Args:
        restore: keys (rotated) and values [batch, kv_heads, t, head_dim] of newly appended tokens → what would be read
            back of them, same shapes. Append in pieces that the scheme can quantise, such as whole blocks of tokens.
    """

    def __init__(self, geometry: Geometry, capacity: int, restore: Callable, **options):
        super().__init__(geometry, capacity, **options)
        self.restore = restore

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        places = self._claimed(layer, k, v)
        for buffer, x in zip(self.layers[layer], self.restore(places.rotate(k), v), strict=True):
            places.write(buffer, x)
