"""Quantised caches: int8 and int4 per token, int4 with keys per channel (as in KIVI), and fp8.

Keys are quantised after rotation, which is what a kernel can use as it reads. `fused=False` is the naive way: make
full-precision copies of everything, then attend. It saves memory and costs time.
"""

from collections.abc import Callable

import torch

from helpers.caches.base import KVCache
from helpers.caches.full import FullCache
from helpers.kernels import quantize, reference
from helpers.models import rope
from helpers.models.attention import causal
from helpers.models.geometry import Geometry


class QuantizedCache(KVCache):
    """What the quantised caches share: rotation, the naive path, and byte counts of the tensors they hold.

    A subclass names its tensors in `stored`, each [layers, batch, kv_heads, tokens or blocks of tokens, …], and says
    how to write, to read back and to attend.
    """

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
        self.single = None

    def _store(self, name: str, rows: int, columns: int | None, dtype: torch.dtype) -> None:
        g = self.geometry
        shape = (g.layers, self.batch, g.kv_heads, rows) + (() if columns is None else (columns,))
        self.stored[name] = torch.zeros(shape, dtype=dtype, device=self.device)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        if self.single and k.shape[2] == 1:
            start, _ = self._claim(layer, 1)
            try:
                self.single.append(layer, start, k, v)
            except ValueError:
                self.lengths[layer] = start
                raise
            return
        quantize.require_finite(k)
        quantize.require_finite(v)
        start, end = self._claim(layer, k.shape[2])
        self._write(layer, rope.rotate(k, self.cos[start:end], self.sin[start:end]), v, start, end)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        end = self.lengths[layer]
        start = end - q.shape[2]
        if self.single and self.fused and q.shape[2] == 1:
            return self.single.attend(layer, start, q)
        q = rope.rotate(q, self.cos[start:end], self.sin[start:end])
        if q.shape[2] == 1 and self.fused:
            return self._attend_packed(layer, q[:, :, 0], end)[:, :, None]
        k, v = (part[:, :, :end] for part in self.dequantize(layer, end))
        if q.shape[2] == 1:
            return self.kernels.decode_attention(q[:, :, 0], k.contiguous(), v.contiguous(), end)[:, :, None]
        return causal(q, k, v)

    def _layer(self, layer: int, *names: str) -> list[torch.Tensor]:
        return [self.stored[name][layer] for name in names]

    def _write(self, layer: int, k: torch.Tensor, v: torch.Tensor, start: int, end: int) -> None:
        raise NotImplementedError

    def _attend_packed(self, layer: int, q: torch.Tensor, end: int) -> torch.Tensor:
        raise NotImplementedError

    def dequantize(self, layer: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys (rotated) and values of the first `end` tokens, float32 [batch, kv_heads, ≥ end, head_dim]."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of numbers, scales and zero points alike."""
        return sum(tensor.nbytes for tensor in self.stored.values())

    def step_bytes(self) -> int:
        return self.nbytes * self.length // self.rows


class Int8Cache(QuantizedCache):
    """Symmetric int8, one float32 scale per token and head: head_dim + 4 bytes instead of 4 · head_dim."""

    def __init__(self, geometry: Geometry, capacity: int, batch: int = 1, **options):
        super().__init__(geometry, capacity, batch, **options)
        for name in ("k", "v"):
            self._store(name, self.rows, geometry.head_dim, torch.int8)
            self._store(f"{name}_scale", self.rows, None, torch.float32)
        self.single = self._bound("int8", *self.stored.values())

    def _write(self, layer, k, v, start, end):
        for name, x in (("k", k), ("v", v)):
            numbers, scale = quantize.int8_per_token(x)
            self.stored[name][layer, :, :, start:end] = numbers
            self.stored[f"{name}_scale"][layer, :, :, start:end] = scale

    def _attend_packed(self, layer, q, end):
        return self.kernels.decode_attention_int8(q, *self._layer(layer, "k", "k_scale", "v", "v_scale"), end)

    def dequantize(self, layer, end):
        k, k_scale, v, v_scale = (x[:, :, :end] for x in self._layer(layer, "k", "k_scale", "v", "v_scale"))
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
        self.single = self._bound("int4", *self.stored.values())

    def _write(self, layer, k, v, start, end):
        for name, x in (("k", k), ("v", v)):
            write_per_token(self.stored, name, layer, x, start, end, self.group)

    def _attend_packed(self, layer, q, end):
        return self.kernels.decode_attention_int4(
            q, *self._layer(layer, "k", "k_scale", "v", "v_scale"), end, *self._layer(layer, "k_zero", "v_zero")
        )

    def dequantize(self, layer, end):
        return tuple(
            reference.unpack_int4(*(x[:, :, :end] for x in self._layer(layer, name, f"{name}_scale", f"{name}_zero")))
            for name in ("k", "v")
        )


def write_per_token(stored, name: str, layer: int, x: torch.Tensor, start: int, end: int, group: int) -> None:
    """Quantise x to int4 per token and put numbers, scales and zero points in their places."""
    levels, scale, zero = quantize.per_token(x, 4, group)
    stored[name][layer, :, :, start:end] = quantize.pack_int4(levels)
    stored[f"{name}_scale"][layer, :, :, start:end] = scale
    stored[f"{name}_zero"][layer, :, :, start:end] = zero


class Int4ChannelCache(QuantizedCache):
    """int4, keys per channel over blocks of tokens, values per token in groups (KIVI, arXiv 2402.02750).

    A channel's scale needs a whole block, so the newest, unfinished block of keys waits in float32.
    """

    def __init__(self, geometry: Geometry, capacity: int, batch: int = 1, group: int = 32, block: int = 32, **options):
        super().__init__(geometry, -(-capacity // block) * block, batch, **options)
        # The Triton kernels read scales per token only.
        self.fused = self.fused and self.device.type != "cuda"
        self.group, self.block = group, block
        for name in ("k", "v"):
            self._store(name, self.rows, geometry.head_dim // 2, torch.uint8)
        for part in ("scale", "zero"):
            self._store(f"k_{part}", self.rows // block, geometry.head_dim, torch.float32)
            self._store(f"v_{part}", self.rows, geometry.head_dim // group, torch.float32)
        self._store("recent", block, geometry.head_dim, torch.float32)

    def _write(self, layer, k, v, start, end):
        write_per_token(self.stored, "v", layer, v, start, end, self.group)
        recent = self.stored["recent"][layer]
        first = start - start % self.block
        waiting = torch.cat((recent[:, :, : start - first], k), dim=2)
        whole = waiting.shape[2] // self.block * self.block
        if whole:
            levels, scale, zero = quantize.per_channel(waiting[:, :, :whole], 4, self.block)
            self.stored["k"][layer, :, :, first : first + whole] = quantize.pack_int4(levels)
            blocks = slice(first // self.block, (first + whole) // self.block)
            self.stored["k_scale"][layer, :, :, blocks] = scale
            self.stored["k_zero"][layer, :, :, blocks] = zero
        recent[:, :, : waiting.shape[2] - whole] = waiting[:, :, whole:]

    def _attend_packed(self, layer, q, end):
        whole = end - end % self.block
        v = self._layer(layer, "v", "v_scale", "v_zero")
        k, k_scale, k_zero = self._layer(layer, "k", "k_scale", "k_zero")
        parts = []
        if whole:
            parts.append(
                self.kernels.decode_attention_int4(q, k, k_scale, *v[:2], whole, k_zero, v[2], return_lse=True)
            )
        if whole < end:
            recent_v = reference.unpack_int4(*(x[:, :, whole:end].contiguous() for x in v))
            recent_k = self.stored["recent"][layer][:, :, : end - whole].contiguous()
            parts.append(self.kernels.decode_attention(q, recent_k, recent_v, end - whole, return_lse=True))
        return self.kernels.merge(*zip(*parts, strict=True))[0]

    def dequantize(self, layer, end):
        whole = end - end % self.block
        k, k_scale, k_zero = self._layer(layer, "k", "k_scale", "k_zero")
        blocks = whole // self.block
        recent = self.stored["recent"][layer][:, :, : end - whole]
        v = reference.unpack_int4(*(x[:, :, :end] for x in self._layer(layer, "v", "v_scale", "v_zero")))
        if not blocks:
            return recent, v
        unpacked = reference.unpack_int4(k[:, :, :whole], k_scale[:, :, :blocks], k_zero[:, :, :blocks])
        return torch.cat((unpacked, recent), dim=2), v


class Fp8Cache(QuantizedCache):
    """fp8 e4m3 without scales: one byte a number, as vLLM stores it by default.

    A storage format everywhere. Only a GPU of compute capability 8.9 or later converts it as it reads; elsewhere all of
    it is converted first.
    """

    def __init__(self, geometry: Geometry, capacity: int, batch: int = 1, **options):
        super().__init__(geometry, capacity, batch, **options)
        hardware = self.device.type == "cuda" and torch.cuda.get_device_capability(self.device) >= (8, 9)
        self.fused = self.fused and hardware and hasattr(self.kernels, "decode_attention_fp8")
        for name in ("k", "v"):
            self._store(name, self.rows, geometry.head_dim, quantize.FP8)

    def _write(self, layer, k, v, start, end):
        for name, x in (("k", k), ("v", v)):
            self.stored[name][layer, :, :, start:end] = quantize.to_fp8(x)

    def _attend_packed(self, layer, q, end):
        return self.kernels.decode_attention_fp8(q, *self._layer(layer, "k", "v"), end)

    def dequantize(self, layer, end):
        return tuple(x[:, :, :end].float() for x in self._layer(layer, "k", "v"))


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
        start = self.lengths[layer]
        super().append(layer, k, v)
        new = (layer, slice(None), slice(None), slice(start, self.lengths[layer]))
        self.keys[new], self.values[new] = self.restore(self.keys[new], self.values[new])
