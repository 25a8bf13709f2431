"""The tuned reads of the course: one interface, three backends.

Must not know models, caches or what a number is for: tensors in, tensors out.

    kernels = helpers.kernels.select(device)          # "cpu", "cuda" or "reference", by device
    y = kernels.linear(x, weight)
    out = kernels.decode_attention(q, k, v, length)

*reference* is plain torch and runs anywhere; read it to know what the others compute. *cpu* is compiled by numba and
works in float32. *cuda* is written in Triton and works in bf16, fp16 or float32.

Shapes, alike in all backends:

    linear(x, weight, bias=None)
        x [batch, in], weight [out, in] → [batch, out]

    decode_attention(q, k, v, length, scale=None, return_lse=False, block_table=None)
        q [batch, q_heads, head_dim]; k, v [batch, kv_heads, capacity, head_dim] → [batch, q_heads, head_dim].
        Query heads h·group … h·group + group-1 share KV head h. Only the first `length` tokens count, an int or an
        integer tensor [batch]. `scale` of the scores, head_dim ** -0.5 if None. With `return_lse` also the natural log
        of the sum of the exponentials of the scores, [batch, q_heads], which lets `merge` join stretches of a context.
        A length of 0 gives zeros and minus infinity. With a `block_table`, int32 [batch, blocks], k and v are those of
        a paged cache, [blocks of the pool, kv_heads, block_size, head_dim]: entry i names the block that holds the
        tokens from i · block_size on.
        For the newest t tokens at once, q is [batch, q_heads, t, head_dim], and so is what is returned: `length`
        counts all of them, and each attends to the tokens up to its own. The cache is read once for all, which pays
        for a FEW; a prompt is better served by `helpers.models.attention`. The functions below take such a q as well.

    decode_attention_int8(q, k_q, k_scale, v_q, v_scale, length, scale=None, return_lse=False)
        int8 numbers in the shape of k and v; scales [batch, kv_heads, capacity], one a token and head.
        value = number · scale

    decode_attention_int4(q, k_q, k_scale, v_q, v_scale, length, k_zero=None, v_zero=None, scale=None, return_lse=False)
        uint8 [batch, kv_heads, capacity, head_dim/2]: a byte holds dim j in its low nibble and dim j + head_dim/2 in
        its high one. value = nibble · scale + zero; without zeros, (nibble - 8) · scale. A scale serves
            a group of dims of one token:    [batch, kv_heads, capacity, groups]          per token, the form of values
            one dim of a block of tokens:    [batch, kv_heads, capacity/block, head_dim]  per channel, for keys
        (per channel: where CAPABILITIES say so; `cuda` takes one or two groups a token).

    decode_attention_latent(q, latent, rank, length, scale, return_lse=False)
        multi-head latent attention: q [batch, q_heads, rank + rope_dim], latent [batch, capacity, rank + rope_dim]

    merge(outs, lses) → out, lse             cascade_attention(q, prefix_k, prefix_v, prefix_length, k, v, length)

What a backend has beyond this, it declares: each has CAPABILITIES, a `Capabilities`. `cpu` also has `warm_up()`, which
compiles.
"""

import contextlib
import contextvars
import importlib
import importlib.util
import os
from dataclasses import dataclass
from types import ModuleType

import torch

BACKENDS = ("reference", "cpu", "cuda")
FEW = 8  # newest tokens of a sequence, such as drafted ones, that are answered in one read of the cache; more: a prompt
TRITON_CAPABILITY = (7, 5)  # Turing, the oldest GPU that the Triton kernels are compiled for
BFLOAT16_CAPABILITY = (8, 0)  # Ampere; a GPU before it has no hardware for bfloat16
FP8_CAPABILITY = (8, 9)  # Ada, the first to convert fp8 in hardware

_said: set[str] = set()
_captured = contextvars.ContextVar("captured", default=False)


class KernelUnsupported(ValueError):
    """A backend does not take this dtype, device or memory layout; another backend may."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend takes and has, so that nobody needs to guess.

    Attributes:
        dtypes: of queries and unquantised caches.
        capacity_multiple: tokens; the capacity of a cache that it reads is a multiple of this.
        bound_caches: it has `BoundCache`, which handles the newest tokens of a contiguous cache in two calls.
        bound_blocks: it has `bind_norm_linear` and `bind_finish_block`, which run all of a layer but its attention.
        bound_places: its `BoundCache` also takes positions and lengths as tensors [batch] on the device.
        bound_tables: its `BoundCache` also takes the pool of a paged cache and tables of its blocks.
        bound_rings: it has `BoundRing`, the same for sinks and a ring whose keys are stored as they came.
        fp8: it has `decode_attention_fp8`, and its `BoundCache` takes fp8.
        scales_per_channel: its `decode_attention_int4` takes a scale for a dim of a block of tokens.
    """

    dtypes: tuple[torch.dtype, ...]
    capacity_multiple: int = 1
    bound_caches: bool = False
    bound_blocks: bool = False
    bound_places: bool = False
    bound_tables: bool = False
    bound_rings: bool = False
    fp8: bool = False
    scales_per_channel: bool = False

    def rounded(self, tokens: int) -> int:
        """The capacity to allocate for `tokens`."""
        return -(-tokens // self.capacity_multiple) * self.capacity_multiple


def select(device="cpu", name: str | None = None, dtype: torch.dtype | None = None) -> ModuleType:
    """The backend for `device`.

    Args:
        device: a torch device or its name.
        name: "reference", "cpu" or "cuda" to insist on one; None picks the fastest that runs on the device.
        dtype: of the numbers it will be given, where that is known: the compiled CPU loops are float32 only, and a GPU
            before Ampere does not compute in bfloat16 (ask `half` for the 16-bit type to take).

    Raises:
        ValueError: no backend of that name, or it does not run on the device or in the dtype.
    """
    device = torch.device(device)
    if name is None:
        name = _fastest(device, dtype)
    elif name not in BACKENDS:
        raise ValueError(f"no kernel backend {name!r}: choose {', '.join(BACKENDS)}, or None for the fastest")
    elif name != "reference" and device.type not in (name, "meta") and not (name == "cuda" and interpreted()):
        raise ValueError(
            f"the {name!r} backend does not run on device {str(device)!r}: leave the backend out, or take 'reference'"
        )
    backend = importlib.import_module(f"helpers.kernels.{name}")
    if dtype not in (None, *backend.CAPABILITIES.dtypes):
        raise ValueError(
            f"the {name!r} backend does not compute in {dtype}: leave the backend out, or take 'reference'"
        )
    if name == "cuda" and dtype == torch.bfloat16 and not _since(device, BFLOAT16_CAPABILITY):
        raise ValueError(f"this GPU has no hardware for bfloat16: take {half(device)}")
    return backend


def half(device) -> torch.dtype:
    """The 16-bit type that `device` has hardware for: bfloat16, and float16 on a CUDA device before Ampere."""
    return torch.bfloat16 if _since(device, BFLOAT16_CAPABILITY) else torch.float16


def reads_fp8(device) -> bool:
    """Whether `device` converts fp8 as it reads, which takes a CUDA device since Ada."""
    return torch.device(device).type == "cuda" and _since(device, FP8_CAPABILITY)


def interpreted() -> bool:
    """Whether Triton's kernels run in its interpreter, on any device, which is slow and for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@contextlib.contextmanager
def as_captured():
    """Within it, code does what it does while a CUDA graph is captured: it asks the device nothing."""
    token = _captured.set(True)
    try:
        yield
    finally:
        _captured.reset(token)


def is_captured(x: torch.Tensor) -> bool:
    """Whether work on `x` is being captured as a CUDA graph, or is to be as if it were."""
    return _captured.get() or (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _since(device, capability: tuple[int, int]) -> bool:
    """Whether `device` is none of CUDA's, or of this compute capability at least."""
    device = torch.device(device)
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= capability


def _fastest(device: torch.device, dtype: torch.dtype | None) -> str:
    if device.type == "cpu":
        if dtype not in (None, torch.float32):
            return _fall_back(f"there are no tuned CPU kernels for {dtype}")
        try:
            importlib.import_module("helpers.kernels.cpu")
        except ImportError as error:  # also where numba is there and does not know this numpy or this Python
            return _fall_back(f"the compiled CPU kernels need numba ({error})")
        return "cpu"
    if device.type == "cuda":
        found = torch.cuda.get_device_capability(device)
        if found >= TRITON_CAPABILITY and _importable("triton"):
            if dtype == torch.bfloat16 and found < BFLOAT16_CAPABILITY:
                return _fall_back(
                    f"this GPU (compute capability {found[0]}.{found[1]}) has no hardware for bfloat16, take float16"
                )
            return "reference" if dtype == torch.float64 else "cuda"
        return _fall_back(f"this GPU (compute capability {found[0]}.{found[1]}) or its software has no Triton kernels")
    if device.type == "meta":
        return "reference"
    return _fall_back(f"there are no tuned kernels for {device.type!r}")


def _importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _fall_back(reason: str) -> str:
    if reason not in _said:
        _said.add(reason)
        print(f"Note: {reason}; plain torch is used instead, which is correct but slower.")
    return "reference"
