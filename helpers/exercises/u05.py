"""Checks of unit 05, "Prefix caching": bytes from real tensors, bookkeeping on trial, attention against float64."""

from __future__ import annotations

import itertools
import math

import torch

from helpers.check import Wrong, call, close, entries, exercise, near, number, part, require, seed
from helpers.exercises import block_trial
from helpers.exercises.traffic import Traffic
from helpers.models.counts import kv_bytes
from helpers.models.geometry import get
from helpers.serving.blocks import BlockManager


@exercise("05.1")
def hit_tokens_of_six_prompts(hits, *, system=40, question=30, answer=50):
    prompt, history = system + question, system + question + answer

    def full(tokens: int) -> int:
        return tokens // 16 * 16

    whole = "Blocks come whole: one that is only partly the same is not found."
    cases = {
        "same system prompt, other question": (
            full(system),
            {
                whole: [system, system + 1],
                "The question differs, and with it every block that holds a part of it.": [full(prompt), prompt],
                f"Rounded up: the last of these blocks holds {full(system) + 16 - system} tokens of the question.": (
                    full(system) + 16
                ),
                "That is blocks; tokens are asked for.": system // 16,
            },
        ),
        "next turn": (
            full(history),
            {
                "Blocks come whole: round down to a multiple of 16.": [history, history - 1],
                "The answer went through the cache as well; here its blocks are kept.": [full(prompt), prompt],
                "Rounded up: the last block of the history is not full.": full(history) + 16,
                "That is blocks; tokens are asked for.": history // 16,
                "Only what was there before can be found; the new question has to be computed.": [
                    full(history + 25),
                    history + 25,
                ],
            },
        ),
        "64 tokens, sent twice": (
            48,
            {
                "One token at least has to be computed, or there are no logits to choose the next one from; and "
                "blocks come whole.": [64, 63],
                "That is blocks; tokens are asked for.": 3,
                "The two prompts are equal: all full blocks but the one of the last token are found.": 0,
            },
        ),
        "first prompt, time in front": (
            0,
            {
                "Five tokens in front move every later one: no block is the same from the very beginning up to its "
                "end.": [full(system), full(system) + 16, full(prompt), prompt],
            },
        ),
        "15 tokens, sent twice": (0, {"15 tokens fill no block of 16, so there is nothing to find.": [14, 15, 16]}),
        "next turn, prompts kept only": (
            full(prompt),
            {
                f"Blocks come whole: how many full ones do {prompt} tokens of prompt fill?": [prompt, prompt - 1],
                "Rounded up: the last block of the prompt is not full.": full(prompt) + 16,
                "This engine did not keep the answer's blocks.": [full(history), history],
                "That is blocks; tokens are asked for.": prompt // 16,
            },
        ),
    }
    entries("hits", hits, list(cases))
    for name, (expect, slips) in cases.items():
        with part():
            number(hits[name], expect, unit="tokens", rel=0, slips=slips, name=name)


@exercise("05.2")
def memory_of_many_sessions(memory_gb, *, sessions=50, shared=2_000, own=512):
    g, prompt = get("Llama-3.1-8B"), shared

    def gb(tokens: int) -> float:
        return kv_bytes(g, tokens=tokens, dtype=torch.bfloat16) / 1e9

    gib = "That is in GiB (2³⁰ bytes); 1 GB is 1e9 bytes."
    alone, shared = gb(sessions * (prompt + own)), gb(prompt + sessions * own)
    cases = {
        "each for itself": (
            alone,
            {
                gib: alone * 1e9 / 2**30,
                f"That is one session; there are {sessions}.": gb(prompt + own),
                "You left the system prompt out.": gb(sessions * own),
                "You left the sessions' own tokens out.": gb(sessions * prompt),
            },
        ),
        "system prompt shared": (
            shared,
            {
                gib: shared * 1e9 / 2**30,
                "You left the system prompt out: it is kept once.": gb(sessions * own),
                "You shared the sessions' own tokens too: those differ.": gb(prompt + own),
                "You kept one prompt a session; shared, it is there once.": alone,
                "You shared what is each session's own and not the prompt.": gb(sessions * prompt + own),
                "You left the sessions' own tokens out.": gb(prompt),
            },
        ),
    }
    entries("memory_gb", memory_gb, list(cases))
    for name, (expect, slips) in cases.items():
        number(memory_gb[name], expect, unit="GB", rel=0.01, slips=slips, name=name)


@exercise("05.3")
def fewer_bytes_with_a_shared_prefix(times_fewer):
    cases = {
        "P 32,768, u 256, B 128": (32_768, 256, 128),
        "P 512, u 512, B 8": (512, 512, 8),
        "P 32,768, u 256, B 1": (32_768, 256, 1),
    }
    entries("times_fewer", times_fewer, list(cases))
    for name, (p, u, b) in cases.items():
        expect = b * (p + u) / (p + b * u)
        slips = {
            "Upside down: bytes without sharing ÷ bytes with.": 1 / expect,
            "You left each session's own tokens out: they are read apart in both cases.": b,
            "You left the own tokens out of the plain read: every session reads P + u.": b * p / (p + b * u),
            "You counted one session's own tokens; all B have some.": b * (p + u) / (p + u),
            "A plain step reads B histories, not one.": (p + u) / (p + b * u),
            "You left the prefix out where it is shared: it is read once.": (p + u) / u,
        }
        slips = {message: value for message, value in slips.items() if not math.isclose(value, expect, rel_tol=0.02)}
        number(times_fewer[name], expect, unit="×", rel=0.015, slips=slips, name=name)  # two digits will do: 1.8


@exercise("05.4")
def money(money, *, prices=(3.0, 3.75, 0.3, 15.0), head=10_000, asked=200, said=300):
    turns, step = 10, asked + said
    paid, write, hit, output = prices  # dollars per million tokens
    prompts = [head + asked + i * step for i in range(turns)]
    out = turns * said * output / 1e6
    written, read = prompts[-1], sum(prompts[:-1])
    plain, cached, stamped = (
        sum(prompts) * paid / 1e6 + out,
        (written * write + read * hit) / 1e6 + out,
        sum(prompts) * write / 1e6 + out,
    )
    no_output = f"You left the output out: {turns * said:,} tokens at {output:g} dollars a million."
    cases = {
        "no caching": (
            plain,
            {
                no_output: [plain - out, round(plain - out, 2)],
                f"Every turn sends the whole history again: the prompt grows by {step} tokens a turn.": [
                    turns * prompts[0] * paid / 1e6 + out,
                    written * paid / 1e6 + out,
                ],
            },
        ),
        "cached": (
            cached,
            {
                no_output: [cached - out, round(cached - out, 2)],
                f"A turn finds the prompt of the turn before it and not its own: the {step} tokens that are new in it "
                "are written.": (prompts[0] * write + sum(prompts[1:]) * hit) / 1e6 + out,
                f"What is written costs {write:.2f}, not {paid:.2f}.": (written * paid + read * hit) / 1e6 + out,
                f"You left the reads out: each turn pays {hit:.2f} for what it finds.": written * write / 1e6 + out,
                "You left the writes out: each turn writes what is new in its prompt.": read * hit / 1e6 + out,
                "A turn finds the last one's prompt and not its answer, which is written with the new question.": (
                    (read + (turns - 1) * said) * hit + (written - (turns - 1) * said) * write
                )
                / 1e6
                + out,
                f"Every turn writes what is new in it, {step} tokens, not only the first one.": [
                    (prompts[0] * write + read * hit) / 1e6 + out,
                    (prompts[0] * write + read * hit + (turns - 1) * step * paid) / 1e6 + out,
                ],
                "Found tokens are the whole prompt of the turn before, not the system prompt alone.": (
                    prompts[0] * write + (turns - 1) * (head * hit + step * write)
                )
                / 1e6
                + out,
            },
        ),
        "cached, time in front": (
            stamped,
            {
                f"Nothing is found, and everything is still written, at {write:.2f}.": [plain, cached],
                no_output: [stamped - out, round(stamped - out, 2)],
            },
        ),
    }
    reuses = {"reuses, write at 1.25": (1, 1.25), "reuses, write at 2": (2, 2.0)}
    entries("money", money, [*cases, *reuses])
    for name, (expect, slips) in cases.items():
        number(money[name], _rounded_as(money[name], expect), unit="$", rel=0.005, slips=slips, name=name)
    for name, (expect, write) in reuses.items():
        exact = (write - 1) / 0.9
        slips = {
            "Reuses come whole: round up.": [exact, math.floor(exact)],
            "You counted the request that writes as a reuse.": expect + 1,
            "Each reuse saves 0.9, since what is found still costs 0.1.": [(write - 1), write / 0.9],
            "One request alone pays the surcharge and saves nothing.": 0,
        }
        number(money[name], expect, unit="reuses", rel=0, slips=slips, name=name)


@exercise("05.5")
def block_name(function):
    first = call(function, b"", [1, 2, 3], b"")
    require(
        isinstance(first, bytes),
        f"return bytes, such as hashlib.sha256(…).digest(); you returned a {type(first).__name__}. Python's own "
        "hash() will not do: strangers can find two inputs with the same one.",
    )
    require(
        32 <= len(first) <= 64,
        f"a name of {len(first)} bytes: take the whole digest of sha256, 32 bytes. Short ones, and those of md5 and "
        "sha1, can be made to collide; a long one is no hash.",
    )
    require(
        call(function, b"", [1, 2, 3], b"") == first and call(function, b"", (1, 2, 3), b"") == first,
        "the same tokens got two names: the name may depend on nothing but parent, tokens and salt, and not on "
        "whether the tokens come as a list or a tuple.",
    )
    require(
        call(function, b"", [1, 2, 4], b"") != first,
        "other tokens got the same name: the tokens are not hashed.",
    )
    require(call(function, b"", [3, 2, 1], b"") != first, "the same tokens in another order got the same name.")
    names = [call(function, b"", [token], b"") for token in range(4)]
    require(
        min(_bits_apart(one, other) for one, other in itertools.combinations(names, 2)) >= 32,
        "two blocks got almost the same name. That is no hash: in two hashes about half the bits differ. Names that "
        "are counted up, or only written longer, can be guessed; and after a restart a count names other blocks.",
    )
    parents = {call(function, parent, [7, 8], b"") for parent in (b"", first, call(function, b"", [4], b""))}
    require(
        len(parents) == 3,
        "you hashed the block without its parent: the same words after another history would be found, and their "
        "keys and values are not the same.",
    )
    # In the first block alone, since a salt there is right as well: the chain carries it on.
    salts = {call(function, b"", [7, 8], salt) for salt in (b"", b"tenant A", b"tenant B")}
    require(
        len(salts) == 3,
        "the salt does not change the name: one tenant would find another's blocks.",
    )
    large = ([1], [257], [65_537])
    require(
        len({call(function, b"", tokens, b"") for tokens in large}) == len(large),
        "the tokens 1, 257 and 65,537 do not get three names: a token fits neither into one byte nor into two. "
        "Many vocabularies have over 100,000 tokens; repr(list(tokens)) writes each of them whole.",
    )
    unlike = ([1, 23], [12, 3], [123], [1, 2, 3], [0, 1, 23], [256, 1], [1, 256], [257])
    require(
        len({call(function, b"", tokens, b"") for tokens in unlike}) == len(unlike),
        "[1, 23], [12, 3] and [123] (or 256 and 0, 1) must not get one name: keep the tokens apart before hashing, "
        "as repr(list(tokens)) does.",
    )
    pairs = list(_look_alikes())
    for one, other in pairs:
        require(
            call(function, *one) != call(function, *other),
            f"parent, tokens and salt run into each other: (parent, tokens, salt) = {one} and {other} got one name. A "
            "separator is no help where it can occur in a part; repr() of all three together marks where each ends.",
        )
    return f"{len(large) + len(unlike) + 2 * len(pairs)} look-alikes told apart"


def _bits_apart(one: bytes, other: bytes) -> int:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).bit_count()


def _look_alikes():
    """Pairs of (parent, tokens, salt) that are one string when the three are joined, in some order, with a separator.

    A parent is b"" or 32 bytes long, as real names are; everything is ASCII, so that decoding it fails nobody.
    """
    tokens = [7, 8]
    for separator in (b"", *(bytes([c]) for c in b"|:;,./-_#+ ~@&=\t\n\0"), b"||", b"::", b"--", b", "):
        fill = b"p" * (32 - len(separator))
        # parent · salt, and salt · parent
        yield (b"", tokens, fill + separator + b"A"), (separator + fill, tokens, b"A")
        yield (b"", tokens, b"A" + separator + fill), (fill + separator, tokens, b"A")
        for written in (b"[7, 8]", b"(7, 8)", b"7,8", b"7 8", separator.join((b"7", b"8"))):
            # parent · tokens · salt, and salt · tokens · parent: the tokens once more inside the name
            inner = separator + written + separator
            fill = b"p" * (32 - len(inner))
            yield (b"", tokens, fill + inner + b"A"), (inner + fill, tokens, b"A")
            yield (b"", tokens, b"A" + inner + fill), (fill + inner, tokens, b"A")
        # salt · tokens, and tokens · salt, where the tokens are joined in the same way
        yield (b"", [1, 7, 8], b"A"), (b"", [7, 8], b"A" + separator + b"1")
        yield (b"", [7, 8, 1], b"A"), (b"", [7, 8], b"1" + separator + b"A")


@exercise("05.6")
def longest_prefix(function, block_name):
    tokens = list(range(100, 112))  # three blocks of four

    def named(*salts):
        """The three blocks, each named with its salt. 0 is a block like any other: `if not block` takes it for none."""
        names = [b""]
        for start, salt in zip((0, 4, 8), salts, strict=True):
            names.append(block_name(names[-1], tokens[start : start + 4], salt))
        return dict(zip(names[1:], (5, 0, 9), strict=True))

    known = named(b"A", b"A", b"A")
    names = list(known)
    require(
        block_name(b"", tokens[:4], b"B") != names[0] and block_name(b"", tokens[4:8], b"A") != names[1],
        "block_name of exercise 05.5 has to be right first: parent and salt must change the name.",
    )

    def found(tokens, salt=b"A", known=known):
        given, prompt = dict(known), list(tokens)
        blocks = call(function, given, prompt, 4, salt)
        require(given == known and prompt == tokens, "looking a prefix up must change neither block_of nor the tokens.")
        try:
            return list(blocks)
        except TypeError:
            raise Wrong(f"return a list of block numbers; you returned {blocks!r}.") from None

    longest = found([*tokens, 1])
    require(
        not any(isinstance(b, bytes) for b in longest),
        "you returned names; the block numbers are asked for: block_of[name].",
    )
    require(
        longest != [] or found([*tokens, 1], known=named(b"", b"", b"")) != [5, 0, 9],
        "no block was found: hand the salt to block_name, or one tenant finds another's blocks.",
    )
    require(
        longest != [5] or found([*tokens, 1], known=named(b"A", b"", b"")) != [5, 0, 9],
        "the second block was not found: you gave the salt to the first alone; here the name of each is made with it.",
    )
    require(
        longest != [5],
        "the second block was not found: its name is made with the name of the first as parent. (Its number is 0, "
        "which `if not block` takes for unknown.)",
    )
    require(
        longest == [5, 0, 9],
        f"13 tokens, three full blocks known as 5, 0, 9, and you found {longest}.",
    )
    require(
        found(tokens) == [5, 0],
        f"12 tokens, all known: you found {found(tokens)}. The last token is never a hit, since one token must be "
        "computed to have logits; so only two blocks of four count.",
    )
    require(found(tokens[:4]) == [], "a prompt of one block exactly: its last token must be computed, so nothing hits.")
    require(found(tokens[:5]) == [5], f"5 tokens: one full block, and you found {found(tokens[:5])}.")
    require(found(tokens[:3]) == [], "a prompt below one block has nothing to find.")
    gap = {name: block for name, block in known.items() if block != 0}
    require(
        found([*tokens, 1], known=gap) == [5],
        "the second block is gone and the third is still known: a prefix ends at the first gap, so stop there.",
    )
    require(found([0, *tokens]) == [], "one token more in front, and nothing may be found.")
    require(
        found([*tokens, 1], salt=b"B") == [],
        "another tenant found these blocks: hand the salt to block_name.",
    )
    changed = [*tokens[:6], 0, *tokens[7:], 1]
    require(found(changed) == [5], "a token changed in the second block: only the first may be found.")
    return "longest prefix found in 8 cases"


@exercise("05.7")
def let_go(function):
    class Yours(BlockManager):
        def let_go(self, block):
            function(self, block)

    pool, session = _opened(Yours, [1, 2, 3])
    full, partial = session.table
    pool.hold(full)
    pool.let_go(full)
    require(
        pool.references[full] == 1 and full not in pool.cached and full not in pool.free,
        "let_go: another session still uses the block; only its count goes down.",
    )
    pool.let_go(full)
    require(pool.references[full] == 0, "let_go: the count of the block has to go down by one.")
    require(
        full not in pool.free, "let_go: a full block with a name stays findable: put it in `cached`, not in `free`."
    )
    require(
        full in pool.cached,
        "let_go: the last user is gone and the block is in neither `cached` nor `free`: it has leaked.",
    )
    pool.let_go(partial)
    require(
        partial not in pool.cached,
        "let_go: a block without a name can never be found again: give it to `free`, not to `cached`.",
    )
    require(partial in pool.free, "let_go: a block without a name goes to `free`; yours has leaked.")
    _order(Yours)
    return f"{_on_trial(Yours):,} random operations: nothing lost, leaked or given away"


@exercise("05.8")
def take(function):
    class Yours(BlockManager):
        def take(self):
            return call(function, self)

    pool = Yours(4, 2)
    pool.free[:] = [3, 1]
    block = pool.take()
    require(
        isinstance(block, int) and not isinstance(block, bool) and block in (3, 1),
        f"take: `free` holds the blocks 3 and 1, and you returned {block!r}.",
    )
    require(block not in pool.free, "take: the block is still in `free`, so the next one to ask will get it too.")
    require(pool.references[block] == 1, "take: the block has one user now: set its count to 1.")
    pool = _cached(Yours)
    pool.let_go(3)
    del pool.block_of[pool.name_of.pop(3)], pool.cached[3]
    pool.free.append(3)
    require(
        pool.take() == 3,
        "take: a block was free and you evicted a cached one, which a later prompt could still have used.",
    )
    pool = _cached(Yours)  # 0 the oldest, then 2, then 1; nothing free; 3 is in use
    block = pool.take()
    require(
        block != 3,
        "take: you evicted a block that a session is using. Only `cached` holds blocks that nobody uses.",
    )
    require(
        block != 1,
        "take: that is the block used last; evict the one that has gone unused longest, the first of `cached`.",
    )
    require(block == 0, f"take: the block that has gone unused longest is 0, and you returned {block!r}.")
    require(0 not in pool.cached, "take: the evicted block is still in `cached`: it will be given away again.")
    require(
        b"0" not in pool.block_of,
        "take: the evicted block can still be found under its name: the next prompt would read another's tokens. "
        "Delete the name from block_of.",
    )
    require(0 not in pool.name_of, "take: name_of still has the old name of the evicted block.")
    require(pool.references[0] == 1, "take: the evicted block has a new user: set its count to 1.")
    require(
        set(pool.block_of) == {b"1", b"2", b"3"},
        "take: one block is evicted at a time; the others keep their names.",
    )
    return f"{_on_trial(Yours):,} random operations: nothing lost, leaked or given away"


@exercise("05.9")
def make_own(function):
    class Yours(BlockManager):
        def make_own(self, session):
            copies = call(function, self, session)
            try:
                return [(int(source), int(destination)) for source, destination in copies]
            except (TypeError, ValueError):
                raise Wrong(
                    f"return a list of (from, to) pairs, empty where nothing is copied; you returned {copies!r}."
                ) from None

    pool, session = _opened(Yours, [1, 2, 3])
    table = list(session.table)
    require(pool.make_own(session) == [], "nobody else holds the last block: nothing is to be copied. Return [].")
    require(session.table == table, "nobody else holds the last block: its table must not change.")
    child = pool.fork(session)
    require(child.table == table, "the fork did not share the blocks.")
    copies = pool.make_own(child)
    require(
        child.table[-1] != table[-1],
        "two sessions hold the last, partly filled block, and the one that writes still has it: they would "
        "overwrite each other. Give it a block of its own.",
    )
    require(session.table == table, "the session that does not write keeps its block; change only the writer's table.")
    require(child.table[0] == table[0], "only the last block is copied; the full ones stay shared.")
    require(
        copies == [(table[-1], child.table[-1])],
        f"return [(old block, new block)], so that the contents are copied; you returned {copies}.",
    )
    require(
        pool.references[table[-1]] == 1,
        f"the old block is now used by 1 session, and its count says {pool.references[table[-1]]}: let it go.",
    )
    require(pool.references[child.table[-1]] == 1, "the new block is used by 1 session: `take` sets that count.")
    pool, full = _opened(Yours, [5, 6])
    twin = pool.fork(full)
    require(
        pool.make_own(twin) == [],
        "the last block is full: the next token goes into a new one, so there is nothing to copy.",
    )
    pool = Yours(4, 3)
    full = pool.open([5, 6, 7], b"A")
    pool.extend(full, [5, 6, 7])
    require(
        pool.make_own(pool.fork(full)) == [],
        "three tokens fill a block of three, and nothing is to be copied: how many fill one says `pool.block_size`.",
    )
    pool, _ = _opened(Yours, [5, 6])
    unnamed = pool.open([5, 6], b"A")  # its last token is computed, so it fills a block of its own
    pool.extend(unnamed, [5, 6])
    pool.fork(unnamed)
    require(
        pool.make_own(unnamed) == [],
        "a full block without a name is full all the same (another session filled its twin first, and that one has "
        "the name): count the tokens to see whether the last block is partly filled.",
    )
    return f"{_on_trial(Yours):,} random operations: nothing lost, leaked or given away"


@exercise("05.10")
def merge(function):
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(2, 3, 4, 8, generator=generator, dtype=torch.float64)
    k, v = (torch.randn(2, 3, 50, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    whole, _ = _attend(q, k, v)
    parts = [_attend(q, k[:, :, :9], v[:, :, :9]), _attend(q, k[:, :, 9:], v[:, :, 9:])]
    (a, la), (b, lb) = parts
    share = torch.sigmoid(la - lb)[..., None]
    slips = {
        "You gave both parts the same weight. A part counts by its sum of exponentials, exp(lse).": (a + b) / 2,
        "You added the two: each is a mean already, so they need weights that add up to 1.": a + b,
        "The weights are the wrong way round: the part with the larger lse counts more.": (1 - share) * a + share * b,
        "You weighted by lse itself. lse is a logarithm: weight by exp(lse).": (la / (la + lb))[..., None] * a
        + (lb / (la + lb))[..., None] * b,
        "You weighted by the number of tokens: what counts is how well they match, exp(lse).": (9 * a + 41 * b) / 50,
        "exp(lse) of both parts must be divided by their sum.": la.exp()[..., None] * a + lb.exp()[..., None] * b,
    }

    def merged(*parts):
        return call(function, *(part.clone() for part in parts))  # yours may work in place

    got = merged(a, la, b, lb)
    require(not isinstance(got, tuple), "return the merged output alone, in the shape of out_a.")
    close(got, whole, rel=1e-5, absolute=1e-6, slips=slips, name="the merged output")
    # Scores have no upper limit, and exp overflows in float32 from 89 on.
    far = merged(a.float(), la.float() + 300, b.float(), lb.float() + 300)
    require(
        bool(torch.isfinite(far).all()),
        "with lse near 300 your result is NaN or infinite: exp(300) overflows. Subtract first, and exponentiate the "
        "difference of the two.",
    )
    close(far, whole, rel=1e-3, absolute=1e-4, name="the merged output with lse near 300")
    # Neither part can overflow alone; their difference can, and it is infinite where a part is empty.
    for lse, how in ((-1_000.0, "hardly counts (its lse is 1,000 below the other's)"), (-torch.inf, "is empty")):
        little = torch.full_like(la, lse)
        for which, got in (
            ("first", merged(b, little, a, la)),
            ("second", merged(a, la, b, little)),
        ):
            name = f"the merged output when the {which} part {how}"
            require(
                bool(torch.isfinite(got).all()),
                f"{name} is NaN or infinite: exp of so large a difference overflows. torch.sigmoid knows the limit.",
            )
            close(got, a, rel=1e-6, absolute=1e-8, name=name)
    return "equal to one softmax over all 50 tokens"


@exercise("05.11")
def cascade(function):
    generator = torch.Generator().manual_seed(seed(6))
    batch, kv_heads, group, head_dim, prefix, own = 5, 2, 4, 32, 64, 3

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q = random(batch, kv_heads, group, head_dim)
    prefix_k, prefix_v = (random(1, kv_heads, prefix, head_dim) for _ in range(2))
    k, v = (random(batch, kv_heads, own, head_dim) for _ in range(2))
    shared = [tensor.expand(batch, -1, -1, -1) for tensor in (prefix_k, prefix_v)]
    whole, _ = _attend(q, torch.cat((shared[0], k), dim=2), torch.cat((shared[1], v), dim=2))
    only_prefix, only_own = _attend(q, *shared)[0], _attend(q, k, v)[0]
    mixed = q.reshape(1, kv_heads, batch * group, head_dim)
    out, lse = _attend(mixed, prefix_k, prefix_v)
    scrambled = out.view(q.shape), lse.view(q.shape[:-1])
    out, lse = _attend(q.transpose(0, 1).reshape(mixed.shape), prefix_k, prefix_v)
    unswapped = out.view(q.shape), lse.view(q.shape[:-1])
    slips = {
        "Only the prefix is there: each session's own tokens are missing.": only_prefix,
        "Only the sessions' own tokens are there: the prefix is missing.": only_own,
        "You folded the batch into the rows without swapping batch and KV heads first: rows of one KV head met the "
        "keys of another. transpose(0, 1) before the reshape, and back after.": _merged(scrambled, _attend(q, k, v)),
        "You swapped batch and KV heads before the call and not back after: view the result as [kv_heads, batch, "
        "group, …] and transpose(0, 1).": _merged(unswapped, _attend(q, k, v)),
    }
    with Traffic(at_least=prefix_k.numel(), of=(prefix_k, prefix_v)) as traffic:
        got = call(function, q, prefix_k, prefix_v, k, v)
    close(got, whole, rel=1e-5, absolute=1e-6, slips=slips, name="the output")
    once = prefix_k.nbytes + prefix_v.nbytes
    times = traffic.bytes / once
    require(
        times > 0.9,
        "right numbers, but no torch operation was seen to read all of the prefix, so its traffic cannot be counted. "
        "Stay in torch: numpy would not run on a GPU either.",
    )
    require(
        times < 1.5,
        f"the numbers are right, and the prefix went through memory {times:.0f} times for {batch} sessions: once is "
        "the point. Do not expand or repeat it and do not loop over sessions; make the queries of all sessions rows "
        "of one call.",
    )
    alone = call(function, q[:1], prefix_k, prefix_v, k[:1], v[:1])
    close(alone, whole[:1], rel=1e-5, absolute=1e-6, name="the output for a single session")
    return f"equal to plain attention; the prefix was read once for {batch} sessions"


def _attend(q, k, v):
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    lse = scores.logsumexp(dim=-1)
    return scores.softmax(dim=-1) @ v, lse


def _merged(one, two):
    share = torch.sigmoid(one[1] - two[1])[..., None]
    return share * one[0] + (1 - share) * two[0]


def _opened(kind, tokens):
    """A pool of four blocks of two tokens, with one session of tenant A in it."""
    pool = kind(4, 2)
    session = pool.open(tokens, b"A")
    pool.extend(session, tokens)
    return pool, session


def _cached(kind):
    """Four blocks, none free: 0, 2, 1 cached in this order of age, 3 in use."""
    pool = kind(4, 2)
    pool.free.clear()
    pool.references[:] = [0, 0, 0, 1]
    pool.block_of.update({str(block).encode(): block for block in range(4)})
    pool.name_of.update({block: str(block).encode() for block in range(4)})
    for block in (0, 2, 1):
        pool.cached[block] = None
    return pool


def _order(kind) -> None:
    """`let_go` must leave the block used last at the end of `cached`."""
    pool = _cached(kind)
    pool.let_go(3)
    pool.hold(0)
    pool.let_go(0)
    require(
        list(pool.cached) == [2, 1, 3, 0],
        f"the blocks 2, 1, 3 and 0 were let go in this order, and `cached` has {list(pool.cached)}: the one used last "
        "belongs at the end, since eviction takes the first.",
    )


def _on_trial(kind) -> int:
    """Random operations on small pools; a slip becomes the learner's message."""
    try:
        return block_trial.convict(lambda: kind(7, 2))
    except block_trial.Slip as slip:
        raise Wrong(str(slip)) from None


def _rounded_as(answer, expect: float) -> float:
    """`expect` in whole cents if `answer` is given so: 0.13 for 0.133."""
    cents = round(expect, 2)
    return cents if near(answer, cents, absolute=1e-6) else expect
