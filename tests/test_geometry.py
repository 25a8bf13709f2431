"""Geometry against transformers' own classes and models, published byte counts and torch's allocator."""

import dataclasses
import json

import pytest
import torch
import transformers

from helpers import data
from helpers.models import counts, geometry, hf_config
from helpers.models.decoder import Decoder
from helpers.models.geometry import MLA, Geometry, MoE

MODELS = data.load("models")
TINY = dict(name="t", layers=2, hidden=32, q_heads=4, kv_heads=2, head_dim=8, intermediate=64, vocab=96)


# --- bytes against published figures


@pytest.mark.parametrize("row", MODELS, ids=[row["id"] for row in MODELS])
def test_bytes_per_token_are_the_published_ones(row):
    g = geometry.get(row["id"])
    assert counts.kv_bytes(g, 1) == row["kv_bytes_per_token_bf16_all_layers"]
    far = 300_000  # beyond every window
    growing = counts.kv_bytes(g, far + 1, windowed=True) - counts.kv_bytes(g, far, windowed=True)
    assert growing == row["kv_bytes_per_token_bf16_growing"]
    assert g.source and g.attention == ("mla" if row.get("mla") else g.attention)


@pytest.mark.parametrize("row", MODELS, ids=[row["id"] for row in MODELS])
def test_weights_of_a_step_are_the_published_ones(row):
    streamed = counts.weight_bytes(geometry.get(row["id"]), torch.bfloat16) / 2
    if "params_read_per_decode_step_b1" in row:  # published counts leave norms and biases out
        assert streamed == pytest.approx(row["params_read_per_decode_step_b1"], rel=1e-3)
    elif "params_active_published" in row:  # rounded figures; some makers count the input embedding
        assert streamed == pytest.approx(row["params_active_published"], rel=0.06)


@pytest.mark.parametrize(
    ("name", "tokens", "published_gib"),
    [
        ("Qwen3-4B", 83_488, 11.465),
        ("Llama-3.1-8B", 128_000, 15.625),
        ("Llama-3.1-70B", 128_000, 39.0625),
        ("gpt-oss-20b", 8_192 * 32, 12.0),
    ],
)
def test_memory_that_engines_reported(name, tokens, published_gib):
    assert counts.kv_bytes(geometry.get(name), tokens) / 2**30 == pytest.approx(published_gib, abs=0.005)


def test_batch_dtype_and_real_allocation():
    g = Geometry(**TINY)
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        meta = counts.kv_tensors(g, tokens=5, batch=3, dtype=dtype)
        real = [torch.zeros_like(tensor, device="cpu") for tensor in meta]
        assert {t.device.type for t in meta} == {"meta"} and len(meta) == 4
        assert counts.kv_bytes(g, 5, 3, dtype) == sum(t.untyped_storage().nbytes() for t in real)


def test_mla_holds_one_latent_a_layer():
    g = geometry.get("DeepSeek-V3")
    tensors = counts.kv_tensors(g, tokens=7, batch=2)
    assert len(tensors) == g.layers and tensors[0].shape == (2, 7, 512 + 64)


def test_windowed_caps_only_the_sliding_layers():
    g = geometry.get("Gemma-3-4b-it")
    tokens = [t.shape[2] for t in counts.kv_tensors(g, 5_000, windowed=True)][::2]
    assert sorted(tokens) == [1024] * 29 + [5_000] * 5
    assert counts.kv_bytes(g, 1_024, windowed=True) == counts.kv_bytes(g, 1_024)


# --- against transformers' models


def meta_model(config):
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("name", ["SmolLM2-135M", "Qwen3-4B", "Llama-3.1-8B"])
def test_weights_are_those_of_a_decoder_with_all_its_layers(name):
    whole = Decoder(geometry.get(name), dtype=torch.bfloat16, device="meta")
    assert counts.weight_bytes(geometry.get(name)) == whole.weight_bytes
    assert counts.resident_bytes(geometry.get(name)) == sum(p.nbytes for p in whole.parameters())


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "SmolLM2-135M", "Mixtral-8x7B-v0.1", "DeepSeek-V2-Lite"])
def test_weights_are_counted_in_dtypes_that_nothing_computes_in(name):
    whole = geometry.get(name)
    half = counts.weight_bytes(whole, torch.bfloat16) / 2
    assert counts.weight_bytes(whole, torch.int8) == half == counts.weight_bytes(whole, torch.float8_e4m3fn)


@pytest.mark.parametrize("row", MODELS, ids=[row["id"] for row in MODELS])
def test_resident_weights_are_the_published_ones(row):
    parameters = counts.resident_bytes(geometry.get(row["id"])) / 2
    if "params_matmul_total" in row:  # without norms and biases
        assert parameters == pytest.approx(row["params_matmul_total"], rel=2e-3)
    elif "params_total_published" in row:  # rounded, of Kimi-K2 to 1T
        assert parameters == pytest.approx(row["params_total_published"], rel=0.03)


def test_all_experts_of_mixtral_are_resident_and_two_are_read():
    mixtral = geometry.get("Mixtral-8x7B-v0.1")  # 46.7B parameters, 12.9B active: mistral.ai/news/mixtral-of-experts
    assert counts.resident_bytes(mixtral) / 2 == pytest.approx(46.7e9, rel=1e-3)
    assert counts.weight_bytes(mixtral) / 2 == pytest.approx(12.9e9 - 32_000 * 4_096, rel=5e-3)  # less its embedding


def matrices_of_a_step(model, experts_read):
    """Parameters that one token's step multiplies by, with `experts_read` of the routed experts."""
    total = 0
    for name, parameter in model.named_parameters():
        if "embed" in name or "bias" in name or parameter.dim() < 2:
            continue
        if ".experts." in name and parameter.dim() == 3:  # [experts, out, in]
            total += parameter[0].numel() * experts_read
        else:
            total += parameter.numel()
    head = model.get_output_embeddings().weight
    return total + (head.numel() if head is model.get_input_embeddings().weight else 0)


SMALL = dict(num_hidden_layers=3, hidden_size=64, num_attention_heads=4, intermediate_size=96, vocab_size=128)
CONFIGS = [
    transformers.LlamaConfig(**SMALL, num_key_value_heads=2),
    transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
    transformers.MistralConfig(**SMALL, num_key_value_heads=2, head_dim=16),
    transformers.MixtralConfig(**SMALL, num_key_value_heads=2),
    transformers.Qwen2Config(**SMALL, num_key_value_heads=4),
    transformers.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=32),
    transformers.Qwen3MoeConfig(
        **SMALL,
        num_key_value_heads=1,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        mlp_only_layers=[1],
    ),
    transformers.Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=32),
    transformers.Gemma3TextConfig(**SMALL, num_key_value_heads=1, head_dim=32),
    transformers.GptOssConfig(
        **{**SMALL, "num_hidden_layers": 4},
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    transformers.DeepseekV2Config(
        **SMALL,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
        q_lora_rank=None,
        kv_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
    ),
    transformers.DeepseekV3Config(
        **SMALL,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
        q_lora_rank=40,
        kv_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
    ),
    transformers.Phi3Config(**SMALL, pad_token_id=0),
    transformers.SmolLM3Config(**SMALL, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    transformers.GPTNeoXConfig(**SMALL),
]
IDS = [f"{config.model_type}-{i}" for i, config in enumerate(CONFIGS)]


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_step_weights_equal_the_transformers_model(config):
    g = hf_config.read(config.to_dict())
    expect = matrices_of_a_step(meta_model(config), experts_read=g.moe.per_token if g.moe else 0)
    matrices = sum(m.numel() for m in counts._step_matrices(g, torch.float32))
    assert matrices == expect
    norms = 0.01 * expect + 40 * g.layers * g.hidden
    assert 0 < counts.weight_bytes(g, torch.float32) / 4 - matrices <= norms


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_resident_weights_are_all_parameters_of_the_transformers_model(config):
    """Every expert and both embeddings; of vectors those that Decoder has, so a few of other models are missing."""
    g, parameters = hf_config.read(config.to_dict()), dict(meta_model(config).named_parameters())
    matrices = {name: p for name, p in parameters.items() if p.dim() >= 2 and "bias" not in name}
    resident = counts.resident_bytes(g, torch.float32) // 4
    assert 0 < resident - sum(p.numel() for p in matrices.values()) <= 40 * g.layers * g.hidden
    if config.model_type in ("llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "phi3", "deepseek_v2"):
        assert resident == sum(p.numel() for p in parameters.values())


@pytest.mark.parametrize(
    "config",
    [c for c in CONFIGS if not c.model_type.startswith("deepseek")],
    ids=[i for i in IDS if not i.startswith("deepseek")],
)
def test_cache_equals_what_transformers_allocates(config):
    """A real forward pass of the small model; its cache is weighed."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        cache = model(torch.arange(1, 7)[None].repeat(2, 1), use_cache=True).past_key_values
    held = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
    g = hf_config.read(config.to_dict())
    assert counts.kv_bytes(g, 6, batch=2, dtype=torch.float32) == held


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_a_saved_config_reads_the_same(config, tmp_path):
    config.save_pretrained(tmp_path)  # leaves defaults out, as the files on the hub do
    saved = hf_config.read(tmp_path)
    whole = hf_config.read(config.to_dict())
    assert dataclasses.replace(saved, name="") == dataclasses.replace(whole, name="")
    assert hf_config.read(str(tmp_path / "config.json")).layers == whole.layers


@pytest.mark.parametrize(
    "kind",
    [
        "Mistral",
        "Mixtral",
        "Qwen2",
        "Qwen3",
        "Qwen3Moe",
        "Gemma",
        "Gemma2",
        "Gemma3Text",
        "GptOss",
        "DeepseekV2",
        "DeepseekV3",
        "SmolLM3",
        "Llama4Text",
        "Llama",
        "Phi3",
    ],
)
def test_a_missing_key_means_what_transformers_assumes(kind):
    config = getattr(transformers, f"{kind}Config")().to_dict()
    stated = {"model_type": config["model_type"]}
    for key in (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "num_experts_per_tok",
        "max_position_embeddings",
    ):
        if key in config:
            stated[key] = config[key] if config[key] is not None else 2
    if "num_experts_per_tok" in config:
        config = {**config, "num_experts_per_tok": stated["num_experts_per_tok"]}
    sparse, full = hf_config.read(stated), hf_config.read(config)
    assert dataclasses.replace(sparse, rope_scaling=None) == dataclasses.replace(full, rope_scaling=None)


# --- real config files, as their authors wrote them


def test_llama_of_2023_has_no_kv_heads_key():
    config = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
    }
    g = hf_config.read(config)
    assert (g.kv_heads, g.head_dim, g.attention) == (32, 128, "mha")
    assert counts.kv_bytes(g, 1) == counts.kv_bytes(geometry.get("Llama-2-7b-hf"), 1) == 524_288


def test_gemma3_keeps_its_sizes_in_a_sparse_text_config():
    config = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {},
    }
    g = hf_config.read(config)
    known = geometry.get("Gemma-3-4b-it")
    same = (
        "layers",
        "q_heads",
        "kv_heads",
        "head_dim",
        "intermediate",
        "sliding_window",
        "sliding_layers",
        "tied_embeddings",
        "qk_norm",
        "rope_theta",
        "max_positions",
        "rope_scaling",
    )
    assert {key: getattr(g, key) for key in same} == {key: getattr(known, key) for key in same}


def test_deepseek_v3_as_published():
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "intermediate_size": 18432,
        "vocab_size": 129280,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_layer_freq": 1,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "rope_theta": 10000,
        "rope_scaling": {"type": "yarn", "factor": 40},
        "max_position_embeddings": 163840,
        "tie_word_embeddings": False,
    }
    g, known = hf_config.read(config), geometry.get("DeepSeek-V3")
    assert (g.mla, g.moe, g.head_dim, g.kv_heads) == (known.mla, known.moe, known.head_dim, known.kv_heads)
    assert g.rope_scaling["rope_type"] == "yarn"
    lite = hf_config.read({**config, "model_type": "deepseek_v2", "q_lora_rank": None})
    assert lite.mla.q_lora_rank == 0


def test_qwen_states_a_window_that_it_does_not_use():
    config = {
        "model_type": "qwen2",
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
        "sliding_window": 131072,
        "max_window_layers": 28,
        "use_sliding_window": False,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
    }
    assert hf_config.read(config).sliding_layers == 0
    used = hf_config.read({**config, "use_sliding_window": True, "max_window_layers": 20, "sliding_window": 4096})
    assert (used.sliding_window, used.sliding_layers) == (4096, 8)


def test_a_window_wider_than_the_model_never_binds():
    config = {**SMALL, "model_type": "phi3", "sliding_window": 262_145, "max_position_embeddings": 131_072}
    assert hf_config.read(config).sliding_window is None
    config["sliding_window"] = 2047
    assert hf_config.read(config).sliding_layers == 3


def test_mistral_slides_in_every_layer_or_none():
    config = transformers.MistralConfig(**SMALL, num_key_value_heads=2, head_dim=16).to_dict()
    assert hf_config.read(config).sliding_layers == 3
    assert hf_config.read({**config, "sliding_window": None}).sliding_layers == 0


def test_layer_types_of_gpt_oss_and_gemma_before_layer_types():
    g = hf_config.read(transformers.GptOssConfig().to_dict())
    assert (g.sliding_window, g.sliding_layers, g.layers) == (128, 18, 36)
    assert dataclasses.replace(g.moe) == geometry.get("gpt-oss-120b").moe
    config = transformers.Gemma3TextConfig().to_dict()
    config.pop("layer_types")
    assert hf_config.read({**config, "sliding_window_pattern": 6}).sliding_layers == 22


# --- keys that change bytes


def perturbed(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int) and value > 0:
        return 2 * value
    return 8 if value is None else None


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_a_key_that_changes_the_transformers_model_is_counted_or_refused(config):
    """Every key of the config class, one by one: what grows in their model grows here, or the key is named."""

    def weighed(model):
        return sum(p.numel() for name, p in model.named_parameters() if p.dim() >= 2 and "bias" not in name)

    stated = config.to_dict()
    theirs, ours = weighed(meta_model(config)), counts.resident_bytes(hf_config.read(stated), torch.float32) // 4
    changed = 0
    for key, value in stated.items():
        new = perturbed(value)
        if new is None or key.endswith("token_id") or key == "dtype":
            continue
        try:
            grown = weighed(meta_model(type(config).from_dict({**stated, key: new}))) - theirs
        except Exception:  # their class refuses that value, or its model cannot be built
            continue
        if grown == 0:
            continue
        changed += 1
        try:
            counted = counts.resident_bytes(hf_config.read({**stated, key: new}), torch.float32) // 4 - ours
        except ValueError:
            continue
        assert abs(counted - grown) <= 0.01 * abs(grown) + 4 * config.hidden_size * 3, key
    assert changed >= 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("draft_vocab_size", 32_000),  # EAGLE-3: the head has its own vocabulary
        ("num_local_experts", 8),
        ("num_kv_shared_layers", 10),
        ("hidden_size_per_layer_input", 256),
        ("attn_output_gate", True),
        ("linear_num_value_heads", 32),
        ("cross_attention_layers", [3, 8]),
        ("block_configs", [{"n_heads_in_group": 4}]),
        ("kv_lora_rank", 512),
    ],
)
def test_an_unknown_key_that_may_change_bytes_is_refused_by_name(key, value):
    with pytest.raises(ValueError, match=f"llama config: '{key}' = .* may change bytes"):
        hf_config.read({**SMALL, "model_type": "llama", key: value})


def test_keys_that_change_no_bytes_pass():
    harmless = {
        "bos_token_id": 1, "eos_token_id": [128_001, 128_009], "torch_dtype": "bfloat16", "attention_dropout": 0.1,
        "num_beams": 4, "pretraining_tp": 2, "quantization_config": {"quant_method": "fp8"}, "mlp_bias": True,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "add_cross_attention": False, "my_notes": {"a": 1},
        "cross_attention_hidden_size": None, "pruned_heads": {}, "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip
    plain = hf_config.read({**SMALL, "model_type": "llama"})
    assert hf_config.read({**SMALL, "model_type": "llama", **harmless}).replace(rope_scaling=None) == plain


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "LlamaForSequenceClassification", "LlamaModel"])
def test_a_model_without_the_usual_head_is_refused(name):
    with pytest.raises(ValueError, match=name):
        hf_config.read({**SMALL, "model_type": "llama", "architectures": [name]})


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "gemma"])
def test_a_window_that_the_published_code_ignores_is_ignored(kind):
    assert (
        hf_config.read({**SMALL, "num_key_value_heads": 2, "model_type": kind, "sliding_window": 16}).sliding_layers
        == 0
    )


@pytest.mark.parametrize("window", [{}, {"sliding_window": 16}])
@pytest.mark.parametrize("kind", ["qwen3", "llama", "gpt_oss"])
def test_linear_attention_is_refused_with_a_window_and_without(kind, window):
    config = {**SMALL, "model_type": kind, "layer_types": ["linear_attention"] * 2 + ["full_attention"], **window}
    with pytest.raises(ValueError, match="linear_attention"):
        hf_config.read(config)


def test_llama4_layers_with_experts_and_without():
    config = {**SMALL, "num_hidden_layers": 6, "num_key_value_heads": 2, "intermediate_size_mlp": 192}
    config["model_type"] = "llama4_text"
    dense = {"interleave_moe_layer_step": 0, "moe_layers": []}
    for keys in ({"interleave_moe_layer_step": 0}, {"moe_layers": []}, dense):
        g = hf_config.read({**config, **keys})
        assert g.moe is None and g.intermediate == 192
    for keys in ({"interleave_moe_layer_step": 2}, {"moe_layers": [1, 3, 5]}, {}):
        theirs = transformers.Llama4TextConfig(**{k: v for k, v in config.items() if k != "model_type"}, **keys)
        assert hf_config.read({**config, **keys}).moe.dense_layers == 6 - len(theirs.moe_layers)


def test_deepseek_without_latents_or_experts_and_with_experts_in_every_second_layer():
    config = {**SMALL, "model_type": "deepseek_v2", "num_experts_per_tok": 2, "num_hidden_layers": 6}
    plain = hf_config.read(
        {**config, "use_mla": False, "kv_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0,
         "v_head_dim": 0, "q_lora_rank": None, "num_key_value_heads": 2}
    )  # fmt: skip
    assert (plain.mla, plain.kv_heads, plain.head_dim) == (None, 2, 16)
    assert hf_config.read({**config, "n_routed_experts": None}).moe is None
    alternate = hf_config.read({**config, "first_k_dense_replace": 1, "moe_layer_freq": 2})
    assert alternate.moe.dense_layers == 4  # layers 0, 1, 3 and 5


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_a_config_object_reads_as_its_dict(config):
    assert hf_config.read(config) == hf_config.read(config.to_dict())


def test_the_refusal_of_a_nested_config_names_both_models():
    inner = {"model_type": "mllama_text_model", **SMALL}
    with pytest.raises(ValueError, match="'mllama_text_model', the text part of 'mllama'"):
        hf_config.read({"model_type": "mllama", "text_config": inner})
    with pytest.raises(ValueError, match="the text part of 'mllama' has no 'model_type'"):
        hf_config.read({"model_type": "mllama", "text_config": SMALL})


# --- errors


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mamba2"}, "unknown architecture 'mamba2'"),
        ({"hidden_size": 4}, "no 'model_type'"),
        ({**SMALL, "model_type": "llama", "num_hidden_layers": None}, "lacks 'num_hidden_layers'"),
        ({**SMALL, "model_type": "llama", "num_attention_heads": 5}, "not a multiple"),
        ({**SMALL, "model_type": "llama", "num_key_value_heads": 3}, "not a multiple of kv_heads=3"),
        ({**SMALL, "model_type": "gpt_oss", "layer_types": ["linear_attention"] * 3}, "linear_attention"),
        ({**SMALL, "model_type": "deepseek_v2"}, "num_experts_per_tok"),
    ],
)
def test_bad_configs_are_named(config, words):
    with pytest.raises(ValueError, match=words):
        hf_config.read(config)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no config at"):
        hf_config.read(tmp_path)
    broken = tmp_path / "config.json"
    broken.write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        hf_config.read(broken)
    broken.write_text(json.dumps([1]))
    with pytest.raises(ValueError, match="holds a list"):
        hf_config.read(broken)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": 0}, "layers must be a whole number of at least 1, not 0"),
        ({"hidden": 32.0}, "hidden must be a whole number"),
        ({"q_heads": True}, "q_heads"),
        ({"kv_heads": 3}, "not a multiple"),
        ({"sliding_layers": 1}, "go together"),
        ({"sliding_window": 8}, "go together"),
        ({"sliding_layers": 3, "sliding_window": 8}, "more than layers"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"norm_eps": float("nan")}, "norm_eps"),
        ({"max_positions": 0}, "max_positions"),
        ({"moe": MoE(4, 2, 8, dense_layers=9)}, "dense_layers=9"),
    ],
)
def test_bad_geometries_are_named(change, words):
    with pytest.raises(ValueError, match=words):
        Geometry(**{**TINY, **change})


def test_parts_are_checked_too():
    with pytest.raises(ValueError, match="per_token=3"):
        MoE(experts=2, per_token=3, expert_intermediate=8)
    with pytest.raises(ValueError, match="v_head_dim"):
        MLA(8, 8, 8, 0)
    with pytest.raises(ValueError, match="tokens must be a whole number of at least 0, not -1"):
        counts.kv_bytes(Geometry(**TINY), -1)
    with pytest.raises(ValueError, match="batch"):
        counts.kv_bytes(Geometry(**TINY), 1, batch=1.5)


def test_get_suggests_close_names():
    with pytest.raises(LookupError, match="Llama-3.1-8B"):
        geometry.get("llama3.1-8b")
    assert hash(geometry.get("Llama-3.1-8B")) and "SmolLM2-135M" in geometry.catalogue()


def test_attention_kinds_and_replace():
    g = Geometry(**TINY)
    assert (g.attention, g.group_size) == ("gqa", 2)
    assert [g.replace(kv_heads=n).attention for n in (1, 2, 4)] == ["mqa", "gqa", "mha"]
    with pytest.raises(ValueError):
        g.replace(kv_heads=3)


# --- FLOPs


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_decode_flops_are_those_of_the_transformers_model():
    """The same counter over a whole transformers forward pass of one token with a cache."""
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, attn_implementation="eager")
    g = hf_config.read(config.to_dict())
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad():
        cache = model(torch.ones(2, 9, dtype=torch.long), use_cache=True).past_key_values
        with FlopCounterMode(display=False) as counter:
            model(torch.ones(2, 1, dtype=torch.long), past_key_values=cache)
    rotary = 2 * 2 * (g.head_dim // 2)  # transformers builds its angles with a matrix product
    assert abs(counter.get_total_flops() - counts.decode_flops(g, context=10, batch=2)) <= 2 * rotary


def test_flops_of_a_real_model():
    g = geometry.get("Llama-3.1-8B")
    parameters = 7_504_658_432
    assert counts.decode_flops(g, 1) == pytest.approx(2 * parameters, rel=1e-3)
    assert counts.decode_flops(g, 8_192) == pytest.approx(1.93e10, rel=0.01)  # facts, claim i
    assert counts.decode_flops(g, 100, batch=8) == 8 * counts.decode_flops(g, 100)
    assert counts.prefill_flops(g, 1) == counts.decode_flops(g, 1)
    attention_1k = 32 * 2 * 2 * 4_096 * (1_024 * 1_025 // 2)  # layers, QK and PV, FLOPs a pair, causal pairs
    body = 2 * 6_979_321_856 * 1_024  # facts: gpt-fast's count of the matrices without the head
    assert counts.prefill_flops(g, 1_024) == pytest.approx(body + attention_1k, rel=1e-3)


def test_a_prefill_costs_its_tokens_one_by_one_less_the_heads():
    g = Geometry(**TINY, sliding_window=3, sliding_layers=1)
    one_by_one = sum(counts.decode_flops(g, context) for context in range(1, 8))
    assert counts.prefill_flops(g, 7) == one_by_one - 6 * 2 * g.hidden * g.vocab


def test_mla_works_on_the_latent_when_decoding():
    g = geometry.get("DeepSeek-V3")
    per_token = counts.decode_flops(g, 1_001) - counts.decode_flops(g, 1_000)
    assert per_token == 61 * 2 * 128 * (512 + 64 + 512)
