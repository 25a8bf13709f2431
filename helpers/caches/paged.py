"""The paged cache: fixed-size blocks in one pool, and for each session the list of those that hold its history.

`helpers.serving.blocks` (or a learner's own manager) decides which blocks; this file holds their contents. Two sessions
whose lists name the same block share its bytes.
"""

import torch

from helpers.caches.base import KVCache
from helpers.models import rope
from helpers.models.attention import causal
from helpers.models.geometry import Geometry


class BlockPool:
    """Keys (rotated) and values of every block, each [layers, blocks, kv_heads, block_size, head_dim].

    Args:
        positions: longest context that a session may reach.
    """

    def __init__(
        self, geometry: Geometry, blocks: int, block_size: int, positions: int, dtype=torch.float32, device="cpu"
    ):
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
    """Sessions of one pool, all of the same length, as a cache that the decoder can use.

    The caller first gives new tokens their places (`BlockManager.extend`), then runs the decoder: this class writes
    only into places that the tables already have. A table may grow in place between steps.

    Args:
        pool: the blocks.
        tables: one list of block ids per sequence, in order of position.
        length: tokens that the tables already hold, such as the hit of a prefix cache.
    """

    def __init__(self, pool: BlockPool, tables: list[list[int]], length: int = 0, backend: str | None = None):
        super().__init__(pool.geometry, pool.positions, len(tables), pool.dtype, pool.device, backend)
        self.pool, self.tables = pool, tables
        self.lengths = [length] * self.geometry.layers

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        start, end = self._claim(layer, k.shape[2])
        blocks, slots = self._places(start, end)
        # Advanced indices [batch, t] come first in the result: [batch, t, kv_heads, head_dim].
        rotated = rope.rotate(k, self.pool.cos[start:end], self.pool.sin[start:end])
        self.pool.keys[layer][blocks, :, slots] = rotated.transpose(1, 2)
        self.pool.values[layer][blocks, :, slots] = v.transpose(1, 2)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        end = self.lengths[layer]
        start = end - q.shape[2]
        q = rope.rotate(q, self.pool.cos[start:end], self.pool.sin[start:end])
        if q.shape[2] == 1 and hasattr(self.kernels, "CAPACITY_MULTIPLE"):  # Triton reads through the table, no copy
            pool, table = self.pool, self._blocks(end).to(torch.int32)
            return self.kernels.decode_attention(
                q[:, :, 0], pool.keys[layer], pool.values[layer], end, block_table=table
            )[:, :, None]
        k, v = self._gather(self.pool.keys[layer], end), self._gather(self.pool.values[layer], end)
        if q.shape[2] == 1:
            return self.kernels.decode_attention(q[:, :, 0], k, v, end)[:, :, None]
        return causal(q, k[:, :, :end], v[:, :, :end])

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that these sessions hold, a shared block counted once."""
        return len({block for table in self.tables for block in table}) * self.pool.block_bytes

    def step_bytes(self) -> int:
        """Bytes a step reads: every session reads its whole history, shared or not."""
        return self.batch * self.length * self.pool.block_bytes // self.pool.block_size

    def _places(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Block and slot of positions start … end-1, each [batch, end-start]."""
        needed = -(-end // self.pool.block_size)
        if short := [len(table) for table in self.tables if len(table) < needed]:
            raise ValueError(
                f"{end} tokens need {needed} blocks and a table has {short[0]}: "
                "extend the session before the decoder runs"
            )
        positions = torch.arange(start, end, device=self.device)
        blocks = self._blocks(end)[:, positions // self.pool.block_size]
        return blocks, (positions % self.pool.block_size).expand(self.batch, -1)

    def _gather(self, blocks: torch.Tensor, end: int) -> torch.Tensor:
        """The history of every session in one piece, [batch, kv_heads, blocks · block_size, head_dim].

        A copy: simple, and right on every device.
        """
        return blocks[self._blocks(end)].transpose(1, 2).flatten(2, 3)

    def _blocks(self, end: int) -> torch.Tensor:
        """Block ids of the first `end` tokens of every session, [batch, blocks], on the device."""
        needed = -(-end // self.pool.block_size)
        return torch.tensor([table[:needed] for table in self.tables], device=self.device)
