"""The comparison with float64 has teeth: each of these mistakes in the kernel is caught by it.

That the kernel without a mistake passes is in test_cuda_attention.py.
"""

import importlib.util
import inspect

import pytest
import torch

from helpers.kernels import cuda, cuda_kernels, cuda_step_kernels, cuda_steps
from tools import attention_cases

NEWEST = "newest = length - 1 + 0 * head"
# What goes wrong: (text in the kernel, what it becomes, the case that must notice).
MISTAKES = {
    "the last, partial block is forgotten": (
        "tl.minimum(first + share, length)",
        "tl.minimum(first + share, length // TILE * TILE)",
        "gqa",
    ),
    "stale tokens are not masked": ("token[:, None] < seen", "token[:, None] < seen + TILE", "gqa"),
    "one token too many": ("token[:, None] < seen", "token[:, None] <= seen", "gqa"),
    "another sequence's length": ("tl.load(lengths_ptr + batch)", "tl.load(lengths_ptr)", "gqa"),
    "query heads are dealt out in turns": (
        "kv_head * group + head[None, :]",
        "head[None, :] * KV_HEADS + kv_head",
        "gqa",
    ),
    "only the first tile of query heads": (
        "head_tile * HEADS +",
        "0 * head_tile +",
        "mqa with more heads than a program holds",
    ),
    "the output is not faded": ("out *= fade[None, :]", "out *= 1.0", "gqa in one split"),
    "the sum is not faded": ("total * fade +", "total +", "gqa in one split"),
    "parts are averaged evenly": (
        'other=float("-inf")) - safe_top)',
        'other=float("-inf")) * 0.0)',
        "gqa",
    ),
    "an empty part counts": ('* LN_2, float("-inf"))', "* LN_2, 0.0)", "gqa"),
    "the log-sum-exp stays in base 2": ("tl.log2(divisor)) * LN_2", "tl.log2(divisor))", "gqa"),
    "the next block": ("start // BLOCK)", "start // BLOCK + 1)", "paged, 16 tokens a block"),
    "the block's first tokens": ("tl.multiple_of(start % BLOCK, TILE)", "0 * start", "paged, 128 tokens a block"),
    "drafted tokens see what follows them": ("+ head % queries)", "+ queries - 1)", "3 tokens"),
    "the first drafted token sees all": (
        "length - queries + 1 + head % queries",
        "length - head % queries",
        "3 tokens",
    ),
    "the queries of a head are dealt out in turns": ("+ head % queries)", "+ head // (group // queries))", "3 tokens"),
    "a tile of which a query sees nothing": ("LOWEST, tl.float32", 'float("-inf"), tl.float32', "3 tokens"),
    "nibbles are swapped": ("widen_low(k, COMPUTE)", "widen_high(k, COMPUTE)", "int4, groups"),
    "both groups take the first scale": (
        "k_scale_ptr + scale_line + scale_stride_half",
        "k_scale_ptr + scale_line",
        "int4, groups",
    ),
    "values take the scales of keys": (
        "tl.load(v_scale_ptr + scale_line)",
        "tl.load(k_scale_ptr + scale_line)",
        "int8",
    ),
    "the scale is another token's": ("+ (inside + token) * scale_stride_token", "+ token * scale_stride_token", "int8"),
    "zero points of values are dropped": (
        "out_high += tl.sum(weights * v_zero_high[:, None], 0)[None, :]",
        "pass",
        "int4, groups and zero points",
    ),
    "int8 is read as unsigned": ("- 1152.0", "- 1024.0", "int8"),
    "the rotary key is left out": (
        "if TAIL > 0:\n                k_tail",
        "if TAIL > 9999:\n                k_tail",
        "latent",
    ),
    "queries turn the other way": ("column < HALF, -1.0, 1.0", "column < HALF, 1.0, -1.0", "newest token"),
    "queries stand one place on": ("newest = length - 1 +", "newest = length +", "newest token"),
    "drafted tokens stand in one place": ("newest = length - queries + head % queries", NEWEST, "3 newest tokens"),
    "both halves of an int4 query are the first": (
        "rotated(q_head, WIDTH + column,",
        "rotated(q_head, column,",
        "newest token, int4, groups",
    ),
    "sequences have one length": ("    if RAGGED:\n        length", "    if False:\n        length", "gqa"),
    "keys turn the other way": ("- second * tl.load(sin_ptr", "+ second * tl.load(sin_ptr", "newest token"),
    "half of a key is not turned": ("+ first * tl.load(sin_ptr", "+ 0 * tl.load(sin_ptr", "newest token"),
    "new tokens are written over each other": ("position += token", "position += 0", "3 newest tokens"),
    "another sequence's place": (
        "tl.load(starts_ptr + batch)",
        "tl.load(starts_ptr)",
        "newest token of unequal sequences",
    ),
    "all heads are written to the first": ("(batch * heads + head) *", "(batch * heads) *", "newest token"),
    "the block is another": (
        "position // BLOCK).to(",
        "position // BLOCK + 1).to(",
        "2 newest tokens of unequal sequences, paged",
    ),
    "the place in its block is forgotten": ("* BLOCK + position % BLOCK", "* BLOCK", "newest token, paged"),
    "half of what fp8 holds": ("tl.constexpr(448.0)", "tl.constexpr(224.0)", "newest token, fp8"),
    "fp8 is cut off": ("bits + 0x7FFFF +", "bits +", "newest token, fp8"),
    "the ring begins at its first row": ("- oldest + window", "+ window", "newest token, ring"),
    "sinks turn with the ring": ("tl.where(row < sinks, row,", "tl.where(row < 0, row,", "newest token, ring"),
    "half of a value is written twice": (
        "values_ptr + HALF + row, v_high",
        "values_ptr + HALF + row, v_low",
        "newest token",
    ),
    "the scale of half a row": (", tl.max(tl.abs(high), 0))", ", 0.0)", "newest token, int8"),
    "int8 is cut off": ("nearest(tl.div_rn(low, scale))", "tl.div_rn(low, scale)", "first token, int8"),
    "int4 is cut off": ("level = nearest(", "level = (", "first token, int4"),
    "an int4 scale of half a row": ("if GROUPS == 1:", "if GROUPS == 0:", "2 newest tokens, int4, one scale"),
    "the second group's scale is not written": ("if GROUPS == 2:", "if GROUPS == 0:", "newest token, int4, groups"),
    "nibbles are packed the wrong way round": (
        "levels_of(low, scale, zero) | (levels_of(high, high_scale, high_zero) << 4)",
        "levels_of(high, high_scale, high_zero) | (levels_of(low, scale, zero) << 4)",
        "newest token, int4, groups",
    ),
    "the zero point is not written": (
        "tl.store(zero_ptr, zero)",
        "tl.store(zero_ptr, 0.0)",
        "newest token, int4, groups",
    ),
    "what attention said is lost": ("x += tl.load(more_ptr", "tl.load(more_ptr", "around attention"),
    "the mean is over the padding": ("wide * wide, 0) / width", "wide * wide, 0) / PADDED", "around attention"),
    "the norm has no weight": ("wide / rms * weight", "wide / rms", "around attention"),
    "the gate is multiplied by itself": ("(silu * up)", "(silu * gate)", "around attention"),
    "only the first piece of a row": ("tl.program_id(1) * PIECE", "0 * tl.program_id(1)", "around attention"),
}


def with_mistake(module, text: str, instead: str, folder):
    """The kernels of a module with one piece of their source replaced, as a module."""
    source = inspect.getsource(module)
    path = folder / "kernels_with_a_mistake.py"
    path.write_text(source.replace(text, instead), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("mistake", MISTAKES)
def test_is_caught(mistake, monkeypatch, tmp_path):
    text, instead, name = MISTAKES[mistake]
    if name.endswith(" in one split"):
        name = name.removesuffix(" in one split")
        monkeypatch.setattr(cuda, "choose_splits", lambda programs, blocks, multiprocessors: 1)
    monkeypatch.setattr(cuda, "_capability", lambda device: (7, 5))  # where narrow caches are computed in float32 too
    case = attention_cases.cases(torch.float32)[name]()
    (module,) = (m for m in (cuda_kernels, cuda_step_kernels) if text in inspect.getsource(m))  # or it is not seeded
    caller = cuda if module is cuda_kernels else cuda_steps
    monkeypatch.setattr(caller, module.__name__.rpartition(".")[2], with_mistake(module, text, instead, tmp_path))
    assert not case.error() <= 100 * attention_cases.TOLERANCE[torch.float32]
