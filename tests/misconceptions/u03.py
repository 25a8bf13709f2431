"""Known wrong answers of unit 03, each with the words that have to name its slip, and other right answers."""

BYTES = "kv_bytes_of = kv_bytes_of | {}"
FACTORS = """times_smaller = {{"Maverick: GQA over MHA": 5, "V3: MLA over its own 128 heads": 71.1,
    "V3: MLA over GQA-8": 3.556, "V3: MLA over MQA": 0.4444}} | {}"""
SAVED = """saved_percent = {{"both bfloat16": 82.24, "V2 at 6 bits": 93.34}} | {}"""
INTENSITY = """flop_per_byte = {{"MHA": 1, "GQA-8, 64 query heads": 8, "MLA, 128 query heads": 241.8}} | {}"""
POOL = """tokens_that_fit = {{"padded": 85_974, "latent": 1_222_735}} | {}"""
BY_HAND = "scores, a, multiplications = {}, {}, multiplications | {}"
ABSORB = "def absorb_query(q_nope, w_uk):\n    return "
GPUS = "bytes_per_gpu = bytes_per_gpu | {}"


def grouped(body):
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    return (
        "def grouped_attention(q, k, v):\n"
        "    batch, kv_heads, context, head_dim = k.shape\n"
        "    q_heads = q.shape[1]\n"
        "    group = q_heads // kv_heads\n" + lines
    )


def mla(body):
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    return (
        "def mla_decode(q_nope, q_rope, latents, rope_keys, w_uk, w_uv):\n"
        "    scale = (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5\n" + lines
    )


ROWS = "rows = q.view(batch, kv_heads, group, head_dim)\n"
CONTENT = 'content = torch.einsum("bhd,hdr,bcr->bhc", q_nope, w_uk, latents)\n'
POSITION = 'position = torch.einsum("bhd,bcd->bhc", q_rope, rope_keys)\n'
MIX = "mixed = ((content + position) * scale).softmax(-1) @ latents\n"
OUT = 'return torch.einsum("bhr,hvr->bhv", mixed, w_uv)'

WRONG = {
    "03.1": [
        (BYTES.format('{"DeepSeek-V3": 61 * 512 * 2}'), "rotary key"),
        (BYTES.format('{"DeepSeek-V3": 61 * 128 * 320 * 2}'), "every head, which MLA does not store"),
        (BYTES.format("{G.mla: G.mla_layers * 2 * 576 * 2}"), "two times"),
        (BYTES.format('{"Llama-4-Maverick-17B-128E": 983_040}'), "counted query heads"),
        (BYTES.format("{G.mha: kv_bytes_of[G.mha] / 2}"), "forgot V"),
        (BYTES.format("{G.gqa: G.narrow}"), "hidden / query heads"),
        (BYTES.format('{"falcon-7b": 256}'), "forgot the layers"),
        (BYTES.format('{"falcon-7b": "8192"}'), "without quotes"),
    ],
    "03.2": [
        (FACTORS.format('{"Maverick: GQA over MHA": 8}'), "number of KV heads"),
        (FACTORS.format('{"Maverick: GQA over MHA": 40}'), "number of query heads"),
        (FACTORS.format('{"V3: MLA over its own 128 heads": 56.9}'), "128 + 64"),
        (FACTORS.format('{"V3: MLA over GQA-8": 4.0}'), "rotary key"),
        (FACTORS.format('{"V3: MLA over GQA-8": 1.778}'), "stores K and V"),
        (FACTORS.format('{"V3: MLA over MQA": 2.25}'), "below 1"),
    ],
    "03.3": [
        (SAVED.format('{"both bfloat16": 93.3}'), "the claim itself"),
        (SAVED.format('{"both bfloat16": 0.8224}'), "per cent are asked for"),
        (SAVED.format('{"both bfloat16": 17.76}'), "what is left"),
        (SAVED.format('{"V2 at 6 bits": 91.12}'), "8 bits"),
        (SAVED.format('{"V2 at 6 bits": 46.71}'), "6 bytes an element"),
        (SAVED.format('{"both bfloat16": 71.875}'), "different numbers of layers"),
        (SAVED.format('{"V2 at 6 bits": 15.0}'), "how many times smaller"),
    ],
    "03.4": [
        (
            grouped(
                "rows = q.view(batch, group, kv_heads, head_dim).transpose(1, 2)\n"
                "scores = rows @ k.transpose(2, 3) * head_dim**-0.5\n"
                "return (scores.softmax(-1) @ v).reshape(q.shape)"
            ),
            "in another order than they came",
        ),
        (
            grouped(
                "k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)\n"
                "scores = (q[:, :, None] @ k.transpose(2, 3)) * head_dim**-0.5\n"
                "return (scores.softmax(-1) @ v)[:, :, 0]"
            ),
            "expanded to one copy per query head",
        ),
        (
            grouped(
                "rows = q.view(batch, kv_heads, group, 1, head_dim)\n"
                "scores = rows @ k[:, :, None].transpose(-1, -2) * head_dim**-0.5\n"
                "return (scores.softmax(-1) @ v[:, :, None]).view(q.shape)"
            ),
            "expanded to one copy per query head",
        ),
        (
            grouped(
                "heads = []\n"
                "for i in range(q_heads):\n"
                "    scores = q[:, i, None] @ k[:, i // group].transpose(1, 2) * head_dim**-0.5\n"
                "    heads.append(scores.softmax(-1) @ v[:, i // group])\n"
                "return torch.cat(heads, 1)"
            ),
            "8 times the bytes of K and V were read or copied",
        ),
        (
            grouped(
                "rows = q.view(batch, group, kv_heads, head_dim).transpose(1, 2)\n"
                "scores = rows @ k.transpose(2, 3) * head_dim**-0.5\n"
                "return (scores.softmax(-1) @ v).transpose(1, 2).reshape(q.shape)"
            ),
            "wrong KV heads",
        ),
        (
            grouped(ROWS + "return ((rows @ k.transpose(2, 3)).softmax(-1) @ v).view(q.shape)"),
            "forgot to scale",
        ),
        (
            grouped(ROWS + "return ((rows @ k.transpose(2, 3) / head_dim).softmax(-1) @ v).view(q.shape)"),
            "square root",
        ),
        (
            grouped(ROWS + "return ((rows @ k.transpose(2, 3) * head_dim**-0.5).softmax(2) @ v).view(q.shape)"),
            "wrong axis",
        ),
        (grouped(ROWS + "return (rows @ k.transpose(2, 3) * head_dim**-0.5).softmax(-1) @ v"), "shape"),
        (
            grouped(ROWS + "return ((rows @ (k * head_dim**-0.5).transpose(2, 3)).softmax(-1) @ v).view(q.shape)"),
            "leave K and V as they are",
        ),
        (
            grouped(
                "k, v = (np.repeat(x.numpy(), group, axis=1) for x in (k, v))\n"
                "scores = np.einsum('bhd,bhcd->bhc', q.numpy(), k) * head_dim**-0.5\n"
                "weights = np.exp(scores - scores.max(-1, keepdims=True))\n"
                "weights /= weights.sum(-1, keepdims=True)\n"
                "return torch.from_numpy(np.einsum('bhc,bhcd->bhd', weights, v))"
            ),
            "Stay in torch",
        ),
        (grouped(ROWS + "return (rows @ k.transpose(2, 3) * head_dim**-0.5 @ v).view(q.shape)"), "skipped the softmax"),
        (  # a copy per query head, a chunk at a time
            grouped(
                "scores = []\n"
                "for s in range(0, context, 256):\n"
                "    part = k[:, :, s : s + 256].repeat_interleave(group, 1)\n"
                "    scores.append((q[:, :, None] @ part.transpose(2, 3))[:, :, 0])\n"
                "weights = (torch.cat(scores, -1) * head_dim**-0.5).softmax(-1)\n"
                "return (weights.view(batch, kv_heads, group, -1) @ v).view(q.shape)"
            ),
            "times the bytes of K and V",
        ),
    ],
    "03.5": [
        ("repeat_traffic = 8", "reading of the copies alone"),
        ("repeat_traffic = 9", "also written"),
        ("repeat_traffic = 16", "the cache itself is read"),
        ("repeat_traffic = 1", "grouped form"),
        ("repeat_traffic = 34", "K and V are both"),
        ("repeat_traffic = 17 / 8", "caches of MHA"),
    ],
    "03.6a": [
        (BY_HAND.format("G.sums", "a", "{}"), "left the query out"),
        (BY_HAND.format("scores[::-1]", "a", "{}"), "other latent"),
        (BY_HAND.format("[scores[0], G.cut[1]]", "a", "{}"), "as if they were the key"),
        (BY_HAND.format("scores", "G.fits", "{}"), "for every latent"),
        (BY_HAND.format("scores", "[a[0] + 1, a[1], a[2]]", "{}"), "What stands beside x"),
        (BY_HAND.format("scores", "[a[0] + G.c1[1], a[1] - G.c1[0], a[2]]", "{}"), "a · c2 is"),
        (BY_HAND.format("scores", "a[:2]", "{}"), "as many as it had blanks"),
        (BY_HAND.format("scores", "a", '{"each key first": 6_000}'), "products with q"),
        (BY_HAND.format("scores", "a", '{"a first": 9_000}'), "the same for all"),
        (BY_HAND.format("scores", "a", '{"a first": 3_000}'), "making a, once"),
    ],
    "03.6b": [
        (
            ABSORB + 'torch.einsum("bhd,hdr->br", q_nope, w_uk)',
            "summed over the heads",
        ),
        (
            ABSORB + 'torch.einsum("bhd,hdr->bhr", q_nope, w_uk) * q_nope.shape[-1] ** -0.5',
            "scaled here",
        ),
        (ABSORB + "q_nope @ w_uk[0]", "first head"),
        (
            ABSORB + 'torch.einsum("bhd,hdr->hbr", q_nope, w_uk)',
            "transpose or permute",
        ),
        (ABSORB + "q_nope @ w_uk.transpose(1, 2)", "absorb_query() raised"),
    ],
    "03.7": [
        (
            mla("scale = (latents.shape[-1] + q_rope.shape[-1]) ** -0.5\n" + CONTENT + POSITION + MIX + OUT),
            "scaled by the width in the latent",
        ),
        (mla("scale = q_nope.shape[-1] ** -0.5\n" + CONTENT + POSITION + MIX + OUT), "qk_nope_head_dim alone"),
        (mla("scale = 1\n" + CONTENT + POSITION + MIX + OUT), "forgot to scale"),
        (mla(CONTENT + "position = 0\n" + MIX + OUT), "rotary part is missing"),
        (mla(CONTENT + POSITION + MIX + "return mixed"), "come out of the latent"),
        (
            mla(
                CONTENT
                + POSITION
                + "mixed = ((content * scale).softmax(-1) + (position * scale).softmax(-1)) @ latents\n"
                + OUT
            ),
            "a softmax each",
        ),
        (
            mla(
                'k = torch.einsum("bcr,hdr->bhcd", latents, w_uk)\n'
                'v = torch.einsum("bcr,hvr->bhcv", latents, w_uv)\n'
                'content = torch.einsum("bhd,bhcd->bhc", q_nope, k)\n'
                + POSITION
                + "weights = ((content + position) * scale).softmax(-1)\n"
                'return torch.einsum("bhc,bhcv->bhv", weights, v)'
            ),
            "expanded for every cached token",
        ),
        (  # keys and values made head by head
            mla(
                "outs = []\n"
                "for h in range(w_uk.shape[0]):\n"
                "    k, v = latents @ w_uk[h].T, latents @ w_uv[h].T\n"
                "    scores = q_nope[:, h, None] @ k.transpose(1, 2) + q_rope[:, h, None] @ rope_keys.transpose(1, 2)\n"
                "    outs.append((scores * scale).softmax(-1) @ v)\n"
                "return torch.cat(outs, 1)"
            ),
            "head by head or in chunks",
        ),
        (  # keys made a chunk of tokens at a time, values absorbed
            mla(
                "parts = []\n"
                "for s in range(0, latents.shape[1], 64):\n"
                '    k = torch.einsum("bcr,hdr->bhcd", latents[:, s : s + 64], w_uk)\n'
                '    parts.append(torch.einsum("bhd,bhcd->bhc", q_nope, k))\n'
                "content = torch.cat(parts, -1)\n" + POSITION + MIX + OUT
            ),
            "head by head or in chunks",
        ),
        (  # nothing expanded, and the latents read once per head
            mla(
                "outs = []\n"
                "for h in range(w_uk.shape[0]):\n"
                "    q = q_nope[:, h, None] @ w_uk[h]\n"
                "    scores = q @ latents.transpose(1, 2) + q_rope[:, h, None] @ rope_keys.transpose(1, 2)\n"
                "    outs.append((scores * scale).softmax(-1) @ latents @ w_uv[h].T)\n"
                "return torch.cat(outs, 1)"
            ),
            "read or copied once per head",
        ),
        (
            mla(
                "q_nope, q_rope, latents, rope_keys, w_uk, w_uv = "
                "(x.numpy() for x in (q_nope, q_rope, latents, rope_keys, w_uk, w_uv))\n"
                "scores = np.einsum('bhd,hdr,bcr->bhc', q_nope, w_uk, latents)\n"
                "scores = (scores + np.einsum('bhd,bcd->bhc', q_rope, rope_keys)) * scale\n"
                "weights = np.exp(scores - scores.max(-1, keepdims=True))\n"
                "weights /= weights.sum(-1, keepdims=True)\n"
                "return torch.from_numpy(np.einsum('bhc,bcr,hvr->bhv', weights, latents, w_uv, optimize=True))"
            ),
            "Stay in torch",
        ),
    ],
    "03.8": [
        (INTENSITY.format('{"MHA": 2}'), "2 bytes"),
        (INTENSITY.format('{"MHA": 0.5}'), "two FLOPs"),
        (INTENSITY.format('{"GQA-8, 64 query heads": 64}'), "64 / 8"),
        (INTENSITY.format('{"MLA, 128 query heads": 120.9}'), "key and value at once"),
        (INTENSITY.format('{"MLA, 128 query heads": 1.889}'), "one head"),
        ('limit = "memory"', "206"),
        ("limit = 242", "one of the words"),
    ],
    "03.9": [
        (POOL.format('{"padded": 35.42 * 2**30 / (27 * 16 * 320 * 2)}'), "forgot to pad"),
        (POOL.format('{"padded": 35.42 * 2**30 / (27 * 16 * 256 * 2)}'), "forgot V"),
        (POOL.format('{"latent": 35.42 * 2**30 / (27 * 512 * 2)}'), "rotary key"),
        (POOL.format('{"latent": 35.42e9 / 31_104}'), "GiB"),
        (POOL.format('{"padded": 442_368}'), "bytes a token"),
    ],
    "03.10": [
        (GPUS.format("{(G.split, 8): G.split_all}"), "one of the 8 KV heads"),
        (GPUS.format("{(G.split, 16): G.split_all / 16}"), "not cut in half"),
        (GPUS.format('{("DeepSeek-V3", 8): 8_784}'), "nothing is split"),
        (GPUS.format('{("DeepSeek-V3", 8): 562_176}'), "each keeps one copy"),
        (GPUS.format('{("DeepSeek-V3", 8): 62_464}'), "512 + 64"),
        (GPUS.format('{("DeepSeek-V3", 8): float("nan")}'), "NaN"),
    ],
}

RIGHT = {
    "03.1": [
        "kv_bytes_of = {name: kv_bytes(get(name), 1) for name in reversed(kv_bytes_of)}",
        BYTES.format('{"falcon-7b": torch.tensor(8192)}'),
    ],
    "03.2": [
        "times_smaller = dict(reversed(times_smaller.items()))",
        FACTORS.format('{"V3: MLA over MQA": 256 / 576}'),
        FACTORS.format('{"V3: MLA over GQA-8": 3.6}'),
    ],
    "03.3": [SAVED.format('{"both bfloat16": 82.2, "V2 at 6 bits": 93.3}')],
    "03.4": [
        grouped(
            "q *= head_dim**-0.5\n" + ROWS + "return ((rows @ k.transpose(2, 3)).softmax(-1) @ v).reshape(q.shape)"
        ),
        grouped(
            'scores = torch.einsum("bhgd,bhcd->bhgc", q.view(batch, kv_heads, group, head_dim), k)\n'
            'return torch.einsum("bhgc,bhcd->bhgd", (scores / head_dim**0.5).softmax(-1), v).reshape(q.shape)'
        ),
        grouped(
            "out = torch.empty_like(q)\n"
            "for head in range(kv_heads):\n"
            "    own = slice(head * group, (head + 1) * group)\n"
            "    scores = q[:, own] @ k[:, head].transpose(1, 2) * head_dim**-0.5\n"
            "    out[:, own] = scores.softmax(-1) @ v[:, head]\n"
            "return out"
        ),
        *(
            grouped(  # online softmax, a chunk at a time
                "rows = q.view(batch, kv_heads, group, head_dim) * head_dim**-0.5\n"
                "top = torch.full_like(rows[..., :1], -torch.inf)\n"
                "total, out = torch.zeros_like(top), torch.zeros_like(rows)\n"
                f"for s in range(0, context, {chunk}):\n"
                f"    scores = rows @ k[:, :, s : s + {chunk}].transpose(2, 3)\n"
                "    new = torch.maximum(top, scores.amax(-1, keepdim=True))\n"
                "    keep, part = (top - new).exp(), (scores - new).exp()\n"
                "    total = total * keep + part.sum(-1, keepdim=True)\n"
                f"    out, top = out * keep + part @ v[:, :, s : s + {chunk}], new\n"
                "return (out / total).view(q.shape)"
            )
            for chunk in (16, 64, 256)
        ),
    ],
    "03.5": ["repeat_traffic = 17.0", "repeat_traffic = torch.tensor(17)"],
    "03.6a": [
        BY_HAND.format("(float(scores[0]), scores[1])", "[np.float64(a[0]), *a[1:]]", "{}"),
        BY_HAND.format("np.array(scores)", "torch.tensor(a).float()", '{"a first": 3_006.0}'),
    ],
    "03.6b": [
        ABSORB + "(q_nope[:, :, None] @ w_uk)[:, :, 0]",
        ABSORB + "(q_nope.transpose(0, 1) @ w_uk).transpose(0, 1)",
    ],
    "03.7": [
        mla(
            "q_nope *= scale\nq_rope *= scale\n"
            + CONTENT
            + POSITION
            + "mixed = (content + position).softmax(-1) @ latents\n"
            + OUT
        ),
        mla(
            "rows = torch.cat((latents, rope_keys), -1)\n"
            "q = torch.cat(((q_nope[:, :, None] @ w_uk)[:, :, 0], q_rope), -1)\n"
            "weights = (q @ rows.transpose(1, 2) * scale).softmax(-1)\n"
            "return ((weights @ latents)[:, :, None] @ w_uv.transpose(1, 2))[:, :, 0]"
        ),
        mla(CONTENT + POSITION + MIX + OUT),
        mla(  # a chunk of tokens at a time
            "q, parts = absorb_query(q_nope, w_uk), []\n"
            "for s in range(0, latents.shape[1], 128):\n"
            "    rows, keys = latents[:, s : s + 128], rope_keys[:, s : s + 128]\n"
            "    parts.append(q @ rows.transpose(1, 2) + q_rope @ keys.transpose(1, 2))\n"
            "mixed = (torch.cat(parts, -1) * scale).softmax(-1) @ latents\n" + OUT
        ),
    ],
    "03.8": [
        INTENSITY.format('{"MLA, 128 query heads": torch.tensor(256.0)}'),
        INTENSITY.format('{"MLA, 128 query heads": 240}'),
        "flop_per_byte = dict(reversed(flop_per_byte.items()))",
        'limit = " Compute "',
    ],
    "03.9": [POOL.format('{"padded": 85_968}'), POOL.format('{"padded": 86_000, "latent": 1.22e6}')],
    "03.10": ["bytes_per_gpu = {key: float(value) for key, value in reversed(bytes_per_gpu.items())}"],
}
