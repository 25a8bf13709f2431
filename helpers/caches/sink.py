"""StreamingLLM: the first few tokens and the last many, in constant memory (Xiao et al., arXiv 2309.17453).

Keys are stored as they come and rotated when they are read, because a token's position is its place in the
cache: the sinks stand at 0 … sinks-1, the window follows, and the newest token is always last.
"""

import torch

from helpers.caches.base import OverwritingCache
from helpers.models import rope
from helpers.models.geometry import Geometry
from helpers.numbers import check_int

TILE = 256  # queries of a prompt that attend together: their scores must stay small


class SinkBuffers(OverwritingCache):
    """The memory of a sink + window cache: `sinks` rows that stay and a ring of `window` rows.

    Token p lies in row p while p < sinks, else in row sinks + (p - sinks) % window. What is written there and
    how it is read is left to a subclass: `SinkCache`, or the one that a learner writes.

    Args:
        geometry, batch, dtype, device: as for `KVCache`.
        capacity: tokens that a sequence may have; the memory does not depend on it.
        sinks: first tokens that are never dropped; 0 is the plain sliding window.
        window: latest tokens kept beside them, the newest included.
        backend: of the kernels (`helpers.kernels.select`).

    Raises:
        ValueError: sinks is negative, window is below 1 or below sinks, capacity leaves no room beside the
            sinks, or the geometry keeps latents (MLA).
    """

    def __init__(
        self,
        geometry: Geometry,
        capacity: int,
        sinks: int = 4,
        window: int = 1020,
        batch: int = 1,
        dtype=torch.float32,
        device="cpu",
        backend: str | None = None,
    ):
        super().__init__(geometry, capacity, batch, dtype, device, backend)
        _check_sizes(sinks, window, capacity)
        self.sinks, self.window, self.rows = sinks, window, sinks + window
        shape = (geometry.layers, batch, geometry.kv_heads, self._allocated(self.rows), geometry.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.cos, self.sin = rope.tables(self.rows + TILE, geometry.head_dim, geometry.rope_theta, device)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def _read_bytes(self, tokens: int) -> int:
        return self.nbytes // (self.keys.shape[3] * self.batch) * min(tokens, self.rows)

    def _missing(self, length: int, came: int) -> str | None:
        """A ring cannot give back what it has overwritten: a text that outgrew its rows goes back to its sinks."""
        lost = came > self.rows and self.sinks < length < came
        return "tokens that its window needs were overwritten" if lost else None

    def fill(self, length: int) -> None:
        """Random rows, and a length of `length`: what the ring would hold is all that is drawn."""
        self._check_range(length)
        generator = self._generator()
        for buffer in (self.keys, self.values):
            buffer.normal_(generator=generator)
        self._drawn, self._came = self.rows, None
        self.rewind(length)

    def next_token(self, layer: int) -> int:
        """Count one more token of `layer`; returns its index in the text, 0 for the first.

        Raises:
            CacheFull: the sequence has reached the capacity.
        """
        return self._claim(layer, 1)[0]


class SinkCache(SinkBuffers):
    """Sinks and window, for one token or for many at once; every token sees exactly its own window."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.kernels.CAPABILITIES.bound_rings:
            ring = self.keys, self.values, self.cos, self.sin, self.sinks, self.window
            self.bound = self.kernels.BoundRing(*ring)
            return
        self._workspace = torch.zeros_like(self.keys[0])
        self._row_cos, self._row_sin = self.cos[: self.rows].clone(), self.sin[: self.rows].clone()
        self._turn = None

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self._check_entry(k, v)
        start, end = self._claim(layer, k.shape[2])
        if k.shape[2] == 1:
            row = start if start < self.sinks else self.sinks + (start - self.sinks) % self.window
            if self.bound is not None:
                self.bound.append(layer, row, k, v)
                return
            self.keys[layer, :, :, row], self.values[layer, :, :, row] = k[:, :, 0], v[:, :, 0]
            return
        old = self._window_rows(start - self.window + 1, start)
        new = slice(max(self.sinks - start, 0), None)
        self._passing[layer] = (
            end - start,
            *(
                torch.cat((buffer[layer][:, :, old], x[:, :, new].to(self.dtype)), dim=2)
                for buffer, x in ((self.keys, k), (self.values, v))
            ),
        )
        last = max(start, end - self.window)
        for first, stop in ((start, min(end, self.sinks)), (max(last, self.sinks), end)):
            if first < stop:
                rows = self._rows(first, stop)
                self.keys[layer][:, :, rows] = k[:, :, first - start : stop - start].to(self.dtype)
                self.values[layer][:, :, rows] = v[:, :, first - start : stop - start].to(self.dtype)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        self._check_query(layer, q)
        end, t = self._ends[layer], q.shape[2]
        came, *passing = self._passing.pop(layer, (1,))
        if t > came:
            raise ValueError(f"{t} queries, but layer {layer} was last given {came} tokens: append, then attend")
        if t == 1:
            return self._attend_newest(layer, q, end)
        tiles = q.split(TILE, dim=2)
        return torch.cat(
            [self._attend_tile(layer, part, end - t + i * TILE, *passing) for i, part in enumerate(tiles)],
            dim=2,
        )

    def _move(self, lengths: list[int]) -> None:
        super()._move(lengths)
        # What the queries of several tokens need and the ring has no row for; gone once they have attended.
        self._passing: dict[int, tuple[int, torch.Tensor, torch.Tensor]] = {}

    def _attend_newest(self, layer: int, q: torch.Tensor, end: int) -> torch.Tensor:
        """The newest token over all rows held, each rotated to its place in the cache."""
        held, oldest = min(end, self.rows), max(end - self.rows, 0) % self.window
        if self.bound is not None:
            return self.bound.attend(layer, held, oldest, q)
        q = rope.rotate(q, self.cos[held - 1 : held], self.sin[held - 1 : held])
        k = self._rotated(layer, held, oldest)
        return self.kernels.decode_attention(q[:, :, 0], k, self.values[layer], held)[:, :, None]

    def _rotated(self, layer: int, held: int, oldest: int) -> torch.Tensor:
        """The keys of a layer, rotated, in a buffer that all layers share; valid until the next call.

        `oldest` is the row of the ring whose place is right behind the sinks.
        """
        if layer == 0 or self._turn != (held, oldest):
            # The first layer of a step prepares the tables for all, on the device and at every step: a captured step
            # has to bring its own, since another one may have been replayed in between.
            rows = torch.arange(held, device=self.device)
            ring = (rows - self.sinks - oldest) % self.window + self.sinks
            places = torch.where(rows < self.sinks, rows, ring)
            self._row_cos[:held], self._row_sin[:held] = self.cos[places], self.sin[places]
            self._turn = held, oldest
        cos, sin = self._row_cos[:held], self._row_sin[:held]
        half = self.geometry.head_dim // 2
        keys, out = self.keys[layer][:, :, :held], self._workspace[:, :, :held]
        # `rope.rotate` in place: three passes over one buffer that stays in the CPU cache; twice as fast.
        torch.mul(keys, cos, out=out)
        out[..., :half].addcmul_(keys[..., half:], sin[:, half:], value=-1)
        out[..., half:].addcmul_(keys[..., :half], sin[:, :half])
        return self._workspace

    def _attend_tile(self, layer: int, q, start: int, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Queries `start` … of a prompt, their windows among k and v, whose last row is the newest token.

        RoPE sees distances only. Within the window these are the text's; to a sink, those of the cache. Two
        rotations of the query give both, so that no key is rotated once per query.
        """
        t, first = q.shape[2], self._ends[layer] - k.shape[2]
        stop = start + t
        low = min(max(first, start - self.window + 1), stop)
        k, v = (x[:, :, low - first : stop - first] for x in (k, v))
        tokens, queries = (torch.arange(begin, stop, device=self.device) for begin in (low, start))
        seen = (tokens <= queries[:, None]) & (tokens > queries[:, None] - self.window)
        # Queries and keys of a tile lie within window + TILE tokens; `start` itself may be anything.
        base = start - self.window + 1
        scores = self._scores(q, queries - base, k, tokens - base).masked_fill(~seen, -torch.inf)
        if self.sinks:
            places = torch.arange(self.sinks, device=self.device)
            sink_k, sink_v = (buffer[layer][:, :, : self.sinks] for buffer in (self.keys, self.values))
            to_sinks = self._scores(q, queries.clamp(max=self.rows - 1), sink_k, places)
            scores = torch.cat((to_sinks.masked_fill(places > queries[:, None], -torch.inf), scores), dim=-1)
            v = torch.cat((sink_v, v), dim=2)
        precise = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.softmax(dim=-1, dtype=precise).flatten(2, 3).to(v.dtype)
        return (weights @ v).view(*q.shape).to(q.dtype)

    def _scores(self, q, q_places: torch.Tensor, k, k_places: torch.Tensor) -> torch.Tensor:
        """Scaled scores [batch, kv_heads, group, t, n], the query heads of a group as rows of one product."""
        q = rope.rotate(q, self.cos[q_places], self.sin[q_places])
        k = rope.rotate(k, self.cos[k_places], self.sin[k_places])
        batch, heads, t, width = q.shape
        grouped = q.reshape(batch, k.shape[1], -1, width).to(k.dtype)
        scores = grouped @ k.transpose(-1, -2) * width**-0.5
        return scores.view(batch, k.shape[1], heads // k.shape[1], t, k.shape[2])

    def _rows(self, start: int, end: int) -> torch.Tensor:
        """Row of each of the tokens start … end-1."""
        tokens = torch.arange(start, end, device=self.device)
        return torch.where(tokens < self.sinks, tokens, self.sinks + (tokens - self.sinks) % self.window)

    def _window_rows(self, start: int, end: int) -> torch.Tensor:
        """Rows of those tokens start … end-1 that are not sinks."""
        return self._rows(max(start, self.sinks), max(end, self.sinks))


def _check_sizes(sinks: int, window: int, capacity: int) -> None:
    check_int("SinkCache", "sinks", sinks, minimum=0)
    check_int("SinkCache", "window", window, minimum=1)
    if window < sinks:
        raise ValueError(
            f"window={window} is smaller than sinks={sinks}: the sinks are the few, the window the many; "
            "are the two swapped?"
        )
    if capacity < sinks + 1:
        raise ValueError(
            f"capacity={capacity} leaves no token beside {sinks} sinks: it counts all tokens of a sequence, "
            f"so give {sinks + 1} or more"
        )
