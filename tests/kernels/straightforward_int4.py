"""The int4 kernel that one would write first, compiled and counted: what the tuned one of the course is held against.

A script of its own for the same reason as `compile_selected`: `python -m tests.kernels.straightforward_int4` prints
{"tokens a tile, warps": machine instructions of one thread for each cached number} as JSON.
"""

import json
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tools.machine_code import inner_loop, resources

HEAD_DIM, HEADS = 128, 16
SIZES = ((32, 2), (64, 2), (32, 4), (64, 4))  # tokens a tile, warps


@triton.jit
def read_tile(numbers, scales, zeros, token, column, HALF: tl.constexpr):
    """Keys or values of a tile's tokens as bfloat16, both halves of the head, groups of 64: nibble · scale + zero."""
    packed = tl.load(numbers + token[:, None] * HALF + column[None, :])
    low_scale, high_scale = tl.load(scales + 2 * token).to(tl.float32), tl.load(scales + 2 * token + 1).to(tl.float32)
    low_zero, high_zero = tl.load(zeros + 2 * token).to(tl.float32), tl.load(zeros + 2 * token + 1).to(tl.float32)
    low = (packed & 15).to(tl.float32) * low_scale[:, None] + low_zero[:, None]
    high = (packed >> 4).to(tl.float32) * high_scale[:, None] + high_zero[:, None]
    return low.to(tl.bfloat16), high.to(tl.bfloat16)


@triton.jit
def straightforward(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, k_zero_ptr, v_scale_ptr, v_zero_ptr, out_ptr, length,
    HALF: tl.constexpr, HEADS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Decode attention of one KV head's queries over all of its tokens, online softmax."""
    column, head = tl.arange(0, HALF), tl.arange(0, HEADS)
    row = 2 * HALF * head[:, None] + column[None, :]
    q_low, q_high = tl.load(q_ptr + row), tl.load(q_ptr + HALF + row)
    top, total = tl.full([HEADS], float("-inf"), tl.float32), tl.zeros([HEADS], tl.float32)
    out_low, out_high = tl.zeros([HEADS, HALF], tl.float32), tl.zeros([HEADS, HALF], tl.float32)
    for start in range(0, length, TILE):
        token = start + tl.arange(0, TILE)
        low, high = read_tile(k_ptr, k_scale_ptr, k_zero_ptr, token, column, HALF)
        scores = tl.dot(q_low, tl.trans(low)) + tl.dot(q_high, tl.trans(high))
        scores = tl.where(token[None, :] < length, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        fade, weights = tl.exp2(top - new_top), tl.exp2(scores - new_top[:, None])
        top, total = new_top, total * fade + tl.sum(weights, 1)
        low, high = read_tile(v_ptr, v_scale_ptr, v_zero_ptr, token, column, HALF)
        out_low = tl.dot(weights.to(tl.bfloat16), low, out_low * fade[:, None])
        out_high = tl.dot(weights.to(tl.bfloat16), high, out_high * fade[:, None])
    tl.store(out_ptr + row, out_low / total[:, None])
    tl.store(out_ptr + HALF + row, out_high / total[:, None])


def instructions_per_number(tokens: int, warps: int) -> float:
    """Thread-instructions of a turn of the inner loop on Hopper ÷ numbers of K and V in its tile."""
    types = dict.fromkeys(straightforward.arg_names, "*fp16") | {
        "q_ptr": "*bf16", "k_ptr": "*u8", "v_ptr": "*u8", "out_ptr": "*fp32", "length": "i32",
    }  # fmt: skip
    fixed = {"HALF": HEAD_DIM // 2, "HEADS": HEADS, "TILE": tokens}
    place = {name: (i,) for i, name in enumerate(straightforward.arg_names)}
    source = ASTSource(
        straightforward,
        {name: kind for name, kind in types.items() if name not in fixed},
        constexprs={place[name]: value for name, value in fixed.items()},
        attrs={place[name]: [["tt.divisibility", 16]] for name in types if name not in fixed},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "num_stages": 3})
    loop = inner_loop(resources(compiled)[2])
    return 32 * warps * len(loop) / (2 * tokens * HEAD_DIM)


if __name__ == "__main__":
    json.dump({f"{tokens}, {warps}": instructions_per_number(tokens, warps) for tokens, warps in SIZES}, sys.stdout)
