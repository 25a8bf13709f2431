"""Checks of unit 03: who shares a key, and how many bytes that saves."""

import contextlib

import torch
import torch.nn.functional as F

from helpers.check import Wrong, call, choice, close, entries, exercise, number, part, require, seed
from helpers.exercises.traffic import Traffic
from helpers.models.counts import kv_bytes
from helpers.models.geometry import MLA, get

SIX = (
    "Llama-2-7b-hf",
    "Llama-4-Maverick-17B-128E",
    "gpt-oss-120b",
    "falcon-7b",
    "DeepSeek-V2-Lite",
    "DeepSeek-V3",
)


def expanded_row(mla: MLA, heads: int) -> int:
    """Elements of a layer and token when every head's key and value are stored, as without the latent."""
    return heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)


def repeat_kv_decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Decode attention that copies each KV head once per query head first; shapes as in exercise 03.4."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return F.scaled_dot_product_attention(q[:, :, None], k, v)[:, :, 0]


@exercise("03.1")
def check_kv_bytes_of(kv_bytes_of, *, models=SIX):
    for name, value in entries("kv_bytes_of", kv_bytes_of, models):
        g = get(name)
        expect = kv_bytes(g, tokens=1)
        if g.mla:
            heads, latent, rotary = g.q_heads, g.mla.kv_lora_rank, g.mla.qk_rope_head_dim
            per = 2 * g.layers
            slips = {
                "You stored the latent alone. The rotary key cannot be folded into it and is cached beside it: "
                "kv_lora_rank + qk_rope_head_dim elements.": per * latent,
                "That is K and V of every head, which MLA does not store: one latent and one rotary key, shared by "
                "all heads.": per * expanded_row(g.mla, heads),
                "You took the latent two times. It serves as key and as value at once, and is stored once.": [
                    2 * per * (latent + rotary),
                    per * (2 * latent + rotary),
                ],
                "You gave each head its own row; latent and rotary key are shared by all heads.": heads * expect,
                "You gave each head its own rotary key; all heads share one.": per * (latent + heads * rotary),
            }
        else:
            slips = {
                "You forgot V: a token leaves a key and a value.": expect / 2,
                "You forgot the layers: each has a cache of its own.": expect / g.layers,
            }
            if g.group_size > 1:
                slips["You counted query heads. They share KV heads, and only KV heads are stored."] = (
                    expect * g.group_size
                )
            if g.hidden // g.q_heads != g.head_dim:
                slips["You took hidden / query heads as head_dim. Here head_dim is a number of its own."] = (
                    expect * (g.hidden // g.q_heads) / g.head_dim
                )
        with part():
            number(value, expect, unit="bytes", rel=1e-6, slips=slips, name=name)


@exercise("03.2")
def check_times_smaller(times_smaller):
    m, heads = get("DeepSeek-V3").mla, get("DeepSeek-V3").q_heads
    row, maverick = m.kv_lora_rank + m.qk_rope_head_dim, get("Llama-4-Maverick-17B-128E")
    own = expanded_row(m, heads) / row
    gqa8, mqa = 2 * 8 * 128 / row, 2 * 1 * 128 / row
    upside_down = "That is the inverse: give cache without ÷ cache with."
    latent_only = "You left the 64 elements of the rotary key out of the latent row: 576, not 512."
    checks = {
        "Maverick: GQA over MHA": (
            maverick.group_size,
            {
                "8 is the number of KV heads. The factor is query heads ÷ KV heads.": 8,
                "40 is the number of query heads. The factor is query heads ÷ KV heads.": 40,
                upside_down: 1 / maverick.group_size,
            },
        ),
        "V3: MLA over its own 128 heads": (
            own,
            {
                "128 is the number of heads; their rows are not as wide as the latent's.": heads,
                "You gave keys 128 elements. Each head's key also has its rotary part: 128 + 64.": heads * 256 / row,
                "You forgot the values of the 128 heads.": heads * 192 / row,
                latent_only: own * row / m.kv_lora_rank,
                upside_down: 1 / own,
            },
        ),
        "V3: MLA over GQA-8": (
            gqa8,
            {
                "You forgot that GQA stores K and V.": gqa8 / 2,
                latent_only: gqa8 * row / m.kv_lora_rank,
                "You compared with all 128 heads; the baseline here has 8 KV heads.": 16 * gqa8,
                upside_down: 1 / gqa8,
            },
        ),
        "V3: MLA over MQA": (
            mqa,
            {
                "You forgot that MQA stores K and V.": mqa / 2,
                latent_only: mqa * row / m.kv_lora_rank,
                "That is the inverse. MQA's row is the *smaller* one, so the factor is below 1.": 1 / mqa,
            },
        ),
    }
    for name, value in entries("times_smaller", times_smaller, checks):
        expect, slips = checks[name]
        with part():
            number(value, expect, rel=1.5e-2, unit="times", slips=slips, name=name)
    llama = get("Llama-2-7b-hf")
    return (
        f'"10 to 100" holds against MHA with many heads: {own:.0f} times against the {heads} of V3 itself, and '
        f"{2 * llama.kv_heads * llama.head_dim / row:.0f} against a layer of Llama-2-7B. Against GQA-8, which is what "
        f'many models ship today, it is {gqa8:.1f} (the paper says "GQA with only 2.25 groups"). The cache of MQA is '
        "smaller than that of MLA."
    )


@exercise("03.3")
def check_saved_percent(saved_percent):
    before, after = kv_bytes(get("DeepSeek-LLM-67B"), 1), kv_bytes(get("DeepSeek-V2"), 1)
    checks = {"both bfloat16": after, "V2 at 6 bits": after * 6 / 16}
    for name, value in entries("saved_percent", saved_percent, checks):
        left = checks[name]
        slips = {
            "That is what is left; the saving is 100 minus that.": 100 * left / before,
            "Per cent are asked for, not a fraction.": 1 - left / before,
            "That is how many times smaller it is, not per cent saved.": before / left,
            "You forgot that the two models have different numbers of layers, 60 and 95.": 100
            * (1 - left / before * 95 / 60),
            "You forgot V in DeepSeek-67B's cache.": 100 * (1 - 2 * left / before),
            "You left out the rotary key: a row of V2 has 512 + 64 elements.": 100 * (1 - left / before * 512 / 576),
        }
        if name == "both bfloat16":
            slips["That is the claim itself, which holds V2's 6 bits against the older model's 16."] = 100 * (
                1 - after * 6 / 16 / before
            )
        if name == "V2 at 6 bits":
            slips["You did not use the 6 bits: this is the saving at equal precision."] = 100 * (1 - after / before)
            slips["You used 8 bits; the paper's cache has 6 on average."] = 100 * (1 - after / 2 / before)
            slips["That is 6 bytes an element: 8 bits are a byte."] = 100 * (1 - 3 * after / before)
        number(value, 100 * (1 - left / before), absolute=0.06, rel=0, unit="%", slips=slips, name=name)
    return (
        f"{100 * (1 - after / before):.1f} % is what the architecture saves. The rest of the 93.3 % is quantization, "
        "which the older model could have had too."
    )


def _random(*shapes, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


@exercise("03.4")
def check_grouped_attention(fn):
    # One sequence with large scores first, so that every slip shows far above rounding.
    batch, q_heads, kv_heads, context, width = 2, 6, 2, 11, 16
    q, k, v = _random((batch, q_heads, width), (batch, kv_heads, context, width), (batch, kv_heads, context, width))
    expect = repeat_kv_decode(q, k, v)
    group = q_heads // kv_heads

    interleaved = [head % kv_heads for head in range(q_heads)]
    strided = [rank * kv_heads + head for head in range(kv_heads) for rank in range(group)]

    def form(q=q, k=k, v=v, scale=width**-0.5, heads=None):
        heads = heads or [head // group for head in range(q_heads)]
        weights = ((q[:, :, None] * k[:, heads]).sum(-1) * scale).softmax(-1)
        return (weights[..., None] * v[:, heads]).sum(2)

    got = call(fn, q.clone(), k.clone(), v.clone())
    close(
        got,
        expect,
        rel=1e-6,
        absolute=1e-8,
        name="the output",
        slips={
            "You forgot to scale the scores by head_dim ** -0.5.": form(scale=1.0),
            "You divided by head_dim; scores are divided by its square root.": form(scale=1 / width),
            "Query heads went to the wrong KV heads: head i belongs to KV head i // group, so neighbours share. View "
            "q as [batch, kv_heads, group, head_dim], in this order.": form(heads=interleaved),
            "Query heads went to the wrong KV heads, and come back in another order than they came: head i belongs to "
            "KV head i // group. View q as [batch, kv_heads, group, head_dim], with no transpose.": form(
                heads=interleaved
            )[:, strided],
            "You softmaxed over the wrong axis: weights add up to 1 over the context.": _wrong_axis(q, k, v, group),
            "You skipped the softmax.": _no_softmax(q, k, v, group),
        },
    )
    q, k, v = _random((1, 4, width), (1, 4, 5, width), (1, 4, 5, width), seed=1)
    close(
        call(fn, q.clone(), k.clone(), v.clone()),
        repeat_kv_decode(q, k, v),
        rel=1e-6,
        absolute=1e-8,
        name="the output with group = 1",
    )

    # Long enough that scores weigh little beside keys. What is no larger than the queries (the running output of an
    # online softmax) is not counted.
    heads, context, width = 16, 2048, 128
    shapes = (1, heads, width), (1, 2, context, width), (1, 2, context, width)
    q, k, v = _random(*shapes, seed=seed(0), dtype=torch.float32)
    expect = repeat_kv_decode(q, k, v)  # before yours, which may work in place
    with Traffic(at_least=q.numel() + 1, of=(k, v)) as seen:
        got = fn(q, k, v)
    close(got, expect, rel=1e-3, absolute=1e-5, name=f"the output over {context:,} tokens")
    require(
        seen.largest < heads * context * width // 2,
        f"right numbers, but an operation made a tensor of {seen.largest:,} elements, and K has {k.numel():,}: K or V "
        "was expanded to one copy per query head (repeat_interleave, expand with reshape, and a broadcast "
        "product all do it). Put the query heads of a group into the rows of one product instead.",
    )
    times = seen.bytes / (k.nbytes + v.nbytes)
    require(
        times > 0.9,
        "right numbers, but no torch operation was seen to read all of K and V, so their traffic cannot be counted. "
        "Stay in torch: numpy would not run on a GPU either.",
    )
    require(
        times < 2,
        f"right numbers and nothing expanded at once, but {times:.0f} times the bytes of K and V were read or copied. "
        "Let all query heads of a group be rows of one matrix, so that one product serves them all; scale the queries "
        "or the scores, and leave K and V as they are.",
    )
    return "the query heads of a group are the rows of one small matrix: K and V read once, no copy"


def _group_scores(q, k, v, group):
    k = k.repeat_interleave(group, 1)
    return (q[:, :, None] * k).sum(-1) * q.shape[-1] ** -0.5, v.repeat_interleave(group, 1)


def _wrong_axis(q, k, v, group):
    scores, v = _group_scores(q, k, v, group)
    weights = scores.view(q.shape[0], -1, group, k.shape[2]).softmax(2).view_as(scores)
    return (weights[..., None] * v).sum(2)


def _no_softmax(q, k, v, group):
    scores, v = _group_scores(q, k, v, group)
    return (scores[..., None] * v).sum(2)


@exercise("03.5")
def check_repeat_traffic(repeat_traffic):
    group = 8
    q, k, v = (torch.empty(shape, device="meta") for shape in ((1, 16, 64), (1, 2, 4096, 64), (1, 2, 4096, 64)))
    with Traffic(at_least=k.numel()) as seen:
        repeated = [tensor.repeat_interleave(group, dim=1) for tensor in (k, v)]
        scores = q[:, :, None] @ repeated[0].transpose(2, 3)
        scores @ repeated[1]
    expect = seen.bytes / (k.nbytes + v.nbytes)
    number(
        repeat_traffic,
        expect,
        rel=1e-6,
        unit="times the bytes of the cache",
        name="repeat_traffic",
        slips={
            "You counted the reading of the copies alone. They must first be made: 1 read, 8 written.": 8,
            "You forgot that the copies are also written.": 9,
            "You forgot that the cache itself is read to make the copies.": 16,
            "That is the grouped form, which makes no copies.": 1,
            "The cache in memory is 8 times smaller, but a step works on the copies.": 1 / 8,
            "K and V are both in 'the bytes of the cache' already.": 34,
            "You counted in caches of MHA. The unit here is the grouped cache, 8 times smaller.": 17 / 8,
        },
    )
    return (
        f"{expect:.0f}: the cache is read once, the copies are written, {group}, and read, {group}. Your grouped form "
        f"moves 1. MHA, stored in full, would move {group}, so repeat-KV moves {expect / group:.1f} times the bytes of "
        "the MHA that GQA was to replace."
    )


def _mla_inputs(seed=0, dtype=torch.float64, batch=2, heads=3, context=7, nope=8, rotary=4, rank=16, value=6):
    return _random(
        (batch, heads, nope),
        (batch, heads, rotary),
        (batch, context, rank),
        (batch, context, rotary),
        (heads, nope, rank),
        (heads, value, rank),
        seed=seed,
        dtype=dtype,
    )


def expanded_mla(q_nope, q_rope, latents, rope_keys, w_uk, w_uv, scale=None):
    """MLA as its definition says: keys and values of every head, made from the latents.

    Shapes as in exercise 03.7; returns [batch, heads, v_head_dim].
    """
    k = torch.einsum("bcr,hdr->bhcd", latents, w_uk)
    k = torch.cat((k, rope_keys[:, None].expand(-1, k.shape[1], -1, -1)), dim=-1)
    v = torch.einsum("bcr,hvr->bhcv", latents, w_uv)
    q = torch.cat((q_nope, q_rope), dim=-1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    weights = (torch.einsum("bhd,bhcd->bhc", q, k) * scale).softmax(-1)
    return torch.einsum("bhc,bhcv->bhv", weights, v)


@exercise("03.6a")
def check_by_hand(scores, a, multiplications, *, w=(1, 0, 2, 0, 1, -1), q=(3, 1), c1=(1, 2, 0), c2=(0, 1, 1)):
    first, second = q
    w_k = torch.tensor(w, dtype=torch.float).view(2, 3)
    q, latents = torch.tensor(q, dtype=torch.float), torch.tensor([c1, c2], dtype=torch.float)
    for name, answer, size in (("scores", scores, 2), ("a", a, 3)):
        held = len(answer) if hasattr(answer, "__len__") else 0
        require(held == size, f"{name} has to hold {size} numbers, as many as it had blanks.")
    keys = latents @ w_k.T
    for i, (given, key) in enumerate(zip(scores, keys, strict=True)):
        slips = {
            "You added up the key and left the query out.": float(key.sum()),
            "You took a row of W_K for a column: element j of the key is row j of W_K times the latent.": float(
                q @ w_k.flatten().view(3, 2).T @ latents[i]
            ),
            "You added the first two elements of the latent as if they were the key.": float(q @ latents[i, :2]),
            "That is the score of the other latent.": float(q @ keys[1 - i]),
        }
        slips = {text: value for text, value in slips.items() if value != float(q @ key)}
        number(given, float(q @ key), rel=1e-6, slips=slips, name=f"the score of c{i + 1}")
    given = [number(x, 0, absolute=1e9, name=f"a[{i}]") for i, x in enumerate(a)]
    right = q @ w_k
    write_out = "Write q · (W_K c) out for an unknown c = (x, y, z)"
    for i, (latent, key) in enumerate(zip(latents.tolist(), keys, strict=True), start=1):
        score = sum(x * c for x, c in zip(given, latent, strict=True))
        require(
            abs(score - q @ key) < 1e-6,
            f"a · c{i} is {score:g} and has to be {float(q @ key):g}. {write_out}: {first} · (first row of W_K · c) + "
            f"{second} · (second row · c). What stands beside x is a[0].",
        )
    require(
        all(abs(x - y) < 1e-6 for x, y in zip(given, right.tolist(), strict=True)),
        f"a gives the right scores for c1 and c2, but not for every latent. {write_out} and collect what stands beside "
        "x, y and z.",
    )
    width, rank, tokens = *w_k.shape, 1_000
    expect = {"each key first": tokens * (width * rank + width), "a first": width * rank + tokens * rank}
    slips = {
        "each key first": {
            "You left out the products with q: 2 more for each token.": tokens * width * rank,
            "That is for one token.": width * rank + width,
        },
        "a first": {
            "You made a anew for each token; it is the same for all.": tokens * (width * rank + rank),
            "You left out making a, once.": tokens * rank,
            "You left out the products of a with each latent.": width * rank,
        },
    }
    for name, value in entries("multiplications", multiplications, expect):
        number(value, expect[name], rel=1e-6, unit="multiplications", slips=slips[name], name=name)
    return (
        "q · (W_K c) = (W_Kᵀ q) · c, so a = W_Kᵀ q: the up-projection has been *absorbed* into the query, and what was "
        "stored is read as it is."
    )


@exercise("03.6b")
def check_absorb_query(fn):
    q_nope, _, latents, _, w_uk, _ = _mla_inputs()
    got = call(fn, q_nope.clone(), w_uk.clone())
    expect = torch.einsum("bhd,hdr->bhr", q_nope, w_uk)
    close(
        got,
        expect,
        rel=1e-6,
        absolute=1e-8,
        name="the absorbed query",
        slips={
            "You summed over the heads. Each head has its own w_uk and keeps its own query.": expect.sum(1),
            "You scaled here. The scale belongs to the scores, once, where the rotary part is in.": expect
            * q_nope.shape[-1] ** -0.5,
            "You used the first head's w_uk for all heads.": q_nope @ w_uk[0],
        },
    )
    scores = torch.einsum("bhr,bcr->bhc", got, latents)
    keys = torch.einsum("bcr,hdr->bhcd", latents, w_uk)
    error = (scores - torch.einsum("bhd,bhcd->bhc", q_nope, keys)).abs().max()
    return f"scores against latents = scores against expanded keys, to {float(error):.0e}"


@exercise("03.7")
def check_mla_decode(fn):
    inputs = _mla_inputs()
    q_nope, q_rope, latents, rope_keys, w_uk, w_uv = inputs
    expect = expanded_mla(*inputs)
    nope, rotary, rank = q_nope.shape[-1], q_rope.shape[-1], latents.shape[-1]
    mixed = _mixed_latents(*inputs)
    close(
        call(fn, *(tensor.clone() for tensor in inputs)),
        expect,
        rel=1e-6,
        absolute=1e-8,
        name="the output",
        slips={
            "You scaled by the width in the latent (kv_lora_rank + qk_rope_head_dim). Absorbing changes where the "
            "product is done, not its value: scale by (qk_nope_head_dim + qk_rope_head_dim) ** -0.5.": expanded_mla(
                *inputs, scale=(rank + rotary) ** -0.5
            ),
            "You scaled by qk_nope_head_dim alone. A query of this model is nope + rope wide.": expanded_mla(
                *inputs, scale=nope**-0.5
            ),
            "You forgot to scale the scores.": expanded_mla(*inputs, scale=1.0),
            "The rotary part is missing: add q_rope · rope_keys to the scores, or no token knows where it "
            "is.": expanded_mla(q_nope, q_rope * 0, latents, rope_keys, w_uk, w_uv),
            "You returned the weighted latents. They still have to come out of the latent, through w_uv.": mixed,
            "You gave content and position a softmax each. Add their scores, then one softmax.": _two_softmaxes(
                *inputs
            ),
            "You went out of the latent through w_uk; values have their own matrix, w_uv.": torch.einsum(
                "bhr,hdr->bhd", mixed, w_uk
            ),
        },
    )
    sizes = dict(batch=1, heads=16, context=2048, nope=32, rotary=16, rank=128, value=32)
    *inputs, w_uk, w_uv = _mla_inputs(seed=seed(1), dtype=torch.float32, **sizes)
    inputs += [w * sizes["rank"] ** -0.5 for w in (w_uk, w_uv)]  # of the size that a trained projection has
    exact = expanded_mla(*(tensor.double() for tensor in inputs))  # before yours, which may work in place
    with Traffic() as seen:
        got = fn(*inputs)
    error = float((got.double() - exact).abs().max())
    require(error < 1e-5, f"in float32 the output is off by {error:.1e} from the expanded form (1e-5 allowed).")
    # The latents are read for the scores and again for the values; scores and weights come to about 2 caches more, and
    # a copy that joins the two parts of a row to 2 more. The keys of all heads alone would be 7 written and read.
    cache = inputs[2].nbytes + inputs[3].nbytes
    times = seen.bytes / cache
    require(
        times > 1.5,
        "right numbers, but no torch operation was seen to read the latents twice, for scores and values, so that the "
        "traffic cannot be counted. Stay in torch: numpy would not run on a GPU either.",
    )
    require(
        times < 8,
        f"right numbers, but {times:.0f} times the bytes of the cache were read and written, where about 4 will do. "
        "Keys or values of every head were expanded for every cached token (at once, head by head or in chunks: the "
        "bytes are the same), or the latents were read or copied once per head. Bring the queries of all heads into "
        "the latent with w_uk, and only the weighted latents out with w_uv.",
    )
    return f"equal to the expanded form to {error:.0e} in float32, {times:.1f} caches read and written in all"


def _weights(q_nope, q_rope, latents, rope_keys, w_uk):
    scale = (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5
    content = torch.einsum("bhd,hdr,bcr->bhc", q_nope, w_uk, latents)
    return content * scale, torch.einsum("bhd,bcd->bhc", q_rope, rope_keys) * scale


def _mixed_latents(q_nope, q_rope, latents, rope_keys, w_uk, w_uv):
    content, position = _weights(q_nope, q_rope, latents, rope_keys, w_uk)
    return (content + position).softmax(-1) @ latents


def _two_softmaxes(q_nope, q_rope, latents, rope_keys, w_uk, w_uv):
    content, position = _weights(q_nope, q_rope, latents, rope_keys, w_uk)
    return torch.einsum("bhc,bcr,hvr->bhv", content.softmax(-1) + position.softmax(-1), latents, w_uv)


@exercise("03.8")
def check_flop_per_byte(flop_per_byte, limit):
    m, heads = get("DeepSeek-V3").mla, get("DeepSeek-V3").q_heads
    row = m.kv_lora_rank + m.qk_rope_head_dim
    exact = 2 * heads * (row + m.kv_lora_rank) / (2 * row)
    shared = {
        "That is per element; a bfloat16 element has 2 bytes.": 2.0,
        "A multiplication and an addition are two FLOPs.": 0.5,
    }
    for name, value in entries(
        "flop_per_byte", flop_per_byte, ("MHA", "GQA-8, 64 query heads", "MLA, 128 query heads")
    ):
        if name.startswith("MLA"):
            with contextlib.suppress(Wrong):  # FlashMLA's own documents round to 2 FLOPs per head and byte: 256
                number(value, 2 * heads, absolute=1, rel=0, unit="FLOP/byte", name=name)
                continue
            slips = {
                "The latent is key and value at once: one read serves both products. You charged it twice, or counted "
                "one of the products.": [exact / 2, heads, heads * m.kv_lora_rank / row],
                "You counted one head; all 128 read the same row.": exact / heads,
                "That is per element; a bfloat16 element has 2 bytes.": [2 * exact, 4 * heads],
            }
            number(value, exact, rel=0.01, unit="FLOP/byte", slips=slips, name=name)
            continue
        expect = 1 if name == "MHA" else 8
        slips = {message: factor * expect for message, factor in shared.items()}
        if expect == 8:
            slips["All 64 query heads do work, and all 8 KV heads are read: 64 / 8."] = 64
            slips["That is MHA's. Here 8 query heads use each byte."] = 1
        number(value, expect, rel=0.01, unit="FLOP/byte", slips=slips, name=name)
    choice(
        limit,
        "compute",
        {
            "memory": "V3's attention does about 242 FLOPs for each byte and an H200 can do 206 in the time it reads "
            "one: the multiplying takes longer than the reading.",
        },
        name="limit",
    )
    return (
        f"MHA 1, GQA 8, V3 {exact:.0f} FLOP/byte: every query head that shares a byte adds work to it. With 16 of the "
        f"heads on a GPU it would be {exact / 8:.0f}."
    )


@exercise("03.9")
def check_tokens_that_fit(tokens_that_fit):
    g, pool = get("DeepSeek-V2-Lite"), 35.42 * 2**30
    padded = 2 * g.layers * g.q_heads * 256 * 2
    latent = kv_bytes(g, 1)
    unpadded = 2 * g.layers * expanded_row(g.mla, g.q_heads)
    gib = "The pool is 35.42 GiB, and a GiB is 2**30 bytes, not 1e9."
    checks = {
        "padded": (
            padded,
            {
                "You forgot V.": padded / 2,
                "You forgot to pad: keys of 192 and values of 128 were both stored as 256.": unpadded,
                "You stored the latent; this engine did not yet.": latent,
            },
        ),
        "latent": (
            latent,
            {
                "You left out the rotary key: 512 + 64 elements a layer.": 2 * g.layers * g.mla.kv_lora_rank,
                "You padded the latent; it is stored as it is.": padded,
                "You stored the latent twice, as K and as V.": [2 * latent],
            },
        ),
    }
    for name, value in entries("tokens_that_fit", tokens_that_fit, checks):
        per_token, slips = checks[name]
        tokens = {message: [pool / s for s in (x if isinstance(x, list) else [x])] for message, x in slips.items()}
        tokens[gib] = [35.42e9 / per_token]
        tokens["That is bytes a token; tokens are asked for: pool ÷ bytes a token."] = [per_token]
        number(value, pool / per_token, rel=5e-3, unit="tokens", slips=tokens, name=name)
    return (
        f"{pool / padded:,.0f} tokens padded, and vLLM's log said 5,373 blocks of 16, that is {5_373 * 16:,}. With "
        f"latents the same pool holds {padded / latent:.1f} times as many."
    )


@exercise("03.10")
def check_bytes_per_gpu(bytes_per_gpu, *, split="Llama-3.1-405B"):
    llama, deepseek = kv_bytes(get(split), 1), kv_bytes(get("DeepSeek-V3"), 1)
    group = get(split).group_size
    checks = {
        (split, 8): (
            llama / 8,
            {
                "Each GPU keeps one of the 8 KV heads, not all of them.": llama,
                "You counted the GPU's query heads; it keeps the one KV head that they share.": llama / 8 * group,
            },
        ),
        (split, 16): (
            llama / 8,
            {
                "There are 8 KV heads for 16 GPUs, and a head is not cut in half: each is kept on two GPUs.": llama
                / 16,
                "Each GPU keeps one KV head, not all 8.": llama,
                "You counted the GPU's query heads; it keeps the one KV head that they share.": llama / 16 * group,
            },
        ),
        ("DeepSeek-V3", 8): (
            deepseek,
            {
                "All heads read the same latent. GPUs that share the heads among them each need all of it: nothing is "
                "split.": deepseek / 8,
                "Per GPU: each keeps one copy.": deepseek * 8,
                "You left out the rotary key: 512 + 64 elements a layer.": deepseek * 512 / 576,
                "You took the row two times. It serves as key and as value, and is stored once.": deepseek * 2,
            },
        ),
    }
    for key, value in entries("bytes_per_gpu", bytes_per_gpu, checks):
        expect, slips = checks[key]
        number(value, expect, rel=1e-6, unit="bytes", slips=slips, name=f"{key[0]} on {key[1]} GPUs")
    m, heads = get("DeepSeek-V3").mla, get("DeepSeek-V3").q_heads // 8
    row = m.kv_lora_rank + m.qk_rope_head_dim
    return (
        f"On 8 GPUs DeepSeek-V3 keeps more cache per GPU than {split}: {deepseek:,} against {llama // 8:,} "
        f"bytes a token. And each GPU has {heads} of the heads and reads all the latents for them: "
        f"{heads * (row + m.kv_lora_rank) / row:.0f} FLOP/byte, limited by memory."
    )
