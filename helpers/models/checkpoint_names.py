"""What Hugging Face and GGUF call the tensors of a Llama-shaped checkpoint, and where the decoder has them."""

from collections.abc import Callable

import torch

from helpers.models.decoder import Decoder
from helpers.models.geometry import Geometry


def views(decoder: Decoder) -> dict[str, torch.Tensor]:
    """The decoder's weights by Hugging Face name: views, so that what is written to them is the decoder's own."""
    g = decoder.geometry
    heads = [count * g.head_dim for count in (g.q_heads, g.kv_heads, g.kv_heads)]
    named = {"model.embed_tokens.weight": decoder.embedding, "model.norm.weight": decoder.norm.weight}
    if not g.tied_embeddings:
        named["lm_head.weight"] = decoder.head.weight
    for i, block in enumerate(decoder.blocks):
        q, k, v = block.attention.qkv.weight.split(heads)
        gate, up = block.mlp.gate_up.weight.chunk(2)
        layer = {
            "self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v,
            "self_attn.o_proj": block.attention.out.weight,
            "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": block.mlp.down.weight,
            "input_layernorm": block.attention_norm.weight, "post_attention_layernorm": block.mlp_norm.weight,
        }  # fmt: skip
        named |= {f"model.layers.{i}.{name}.weight": tensor for name, tensor in layer.items()}
    return named


def gguf_name(layers: int) -> Callable[[str], str]:
    """A function model.layers.3.self_attn.q_proj.weight → blk.3.attn_q.weight, by the gguf package's own table."""
    import gguf  # here, because a Hugging Face directory does without it

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    return lambda name: names.get_name(name, try_suffixes=(".weight",))


def to_gguf_rows(name: str, weight: torch.Tensor, g: Geometry) -> torch.Tensor:
    """The row order of GGUF's llama files, whose queries and keys pair neighbouring lanes for RoPE; ours pair the two
    halves, as Hugging Face's do."""
    heads = _rotated_heads(name, g)
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape) if heads else weight


def from_gguf_rows(name: str, weight: torch.Tensor, g: Geometry) -> torch.Tensor:
    """What `to_gguf_rows` was given."""
    heads = _rotated_heads(name, g)
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape) if heads else weight


def _rotated_heads(name: str, g: Geometry) -> int | None:
    return {"q_proj": g.q_heads, "k_proj": g.kv_heads}.get(name.split(".")[-2])
