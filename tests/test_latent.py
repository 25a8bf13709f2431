"""MLA: the decoder's layer against transformers' DeepSeek-V3, absorbed against expanded, the cache's promises."""

import pytest
import torch
import torch.nn.functional as F

from helpers.caches import CacheFull, FullCache
from helpers.caches.latent import LatentCache
from helpers.exercises.traffic import Traffic
from helpers.models import rope
from helpers.models.attention import causal
from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.decoder import Decoder
from helpers.models.geometry import MLA, Geometry, get
from helpers.models.latent_attention import LatentAttention


def tiny(q_lora_rank=0, **changes):
    mla = MLA(kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12, q_lora_rank=q_lora_rank)
    shape = dict(
        name="tiny-mla", layers=2, hidden=48, q_heads=4, kv_heads=4, head_dim=24, intermediate=64, vocab=97,
        norm_eps=1e-6, mla=mla,
    )  # fmt: skip
    return Geometry(**{**shape, **changes})


@pytest.fixture(params=[0, 20], ids=["direct queries", "compressed queries"])
def geometry(request):
    return tiny(q_lora_rank=request.param)


def interleaved(rows, groups, plain, rotary):
    """Rows of a projection, per group `plain` lanes and then `rotary` ones: i and i + rotary/2 become neighbours."""
    order = torch.arange(rotary).view(2, -1).T.flatten() + plain
    width = plain + rotary
    order = torch.cat([torch.cat((torch.arange(plain), order)) + group * width for group in range(groups)])
    return rows[order]


def deepseek(geometry, decoder, interleave=False):
    """transformers' DeepSeek-V3 with every layer dense and the decoder's weights.

    DeepSeek's checkpoints pair neighbouring rotary lanes (`interleave`), the decoder lanes half a width apart.
    """
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    g, m = geometry, geometry.mla
    config = DeepseekV3Config(
        vocab_size=g.vocab, hidden_size=g.hidden, intermediate_size=g.intermediate, num_hidden_layers=g.layers,
        num_attention_heads=g.q_heads, num_key_value_heads=g.q_heads, q_lora_rank=m.q_lora_rank or None,
        kv_lora_rank=m.kv_lora_rank, qk_rope_head_dim=m.qk_rope_head_dim, qk_nope_head_dim=m.qk_nope_head_dim,
        v_head_dim=m.v_head_dim, rms_norm_eps=g.norm_eps, rope_theta=g.rope_theta, rope_interleave=interleave,
        first_k_dense_replace=g.layers, tie_word_embeddings=False, attn_implementation="eager",
        n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=8,
    )  # fmt: skip
    model = DeepseekV3ForCausalLM(config).eval()
    state = {
        "model.embed_tokens.weight": decoder.embedding,
        "model.norm.weight": decoder.norm.weight,
        "lm_head.weight": decoder.head.weight,
    }
    for i, block in enumerate(decoder.blocks):
        attention, gate_up = block.attention, block.mlp.gate_up.weight
        query_up, kv_down = attention.query_up.weight, attention.kv_down.weight
        if interleave:
            query_up = interleaved(query_up, g.q_heads, m.qk_nope_head_dim, m.qk_rope_head_dim)
            kv_down = interleaved(kv_down, 1, m.kv_lora_rank, m.qk_rope_head_dim)
        up = torch.cat((attention.w_uk, attention.w_uv), dim=1)
        names = {
            "input_layernorm": block.attention_norm.weight,
            "post_attention_layernorm": block.mlp_norm.weight,
            "self_attn.kv_a_proj_with_mqa": kv_down,
            "self_attn.kv_a_layernorm": attention.kv_norm.weight,
            "self_attn.kv_b_proj": up.reshape(-1, m.kv_lora_rank),
            "self_attn.o_proj": attention.out.weight,
            "mlp.gate_proj": gate_up[: g.intermediate],
            "mlp.up_proj": gate_up[g.intermediate :],
            "mlp.down_proj": block.mlp.down.weight,
        }
        if m.q_lora_rank:
            names |= {
                "self_attn.q_a_proj": attention.query_down.weight,
                "self_attn.q_a_layernorm": attention.query_norm.weight,
                "self_attn.q_b_proj": query_up,
            }
        else:
            names["self_attn.q_proj"] = query_up
        state |= {f"model.layers.{i}.{name}.weight": weight for name, weight in names.items()}
    model.load_state_dict(state)
    return model


def decoder_with_uneven_norms(geometry):
    decoder = Decoder(geometry, seed=3)
    generator = torch.Generator().manual_seed(4)
    for parameter in decoder.parameters():
        if parameter.dim() == 1:  # the norms; all ones would hide a norm in the wrong place
            parameter.uniform_(0.5, 1.5, generator=generator)
    return decoder


@pytest.mark.parametrize("interleave", [False, True], ids=["half-split", "interleaved"])
@torch.inference_mode()
def test_prefill_and_decode_equal_transformers_deepseek_v3(geometry, interleave):
    decoder = decoder_with_uneven_norms(geometry)
    model = deepseek(geometry, decoder, interleave)
    tokens = torch.randint(geometry.vocab, (2, 24), generator=torch.Generator().manual_seed(0))
    expect = model(tokens).logits

    cache = LatentCache(geometry, capacity=24, batch=2)
    got = [decoder.prefill(tokens[:, :13], cache, all_positions=True)]
    got.append(decoder.prefill(tokens[:, 13:17], cache, all_positions=True))
    got += [decoder.decode(tokens[:, i], cache)[:, None] for i in range(17, 24)]
    assert (torch.cat(got, dim=1) - expect).abs().max() < 1e-4
    assert cache.length == 24


@torch.inference_mode()
def test_layer_alone_equals_transformers_attention(geometry):
    """In float64, so that only a wrong formula can differ."""
    decoder = decoder_with_uneven_norms(geometry).double()
    theirs = deepseek(geometry, decoder).double()
    attention, layer = theirs.model.layers[0].self_attn, decoder.blocks[0].attention
    assert isinstance(layer, LatentAttention)
    x = torch.randn(2, 10, geometry.hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.full((10, 10), float("-inf"), dtype=torch.float64).triu(1)[None, None]
    positions = theirs.model.rotary_emb(x, torch.arange(10)[None])
    expect, _ = attention(x, positions, mask)
    got = layer(x, LatentCache(geometry, capacity=10, batch=2, dtype=torch.float64))
    assert (got - expect).abs().max() < 1e-6


def expanded(q_content, q_position, latents, keys, key_up, value_up):
    """MLA as the formula of the paper says: a key and a value per head and token, made from the latent."""
    k = torch.einsum("hdr,bnr->bhnd", key_up, latents)
    k = torch.cat((k, keys[:, None].expand(-1, key_up.shape[0], -1, -1)), dim=-1)
    v = torch.einsum("hdr,bnr->bhnd", value_up, latents)
    return F.scaled_dot_product_attention(torch.cat((q_content, q_position), dim=-1), k, v)


@pytest.mark.parametrize("context", [1, 7, 1024, 1025, 3000])
def test_absorbed_decode_equals_expanded_form(context):
    g = get("DeepSeek-V2-Lite").replace(layers=1)
    m, batch = g.mla, 2
    generator = torch.Generator().manual_seed(context)
    draw = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    cache = LatentCache(g, capacity=context, batch=batch)
    latents, keys = draw(batch, context, m.kv_lora_rank), draw(batch, context, m.qk_rope_head_dim)
    cache.append(0, keys[:, None], latents[:, None])
    content, position = (
        draw(batch, g.q_heads, 1, m.qk_nope_head_dim),
        draw(batch, g.q_heads, 1, m.qk_rope_head_dim),
    )
    key_up = draw(g.q_heads, m.qk_nope_head_dim, m.kv_lora_rank) * m.kv_lora_rank**-0.5
    value_up = draw(g.q_heads, m.v_head_dim, m.kv_lora_rank) * m.kv_lora_rank**-0.5

    mixed = cache.attend(0, torch.cat((content @ key_up, position), dim=-1))
    got = mixed @ value_up.transpose(1, 2)

    cos, sin = rope.tables(context, m.qk_rope_head_dim, g.rope_theta)
    last = slice(context - 1, context)
    expect = expanded(
        *(x.double() for x in (
            content, rope.rotate(position, cos[last], sin[last]), latents, rope.rotate(keys, cos, sin), key_up, value_up
        ))
    )  # fmt: skip
    assert (got - expect).abs().max() < 1e-5


def test_prompt_in_blocks_equals_one_query_at_a_time():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 3, 300, 20, generator=generator, dtype=torch.float64)
    rows = torch.randn(2, 500, 20, generator=generator, dtype=torch.float64)
    got = causal(q, rows[:, None], rows[:, None, :, :16], scale=1.0, tile=128)
    for i in (0, 127, 128, 299):
        seen = rows[:, : 200 + i + 1]
        expect = (q[:, :, i] @ seen.transpose(1, 2)).softmax(-1) @ seen[..., :16]
        assert torch.allclose(got[:, :, i], expect, atol=1e-12)


def test_decode_never_expands_the_latents():
    g = tiny()
    decoder, cache = Decoder(g), LatentCache(g, capacity=2049)
    cache.fill(2048)
    with Traffic() as traffic:
        decoder.decode(torch.zeros(1, dtype=torch.long), cache)
    assert traffic.largest < g.q_heads * 2048 * g.mla.v_head_dim


def test_bytes_are_those_of_the_geometry():
    g = get("DeepSeek-V2-Lite").replace(layers=3)
    cache = LatentCache(g, capacity=100, batch=2, dtype=torch.bfloat16)
    assert cache.nbytes == kv_bytes(g, 100, 2, torch.bfloat16) == 3 * 2 * 100 * 576 * 2
    cache.fill(40)
    assert cache.length == 40 and cache.step_bytes(40) == 3 * 2 * 40 * 576 * 2


def test_decoder_streams_the_weights_that_the_geometry_counts():
    g = tiny(q_lora_rank=20)
    assert Decoder(g, device="meta").weight_bytes == weight_bytes(g, torch.float32)


@torch.inference_mode()
def test_rewind_forgets():
    g = tiny()
    decoder, cache = Decoder(g), LatentCache(g, capacity=20)
    tokens = torch.arange(12)[None]
    first = decoder.prefill(tokens, cache)
    decoder.prefill(tokens[:, :5], cache)
    cache.rewind(0)
    assert torch.equal(decoder.prefill(tokens, cache), first)
    cache.rewind(11)
    assert torch.allclose(decoder.decode(tokens[:, 11], cache), first, atol=1e-5)


def test_mistakes_are_named():
    g = tiny()
    with pytest.raises(ValueError, match="no latent: use FullCache"):
        LatentCache(get("SmolLM2-135M"), capacity=8)
    with pytest.raises(ValueError, match="use LatentCache"):
        FullCache(g, capacity=8)
    with pytest.raises(ValueError, match="capacity must be"):
        LatentCache(g, capacity=0)
    cache = LatentCache(g, capacity=8)
    with pytest.raises(CacheFull, match="9 tokens do not fit"):
        Decoder(g).prefill(torch.zeros(1, 9, dtype=torch.long), cache)
    assert cache.lengths == [0] and not cache.rows.any()
    with pytest.raises(ValueError, match="cannot continue at 9"):
        cache.rewind(9)
