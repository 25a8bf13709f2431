"""The decoder against transformers, on random weights of every shape that it claims to run."""

import copy
import pickle

import pytest
import torch
import transformers

from helpers.caches import CacheFull, FullCache
from helpers.kernels import KernelUnsupported
from helpers.models.decoder import Decoder
from helpers.models.generate import greedy
from helpers.models.geometry import get
from helpers.models.pretrained import fill

SMALL = get("SmolLM2-135M").replace(
    name="small", layers=3, hidden=96, q_heads=6, kv_heads=2, head_dim=16, intermediate=160, vocab=500
)


def twin(geometry, **config):
    """A transformers Llama or Qwen3 with random weights, and our decoder with the same ones."""
    shared = dict(
        vocab_size=geometry.vocab, hidden_size=geometry.hidden, intermediate_size=geometry.intermediate,
        num_hidden_layers=geometry.layers, num_attention_heads=geometry.q_heads,
        num_key_value_heads=geometry.kv_heads, head_dim=geometry.head_dim, rms_norm_eps=geometry.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": geometry.rope_theta},
        tie_word_embeddings=geometry.tied_embeddings, max_position_embeddings=512,
    )  # fmt: skip
    torch.manual_seed(1)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shared, **config)).eval()
    ours = Decoder(geometry)
    state = theirs.state_dict()
    fill(ours, state.__getitem__)
    return theirs, ours


@pytest.mark.parametrize(
    "changes",
    [{}, {"kv_heads": 6}, {"kv_heads": 1}, {"tied_embeddings": False}, {"head_dim": 32, "layers": 1}],
    ids=["gqa", "mha", "mqa", "untied", "wide heads"],
)
def test_logits_equal_transformers(changes):
    geometry = SMALL.replace(**changes)
    theirs, ours = twin(geometry)
    tokens = torch.randint(geometry.vocab, (2, 40), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = theirs(tokens).logits
    actual = ours.prefill(tokens, FullCache(geometry, 40, batch=2), all_positions=True)
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)


def test_decoding_step_by_step_equals_one_prefill():
    decoder = Decoder(SMALL, seed=3)
    tokens = torch.randint(SMALL.vocab, (2, 30), generator=torch.Generator().manual_seed(4))
    whole = decoder.prefill(tokens, FullCache(SMALL, 30, batch=2), all_positions=True)
    cache = FullCache(SMALL, 30, batch=2)
    # A prompt in two unequal parts, then one token at a time: every path of the cache.
    parts = [
        decoder.prefill(tokens[:, :7], cache, all_positions=True),
        decoder.prefill(tokens[:, 7:20], cache, all_positions=True),
        *(decoder.decode(tokens[:, i], cache)[:, None] for i in range(20, 30)),
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=2e-5, rtol=1e-4)
    assert cache.length == 30


@pytest.mark.parametrize("batch, t", [(1, 2), (1, 5), (1, 8), (1, 9), (2, 4), (3, 3)])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_several_tokens_in_one_step_equal_single_ones_and_float64(backend, batch, t):
    decoder = Decoder(SMALL, backend=backend, seed=3)
    precise = copy.deepcopy(decoder)
    precise.backend = "reference"
    precise.double()
    tokens = torch.randint(SMALL.vocab, (batch, 20 + 2 * t), generator=torch.Generator().manual_seed(4))
    whole = precise.prefill(tokens, FullCache(SMALL, 60, batch=batch, dtype=torch.float64), all_positions=True)
    cache = FullCache(SMALL, 60, batch=batch, backend=backend)
    decoder.prefill(tokens[:, :20], cache)
    together = torch.cat([decoder.decode(tokens[:, at : at + t], cache) for at in (20, 20 + t)], dim=1)
    torch.testing.assert_close(together.double(), whole[:, 20:], atol=1e-4, rtol=1e-4)
    cache.rewind(20)
    single = torch.stack([decoder.decode(tokens[:, at], cache) for at in range(20, 20 + 2 * t)], dim=1)
    torch.testing.assert_close(together, single, atol=1e-4, rtol=1e-4)
    assert torch.equal(together.argmax(-1), single.argmax(-1)) and torch.equal(
        single.argmax(-1), whole[:, 20:].argmax(-1)
    )


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("chunk", [2, 30])  # on either side of FEW rows in all
def test_a_mixed_pass_says_what_its_parts_say_alone(backend, chunk):
    """Two answers of different lengths beside a chunk in the middle of a prompt, layers and caches their own."""
    decoder = Decoder(SMALL, backend=backend, seed=3)
    tokens = torch.randint(SMALL.vocab, (3, 60), generator=torch.Generator().manual_seed(4))
    said = []
    for joint in (True, False):
        answers, prompt = FullCache(SMALL, 80, batch=2, backend=backend), FullCache(SMALL, 80, backend=backend)
        decoder.prefill(tokens[:2, :20], answers)
        answers.truncate(1, 13)
        decoder.prefill(tokens[2:, :9], prompt)
        for at in (20, 21):
            newest, piece = tokens[:2, at : at + 1], tokens[2:, 9 : 9 + chunk]
            if joint:
                said.append(torch.cat(decoder.mixed([(newest, answers), (piece, prompt)])))
            else:
                said.append(torch.cat([decoder.decode(newest[:, 0], answers), decoder.prefill(piece, prompt)]))
        assert answers.lengths == [22, 15] and prompt.length == 9 + 2 * chunk
    torch.testing.assert_close(said[0], said[2], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(said[1], said[3], atol=2e-5, rtol=1e-4)


def test_a_mixed_pass_of_what_cannot_be_is_refused():
    decoder, cache = Decoder(SMALL), FullCache(SMALL, 60)
    one = torch.zeros(1, 1, dtype=torch.long)
    for parts in ([], [(one, cache), (one, cache)]):
        with pytest.raises(ValueError, match="one part or more, each with a cache of its own"):
            decoder.mixed(parts)
    with pytest.raises(ValueError, match="tokens must be"):
        decoder.mixed([(one, cache), (one[0], FullCache(SMALL, 60))])
    with pytest.raises(ValueError, match="2 sequences given to a cache built for batch=1"):
        decoder.mixed([(one.expand(2, 1), cache)])
    assert cache.length == 0


@pytest.mark.parametrize("t", [2, 4, 8])
def test_drafts_verified_in_one_step_give_the_greedy_tokens(t):
    """Half of each draft is right: what is accepted, and the token after it, are what greedy decoding says."""
    decoder, prompt = Decoder(SMALL, seed=3), torch.arange(12)
    expected = greedy(decoder, FullCache(SMALL, 60), prompt, 30)
    cache = FullCache(SMALL, 60)
    answer = [int(decoder.prefill(prompt[None], cache).argmax())]
    while len(answer) + t <= 30:
        here = len(answer)
        draft = [
            token if i < t // 2 else (token + 1) % SMALL.vocab for i, token in enumerate(expected[here : here + t - 1])
        ]
        said = decoder.decode(torch.tensor([[answer[-1], *draft]]), cache)[0].argmax(-1).tolist()
        kept = next((i for i, token in enumerate(draft) if token != said[i]), len(draft))
        cache.truncate(0, 12 + here + kept)
        answer += said[: kept + 1]
    assert len(answer) > 20 and answer == expected[: len(answer)]


def test_greedy_generation_equals_transformers():
    theirs, ours = twin(SMALL)
    prompt = torch.randint(SMALL.vocab, (12,), generator=torch.Generator().manual_seed(5))
    expected = theirs.generate(prompt[None], max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert greedy(ours, FullCache(SMALL, 40), prompt, 16) == expected[0, 12:].tolist()


def test_greedy_stops_at_the_stop_token_and_does_not_return_it():
    decoder = Decoder(SMALL, seed=3)
    prompt = torch.tensor([1, 2, 3])
    answer = greedy(decoder, FullCache(SMALL, 40), prompt, 10)
    assert greedy(decoder, FullCache(SMALL, 40), prompt, 10, stop=answer[4]) == answer[: answer.index(answer[4])]


def test_weight_bytes_are_the_parameters_that_a_step_reads():
    tied, untied = Decoder(SMALL), Decoder(SMALL.replace(tied_embeddings=False))
    assert tied.weight_bytes == untied.weight_bytes
    counted = sum(p.numel() * 4 for name, p in untied.named_parameters() if name != "embedding")
    assert untied.weight_bytes == counted
    # 134,515,008 parameters: the figure on the model's own card, here with the norms
    assert Decoder(get("SmolLM2-135M"), device="meta").weight_bytes == 134_515_008 * 4


def test_a_sequence_that_does_not_fit_says_so_and_stores_nothing():
    decoder, cache = Decoder(SMALL), FullCache(SMALL, 8)
    with pytest.raises(CacheFull, match="9 tokens do not fit a cache built for 8.*capacity=9"):
        decoder.prefill(torch.zeros(1, 9, dtype=torch.long), cache)
    assert cache.length == 0 and not cache.keys.any()


@pytest.mark.parametrize(
    "tokens, message",
    [
        (torch.zeros(4, dtype=torch.long), r"\[batch, t\]"),
        (torch.zeros(1, 0, dtype=torch.long), "t ≥ 1"),
        (torch.zeros(3, 2, dtype=torch.long), "3 sequences given to a cache built for batch=1"),
    ],
)
def test_tokens_of_a_wrong_shape_are_refused(tokens, message):
    with pytest.raises(ValueError, match=message):
        Decoder(SMALL).prefill(tokens, FullCache(SMALL, 8))


def test_a_step_takes_one_or_several_tokens_a_sequence():
    for tokens in (torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 1, 1, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"\[batch\], or \[batch, t\] with t ≥ 1"):
            Decoder(SMALL).decode(tokens, FullCache(SMALL, 8))


def test_what_the_decoder_does_not_run_is_refused():
    with pytest.raises(ValueError, match="Mixtral.*dense models only"):
        Decoder(get("Mixtral-8x7B-v0.1"), device="meta")
    with pytest.raises(ValueError, match="gpt2.*two-matrix MLP"):
        Decoder(get("gpt2"), device="meta")


# --- weights that change after a step


def agree(decoder):
    """Decode says what prefill says: the logits of a sequence read one token at a time and all at once."""
    tokens = torch.randint(SMALL.vocab, (1, 9), generator=torch.Generator().manual_seed(6))
    dtype = decoder.dtype
    whole = decoder.prefill(tokens, FullCache(SMALL, 9, dtype=dtype), all_positions=True)[0]
    cache = FullCache(SMALL, 9, dtype=dtype)
    steps = torch.cat([decoder.decode(tokens[:, i], cache) for i in range(9)])
    torch.testing.assert_close(steps, whole, atol=2e-5 if dtype == torch.float32 else 0.1, rtol=1e-4)
    return steps


def new_like(weight, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(weight.shape, generator=generator) * weight.shape[-1] ** -0.5


def parameter(tensor):
    return torch.nn.Parameter(tensor, requires_grad=False)


MATRICES = ("attention.qkv", "attention.out", "mlp.gate_up", "mlp.down", "attention_norm", "mlp_norm")


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("how", ["assigned", "data", "in place"])
def test_a_replaced_weight_is_seen_by_the_next_step(name, how):
    decoder = Decoder(SMALL, seed=3)
    before = agree(decoder)
    layer = decoder.blocks[1].get_submodule(name)
    new = new_like(layer.weight)
    if how == "assigned":
        layer.weight = parameter(new)
    elif how == "data":
        layer.weight.data = new
    else:
        layer.weight.copy_(new)
    assert (agree(decoder) - before).abs().max() > 0.01


def load_assigning(decoder):
    state = {name: new_like(weight) for name, weight in decoder.state_dict().items()}
    decoder.load_state_dict(state, assign=True)


def other_part(decoder):
    decoder.blocks[1].mlp = Decoder(SMALL, seed=8).blocks[1].mlp


def other_norm(decoder):
    decoder.blocks[1].mlp_norm.eps = 0.5


def biased(decoder):
    decoder.blocks[1].mlp.down.bias = parameter(torch.ones(SMALL.hidden))


@pytest.mark.parametrize("change", [load_assigning, other_part, other_norm, biased])
def test_other_ways_to_change_a_model_are_seen_too(change):
    decoder = Decoder(SMALL, seed=3)
    before = agree(decoder)
    change(decoder)
    assert (agree(decoder) - before).abs().max() > 0.01


def test_a_weight_that_the_loops_cannot_read_is_refused_after_a_step_as_before_it():
    decoder = Decoder(SMALL, seed=3)
    agree(decoder)
    out = decoder.blocks[1].attention.out
    out.weight = parameter(out.weight.T)  # 96 by 96: neither shape nor address differ
    with pytest.raises(KernelUnsupported, match="not contiguous"):
        agree(decoder)


def test_kernels_follow_the_weights_to_another_dtype(capsys):
    decoder = Decoder(SMALL, seed=3)
    before = agree(decoder)
    half = decoder.to(torch.bfloat16)
    assert half is decoder and decoder.dtype == torch.bfloat16
    assert (agree(decoder).float() - before).abs().max() < 0.2
    assert "no tuned CPU kernels" in capsys.readouterr().out
    decoder.float()
    assert (agree(decoder) - before).abs().max() < 0.2
    assert decoder.blocks[0].fused and decoder.head.kernels is decoder.kernels


@pytest.mark.parametrize(
    "copy_of", [copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))], ids=["deepcopy", "pickle"]
)
@pytest.mark.parametrize("tied", [True, False])
def test_a_copy_is_equal_and_independent(copy_of, tied):
    decoder = Decoder(SMALL.replace(tied_embeddings=tied), seed=3)
    before = agree(decoder)
    twin_of_it = copy_of(decoder)
    assert torch.equal(agree(twin_of_it), before) and twin_of_it.weight_bytes == decoder.weight_bytes
    twin_of_it.blocks[1].mlp.down.weight.mul_(2)
    assert (agree(twin_of_it) - before).abs().max() > 0.01
    assert torch.equal(agree(decoder), before)
    decoder.blocks[0].attention.qkv.weight.zero_()
    assert (agree(decoder) - agree(twin_of_it)).abs().max() > 0.01


def test_weight_bytes_count_what_a_step_reads_once_a_tied_head_is_assigned_its_own():
    decoder = Decoder(SMALL)
    tied = decoder.weight_bytes
    decoder.load_state_dict({k: v.clone() for k, v in decoder.state_dict().items()}, assign=True)
    assert decoder.head.weight is not decoder.embedding and decoder.weight_bytes == tied
