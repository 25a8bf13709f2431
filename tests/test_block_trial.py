"""The trial itself: the engine's manager passes, and each seeded bug is convicted under its own name."""

import pytest

from helpers.exercises.block_trial import Slip, convict
from helpers.serving.blocks import BlockManager, chain_hash


class Thief(BlockManager):
    def take(self):
        used = [block for block, count in enumerate(self.references) if count]
        if used and not self.free:
            return used[0]
        return super().take()


class Leaker(BlockManager):
    def let_go(self, block):
        self.references[block] -= 1
        if self.references[block] == 0 and block in self.name_of:
            self.cached[block] = None


class Miscounter(BlockManager):
    def hold(self, block):
        self.cached.pop(block, None)


class Overwriter(BlockManager):
    def make_own(self, session):
        return []


class Forgetter(BlockManager):
    def take(self):
        if self.free:
            return super().take()
        block, _ = self.cached.popitem(last=False)
        self.references[block] = 1
        return block


class Eager(BlockManager):
    def hold(self, block):
        self.references[block] += 1


class Unsalted(BlockManager):
    def name(self, parent, tokens, salt):
        return chain_hash(parent, tokens)


class Unchained(BlockManager):
    def name(self, parent, tokens, salt):
        return chain_hash(b"", tokens, salt)


def test_the_engines_manager_passes():
    assert convict(lambda: BlockManager(7, 2)) == 1_800


@pytest.mark.parametrize(
    "kind, message",
    [
        (Thief, "only blocks that nobody uses may be evicted"),
        (Leaker, "leaked"),
        (Miscounter, "reference count says"),
        (Overwriter, "copy-on-write"),
        (Forgetter, "name"),
        (Eager, "can still be given away|only blocks that nobody uses"),
        (Unsalted, "another tenant's tokens"),
        (Unchained, "after another history"),
    ],
)
def test_a_bug_is_named(kind, message):
    with pytest.raises(Slip, match=message):
        convict(lambda: kind(7, 2))
