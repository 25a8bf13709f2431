"""Puts a block manager on trial: random sessions beside a model that knows every token; what goes wrong gets a name."""

import random
from collections.abc import Callable

from helpers import check
from helpers.serving.blocks import BlockManager, OutOfBlocks, Session


class Slip(AssertionError):
    """The manager broke a promise; the message says which, and after what."""


class Trial:
    """Random operations on one manager, audited after each.

    Args:
        manager: the `BlockManager`, or a subclass of it, under trial; nothing may be open in it.
        seed: of the random operations.
    """

    def __init__(self, manager: BlockManager, seed: int = 0):
        self.manager, self.dice = manager, random.Random(seed)
        size = manager.block_size
        # What a real pool of tensors would hold in each place: keys and values depend on the tenant's adapter and on
        # the whole history up to there, so (salt, tokens so far) stands for them.
        self.contents = {block: [None] * size for block in range(manager.blocks)}
        self.live: dict[Session, list[int]] = {}  # the tokens that each session must hold
        self.last = ""

    def run(self, steps: int) -> None:
        """Open, extend, fork and close sessions at random.

        Raises:
            Slip: the manager lost, leaked or mixed up a block.
        """
        for _ in range(steps):
            # Two tokens only, so that prefixes recur; sessions are closed as often as opened.
            operation = self.dice.choices((self._open, self._extend, self._fork, self._close), (4, 3, 1, 3))[0]
            operation()
            self._audit()

    def _tokens(self) -> list[int]:
        return [self.dice.randint(0, 1) for _ in range(self.dice.randint(1, 3 * self.manager.block_size))]

    def _open(self) -> None:
        tokens, salt = self._tokens(), self.dice.choice((b"A", b"B"))  # two tenants
        self.last = f"open({tokens}, salt={salt})"
        session = self.manager.open(tokens, salt)
        self.live[session] = tokens[: session.hit_tokens]
        self._write(session, tokens[session.hit_tokens :])

    def _extend(self) -> None:
        if self.live:
            session, tokens = self._pick(), self._tokens()
            self.last = f"extend(session, {tokens})"
            self._write(session, tokens)

    def _fork(self) -> None:
        if self.live:
            parent = self._pick()
            self.last = "fork(session)"
            self.live[self.manager.fork(parent)] = list(self.live[parent])

    def _close(self) -> None:
        if self.live:
            session = self._pick()
            self.last = "close(session)"
            self.manager.close(session)
            del self.live[session]

    def _pick(self) -> Session:
        return self.dice.choice(list(self.live))

    def _write(self, session: Session, tokens: list[int]) -> None:
        """Extend, then do what a pool does: copy the blocks named, write the new tokens."""
        before, size = list(session.table), self.manager.block_size
        try:
            copies = self.manager.extend(session, tokens)
        except OutOfBlocks:
            return
        others = {block for other in self.live if other is not session for block in other.table}
        for i, block in enumerate(session.table):
            self._demand(
                before[i : i + 1] == [block] or block not in others | set(before),
                f"block {block} was given away while a session uses it: only blocks that nobody uses may be evicted.",
            )
        for source, destination in copies:
            self.contents[destination] = list(self.contents[source])
        held = self.live[session]
        for token in tokens:
            block = session.table[len(held) // size]
            self._demand(
                block not in others,
                f"block {block} is written to while other sessions read it: a session must make its last, partly "
                "filled block its own before it writes (copy-on-write).",
            )
            held.append(token)
            self.contents[block][(len(held) - 1) % size] = session.salt, tuple(held)

    def _audit(self) -> None:
        manager = self.manager
        for block in range(manager.blocks):
            self._count(block, sum(session.table.count(block) for session in self.live))
        named = {block: name for name, block in manager.block_of.items()}
        self._demand(
            named == manager.name_of,
            "block_of and name_of no longer agree: when a block is evicted, its name must go from both, or the next "
            "prompt will find tokens that are not there any more.",
        )
        for session, tokens in self.live.items():
            for position in range(len(tokens)):
                block = session.table[position // manager.block_size]
                held = self.contents[block][position % manager.block_size]
                self._compare(held, (session.salt, tuple(tokens[: position + 1])))

    def _compare(self, held, wanted) -> None:
        if held is None or held[0] != wanted[0]:
            what = "another tenant's tokens"
        elif held[1][-1:] != wanted[1][-1:]:
            what = "other tokens than its own"
        else:
            what = "the right token after another history, so other keys and values"
        self._demand(
            held == wanted,
            f"a session reads a block that holds {what}: the block was found under a name that is not its own, or "
            "evicted without forgetting its name.",
        )

    def _count(self, block: int, uses: int) -> None:
        manager = self.manager
        self._demand(
            manager.references[block] == uses,
            f"block {block} is in use by {uses} sessions, and its reference count says {manager.references[block]}.",
        )
        places = manager.free.count(block) + (block in manager.cached)
        self._demand(
            not (uses and places),
            f"block {block} is in use and can still be given away (it is in `free` or `cached`).",
        )
        self._demand(
            uses or places,
            f"block {block} is used by nobody and is neither in `free` nor in `cached`: it has leaked, and nobody can "
            "ever have it again.",
        )
        self._demand(places < 2, f"block {block} can be given away twice (in `free` twice, or in `free` and `cached`).")

    def _demand(self, condition, message: str) -> None:
        if not condition:
            raise Slip(f"{message} (After {self.last}.)")


def convict(make: Callable[[], BlockManager], trials: int = 30, steps: int = 60) -> int:
    """Try a fresh manager from `make` under `trials` seeds; returns the number of operations survived.

    Raises:
        Slip: as soon as a promise is broken.
    """
    first = check.seed(0)
    for trial in range(trials):
        Trial(make(), first + trial).run(steps)
    return trials * steps
