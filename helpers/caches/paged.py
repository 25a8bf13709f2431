"""The paged cache: fixed-size blocks in one pool, and for each session the list of those that hold its history.

`helpers.serving.blocks` (or a learner's own manager) decides which blocks; this file holds their contents. Two sessions
whose lists name the same block share its bytes.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from helpers.caches.base import KVCache, Places
from helpers.kernels import FEW, reference
from helpers.models import rope
from helpers.models.attention import causal
from helpers.models.geometry import Geometry


class BlockPool:
    """Keys (rotated) and values of every block, each [layers, blocks, kv_heads, block_size, head_dim].

    Args:
        positions: longest context that a session may reach.

    Raises:
        ValueError: a geometry with MLA, which keeps latents.
    """

    def __init__(
        self, geometry: Geometry, blocks: int, block_size: int, positions: int, dtype=torch.float32, device="cpu"
    ):
        if geometry.mla is not None:
            raise ValueError(f"{geometry.name} keeps latents, not keys and values: use LatentCache")
        shape = (geometry.layers, blocks, geometry.kv_heads, block_size, geometry.head_dim)
        self.geometry, self.block_size, self.dtype, self.device = geometry, block_size, dtype, torch.device(device)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.positions = positions
        self.cos, self.sin = rope.tables(positions, geometry.head_dim, geometry.rope_theta, device)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, used or not."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def block_bytes(self) -> int:
        """Bytes that one block takes, over all layers."""
        return self.nbytes // self.keys.shape[1]

    def copy(self, copies) -> None:
        """Carry out the (source, destination) copies that a block manager asked for."""
        for source, destination in copies:
            self.keys[:, destination] = self.keys[:, source]
            self.values[:, destination] = self.values[:, source]


class PagedCache(KVCache):
    """Sessions of one pool, of any lengths, as a cache that the decoder can use.

    The caller first gives new tokens their places (`BlockManager.extend`), then runs the decoder: this class writes
    only into places that the tables already have. A table may grow in place between steps. Making one costs next to
    nothing, so a scheduler makes a new one for each step, of those sessions that take part in it.

    Args:
        pool: the blocks.
        tables: one list of block ids per sequence, in order of position.
        length: tokens that the tables already hold, such as the hit of a prefix cache: one number for all sequences,
            or one each.

    Raises:
        ValueError: a length that is negative, beyond the pool's positions or beyond the blocks of its table.
    """

    def __init__(
        self,
        pool: BlockPool,
        tables: list[list[int]],
        length: int | Sequence[int] = 0,
        backend: str | None = None,
    ):
        super().__init__(pool.geometry, pool.positions, len(tables), pool.dtype, pool.device, backend)
        self.pool, self.tables, self.cos, self.sin = pool, tables, pool.cos, pool.sin
        if self.kernels.CAPABILITIES.bound_tables:
            self.bound = self._bind("float32", pool.keys, pool.values)
        self._rows: list[list[int]] = []
        lengths = self._each(length)
        for tokens, table in zip(lengths, tables, strict=True):
            self._check_range(tokens)
            if tokens > len(table) * pool.block_size:
                raise ValueError(
                    f"a table of {len(table)} blocks cannot hold {tokens} tokens: are the two of one session?"
                )
        self._move(lengths)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        places = self._claimed(layer, k, v)
        if self.bound is not None and k.shape[2] <= FEW:
            self.bound.append(layer, places.starts, k, v, places.table)
            return
        places.write(self.pool.keys[layer], places.rotate(k))
        places.write(self.pool.values[layer], v)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        places = self._asked(layer, q)
        if self.bound is not None and q.shape[2] <= FEW:
            even = isinstance(places.starts, int)
            position, lengths = (places.starts, None) if even else (None, places.lengths)
            return self.bound.attend(layer, position, q, lengths, places.table)
        q, table = places.rotate(q), places.table
        k, v = self.pool.keys[layer], self.pool.values[layer]
        if q.shape[2] <= FEW:
            return self.kernels.decode_attention(q, k, v, places.lengths, block_table=table)
        # A copy of every history, once a call: what a prompt costs beside its products.
        k, v = (reference.gather(x, table)[:, :, : places.longest] for x in (k, v))
        return causal(q, k, v, places.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that these sessions hold, a shared block counted once."""
        return len({block for table in self.tables for block in table}) * self.pool.block_bytes

    def _read_bytes(self, tokens: int) -> int:
        """Every session reads its whole history, shared or not."""
        return tokens * self.pool.block_bytes // self.pool.block_size

    def _find(self, start: int, end: int) -> Places:
        """The places, and for all layers of a step the one table that says which blocks they are in."""
        size = self.pool.block_size
        needed = [-(-(end - fewer) // size) for fewer in self._behind]
        for sequence, (table, blocks) in enumerate(zip(self.tables, needed, strict=True)):
            if len(table) < blocks:
                raise ValueError(
                    f"{end - self._behind[sequence]} tokens need {blocks} blocks and a table has {len(table)}: extend "
                    "the session before the decoder runs"
                )
        table = self._on_device()[:, : max(needed)]
        places = super()._find(start, end)
        positions = places.index[2]
        if isinstance(positions, slice):
            positions = torch.arange(start, end, device=self.device).expand(self.batch, -1)
        blocks = table[self._sequences, positions // size].long()
        index = (blocks, slice(None), positions % size)
        starts = places.lengths - (end - start)
        return replace(places, index=index, by_token=True, table=table, starts=starts)

    def _on_device(self) -> torch.Tensor:
        """All tables in one, int32 [batch, blocks], sent anew only when one has grown: a captured step reads from where
        it lies."""
        if self._rows != self.tables:
            widest = max(map(len, self.tables))
            # Shorter tables are filled up with some block that exists; nothing of it counts.
            rows = [table + [0] * (widest - len(table)) for table in self.tables]
            self._table = torch.tensor(rows, dtype=torch.int32, device=self.device)
            self._rows = [list(table) for table in self.tables]
        return self._table
