"""The one seam of the course: a KV cache stores what attention needs and answers a query.

The decoder calls `append` and `attend` and nothing else. How keys are laid out, when they are rotated, which are
dropped, shared or packed is the cache's own business. So a cache that a learner wrote runs in the real decoder,
under the real clock, like any other.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from helpers import kernels
from helpers.models import rope
from helpers.models.geometry import Geometry
from helpers.numbers import check_int

CHUNK = 1024  # tokens that `fill` draws at a time


class CacheFull(ValueError):
    """A sequence does not fit the capacity that the cache was built with."""


@dataclass(frozen=True)
class Places:
    """Where the newest t tokens of every sequence stand. Found by the first layer of a step, used by all.

    Attributes:
        cos, sin: their angles, [t, head_dim], or [batch, 1, t, head_dim] where the sequences differ in length.
        index: of their rows in a buffer [batch, heads, capacity, …].
        by_token: whether that index yields [batch, t, heads, …].
        lengths: tokens that each sequence holds, these included: an int, or int32 [batch] on the device.
        longest: the largest of them.
        table: of a paged cache: int32 [batch, blocks].
        starts: of a paged cache: where the first of them stands, an int, or int32 [batch] on the device.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    index: tuple
    by_token: bool
    lengths: int | torch.Tensor
    longest: int
    table: torch.Tensor | None = None
    starts: int | torch.Tensor | None = None

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, heads, t, head_dim], rotated to these places."""
        return rope.rotate(x, self.cos, self.sin)

    def write(self, buffer: torch.Tensor, x: torch.Tensor) -> None:
        """Put x [batch, heads, t, …] into its rows of buffer [batch, heads, capacity, …]."""
        buffer[self.index] = (x.transpose(1, 2) if self.by_token else x).to(buffer.dtype)


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
        ValueError: capacity or batch is not a positive whole number, or the geometry stores something else than this
            cache keeps (latents, or keys and values).
    """

    keeps_latents = False  # rows of MLA instead of keys and values
    any_float = False  # takes keys and values of another floating type than it computes in
    ragged = True  # the sequences may differ in length
    bound: Any = None  # the backend's way with the newest tokens, see `_bind`

    def __init__(
        self,
        geometry: Geometry,
        capacity: int,
        batch: int = 1,
        dtype=torch.float32,
        device="cpu",
        backend: str | None = None,
    ):
        check_int(type(self).__name__, "capacity", capacity, minimum=1)
        check_int(type(self).__name__, "batch", batch, minimum=1)
        if geometry.mla is not None and not self.keeps_latents:
            raise ValueError(f"{geometry.name} keeps latents, not keys and values: use LatentCache")
        if geometry.mla is None and self.keeps_latents:
            raise ValueError(f"{geometry.name} has {geometry.attention} attention and no latent: use FullCache")
        self.geometry, self.capacity, self.batch = geometry, capacity, batch
        self.dtype, self.device = dtype, torch.device(device)
        self.kernels = kernels.select(self.device, backend, dtype)
        # heads and widths of what is appended as k and as v
        self._entry = (geometry.kv_heads, geometry.head_dim, geometry.head_dim)
        self._query_width = geometry.head_dim
        self._sequences = torch.arange(batch, device=self.device)[:, None]
        self._move([0] * batch)

    @abstractmethod
    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store k and v [batch, kv_heads, t, head_dim], keys not yet rotated, as the next t tokens of `layer`.

        Raises:
            CacheFull: a sequence would exceed the capacity; nothing was stored.
            ValueError: another shape or type; nothing was stored.
        """

    @abstractmethod
    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Causal attention of q [batch, q_heads, t, head_dim], not yet rotated, the last t tokens of `layer`.

        Returns the same shape and dtype as q.

        Raises:
            ValueError: another shape, or more queries than `layer` holds tokens.
        """

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes allocated, whether or not a token is in them yet."""

    @abstractmethod
    def _read_bytes(self, tokens: int) -> int:
        """Bytes of all layers that a decode step reads for one sequence of `tokens` tokens."""

    @property
    def lengths(self) -> list[int]:
        """Tokens seen so far by every layer, one number a sequence."""
        return [self._ends[-1] - fewer for fewer in self._behind]

    @property
    def length(self) -> int:
        """Tokens seen so far, where all sequences have seen equally many.

        Raises:
            ValueError: the sequences differ; ask for `lengths`.
        """
        return self._common(self._ends[-1])

    def seen(self, layer: int) -> int:
        """Tokens of `layer` so far, the newest included: within a step, layers that have appended are ahead of others.

        Raises:
            ValueError: the sequences differ in length.
        """
        return self._common(self._ends[layer])

    def step_bytes(self, length: int | Sequence[int]) -> int:
        """Bytes that one decode step reads at `length` tokens a sequence, over all layers; the cache stays as it is.

        Args:
            length: the newest token included; one number for all sequences, or one each.
        """
        return sum(self._read_bytes(tokens) for tokens in self._each(length))

    def rewind(self, length: int) -> None:
        """Continue as if each sequence had seen exactly `length` tokens: back, to forget what came after; or forward
        again, over what an earlier `fill` left in the buffer, so that one cache can be timed at many contexts.

        Raises:
            ValueError: `length` is negative or exceeds the capacity, or this cache cannot return there; nothing was
                changed.
        """
        self._check_target(length)
        self._move([length] * self.batch)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget what came after the first `length` tokens of one sequence; the others stay as they are.

        Raises:
            ValueError: no such sequence, it holds fewer tokens, or this cache cannot return there; nothing was changed.
        """
        lengths = self.lengths
        if isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence < self.batch:
            raise ValueError(f"there is no sequence {sequence!r}: the cache holds sequences 0 to {self.batch - 1}")
        if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= lengths[sequence]:
            raise ValueError(f"cannot cut sequence {sequence} to {length!r} tokens: it holds {lengths[sequence]}")
        if length == lengths[sequence]:
            return
        if self.batch > 1 and not self.ragged:
            raise ValueError(
                f"{type(self).__name__} keeps all its sequences at one length and cannot cut one alone: rewind them "
                "all, or give each sequence a cache of its own"
            )
        self._check_target(length)
        lengths[sequence] = length
        self._move(lengths)

    def fill(self, length: int) -> None:
        """Append random keys and values until `length` tokens are held: a long history without paying its prefill.

        The time of a decode step does not depend on the values, only on how many there are.

        Raises:
            ValueError: as `rewind`, before anything is written.
        """
        self._check_range(length)
        self.rewind(self._least)
        layers, generator = self.geometry.layers, self._generator()
        heads, *widths = self._entry
        for start in range(self._least, length, CHUNK):
            tokens = min(CHUNK, length - start)
            # Each layer takes its tokens one further on: unlike all others, for little more than one layer costs.
            shapes = [(self.batch, heads, tokens + layers - 1, width) for width in widths]
            drawn = [torch.randn(s, generator=generator, dtype=self.dtype, device=self.device) for s in shapes]
            for layer in range(layers):
                self.append(layer, *(x[:, :, layer : layer + tokens] for x in drawn))

    # What follows is for caches, not for those who use them.

    _least = 0  # the shortest length a sequence can have

    def _generator(self) -> torch.Generator | None:
        """What `fill` draws with, on the device that holds the cache: the same each time. "meta" draws nothing."""
        return None if self.device.type == "meta" else torch.Generator(device=self.device).manual_seed(0)

    def _check_range(self, length: int) -> None:
        if isinstance(length, bool) or not isinstance(length, int) or not self._least <= length <= self.capacity:
            raise ValueError(
                f"cannot continue at {length!r} tokens: the cache holds from {self._least} to {self.capacity}"
            )

    def _check_target(self, length: int) -> None:
        """Refuse to return to `length` tokens where that is not possible."""
        self._check_range(length)

    def _move(self, lengths: list[int]) -> None:
        """All layers have seen `lengths` tokens."""
        longest = max(lengths)
        # One end a layer, that of the longest sequence: inside a step the layers that have appended are ahead of
        # those that have not. The sequences advance together, so what each is behind stays.
        self._ends = [longest] * self.geometry.layers
        self._behind = [longest - length for length in lengths]
        self._even = not any(self._behind)
        self._fewer = None if self._even else torch.tensor(self._behind, device=self.device)
        self._at, self._found = None, None

    def _common(self, end: int) -> int:
        if not self._even:
            held = [end - fewer for fewer in self._behind]
            raise ValueError(f"the sequences hold {held} tokens and have no common length: ask for lengths")
        return end

    def _each(self, length: int | Sequence[int]) -> list[int]:
        lengths = [length] * self.batch if isinstance(length, int) else list(length)
        if len(lengths) != self.batch or min(lengths) < 0:
            raise ValueError(f"length must be a number of tokens, or {self.batch} of them, not {length!r}")
        return lengths

    def _allocated(self, tokens: int) -> int:
        """Rows to allocate for `tokens`; the zeros behind the last token never count."""
        return self.kernels.CAPABILITIES.rounded(tokens)

    def _bind(self, kind: str, *stored: torch.Tensor):
        """The backend's way of handling a few tokens in two launches instead of dozens, or None if it has none."""
        if self.kernels.CAPABILITIES.bound_caches:
            return self.kernels.BoundCache(kind, stored, self.cos, self.sin)
        return None

    def _takes(self, x: torch.Tensor) -> bool:
        """Whether the backend's own way serves x [batch, heads, t, width]: a few tokens of sequences of one length."""
        return self.bound is not None and self._even and 1 <= x.shape[2] <= kernels.FEW

    def _claim(self, layer: int, tokens: int) -> tuple[int, int]:
        """Advance `layer` by `tokens`; returns (start, end) of the new positions in the longest sequence."""
        start = self._ends[layer]
        end = start + tokens
        if end > self.capacity:
            raise CacheFull(
                f"{end} tokens do not fit a cache built for {self.capacity}: build it with capacity={end} or more, "
                "or shorten the prompt"
            )
        self._ends[layer] = end
        return start, end

    def _claimed(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> Places:
        """Check k and v, advance `layer` and say where they belong; after an error nothing has moved."""
        self._check_entry(k, v)
        start, end = self._claim(layer, k.shape[2])
        try:
            return self._places(start, end)
        except ValueError:
            self._ends[layer] = start
            raise

    def _append_bound(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        start, _ = self._claim(layer, k.shape[2])
        try:
            self.bound.append(layer, start, k, v)
        except ValueError:
            self._ends[layer] = start
            raise

    def _attend_bound(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        end = self._ends[layer]
        if q.shape[2] > end:
            raise ValueError(f"{q.shape[2]} queries, but layer {layer} holds {end} tokens: append, then attend")
        return self.bound.attend(layer, end - q.shape[2], q)

    def _asked(self, layer: int, q: torch.Tensor) -> Places:
        """Check q and say where its tokens stand."""
        self._check_query(layer, q)
        end = self._ends[layer]
        return self._places(end - q.shape[2], end)

    def _check_query(self, layer: int, q: torch.Tensor) -> None:
        heads = self.geometry.q_heads
        if q.dim() != 4 or (q.shape[0], q.shape[1], q.shape[3]) != (self.batch, heads, self._query_width):
            raise ValueError(f"q must be {_shape(self.batch, heads, self._query_width)}, not {list(q.shape)}")
        held = self._ends[layer] - max(self._behind)
        if not 1 <= q.shape[2] <= held:
            raise ValueError(f"{q.shape[2]} queries, but layer {layer} holds {held} tokens: append, then attend")

    def _places(self, start: int, end: int) -> Places:
        """Where tokens start … end-1 stand, counted in the longest sequence."""
        if self._at != (start, end):
            self._at, self._found = (start, end), self._find(start, end)
        return self._found

    def _find(self, start: int, end: int) -> Places:
        if self._even:
            index = (slice(None), slice(None), slice(start, end))
            return Places(self.cos[start:end], self.sin[start:end], index, False, end, end)
        positions = torch.arange(start, end, device=self.device) - self._fewer[:, None]
        angles = (table[positions][:, None] for table in (self.cos, self.sin))
        index = (self._sequences, slice(None), positions)
        return Places(*angles, index, True, (end - self._fewer).to(torch.int32), end)

    def _check_entry(self, k: torch.Tensor, v: torch.Tensor) -> None:
        heads, *widths = self._entry
        tokens = k.shape[2] if k.dim() == 4 else 0
        for name, x, width in zip("kv", (k, v), widths, strict=True):
            if tuple(x.shape) != (self.batch, heads, tokens, width) or tokens == 0:
                raise ValueError(f"{name} must be {_shape(self.batch, heads, width)}, not {list(x.shape)}")
            if not x.is_floating_point() if self.any_float else x.dtype != self.dtype:
                raise ValueError(
                    f"{name} is {x.dtype} and this cache stores {self.dtype}: build it with the decoder's dtype"
                )


def _shape(batch: int, heads: int, width: int) -> str:
    return f"[batch, heads, t, width] = [{batch}, {heads}, t, {width}]"


class OverwritingCache(KVCache):
    """A cache that has to overwrite what a return to an earlier length would need.

    What `fill` drew means nothing, and so one that was filled goes anywhere, until a text that began at 0 has
    overwritten all of it.
    """

    ragged = False
    _came: int | None = 0  # tokens of a text that was fed from its beginning; None: the history was drawn by `fill`
    _drawn = 0  # rows that hold what `fill` drew

    def _missing(self, length: int, came: int) -> str | None:
        """Why a text of `came` tokens cannot be continued at `length`, if it cannot."""
        raise NotImplementedError

    def _check_target(self, length: int) -> None:
        super()._check_target(length)
        came = self._came
        if came is None or (length > came and self._drawn):
            return
        why = f"only {came} tokens ever came" if length > came else self._missing(length, came)
        if why:
            raise ValueError(f"cannot continue at {length} tokens: {why}; rewind(0) and feed the text again")

    def _move(self, lengths: list[int]) -> None:
        super()._move(lengths)
        length = lengths[0]
        is_text = length == 0 or (self._came is not None and length <= self._came)
        self._came = length if is_text else None

    def _claim(self, layer: int, tokens: int) -> tuple[int, int]:
        start, end = super()._claim(layer, tokens)
        if self._came is not None:
            self._came = max(self._came, end)
            if self._came >= self._drawn:
                self._drawn = 0
        return start, end
