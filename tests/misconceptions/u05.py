"""Known wrong answers of unit 05, and other right ones."""


def change(name, key, value):
    return f"{name} = {{**{name}, {key!r}: {value}}}"


def function(head, *lines):
    return f"def {head}:\n" + "\n".join("    " + line for line in lines)


def hit(key, value):
    return change("hits", key, value)


def name(*lines):
    return function('block_name(parent, tokens, salt=b"")', *lines)


def joined(separator, parts):
    """The hash of `parts`, names of bytes and expressions of text, joined by a separator that a part may contain."""
    return name(
        f"parts = [p if isinstance(p, bytes) else p.encode() for p in ({parts})]",
        f'return hashlib.sha256(b"{separator}".join(parts)).digest()',
    )


def prefix(
    stop="len(tokens) - block_size",
    parent="name",
    salt="salt",
    unknown="break",
    add="block_of[name]",
    start='b""',
):
    return function(
        'longest_prefix(block_of, tokens, block_size, salt=b"")',
        f"found, name = [], {start}",
        f"for start in range(0, {stop}, block_size):",
        f"    name = block_name({parent}, tokens[start:start + block_size], {salt})",
        "    if name not in block_of:",
        f"        {unknown}",
        f"    found.append({add})",
        "return found",
    )


def let_go(*lines):
    return function("let_go(pool, block)", "pool.references[block] -= 1", *lines)


def take(*lines):
    return function("take(pool)", *lines)


def evicting(*lines):
    """`take` that is right as long as something is free."""
    return take(
        "if pool.free:",
        "    block = pool.free.pop()",
        "else:",
        *("    " + line for line in lines),
        "pool.references[block] = 1",
        "return block",
    )


def own(*lines):
    return function("make_own(pool, session)", *lines)


SHARED = "if len(session.tokens) % pool.block_size == 0 or pool.references[session.table[-1]] == 1:"
MOVED = "old, new = session.table[-1], take(pool)", "session.table[-1] = new", "let_go(pool, old)"


def merge(*lines):
    return function("merge(out_a, lse_a, out_b, lse_b)", *lines)


def cascade(*lines):
    return function("cascade(q, prefix_k, prefix_v, k, v)", "batch, kv_heads, group, head_dim = q.shape", *lines)


WRONG = {
    "05.1": [
        (hit("same system prompt, other question", "G.system"), "blocks come whole"),
        (hit("same system prompt, other question", "G.prompt"), "the question differs"),
        (hit("next turn", "G.history"), "blocks come whole"),
        (hit("next turn", "G.prompt"), "the answer went through the cache"),
        (hit("64 tokens, sent twice", 64), "has to be computed"),
        (hit("first prompt, time in front", "G.prompt"), "move every later one"),
        (hit("15 tokens, sent twice", 15), "fill no block"),
        (hit("next turn, prompts kept only", "G.history // 16 * 16"), "did not keep the answer"),
        (hit("next turn", "G.history // 16"), "that is blocks"),
        ('hits = {"next turn": 112}', "has no entry"),
        ("hits = dict.fromkeys(hits, 0)", "may be chance"),
    ],
    "05.2": [
        (change("memory_gb", "each for itself", "(G.shared + G.own) * 131_072 / 1e9"), "That is one session"),
        (change("memory_gb", "each for itself", "G.sessions * G.own * 131_072 / 1e9"), "left the system prompt out"),
        (change("memory_gb", "system prompt shared", "memory_gb['each for itself']"), "one prompt a session"),
        (change("memory_gb", "system prompt shared", "G.sessions * G.own * 131_072 / 1e9"), "it is kept once"),
        (change("memory_gb", "system prompt shared", "(G.shared + G.own) * 131_072 / 1e9"), "those differ"),
        (change("memory_gb", "system prompt shared", "memory_gb['system prompt shared'] * 1e9 / 2**30"), "in GiB"),
        ("memory_gb = {name: value * 1e9 for name, value in memory_gb.items()}", "unit is off"),
    ],
    "05.3": [
        ("times_fewer = {name: 1 / value for name, value in times_fewer.items()}", "upside down"),
        (change("times_fewer", "P 32,768, u 256, B 128", 128), "own tokens out"),
        (change("times_fewer", "P 32,768, u 256, B 128", 0.5039), "histories, not one"),
        (change("times_fewer", "P 512, u 512, B 8", 8), "one session's own"),
        (change("times_fewer", "P 512, u 512, B 8", 0.889), "reads P + u"),
        (change("times_fewer", "P 32,768, u 256, B 1", "'one'"), "one number"),
    ],
    "05.4": [
        (change("money", "no caching", "G.plain - G.output"), "left the output out"),
        (change("money", "no caching", "round(G.plain - G.output, 2)"), "left the output out"),
        (
            change("money", "cached", "(G.lengths[0] * G.written + sum(G.lengths[1:]) * G.hit) / 1e6 + G.output"),
            "turn before it and not its own",
        ),
        (change("money", "no caching", "10 * G.lengths[0] * G.paid / 1e6 + G.output"), "tokens a turn"),
        (
            change("money", "cached", "(G.lengths[-1] * G.paid + sum(G.lengths[:-1]) * G.hit) / 1e6 + G.output"),
            "What is written costs",
        ),
        (change("money", "cached", "G.lengths[-1] * G.written / 1e6 + G.output"), "left the reads out"),
        (
            change(
                "money",
                "cached",
                "(G.lengths[0] * G.written + sum(G.lengths[:-1]) * G.hit + 9 * G.step * G.paid) / 1e6 + G.output",
            ),
            "tokens, not only the first",
        ),
        (
            change(
                "money",
                "cached",
                "((sum(G.lengths[:-1]) + 9 * G.said) * G.hit + (G.lengths[-1] - 9 * G.said) * G.written) / 1e6"
                " + G.output",
            ),
            "and not its answer",
        ),
        (change("money", "cached, time in front", "G.plain"), "still written"),
        (change("money", "reuses, write at 1.25", 0.278), "round up"),
        (change("money", "reuses, write at 1.25", 2), "as a reuse"),
        (change("money", "reuses, write at 2", 1), "each reuse saves 0.9"),
    ],
    "05.5": [
        (name("return hashlib.sha256(repr((list(tokens), salt)).encode()).digest()"), "without its parent"),
        (name("return hashlib.sha256(repr((parent, list(tokens))).encode()).digest()"), "the salt does not change"),
        (name("return hashlib.sha256(repr((parent, salt)).encode()).digest()"), "tokens are not hashed"),
        (name("return hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()"), "a list or a tuple"),
        (name("return hash((parent, tuple(tokens), salt))"), "you returned a int"),
        (name("return hashlib.sha256(parent + salt + ''.join(map(str, tokens)).encode()).digest()"), "keep the tokens"),
        (name("return hashlib.sha256(parent + salt + repr(list(tokens)).encode()).digest()"), "run into each other"),
        (name("return hashlib.sha256(parent + repr(list(tokens)).encode() + salt).digest()"), "run into each other"),
        (name("return hashlib.sha256(salt + repr(tuple(tokens)).encode() + parent).digest()"), "run into each other"),
        (
            name(
                "low = [t % 256 for t in tokens]", "return hashlib.sha256(repr((parent, low, salt)).encode()).digest()"
            ),
            "neither into one byte",
        ),
        (
            name(
                "low = torch.tensor(tokens).to(torch.int16).tolist()",
                "return hashlib.sha256(repr((parent, low, salt)).encode()).digest()",
            ),
            "nor into two",
        ),
        (joined("|", "parent, repr(list(tokens)), salt"), "separator is no help"),
        (joined(":", "salt, parent, repr(tuple(tokens))"), "separator is no help"),
        (joined("\\n", "parent, salt, ','.join(map(str, tokens))"), "separator is no help"),
        (joined(",", "salt, *map(str, tokens), parent"), "separator is no help"),
        (joined("--", "repr(list(tokens)), salt, parent"), "separator is no help"),
        (name("return hashlib.sha256((parent.hex() + salt.hex() + repr(list(tokens))).encode()).digest()"), "run into"),
        (name("return hashlib.sha256(repr((parent, sorted(tokens), salt)).encode()).digest()"), "another order"),
        (name("return hashlib.sha256(repr((parent, list(tokens), salt)).encode()).digest()[:4]"), "whole digest"),
        (name("return hashlib.md5(repr((parent, list(tokens), salt)).encode()).digest()"), "whole digest"),
        (name("return hashlib.sha256((parent, list(tokens), salt)).digest()"), "TypeError"),
        (
            "given_out = {}\n"
            + name(
                "key = parent, tuple(tokens), salt", "return given_out.setdefault(key, len(given_out).to_bytes(32))"
            ),
            "no hash",
        ),
        (name("return repr((parent[:4], list(tokens), salt)).encode().ljust(64)[:64]"), "no hash"),
    ],
    "05.6": [
        (prefix(stop="len(tokens)"), "last token is never a hit"),
        (prefix(add="block_of.pop(name)"), "must change neither block_of"),
        (prefix().replace("    found, name", "    tokens.pop()\n    found, name"), "must change neither block_of"),
        (prefix(parent='b""'), "name of the first as parent"),
        (prefix(unknown="continue"), "ends at the first gap"),
        (prefix(salt='b""'), "hand the salt to block_name"),
        (prefix(salt='b"" if start else salt'), "to the first alone"),
        (prefix(add="name"), "you returned names"),
        (
            prefix().replace("if name not in block_of:", "if not block_of.get(name):"),
            "which `if not block` takes for unknown",
        ),
        (prefix(stop="len(tokens) - 2 * block_size"), "three full blocks"),
        (prefix().replace("return found", "return len(found)"), "return a list"),
    ],
    "05.7": [
        (
            let_go(
                "if block in pool.name_of:", "    pool.cached[block] = None", "else:", "    pool.free.append(block)"
            ),
            "only its count goes down",
        ),
        (let_go("if pool.references[block] == 0:", "    pool.free.append(block)"), "stays findable"),
        (let_go("if pool.references[block] == 0:", "    pool.cached[block] = None"), "can never be found again"),
        (
            let_go("if pool.references[block] == 0 and block in pool.name_of:", "    pool.cached[block] = None"),
            "leaked",
        ),
        (let_go(), "leaked"),
        (
            let_go(
                "if pool.references[block] == 0:",
                "    if block in pool.name_of:",
                "        pool.cached[block] = None",
                "        pool.cached.move_to_end(block, last=False)",
                "    else:",
                "        pool.free.append(block)",
            ),
            "belongs at the end",
        ),
    ],
    "05.8": [
        (
            evicting("block = pool.references.index(1)", "del pool.block_of[pool.name_of.pop(block)]"),
            "a session is using",
        ),
        (evicting("block, _ = pool.cached.popitem()", "del pool.block_of[pool.name_of.pop(block)]"), "used last"),
        (evicting("block, _ = pool.cached.popitem(last=False)"), "under its name"),
        (
            evicting("block, _ = pool.cached.popitem(last=False)", "pool.block_of.pop(pool.name_of[block])"),
            "name_of still has",
        ),
        (
            evicting("block = next(iter(pool.cached))", "del pool.block_of[pool.name_of.pop(block)]"),
            "still in `cached`",
        ),
        (take("block = pool.free[-1]", "pool.references[block] = 1", "return block"), "still in `free`"),
        (take("block = pool.free.pop()", "return block"), "set its count to 1"),
        (
            take(
                "if pool.cached:",
                "    block, _ = pool.cached.popitem(last=False)",
                "    del pool.block_of[pool.name_of.pop(block)]",
                "else:",
                "    block = pool.free.pop()",
                "pool.references[block] = 1",
                "return block",
            ),
            "a block was free",
        ),
        (
            evicting("block, _ = pool.cached.popitem(last=False)", "pool.name_of.clear()", "pool.block_of.clear()"),
            "one block is evicted at a time",
        ),
        (take("block = pool.free.pop()", "pool.references[block] = 1", "return block"), "IndexError"),
    ],
    "05.9": [
        (own("return []"), "overwrite each other"),
        (
            own(SHARED.replace("pool.block_size", "2"), "    return []", *MOVED, "return [(old, new)]"),
            "pool.block_size",
        ),
        (
            own(
                SHARED,
                "    return []",
                "old, new = session.table[-1], take(pool)",
                "session.table[-1] = new",
                "return [(old, new)]",
            ),
            "let it go",
        ),
        (
            own(
                *MOVED,
                "return [(old, new)]",
            ),
            "nobody else holds",
        ),
        (
            own(
                "if pool.references[session.table[-1]] == 1:",
                "    return []",
                *MOVED,
                "return [(old, new)]",
            ),
            "the last block is full",
        ),
        (
            own(
                SHARED,
                "    return []",
                *MOVED,
                "return [(new, old)]",
            ),
            "(old block, new block)",
        ),
        (
            own(
                SHARED,
                "    return []",
                *MOVED,
                "return new",
            ),
            "return a list of",
        ),
        (
            own(
                SHARED.replace("len(session.tokens) % pool.block_size == 0", "session.table[-1] in pool.name_of"),
                "    return []",
                *MOVED,
                "return [(old, new)]",
            ),
            "a full block without a name",
        ),
        (
            own(
                SHARED,
                "    return []",
                "old, new = session.table[0], take(pool)",
                "session.table[0] = new",
                "let_go(pool, old)",
                "return [(old, new)]",
            ),
            "overwrite each other",
        ),
        (
            own(
                SHARED,
                "    return []",
                *MOVED,
            ),
            "returns None",
        ),
    ],
    "05.10": [
        (merge("return (out_a + out_b) / 2"), "same weight"),
        (merge("return out_a + out_b"), "add up to 1"),
        (
            merge("share = torch.sigmoid(lse_b - lse_a)[..., None]", "return share * out_a + (1 - share) * out_b"),
            "wrong way round",
        ),
        (
            merge("share = (lse_a / (lse_a + lse_b))[..., None]", "return share * out_a + (1 - share) * out_b"),
            "weight by exp(lse)",
        ),
        (
            merge("a, b = lse_a.exp()[..., None], lse_b.exp()[..., None]", "return (a * out_a + b * out_b) / (a + b)"),
            "overflows",
        ),
        (
            merge("a, b = lse_a.exp()[..., None], lse_b.exp()[..., None]", "return a * out_a + b * out_b"),
            "divided by their sum",
        ),
        (
            merge("a = (lse_a - lse_b).exp()[..., None]", "return (a * out_a + out_b) / (a + 1)"),
            "the second part hardly counts",
        ),
        (
            merge(
                "top = torch.minimum(lse_a, lse_b)",
                "a, b = (lse_a - top).exp()[..., None], (lse_b - top).exp()[..., None]",
                "return (a * out_a + b * out_b) / (a + b)",
            ),
            "hardly counts",
        ),
        (
            merge(
                "a, b = torch.zeros_like(lse_a), (lse_b - lse_a).clamp(-80, 80)",
                "share = (a - torch.logaddexp(a, b)).exp()[..., None]",
                "share = share + 0 * lse_a[..., None]",
                "return share * out_a + (1 - share) * out_b",
            ),
            "is empty",
        ),
        (merge("share = torch.sigmoid(lse_a - lse_b)", "return share * out_a + (1 - share) * out_b"), "RuntimeError"),
    ],
    "05.11": [
        (
            cascade("return attend(q, prefix_k.expand(batch, -1, -1, -1), prefix_v.expand(batch, -1, -1, -1))[0]"),
            "own tokens are missing",
        ),
        (cascade("return attend(q, k, v)[0]"), "prefix is missing"),
        (
            cascade(
                "a = attend(q, prefix_k.expand(batch, -1, -1, -1), prefix_v.expand(batch, -1, -1, -1))",
                "return merge(*a, *attend(q, k, v))",
            ),
            "through memory",
        ),
        (
            cascade(
                "rows = []",
                "for b in range(batch):",
                "    a = attend(q[b:b + 1], prefix_k, prefix_v)",
                "    rows.append(merge(*a, *attend(q[b:b + 1], k[b:b + 1], v[b:b + 1])))",
                "return torch.cat(rows)",
            ),
            "through memory",
        ),
        (
            cascade(
                "out, lse = attend(q.reshape(1, kv_heads, batch * group, head_dim), prefix_k, prefix_v)",
                "return merge(out.view(q.shape), lse.view(q.shape[:-1]), *attend(q, k, v))",
            ),
            "swapping batch and kv heads",
        ),
        (
            cascade(
                "together = q.transpose(0, 1).reshape(1, kv_heads, batch * group, head_dim)",
                "out, lse = attend(together, prefix_k, prefix_v)",
                "return merge(out.view(q.shape), lse.view(q.shape[:-1]), *attend(q, k, v))",
            ),
            "not back after",
        ),
        (
            cascade(
                "together = q.transpose(0, 1).reshape(1, kv_heads, batch * group, head_dim)",
                "return attend(together, prefix_k, prefix_v)[0]",
            ),
            "has to have shape",
        ),
        (
            cascade(
                "together = q.transpose(0, 1).reshape(1, group, batch * kv_heads, head_dim)",
                "out, lse = attend(together, prefix_k, prefix_v)",
                "out = out.view(group, batch, kv_heads, head_dim).transpose(0, 1)",
                "lse = lse.view(group, batch, kv_heads).transpose(0, 1)",
                "return merge(out, lse, *attend(q, k, v))",
            ),
            "RuntimeError",
        ),
        (
            cascade(
                "scores = torch.from_numpy(q.numpy() @ prefix_k.mT.numpy()) * head_dim**-0.5",
                "out = torch.from_numpy(scores.softmax(-1).numpy() @ prefix_v.numpy())",
                "return merge(out, scores.logsumexp(-1), *attend(q, k, v))",
            ),
            "stay in torch",
        ),
    ],
}

RIGHT = {
    "05.1": [
        "hits = {key: float(value) for key, value in hits.items()}",
        "hits = dict(reversed(hits.items()))",
    ],
    "05.2": ["memory_gb = {key: torch.tensor(value, dtype=torch.float64) for key, value in memory_gb.items()}"],
    "05.3": [
        "times_fewer = {key: round(value, 1) for key, value in reversed(times_fewer.items())}",
        'times_fewer = {**times_fewer, "P 32,768, u 256, B 128": 64}',
    ],
    "05.4": [
        "money = {key: round(value, 3) for key, value in money.items()}",
        "money = {key: round(value, 2) for key, value in reversed(money.items())}",
        "from decimal import Decimal\nmoney = {key: Decimal(f'{value:.2f}') for key, value in money.items()}",
        "money = {key: torch.tensor(value, dtype=torch.float64) for key, value in money.items()}",
    ],
    "05.5": [
        name(
            "digest = hashlib.blake2b(digest_size=32)",
            "for part in (parent, salt, bytes(str(list(tokens)), 'ascii')):",
            "    digest.update(len(part).to_bytes(8, 'little') + part)",
            "return digest.digest()",
        ),
        # vLLM's own design: the salt in the first block alone.
        name("return hashlib.sha256(repr((parent, list(tokens), b'' if parent else salt)).encode()).digest()"),
        name("from helpers.serving.blocks import chain_hash", "return chain_hash(parent, tokens, salt)"),
        name(
            "inner = hashlib.sha256(salt).digest() + repr(list(tokens)).encode()",
            "return hashlib.sha256(parent + inner).digest()",
        ),
        name(
            "parts = parent.hex(), salt.hex(), *map(str, tokens)",
            "return hashlib.sha256(':'.join(parts).encode()).digest()",
        ),
        name('return hashlib.sha256(f"{parent}|{salt}|{list(tokens)}".encode()).digest()'),
        name("return hashlib.sha256(repr((parent, list(tokens), salt)).encode()).hexdigest().encode()"),
        name("import pickle", "return hashlib.sha256(pickle.dumps((parent, tuple(tokens), salt))).digest()"),
    ],
    "05.6": [
        prefix().replace("return found", "return tuple(found)"),
        function(
            'longest_prefix(block_of, tokens, block_size, salt=b"")',
            'found, name = [], b""',
            "while (len(found) + 1) * block_size < len(tokens):",
            "    i = len(found) * block_size",
            "    name = block_name(name, tuple(tokens[i:i + block_size]), salt)",
            "    block = block_of.get(name)",
            "    if block is None:",
            "        return found",
            "    found.append(block)",
            "return found",
        ),
    ],
    "05.7": [
        let_go(
            "if pool.references[block]:",
            "    return",
            "named = block in pool.name_of",
            "pool.cached.update({block: None}) if named else pool.free.insert(0, block)",
        ),
    ],
    "05.8": [
        take(
            "if not pool.free:",
            "    oldest = next(iter(pool.cached))",
            "    pool.cached.pop(oldest)",
            "    name = pool.name_of.pop(oldest)",
            "    pool.block_of.pop(name)",
            "    pool.free.append(oldest)",
            "block = pool.free.pop(0)",
            "hold(pool, block)",
            "return block",
        ),
    ],
    "05.9": [
        own(
            "last = len(session.table) - 1",
            "if len(session.tokens) % pool.block_size and pool.references[session.table[last]] > 1:",
            "    old = session.table.pop()",
            "    let_go(pool, old)",
            "    session.table.append(take(pool))",
            "    return ((old, session.table[-1]),)",
            "return ()",
        ),
    ],
    "05.10": [
        merge("share = torch.sigmoid(lse_a - lse_b)[..., None]", "return out_b.mul_(1 - share).add_(share * out_a)"),
        merge(
            "top = torch.maximum(lse_a, lse_b)",
            "a, b = (lse_a - top).exp()[..., None], (lse_b - top).exp()[..., None]",
            "return (a * out_a + b * out_b) / (a + b)",
        ),
        merge(
            "share = torch.softmax(torch.stack([lse_a, lse_b]), dim=0).unsqueeze(-1)",
            "return (share * torch.stack([out_a, out_b])).sum(dim=0)",
        ),
        merge(
            "both = torch.logaddexp(lse_a, lse_b)",
            "return (lse_a - both).exp()[..., None] * out_a + (lse_b - both).exp()[..., None] * out_b",
        ),
    ],
    "05.11": [
        cascade(
            "together = q.permute(1, 0, 2, 3).flatten(1, 2)[None]",
            "out, lse = attend(together, prefix_k, prefix_v)",
            "out = out[0].unflatten(1, (batch, group)).transpose(0, 1)",
            "lse = lse[0].unflatten(1, (batch, group)).transpose(0, 1)",
            "own, own_lse = attend(q, k, v)",
            "return merge(own, own_lse, out, lse)",
        ),
        cascade(
            "heads = []",
            "for h in range(kv_heads):",
            "    out, lse = attend(q[None, None, :, h].flatten(2, 3), prefix_k[:, h:h + 1], prefix_v[:, h:h + 1])",
            "    own = attend(q[:, h:h + 1], k[:, h:h + 1], v[:, h:h + 1])",
            "    shape = (batch, 1, group)",
            "    heads.append(merge(out.view(*shape, head_dim), lse.view(shape), *own))",
            "return torch.cat(heads, dim=1)",
        ),
    ],
}

NEAR = {
    "05.3": [change("times_fewer", "P 512, u 512, B 8", 1.6)],
    "05.4": [change("money", "cached", "0.45 - 0.325"), change("money", "cached", 0.12)],
}
