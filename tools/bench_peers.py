"""Decode steps of other engines on the same weights, for `tools.bench`: transformers and llama.cpp, float32, CPU.

Both are optional. A function here returns None where its package is not installed.
"""

import importlib.util
import inspect
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from helpers.caches import FullCache
from helpers.models import checkpoint_names
from helpers.models.decoder import Decoder

Step = Callable[[], object]


def installed(package: str) -> bool:
    """Whether `package` can be imported."""
    return importlib.util.find_spec(package) is not None


def transformers_model(decoder: Decoder):
    """A LlamaForCausalLM over the decoder's own weights; None if transformers is not installed."""
    if not installed("transformers"):
        return None
    import transformers

    g = decoder.geometry
    config = transformers.LlamaConfig(
        vocab_size=g.vocab, hidden_size=g.hidden, intermediate_size=g.intermediate, num_hidden_layers=g.layers,
        num_attention_heads=g.q_heads, num_key_value_heads=g.kv_heads, head_dim=g.head_dim, rms_norm_eps=g.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": g.rope_theta},
        tie_word_embeddings=g.tied_embeddings, max_position_embeddings=g.max_positions or 8192,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict(checkpoint_names.views(decoder), strict=False, assign=True)
    model.tie_weights()
    return model


def transformers_step(model, cache: FullCache, context: int) -> Step:
    """One decode step with `context` tokens in the cache that `generate` uses, filled with the numbers in `cache`."""
    from transformers import DynamicCache

    pairs = [(cache.keys[i, :, :, :context], cache.values[i, :, :, :context]) for i in range(len(cache.keys))]
    theirs = DynamicCache(config=model.config)
    for i, (k, v) in enumerate(pairs):
        theirs.update(k[:, :, :1], v[:, :, :1], i)
    token = torch.zeros(cache.batch, 1, dtype=torch.long)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    @torch.inference_mode()
    def step():
        for layer, (k, v) in zip(theirs.layers, pairs, strict=True):
            layer.keys, layer.values = k, v
        return model(token, **{name: theirs}, use_cache=True, logits_to_keep=1).logits[:, 0]

    return step


def write_gguf(decoder: Decoder, path: Path) -> None:
    """The decoder's weights as a llama.cpp model file in F32, without a vocabulary."""
    import gguf

    g = decoder.geometry
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(g.max_positions or 8192)
    writer.add_embedding_length(g.hidden)
    writer.add_block_count(g.layers)
    writer.add_feed_forward_length(g.intermediate)
    writer.add_head_count(g.q_heads)
    writer.add_head_count_kv(g.kv_heads)
    writer.add_key_length(g.head_dim)
    writer.add_value_length(g.head_dim)
    writer.add_rope_dimension_count(g.head_dim)
    writer.add_rope_freq_base(g.rope_theta)
    writer.add_layer_norm_rms_eps(g.norm_eps)
    writer.add_vocab_size(g.vocab)
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    gguf_name = checkpoint_names.gguf_name(g.layers)
    for name, tensor in checkpoint_names.views(decoder).items():
        writer.add_tensor(gguf_name(name), checkpoint_names.to_gguf_rows(name, tensor, g).detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp_steps(decoder: Decoder, contexts: Sequence[int]) -> dict[int, Step] | None:
    """Decode steps of llama.cpp, batch 1, F32 weights and cache, with a cache of its own for every context.

    None if llama-cpp-python is not installed. Each cache is filled by reading a prompt of that length. The weights are
    mapped from a file, its default: a little faster than copied where the file system keeps files in large pages.
    """
    if not installed("llama_cpp"):
        return None
    import llama_cpp

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_gguf(decoder, path)
        options = {
            "model_path": str(path), "n_threads": torch.get_num_threads(), "n_threads_batch": torch.get_num_threads(),
            "n_gpu_layers": 0, "verbose": False, "type_k": llama_cpp.GGML_TYPE_F32,
            "type_v": llama_cpp.GGML_TYPE_F32, "logits_all": False,
        }  # fmt: skip
        models = {context: llama_cpp.Llama(n_ctx=context + 8, **options) for context in contexts}
        return {context: _llama_cpp_step(model, context) for context, model in models.items()}


def _llama_cpp_step(model, context: int) -> Step:
    model.eval([1] * context)

    def step():
        model.n_tokens = context  # eval drops what lies beyond before it decodes
        model.eval([0])
        return model.scores

    return step
