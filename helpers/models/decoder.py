"""The transformer of the course: a Llama-shaped decoder that knows no cache layout.

Two entry points, as in a serving engine: `prefill` reads the prompt, many tokens at once; `decode` reads one token
per sequence. Both hand keys and values to a cache (`helpers.caches.base`) and let it answer the query.
"""

import torch
import torch.nn.functional as F
from torch import nn

from helpers import kernels
from helpers.models.geometry import Geometry
from helpers.models.latent_attention import LatentAttention


class Linear(nn.Module):
    """A matrix-vector product when one token per sequence comes in, torch's own matmul when a prompt does."""

    def __init__(self, inputs: int, outputs: int, bias: bool, backend, **where):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, **where), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(outputs, **where), requires_grad=False) if bias else None
        self.kernels = backend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, t, inputs] → [batch, t, outputs]."""
        if x.shape[1] == 1:
            return self.kernels.linear(x[:, 0], self.weight, self.bias)[:, None]
        return F.linear(x, self.weight, self.bias)


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


class Block(nn.Module):
    """One layer: attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, g: Geometry, layer: int, backend, **where):
        super().__init__()
        self.attention_norm = RMSNorm(g.hidden, g.norm_eps, **where)
        self.attention = _attention(g, layer, backend, **where)
        self.mlp_norm = RMSNorm(g.hidden, g.norm_eps, **where)
        self.mlp = MLP(g, backend, **where)
        self.kernels = backend
        self.fused = hasattr(backend, "bind_finish_block") and g.mla is None and not g.attn_bias
        self.bound = None

    def forward(self, x: torch.Tensor, cache) -> torch.Tensor:
        """x [batch, t, hidden] → the same shape."""
        x = x + self.attention(self.attention_norm(x), cache)
        return x + self.mlp(self.mlp_norm(x))

    def decode(self, x: torch.Tensor, cache) -> torch.Tensor:
        """The same for one token per sequence, x [batch, hidden]: two calls around the cache where the backend can."""
        if not self.fused:
            return self(x[:, None], cache)[:, 0]
        if self.bound is None:
            # Once, because nn.Module finds an attribute slowly, and a step would look up five hundred. Weights are
            # loaded in place, so these stay the block's own.
            self.bound = (
                self.kernels.bind_norm_linear(
                    self.attention_norm.weight, self.attention_norm.eps, self.attention.qkv.weight
                ),
                self.attention,
                self.kernels.bind_finish_block(
                    self.attention.out.weight,
                    self.mlp_norm.weight, self.mlp_norm.eps, self.mlp.gate_up.weight, self.mlp.down.weight,
                ),
            )  # fmt: skip
        norm_qkv, attention, finish = self.bound
        batch = x.shape[0]
        heads = norm_qkv(x).view(batch, -1, 1, attention.g.head_dim)
        return finish(attention.mix(heads, cache).view(batch, -1), x)


class Decoder(nn.Module):
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
        super().__init__()
        if geometry.moe is not None:
            raise ValueError(f"{geometry.name} is a mixture of experts; this decoder runs dense models only")
        if not geometry.gated_mlp:
            raise ValueError(
                f"{geometry.name} has the older two-matrix MLP; this decoder runs gated (SwiGLU) ones only"
            )
        self.geometry, self.dtype, self.device = geometry, dtype, torch.device(device)
        self.kernels = kernels.select(self.device, backend, dtype)
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
        self._check(tokens, cache, dimensions=2)
        x = F.embedding(tokens, self.embedding)
        for block in self.blocks:
            x = block(x, cache)
        if not all_positions:
            x = x[:, -1:]
        logits = self.head(self.norm(x))
        return logits if all_positions else logits[:, 0]

    @torch.inference_mode()
    def decode(self, tokens: torch.Tensor, cache) -> torch.Tensor:
        """One decode step: tokens [batch], the newest of each sequence → logits [batch, vocab] of the next."""
        self._check(tokens, cache, dimensions=1)
        x = F.embedding(tokens, self.embedding)
        for block in self.blocks:
            x = block.decode(x, cache)
        return self.head(self.norm(x)[:, None])[:, 0]

    def _check(self, tokens: torch.Tensor, cache, dimensions: int) -> None:
        shape = "[batch, t] with t ≥ 1" if dimensions == 2 else "[batch]"
        if tokens.dim() != dimensions or tokens.numel() == 0:
            raise ValueError(f"tokens must be {shape}, not {list(tokens.shape)}")
        if tokens.shape[0] != cache.batch:
            raise ValueError(f"{tokens.shape[0]} sequences given to a cache built for batch={cache.batch}")

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one decode step streams: every matrix once, an untied input embedding not at all."""
        total = sum(parameter.nbytes for parameter in self.parameters())
        return total if self.geometry.tied_embeddings else total - self.embedding.nbytes
