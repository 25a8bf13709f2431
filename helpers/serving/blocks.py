"""Which blocks of a fixed pool hold which tokens: sharing, copy-on-write, eviction. It moves no tensor.

The scheme is that of paged attention with automatic prefix caching (Kwon et al., arXiv 2309.06180, and vLLM's design
notes): a full block is named by a hash of its tokens chained to the hash of the block before it, so equal names mean
equal histories, not merely equal tokens.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from helpers.numbers import check_int


class OutOfBlocks(RuntimeError):
    """Every block of the pool is referenced by a live session; nothing was changed."""


def chain_hash(parent: bytes, tokens: Sequence[int], salt: bytes = b"") -> bytes:
    """Name of a full block: SHA-256 over the parent's name, the salt and the tokens.

    Args:
        parent: name of the block before, b"" for the first.
        tokens: the block's token ids.
        salt: whatever must not be shared across (tenant, adapter); it enters the first block and by the chain all.
    """
    # Length first, so that no salt can be mistaken for the beginning of the tokens.
    head = len(salt).to_bytes(4, "little") + salt if not parent else parent
    return hashlib.sha256(head + np.asarray(tokens, dtype="<i8").tobytes()).digest()


@dataclass(eq=False)
class Session:
    """One sequence's view of the pool: block ids in order, the tokens in them, and the names of the full ones."""

    salt: bytes = b""
    table: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    hit_tokens: int = 0


class BlockManager:
    """Blocks of one pool, counted by who uses them.

    A block is *free* (holds nothing), *referenced* (by one or more sessions) or *cached* (full, named, referenced by
    nobody: a later prompt may still find it, until it is evicted, least recently used first).

    The decisions are `name`, `match`, `hold`, `let_go`, `take` and `make_own`; a subclass may replace any of them.

    Args:
        blocks: number of blocks in the pool.
        block_size: tokens a block holds.

    Raises:
        ValueError: either is not a positive whole number.
    """

    def __init__(self, blocks: int, block_size: int):
        check_int("BlockManager", "blocks", blocks, minimum=1)
        check_int("BlockManager", "block_size", block_size, minimum=1)
        self.blocks, self.block_size = blocks, block_size
        self.references = [0] * blocks
        self.free = list(range(blocks - 1, -1, -1))
        self.cached: OrderedDict[int, None] = OrderedDict()  # oldest first
        self.block_of: dict[bytes, int] = {}
        self.name_of: dict[int, bytes] = {}

    def name(self, parent: bytes, tokens: Sequence[int], salt: bytes) -> bytes:
        """Name of a full block; see `chain_hash`."""
        return chain_hash(parent, tokens, salt)

    def match(self, tokens: Sequence[int], salt: bytes = b"") -> list[int]:
        """Blocks that hold the longest known prefix of `tokens`, changing nothing.

        The last token is never matched: a step must compute at least one to have logits.
        """
        found, name = [], b""
        for start in range(0, len(tokens) - self.block_size, self.block_size):
            name = self.name(name, tokens[start : start + self.block_size], salt)
            if name not in self.block_of:
                break
            found.append(self.block_of[name])
        return found

    def open(self, tokens: Sequence[int], salt: bytes = b"") -> Session:
        """A session that begins with the longest cached prefix of `tokens`; `extend` it with the rest."""
        table = self.match(tokens, salt)
        hit = len(table) * self.block_size
        for block in table:
            self.hold(block)
        return Session(salt, table, list(tokens[:hit]), [self.name_of[block] for block in table], hit)

    def extend(self, session: Session, tokens: Iterable[int]) -> list[tuple[int, int]]:
        """Give `tokens` their places at the end of `session`.

        Returns:
            (source, destination) blocks whose contents must be copied before anything is written: the copy-on-write
            of a last block that another session also holds.

        Raises:
            OutOfBlocks: there is no room; neither the session nor the pool was changed.
        """
        tokens = list(tokens)
        if not tokens:
            return []
        filled = len(session.tokens) % self.block_size
        must_copy = bool(filled) and self.references[session.table[-1]] > 1
        total = len(session.tokens) + len(tokens)
        fresh = -(-total // self.block_size) - len(session.table) + must_copy
        available = len(self.free) + len(self.cached)
        if fresh > available:
            raise OutOfBlocks(
                f"{fresh} blocks wanted, {available} of {self.blocks} can be had: close a session or build a larger one"
            )
        copies = self.make_own(session) if session.table else []
        if filled:
            self._forget(session.table[-1])
        session.table += [self.take() for _ in range(fresh - len(copies))]
        session.tokens += tokens
        self._name_full_blocks(session)
        return copies

    def truncate(self, session: Session, length: int) -> None:
        """Forget what came after the first `length` tokens of `session` and let go of the blocks that held only that.

        A full block that is now filled in part keeps its name, for it still holds what the name says; it loses it when
        the session writes into it, or is copied if somebody else holds it too (`extend`).

        Raises:
            ValueError: `length` is negative, or more than the session holds; nothing was changed.
        """
        if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= len(session.tokens):
            raise ValueError(f"cannot cut to {length!r} tokens: the session holds {len(session.tokens)}")
        kept = -(-length // self.block_size)
        for block in reversed(session.table[kept:]):
            self.let_go(block)
        # In place: a cache may be looking at the table.
        del session.table[kept:], session.tokens[length:], session.names[length // self.block_size :]

    def fork(self, session: Session) -> Session:
        """A second session with the same history, sharing every block, the partly filled last one included."""
        for block in session.table:
            self.hold(block)
        return Session(
            session.salt, list(session.table), list(session.tokens), list(session.names), len(session.tokens)
        )

    def close(self, session: Session) -> None:
        """Let go of every block; full ones stay cached. The session is empty afterwards."""
        # Last block first: under pressure the tail of a history is evicted before the prefix that others share.
        for block in reversed(session.table):
            self.let_go(block)
        session.table, session.tokens, session.names = [], [], []

    def make_own(self, session: Session) -> list[tuple[int, int]]:
        """Replace a partly filled last block that another session also holds by one of its own.

        Returns:
            [(source, destination)] to copy before anything is written, or [] where nothing was to be done.
        """
        if len(session.tokens) % self.block_size == 0 or self.references[session.table[-1]] == 1:
            return []
        source, session.table[-1] = session.table[-1], self.take()
        self.let_go(source)
        return [(source, session.table[-1])]

    def hold(self, block: int) -> None:
        """One session more uses `block`."""
        self.references[block] += 1
        self.cached.pop(block, None)

    def let_go(self, block: int) -> None:
        """One session less uses `block`; after the last, it is cached if it has a name, else free."""
        self.references[block] -= 1
        if self.references[block] == 0:
            if block in self.name_of:
                self.cached[block] = None
            else:
                self.free.append(block)

    def take(self) -> int:
        """A block for new tokens: a free one, else the one that has been cached, unreferenced, the longest."""
        if self.free:
            block = self.free.pop()
        else:
            block, _ = self.cached.popitem(last=False)
            self._forget(block)
        self.references[block] = 1
        return block

    def _forget(self, block: int) -> None:
        """Take the name from a block that is about to hold something else."""
        if block in self.name_of:
            del self.block_of[self.name_of.pop(block)]

    def _name_full_blocks(self, session: Session) -> None:
        for index in range(len(session.names), len(session.tokens) // self.block_size):
            start = index * self.block_size
            parent = session.names[-1] if session.names else b""
            name = self.name(parent, session.tokens[start : start + self.block_size], session.salt)
            session.names.append(name)
            # A twin computed by another session at the same time keeps its block, but only one is to be found.
            if name not in self.block_of:
                self.block_of[name] = session.table[index]
                self.name_of[session.table[index]] = name
