"""The one seam of the course: a KV cache stores what attention needs and answers a query.

The decoder calls `append` and `attend` and nothing else. How keys are laid out, when they are rotated, which are
dropped, shared or packed is the cache's own business. So a cache that a learner wrote runs in the real decoder,
under the real clock, like any other.
"""

from abc import ABC, abstractmethod

import torch

from helpers import kernels
from helpers.models.geometry import Geometry


class CacheFull(ValueError):
    """A sequence does not fit the capacity that the cache was built with."""


class KVCache(ABC):
    """Base of every cache.

    Args:
        geometry: the decoder that the cache serves.
        capacity: tokens a sequence may hold.
        batch: sequences decoded side by side.
        dtype: element type of what is stored.
        device: where it is stored.
        backend: name of the kernels that read it (`helpers.kernels.select`); None picks the fastest for the device.

    Raises:
        ValueError: capacity or batch is not a positive whole number.
    """

    def __init__(
        self,
        geometry: Geometry,
        capacity: int,
        batch: int = 1,
        dtype=torch.float32,
        device="cpu",
        backend: str | None = None,
    ):
        for name, value in (("capacity", capacity), ("batch", batch)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        self.geometry, self.capacity, self.batch = geometry, capacity, batch
        self.dtype, self.device = dtype, torch.device(device)
        self.kernels = kernels.select(self.device, backend, dtype)
        # One count a layer: inside a step the layers that have appended are one token ahead of those that have not.
        self.lengths = [0] * geometry.layers

    @abstractmethod
    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store k and v [batch, kv_heads, t, head_dim], keys not yet rotated, as the next t tokens of `layer`.

        Raises:
            CacheFull: the sequence would exceed the capacity; nothing was stored.
        """

    @abstractmethod
    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Causal attention of q [batch, q_heads, t, head_dim], not yet rotated, the last t tokens of `layer`.

        Returns the same shape and dtype as q.
        """

    @property
    def length(self) -> int:
        """Tokens seen so far (by every layer)."""
        return self.lengths[-1]

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes allocated, whether or not a token is in them yet."""

    @abstractmethod
    def step_bytes(self) -> int:
        """Bytes that one decode step reads from the cache at the present length, over all layers and sequences."""

    def rewind(self, length: int) -> None:
        """Continue as if exactly `length` tokens had been seen: back, to forget what came after; or forward again, over
        what an earlier `fill` left in the buffer, so that one cache can be timed at many contexts.

        Raises:
            ValueError: `length` is negative or exceeds the capacity.
        """
        if not 0 <= length <= self.capacity:
            raise ValueError(f"cannot continue at {length} tokens: the cache holds from 0 to {self.capacity}")
        self.lengths = [length] * self.geometry.layers

    def fill(self, length: int, seed: int = 0, chunk: int = 1024) -> None:
        """Append random keys and values until `length` tokens are held: a long history without paying its prefill.

        The time of a decode step does not depend on the values, only on how many there are.
        """
        self.rewind(0)
        generator = torch.Generator(device="cpu").manual_seed(seed)
        g = self.geometry
        for start in range(0, length, chunk):
            shape = (self.batch, g.kv_heads, min(chunk, length - start), g.head_dim)
            k, v = (torch.randn(shape, generator=generator).to(self.device, self.dtype) for _ in range(2))
            for layer in range(g.layers):
                self.append(layer, k, v)

    def _allocated(self, tokens: int) -> int:
        """Rows to allocate for `tokens`: Triton reads whole blocks, and the zeros behind the last token never count."""
        multiple = getattr(self.kernels, "CAPACITY_MULTIPLE", 1)
        return -(-tokens // multiple) * multiple

    def _bound(self, kind: str, *stored: torch.Tensor):
        """The backend's way of handling a single token in two launches instead of dozens, or None if it has none."""
        bind = getattr(self.kernels, "SingleToken", None)
        return bind and bind(kind, stored, self.cos, self.sin)

    def _claim(self, layer: int, tokens: int) -> tuple[int, int]:
        """Advance `layer` by `tokens`; returns (start, end) of the new positions."""
        start = self.lengths[layer]
        end = start + tokens
        if end > self.capacity:
            raise CacheFull(
                f"{end} tokens do not fit a cache built for {self.capacity}: build it with capacity={end} or more, "
                "or shorten the prompt"
            )
        self.lengths[layer] = end
        return start, end
