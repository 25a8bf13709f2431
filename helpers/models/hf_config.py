"""Hugging Face config.json → Geometry, architecture by architecture.

An architecture is read only if it stands in `DEFAULTS`: configs of different families use the same key with
different meanings, so reading an unknown one would be a guess. A key that a config leaves out takes the value
that the transformers library would give it (transformers/models/*/configuration_*.py).

A key that a config states and that nobody here asked for is refused by name if it may change bytes: one of its words
is among `SIZE_WORDS`, its value is a whole number, true, or a list or object that is not empty, and it is not among
`WITHOUT_BYTES`. So `bos_token_id` and `attention_dropout` pass, and `draft_vocab_size` does not. How many bits a number
has is the caller's question (`dtype`), so `torch_dtype` and `quantization_config` pass.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping

from helpers.models.geometry import MLA, Geometry, MoE

_QWEN = {
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "max_window_layers": 28,
    "rms_norm_eps": 1e-6,
}
_GEMMA = {"head_dim": 256, "tie_word_embeddings": True, "rms_norm_eps": 1e-6}
_DEEPSEEK = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 0,
    "rms_norm_eps": 1e-6,
}

# What transformers assumes for keys that a config.json leaves out. Sizes that every real config states are
# not here: their absence is an error. No `num_key_value_heads` means one KV head for each query head (MHA).
DEFAULTS = {
    "llama": {"rms_norm_eps": 1e-6},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096, "rms_norm_eps": 1e-6},
    "mixtral": {
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rope_theta": 1e6,
    },
    "qwen2": {**_QWEN, "attention_bias": True},
    "qwen3": {**_QWEN, "head_dim": 128},
    "qwen3_moe": {
        **_QWEN,
        "num_key_value_heads": 4,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_experts": 128,
    },
    "gemma": {**_GEMMA, "num_key_value_heads": 16},
    "gemma2": {**_GEMMA, "num_key_value_heads": 4, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3_text": {
        **_GEMMA,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
    },
    "gpt_oss": {
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "rope_theta": 150000.0,
        "attention_bias": True,
    },
    "deepseek_v2": {
        **_DEEPSEEK,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "moe_intermediate_size": 1407,
    },
    "deepseek_v3": {
        **_DEEPSEEK,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "num_experts_per_tok": 8,
    },
    "kimi_k2": {**_DEEPSEEK, "n_shared_experts": 1},
    "phi3": {},
    "smollm3": {
        "num_key_value_heads": 4,
        "rope_theta": 2e6,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
    },
    "llama4_text": {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "intermediate_size_mlp": 16384,
        "use_qk_norm": True,
        "attention_chunk_size": 8192,
        "rope_theta": 500000.0,
    },
    "gpt_neox": {"attention_bias": True},
}
# Those whose published code obeys a window; elsewhere `sliding_window` says nothing.
WINDOWED = {
    "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "gpt_oss", "phi3", "smollm3",
    "llama4_text",
}  # fmt: skip
MLA_KINDS = ("deepseek_v2", "deepseek_v3", "kimi_k2")
SIZE_WORDS = {
    "attention", "attn", "block", "blocks", "channels", "chunk", "conv", "dim", "dims", "expert", "experts", "ffn",
    "head", "heads", "hidden", "intermediate", "kv", "latent", "layer", "layers", "linear", "lora", "mamba", "mlp",
    "moe", "n", "num", "rank", "size", "sparse", "ssm", "state", "vocab", "width", "window",
}  # fmt: skip
WITHOUT_BYTES = {
    # What a model computes with the same weights and the same cache.
    "attn_temperature_tuning", "chunk_size_feed_forward", "n_group", "topk_group", "no_rope_layers",
    "no_rope_layer_interval", "nope_layer_interval", "num_logits_to_keep", "query_pre_attn_scalar",
    # Training and the search for words.
    "ep_size", "moe_router_enable_expert_bias", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_beams",
    "num_beam_groups", "num_labels", "num_return_sequences", "output_hidden_states",
    # Vectors, less than a thousandth of the weights.
    "mlp_bias",
    # A draft layer that lies in the checkpoint and that a plain decode step does not run.
    "num_nextn_predict_layers",
    # Obeyed by WINDOWED alone, where `_window` reads them; derived from two others.
    "sliding_window", "sliding_window_pattern", "use_sliding_window", "max_window_layers", "qk_head_dim",
}  # fmt: skip
_QK_NORM = ("qwen3", "qwen3_moe", "gemma3_text")


class _Asked(dict):
    """A config that remembers which of its keys were looked up."""

    def __init__(self, config: Mapping):
        super().__init__(config)
        self.keys_asked: set[str] = set()

    def __getitem__(self, key):
        self.keys_asked.add(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        self.keys_asked.add(key)
        return super().get(key, default)


def read(config) -> Geometry:
    """Geometry of a Hugging Face config.

    Args:
        config: a dict, a transformers config object, or the path of a config.json or of its directory.

    Raises:
        ValueError: an unknown architecture, a missing key, or one that may change bytes and is not understood.
        FileNotFoundError: no file there.
    """
    path = None
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        path = pathlib.Path(config)
        config = _load(path)
    name = config.get("_name_or_path") or (path.resolve().parent.name if path and path.is_file() else "")
    outer = ""
    if isinstance(config.get("text_config"), Mapping):
        outer = f", the text part of {config['model_type']!r}" if config.get("model_type") else ""
        tied = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
        config = {**tied, **config["text_config"]}
    kind = config.get("model_type")
    if kind is None:
        raise ValueError(f"this config{outer} has no 'model_type'; expected a Hugging Face config.json")
    if kind not in DEFAULTS:
        raise ValueError(
            f"unknown architecture {kind!r}{outer}: this course reads {', '.join(sorted(DEFAULTS))}. "
            "If its cache is laid out like one of these, set 'model_type' to that one; "
            "else build a Geometry by hand."
        )
    asked = _Asked({**DEFAULTS[kind], **config})
    found = _geometry(kind, asked, str(name) or (path.name if path else kind))
    _refuse_unread(kind, {key: value for key, value in config.items() if key not in asked.keys_asked})
    return found


def _refuse_unread(kind: str, unread: Mapping) -> None:
    """Raise for what may change bytes and was not asked for."""
    classes = unread.get("architectures") or []
    if not all(re.search("(ForCausalLM|ForConditionalGeneration)$", str(name)) for name in classes):
        raise ValueError(
            f"{kind} config: architectures {list(classes)} is not, or not only, the {kind} model that generates text"
        )
    sizes = {
        key: value
        for key, value in unread.items()
        if key not in WITHOUT_BYTES
        and SIZE_WORDS.intersection(key.lower().split("_"))
        and (isinstance(value, int | list | tuple | dict) and value)
    }
    if sizes:
        stated = ", ".join(f"{key!r} = {value!r}" for key, value in sizes.items())
        raise ValueError(
            f"{kind} config: {stated} may change bytes, and this course does not know how. Take it out of the config "
            "if it does not; else build a Geometry by hand."
        )


def _load(path: pathlib.Path) -> Mapping:
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"no config at {file}; give the path of a config.json or of its directory") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(config, Mapping):
        raise ValueError(f"{file} holds a {type(config).__name__}, expected a config object")
    return config


def _geometry(kind: str, config: Mapping, name: str) -> Geometry:
    layers, hidden = _need(config, kind, "num_hidden_layers"), _need(config, kind, "hidden_size")
    q_heads = _need(config, kind, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads")
    mla = _mla(config) if kind in MLA_KINDS else None
    head_dim = config.get("head_dim")
    if mla:
        kv_heads, head_dim = q_heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim
    elif head_dim is None:
        if hidden % q_heads:
            raise ValueError(f"{kind} config: no 'head_dim', and hidden_size={hidden} is not a multiple of {q_heads}")
        head_dim = hidden // q_heads
    max_positions = config.get("max_position_embeddings")
    window, sliding = _window(kind, config, layers)
    if not sliding or (max_positions and window > max_positions):  # a window wider than the model never binds
        window, sliding = None, 0
    theta, scaling = _rope(config)
    return Geometry(
        name=name,
        layers=layers,
        hidden=hidden,
        q_heads=q_heads,
        kv_heads=q_heads if kv_heads is None else kv_heads,
        head_dim=head_dim,
        intermediate=_need(config, kind, "intermediate_size_mlp" if kind == "llama4_text" else "intermediate_size"),
        vocab=_need(config, kind, "vocab_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=config.get("rms_norm_eps", config.get("layer_norm_eps", 1e-5)),
        max_positions=max_positions,
        sliding_window=window,
        sliding_layers=sliding,
        qk_norm=kind in _QK_NORM or bool(config.get("use_qk_norm", False)),
        attn_bias=bool(config.get("attention_bias", False)),
        mla=mla,
        moe=_moe(kind, config, layers),
        gated_mlp=kind != "gpt_neox",
        source="config.json",
    )


def _need(config: Mapping, kind: str, key: str):
    if config.get(key) is None:
        raise ValueError(f"{kind} config lacks {key!r}")
    return config[key]


def _mla(config: Mapping) -> MLA | None:
    """None with `use_mla: false`, by which smaller models of the family have ordinary attention."""
    names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    widths, query = {key: config[key] for key in names}, config["q_lora_rank"]
    return MLA(q_lora_rank=query or 0, **widths) if config.get("use_mla", True) else None


def _window(kind: str, config: Mapping, layers: int) -> tuple[int | None, int]:
    """(window, how many layers slide). `layer_types`, where present, says it layer by layer."""
    types = config.get("layer_types")
    if types is not None:
        unknown = set(types) - {"full_attention", "sliding_attention", "chunked_attention"}
        if unknown or len(types) != layers:
            raise ValueError(
                f"{kind} config: layer_types of {len(types)} entries for {layers} layers, "
                f"unknown kinds: {sorted(unknown) or 'none'}"
            )
    if kind not in WINDOWED:
        return None, 0
    window = config.get("attention_chunk_size" if kind == "llama4_text" else "sliding_window")
    pattern = config.get("_sliding_window_pattern", config.get("sliding_window_pattern"))
    if window is None or config.get("use_sliding_window") is False:
        return None, 0
    if types is not None:
        return window, sum(type_ != "full_attention" for type_ in types)
    if kind == "llama4_text":
        return window, sum(bool(rotary) for rotary in _llama4_local(config, layers))
    if "use_sliding_window" in config:
        return window, max(0, layers - config.get("max_window_layers", layers))
    return window, layers if pattern is None else layers - layers // pattern


def _llama4_local(config: Mapping, layers: int) -> list:
    """Every fourth layer attends to everything and has no rotary position; the others attend in chunks."""
    return config.get("no_rope_layers") or [(layer + 1) % 4 for layer in range(layers)]


def _moe(kind: str, config: Mapping, layers: int) -> MoE | None:
    if kind in ("mixtral", "gpt_oss"):
        experts, per_token, width = "num_local_experts", "num_experts_per_tok", "intermediate_size"
        shared, dense = 0, 0
    elif kind == "qwen3_moe":
        experts = "num_local_experts" if "num_local_experts" in config else "num_experts"
        per_token, width, shared = "num_experts_per_tok", "moe_intermediate_size", 0
        step, only = config["decoder_sparse_step"], config["mlp_only_layers"] or []
        dense = sum(layer in only or (layer + 1) % step != 0 for layer in range(layers))
    elif kind in MLA_KINDS:
        experts, per_token, width = "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"
        # modeling_deepseek.py: experts from layer `first_k_dense_replace` on, in every `moe_layer_freq`-th.
        first, step = config["first_k_dense_replace"], config.get("moe_layer_freq") or 1
        shared, dense = config.get("n_shared_experts") or 0, sum(i < first or i % step != 0 for i in range(layers))
    elif kind == "llama4_text":
        experts, per_token, width, shared = "num_local_experts", "num_experts_per_tok", "intermediate_size", 1
        step, listed = config["interleave_moe_layer_step"], config.get("moe_layers")
        with_experts = range(step - 1, layers, step) if step else ()  # a step of 0: a dense model
        dense = layers - len(with_experts if listed is None else set(listed))
    else:
        return None
    stated = [config.get(key) for key in (experts, per_token, width)]
    if dense == layers or (kind in MLA_KINDS and stated[0] is None):
        return None
    sizes = [_need(config, kind, key) for key in (experts, per_token, width)]
    return MoE(*sizes, shared=shared, dense_layers=dense)


def _rope(config: Mapping) -> tuple[float, dict | None]:
    """Base and scaling, from the older keys or from `rope_parameters` (transformers 5).

    Where sliding and global layers differ (Gemma 3), those of the global layers.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = rope.get("full_attention", rope)
    theta = rope.get("rope_theta") or config.get("rope_theta") or config.get("rotary_emb_base") or 10000.0
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
    kind = scaling.get("rope_type", scaling.pop("type", "default"))
    return float(theta), None if kind == "default" else {**scaling, "rope_type": kind}
