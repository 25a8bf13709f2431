"""The block manager: stated cases, then 10,000 random operations against a model that knows every token."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from helpers.serving.blocks import BlockManager, OutOfBlocks, chain_hash


def opened(manager, tokens, salt=b""):
    session = manager.open(tokens, salt)
    manager.extend(session, tokens[session.hit_tokens :])
    return session


def test_names_are_chained_salted_and_unambiguous():
    assert chain_hash(b"", [1, 2]) == chain_hash(b"", (1, 2))
    assert chain_hash(chain_hash(b"", [1, 2]), [3, 4]) != chain_hash(chain_hash(b"", [9, 2]), [3, 4])
    assert chain_hash(b"", [1, 2], b"a") != chain_hash(b"", [1, 2], b"b")
    assert len({chain_hash(b"", t) for t in ([1, 23], [12, 3], [1, 2, 3], [123])}) == 4


def test_a_second_prompt_finds_full_blocks_only_and_never_its_last_token():
    manager = BlockManager(10, 4)
    first = opened(manager, list(range(10)))
    assert opened(manager, list(range(10))).hit_tokens == 8
    assert opened(manager, list(range(8))).hit_tokens == 4  # block 2 is known, but one token must be computed
    assert opened(manager, list(range(3))).hit_tokens == 0  # shorter than a block
    assert opened(manager, [99, *range(1, 10)]).hit_tokens == 0  # one changed token at the front
    assert first.table[:2] == manager.match(list(range(10)))


def test_closed_history_is_still_found_and_the_answer_with_it():
    manager = BlockManager(10, 4)
    session = opened(manager, [1, 2, 3, 4, 5])
    manager.extend(session, [6, 7, 8])  # generated tokens complete the second block
    manager.close(session)
    assert opened(manager, [1, 2, 3, 4, 5, 6, 7, 8, 9]).hit_tokens == 8


def test_eviction_takes_the_oldest_unreferenced_tail_first():
    manager = BlockManager(4, 2)
    old, live = opened(manager, [1, 2, 3, 4]), opened(manager, [5, 6])
    manager.close(old)
    opened(manager, [7, 8, 9, 10])  # needs one evicted block: the tail [3, 4], not the prefix [1, 2]
    assert len(manager.match([1, 2, 3, 4, 0])) == 1
    assert live.table == manager.match([5, 6, 0])
    with pytest.raises(OutOfBlocks, match="2 blocks wanted, 1 of 4"):
        manager.extend(live, [0, 0, 0])
    assert live.tokens == [5, 6] and len(live.table) == 1


def test_fork_copies_a_shared_partial_block_on_first_write():
    manager = BlockManager(6, 4)
    parent = opened(manager, [1, 2, 3, 4, 5])
    child = manager.fork(parent)
    assert child.table == parent.table
    [(source, destination)] = manager.extend(child, [6])
    assert source == parent.table[1] and destination == child.table[1] != source
    assert manager.extend(parent, [7]) == []  # now its own


def test_a_cut_gives_blocks_back_and_keeps_what_others_hold():
    manager = BlockManager(6, 4)
    session = opened(manager, list(range(10)))
    twin = manager.fork(session)
    table = list(session.table)
    manager.truncate(session, 6)
    assert session.table == table[:2] and session.tokens == list(range(6)) and len(session.names) == 1
    assert [manager.references[block] for block in table] == [2, 2, 1]
    assert manager.match([*range(8), 0]) == table[:2]  # nobody has written into block 1 yet
    [(source, destination)] = manager.extend(session, [60])  # block 1 is the twin's as well
    assert source == table[1] and session.table == [table[0], destination]
    manager.close(twin)
    manager.truncate(session, 3)
    manager.extend(session, [30])  # alone with block 0: written in place, and found under its new name only
    assert session.table == [table[0]]
    assert manager.match([*range(8), 0]) == [] and manager.match([0, 1, 2, 30, 0]) == [table[0]]


@pytest.mark.parametrize("wrong", [-1, 6, 2.0, True, None])
def test_a_cut_beyond_the_session_is_refused(wrong):
    manager = BlockManager(6, 4)
    session = opened(manager, [1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match="the session holds 5"):
        manager.truncate(session, wrong)
    assert session.tokens == [1, 2, 3, 4, 5] and len(session.table) == 2


def test_tenants_with_different_salts_share_nothing():
    manager = BlockManager(10, 2)
    opened(manager, [1, 2, 3, 4], b"tenant-a")
    assert opened(manager, [1, 2, 3, 4], b"tenant-b").hit_tokens == 0
    assert opened(manager, [1, 2, 3, 4], b"tenant-a").hit_tokens == 2


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None])
def test_sizes_must_be_positive_whole_numbers(wrong):
    with pytest.raises(ValueError, match="blocks must be"):
        BlockManager(wrong, 4)
    with pytest.raises(ValueError, match="block_size must be"):
        BlockManager(4, wrong)


class Pool(RuleBasedStateMachine):
    """Random sessions over a small pool; `contents` is what a real pool of tensors would hold in each block."""

    sessions = Bundle("sessions")
    tokens = st.lists(st.integers(0, 2), min_size=1, max_size=9)

    def __init__(self):
        super().__init__()
        self.manager = BlockManager(12, 3)
        self.contents = {block: [None] * 3 for block in range(12)}
        self.live = {}  # session → the tokens it must hold
        self.histories = {}  # name of a full block → what a block of that name must hold

    def write(self, session, tokens):
        """Extend, then do what a pool of tensors does: copy the blocks named, write the new positions."""
        before = list(session.table), list(session.tokens)
        try:
            copies = self.manager.extend(session, tokens)
        except OutOfBlocks:
            assert (session.table, session.tokens) == before
            return
        for source, destination in copies:
            self.contents[destination] = list(self.contents[source])
        for position in range(len(session.tokens) - len(tokens), len(session.tokens)):
            block = session.table[position // 3]
            assert self.manager.references[block] == 1, "wrote into a block that somebody else reads"
            self.contents[block][position % 3] = session.salt, session.tokens[position]
        self.live[session] = [*self.live[session], *tokens]
        for i, name in enumerate(session.names):
            full = [(session.salt, token) for token in session.tokens[3 * i : 3 * i + 3]]
            assert self.histories.setdefault(name, full) == full

    @rule(target=sessions, tokens=tokens, salt=st.sampled_from([b"", b"a"]))
    def open(self, tokens, salt):
        session = self.manager.open(tokens, salt)
        self.live[session] = tokens[: session.hit_tokens]
        self.write(session, tokens[session.hit_tokens :])
        return session

    @rule(session=sessions, tokens=tokens)
    def extend(self, session, tokens):
        self.write(session, tokens)

    @rule(session=sessions, data=st.data())
    def truncate(self, session, data):
        held = self.live[session]
        length = data.draw(st.integers(0, len(held)))
        self.manager.truncate(session, length)
        self.live[session] = held[:length]
        assert len(session.table) == -(-length // 3) and len(session.names) == length // 3

    @rule(target=sessions, session=sessions)
    def fork(self, session):
        twin = self.manager.fork(session)
        self.live[twin] = list(self.live[session])
        return twin

    @rule(session=consumes(sessions))
    def close(self, session):
        self.manager.close(session)
        del self.live[session]

    @invariant()
    def every_session_reads_its_own_history_and_tenant(self):
        for session, expected in self.live.items():
            held = [self.contents[session.table[i // 3]][i % 3] for i in range(len(expected))]
            assert held == [(session.salt, token) for token in expected]

    @invariant()
    def a_name_is_that_of_what_the_block_holds(self):
        for name, block in self.manager.block_of.items():
            assert self.contents[block] == self.histories[name]

    @invariant()
    def every_block_is_counted_exactly_once(self):
        manager = self.manager
        uses = [sum(session.table.count(block) for session in self.live) for block in range(12)]
        assert uses == manager.references
        unused = {block for block in range(12) if not uses[block]}
        assert unused == set(manager.free) | set(manager.cached) and not set(manager.free) & set(manager.cached)
        assert len(manager.free) == len(set(manager.free))
        assert {block: name for name, block in manager.block_of.items()} == manager.name_of
        assert set(manager.cached) <= set(manager.name_of)


# 200 runs of 50 steps: 10,000 operations.
TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
