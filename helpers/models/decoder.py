"""The transformer of the course: a Llama-shaped decoder that knows no cache layout.

Three entry points, as in a serving engine: `prefill` reads the prompt, many tokens at once; `decode` reads one token
per sequence, or a few of them, as when drafted tokens are verified; `mixed` does both in one pass. All hand keys and
values to a cache (`helpers.caches.base`) and let it answer the query.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from helpers import kernels
from helpers.models.geometry import Geometry
from helpers.models.latent_attention import LatentAttention
from helpers.models.parts import Parts


class _OnBackend(nn.Module):
    """A module that calls a kernel backend. Copies and pickles hold its name, since code itself cannot be copied."""

    def __init__(self, backend):
        super().__init__()
        self.kernels = backend

    def __getstate__(self):
        return self.__dict__ | {"kernels": self.kernels.__name__}

    def __setstate__(self, state):
        super().__setstate__(state | {"kernels": importlib.import_module(state["kernels"])})


class Linear(_OnBackend):
    """A product on the backend, which reads each weight once for a few tokens; a prompt goes to torch's own matmul."""

    def __init__(self, inputs: int, outputs: int, bias: bool, backend, **where):
        super().__init__(backend)
        self.weight = nn.Parameter(torch.empty(outputs, inputs, **where), requires_grad=False)
        zeros = nn.Parameter(torch.zeros(outputs, **where), requires_grad=False) if bias else None
        self.register_parameter("bias", zeros)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, t, inputs] → [batch, t, outputs]."""
        if x.shape[1] > kernels.FEW:
            return F.linear(x, self.weight, self.bias)
        return self.kernels.linear(x.flatten(0, 1), self.weight, self.bias).unflatten(0, x.shape[:2])


class RMSNorm(nn.Module):
    """x / rms(x) · weight, over the last dimension (Zhang and Sennrich, arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float, **where):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, **where), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Projections of grouped-query attention; the cache does the attending."""

    def __init__(self, g: Geometry, layer: int, backend, **where):
        super().__init__()
        self.g, self.layer = g, layer
        # One matrix for q, k and v: one pass over the input instead of three.
        self.qkv = Linear(g.hidden, (g.q_heads + 2 * g.kv_heads) * g.head_dim, g.attn_bias, backend, **where)
        self.out = Linear(g.q_heads * g.head_dim, g.hidden, False, backend, **where)
        if g.qk_norm:
            self.q_norm = RMSNorm(g.head_dim, g.norm_eps, **where)
            self.k_norm = RMSNorm(g.head_dim, g.norm_eps, **where)

    def forward(self, x: torch.Tensor, cache) -> torch.Tensor:
        batch, t, _ = x.shape
        heads = self.qkv(x).view(batch, t, -1, self.g.head_dim).transpose(1, 2)
        return self.out(self.mix(heads, cache).transpose(1, 2).reshape(batch, t, -1))

    def mix(self, heads: torch.Tensor, cache) -> torch.Tensor:
        """What the cache does: q, k and v [batch, q_heads + 2 · kv_heads, t, head_dim], not yet rotated,
        → [batch, q_heads, t, head_dim]."""
        g = self.g
        q, k, v = heads.split((g.q_heads, g.kv_heads, g.kv_heads), dim=1)
        if g.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        cache.append(self.layer, k, v)
        return cache.attend(self.layer, q)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) · up(x)), gate and up in one matrix (Shazeer, arXiv 2002.05202)."""

    def __init__(self, g: Geometry, backend, **where):
        super().__init__()
        self.gate_up = Linear(g.hidden, 2 * g.intermediate, False, backend, **where)
        self.down = Linear(g.intermediate, g.hidden, False, backend, **where)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


def _attention(g: Geometry, layer: int, backend, **where) -> nn.Module:
    if g.mla is None:
        return Attention(g, layer, backend, **where)
    return LatentAttention(
        g,
        layer,
        linear=lambda inputs, outputs: Linear(inputs, outputs, False, backend, **where),
        norm=lambda width: RMSNorm(width, g.norm_eps, **where),
        **where,
    )


class Block(_OnBackend):
    """One layer: attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, g: Geometry, layer: int, backend, **where):
        super().__init__(backend)
        self.attention_norm = RMSNorm(g.hidden, g.norm_eps, **where)
        self.attention = _attention(g, layer, backend, **where)
        self.mlp_norm = RMSNorm(g.hidden, g.norm_eps, **where)
        self.mlp = MLP(g, backend, **where)
        self.g = g
        self.use(backend)

    def use(self, backend) -> None:
        """Run on another kernel backend from now on."""
        self.kernels = backend
        self.fused = backend.CAPABILITIES.bound_blocks and self.g.mla is None and not self.g.attn_bias
        self.bound: tuple | None = None
        self.bound_to: tuple | None = None

    def __getstate__(self):
        return super().__getstate__() | {"bound": None, "bound_to": None}

    def forward(self, x: torch.Tensor, cache) -> torch.Tensor:
        """x [batch, t, hidden] → the same shape."""
        x = x + self.attention(self.attention_norm(x), cache)
        return x + self.mlp(self.mlp_norm(x))

    def decode(self, x: torch.Tensor, cache, tokens: int = 1) -> torch.Tensor:
        """The same for the newest `tokens` of each sequence, x [batch · tokens, hidden]: two calls around the cache
        where the backend can."""
        if self.fused and (found := self._found()) != self.bound_to:
            self.bound, self.bound_to = self._bind(), found
        if not self.fused or self.bound is None:
            return self(x.unflatten(0, (-1, tokens)), cache).flatten(0, 1)
        norm_qkv, attention, finish = self.bound
        if tokens == 1:
            heads = norm_qkv(x).view(x.shape[0], -1, 1, attention.g.head_dim)
            return finish(attention.mix(heads, cache).view(x.shape[0], -1), x)
        heads = norm_qkv(x).view(x.shape[0] // tokens, tokens, -1, attention.g.head_dim).transpose(1, 2)
        return finish(attention.mix(heads, cache).transpose(1, 2).reshape(x.shape[0], -1), x)

    def _bind(self):
        """The backend's two calls with this block's weights in them; None where a bias was added, which they lack."""
        attention, mlp = self.attention, self.mlp
        if any(linear.bias is not None for linear in (attention.qkv, attention.out, mlp.gate_up, mlp.down)):
            return None
        return (
            self.kernels.bind_norm_linear(self.attention_norm.weight, self.attention_norm.eps, attention.qkv.weight),
            attention,
            self.kernels.bind_finish_block(
                attention.out.weight, self.mlp_norm.weight, self.mlp_norm.eps, mlp.gate_up.weight, mlp.down.weight
            ),
        )

    def _found(self) -> tuple:
        """Which weights stand in this block now, by identity and address: what was bound is stale once they differ.

        Asked at every step, so it reads nn.Module's dictionaries, a tenth of the time that attributes take. An event
        would not do: `weight.data = …` tells nobody.
        """
        parts: dict[str, Any] = self._modules
        first, second, attention, mlp = parts["attention_norm"], parts["mlp_norm"], parts["attention"], parts["mlp"]
        into, out_of = attention._modules, mlp._modules
        qkv, out = into["qkv"]._parameters, into["out"]._parameters
        gate_up, down = out_of["gate_up"]._parameters, out_of["down"]._parameters
        a, b, c, d = qkv["weight"], out["weight"], gate_up["weight"], down["weight"]
        e, f = first._parameters["weight"], second._parameters["weight"]
        return (
            id(a), id(b), id(c), id(d), id(e), id(f), id(attention), first.eps, second.eps,
            a.data_ptr(), b.data_ptr(), c.data_ptr(), d.data_ptr(), e.data_ptr(), f.data_ptr(),
            qkv["bias"] is None, out["bias"] is None, gate_up["bias"] is None, down["bias"] is None,
        )  # fmt: skip


class Decoder(_OnBackend):
    """A decoder of any dense geometry, with synthetic weights until real ones are loaded.

    Args:
        geometry: the shape of the model.
        dtype: of the weights and activations.
        device: where the weights live; "meta" builds the shapes without the bytes.
        backend: name of a kernel backend (`helpers.kernels.select`); None picks the fastest for the device.
        seed: of the synthetic weights; None leaves them uninitialised, for a caller that loads its own.

    Raises:
        ValueError: a mixture of experts or an ungated MLP, which this decoder does not run.
    """

    def __init__(
        self, geometry: Geometry, dtype=torch.float32, device="cpu", backend: str | None = None, seed: int | None = 0
    ):
        super().__init__(kernels.select(device, backend, dtype))
        if geometry.moe is not None:
            raise ValueError(f"{geometry.name} is a mixture of experts; this decoder runs dense models only")
        if not geometry.gated_mlp:
            raise ValueError(
                f"{geometry.name} has the older two-matrix MLP; this decoder runs gated (SwiGLU) ones only"
            )
        self.geometry, self.dtype, self.device, self.backend = geometry, dtype, torch.device(device), backend
        where = {"dtype": dtype, "device": self.device}
        g = geometry
        self.embedding = nn.Parameter(torch.empty(g.vocab, g.hidden, **where), requires_grad=False)
        self.blocks = nn.ModuleList(Block(g, layer, self.kernels, **where) for layer in range(g.layers))
        self.norm = RMSNorm(g.hidden, g.norm_eps, **where)
        self.head = Linear(g.hidden, g.vocab, False, self.kernels, **where)
        if g.tied_embeddings:
            self.head.weight = self.embedding
        if seed is not None and self.device.type != "meta":
            self._randomise(seed)

    def _randomise(self, seed: int) -> None:
        """Scaled normal weights, so that activations stay finite through any number of layers."""
        generator = torch.Generator(device=self.device).manual_seed(seed)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)

    def _apply(self, fn, recurse: bool = True):
        """`to`, `half`, `cuda` and their like: the kernels follow the weights."""
        super()._apply(fn, recurse)
        self.dtype, self.device = self.embedding.dtype, self.embedding.device
        self.kernels = kernels.select(self.device, self.backend, self.dtype)
        for part in self.modules():
            if isinstance(part, Block):
                part.use(self.kernels)
            elif isinstance(part, _OnBackend):
                part.kernels = self.kernels
        return self

    @torch.inference_mode()
    def prefill(self, tokens: torch.Tensor, cache, all_positions: bool = False) -> torch.Tensor:
        """Read a prompt, or the next part of one.

        Args:
            tokens: [batch, t] token ids.
            cache: receives the keys and values of the t tokens.
            all_positions: return the logits of every position instead of the last.

        Returns:
            Logits [batch, vocab], or [batch, t, vocab] with `all_positions`.

        Raises:
            ValueError: tokens is not [batch, t] with t ≥ 1, or its batch is not the cache's.
            CacheFull: the prompt does not fit the cache.
        """
        self._check(tokens, cache, "[batch, t] with t ≥ 1", dimensions=(2,))
        x = F.embedding(tokens, self.embedding)
        for block in self.blocks:
            x = block(x, cache)
        if not all_positions:
            x = x[:, -1:]
        logits = self.head(self.norm(x))
        return logits if all_positions else logits[:, 0]

    @torch.inference_mode()
    def decode(self, tokens: torch.Tensor, cache) -> torch.Tensor:
        """One decode step.

        Args:
            tokens: [batch], the newest of each sequence; or [batch, t], its newest t in order, such as drafted ones to
                be verified. A cache is read once for up to `kernels.FEW` of them, weights for all.

        Returns:
            Logits of what follows each token, [batch, vocab] or [batch, t, vocab].

        Raises:
            ValueError, CacheFull: as in `prefill`.
        """
        self._check(tokens, cache, "[batch], or [batch, t] with t ≥ 1", dimensions=(1, 2))
        each = 1 if tokens.dim() == 1 else tokens.shape[1]
        x = F.embedding(tokens.flatten(), self.embedding)
        for block in self.blocks:
            x = block.decode(x, cache, each)
        logits = self.head(self.norm(x)[:, None])[:, 0]
        return logits if tokens.dim() == 1 else logits.unflatten(0, tokens.shape)

    @torch.inference_mode()
    def mixed(self, parts: Sequence[tuple[torch.Tensor, Any]]) -> list[torch.Tensor]:
        """One pass over sequences that take different numbers of tokens, such as answers beside a chunk of a prompt.

        The rows of all parts are multiplied together, so each weight is read once; every part's cache stores and
        answers what is its own.

        Args:
            parts: (tokens [batch, t], cache), as `prefill` takes them; t differs from part to part.

        Returns:
            For each part the logits of what follows the last token of its sequences, [batch, vocab].

        Raises:
            ValueError, CacheFull: as in `prefill`, or one cache in two parts. A refusal comes in the first layer, which
                the parts in front have entered by then: make their caches anew, or `rewind` them.
        """
        for tokens, cache in parts:
            self._check(tokens, cache, "[batch, t] with t ≥ 1", dimensions=(2,))
        caches = [cache for _, cache in parts]
        if not parts or len({id(cache) for cache in caches}) < len(parts):
            raise ValueError("give one part or more, each with a cache of its own")
        shapes = [tokens.shape for tokens, _ in parts]
        x = F.embedding(torch.cat([tokens.flatten() for tokens, _ in parts]), self.embedding)
        together = Parts(caches, shapes)
        for block in self.blocks:
            x = block.decode(x, together, len(x))
        last = [rows.unflatten(0, shape)[:, -1] for rows, shape in zip(x.split(together.rows), shapes, strict=True)]
        logits = self.head(self.norm(torch.cat(last))[:, None])[:, 0]
        return list(logits.split([batch for batch, _ in shapes]))

    def _check(self, tokens: torch.Tensor, cache, shape: str, dimensions: tuple[int, ...]) -> None:
        if tokens.dim() not in dimensions or tokens.numel() == 0:
            raise ValueError(f"tokens must be {shape}, not {list(tokens.shape)}")
        if tokens.shape[0] != cache.batch:
            raise ValueError(f"{tokens.shape[0]} sequences given to a cache built for batch={cache.batch}")

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one decode step streams: every matrix once, an untied input embedding not at all."""
        total = sum(parameter.nbytes for parameter in self.parameters())
        return total if self.head.weight is self.embedding else total - self.embedding.nbytes
