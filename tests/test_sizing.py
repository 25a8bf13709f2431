import pytest
import torch

from helpers.models import geometry, sizing

FAMILY = [geometry.get(name) for name in sizing.FAMILY]


@pytest.mark.parametrize(
    ("gigabytes", "context", "batch", "name"),
    [
        (139, 131_072, 1, "Llama-3.1-8B"),  # H200
        (80, 131_072, 1, "Llama-3.1-8B"),
        (24, 8192, 1, "Llama-3.1-8B"),
        (24, 8192, 8, "Llama-3.2-3B"),  # 8 GB of cache beside 16 GB of weights do not go into 24
        (16, 8192, 1, "Llama-3.2-3B"),
        (8, 8192, 1, "Llama-3.2-1B"),
    ],
)
def test_the_largest_model_that_fits(gigabytes, context, batch, name):
    chosen = sizing.fitting(FAMILY, int(gigabytes * 1e9), context, batch)[0]
    assert chosen.name == name
    assert sizing.model_bytes(chosen, context, batch) < gigabytes * 1e9


def test_published_sizes():
    """Parameters of Llama-3.1-8B as published, two bytes each, and 128 KiB a token."""
    llama = geometry.get("Llama-3.1-8B")
    assert sizing.model_bytes(llama, 0) == pytest.approx(2 * 8.03e9, rel=2e-3)
    assert sizing.model_bytes(llama, 1000) - sizing.model_bytes(llama, 0) == 1000 * 128 * 1024


def test_a_device_that_is_too_small_is_told_what_is_missing():
    with pytest.raises(sizing.NothingFits, match=r"Llama-3\.2-1B with 8192 tokens .* needs 2\.7 GB"):
        sizing.fitting(FAMILY, int(2.5e9), context=8192)


def test_a_slice_of_a_70b():
    whole = geometry.get("Llama-3.1-70B")
    cut = sizing.slice_of(whole, int(139e9), context=8192)
    assert 40 < cut.part.layers < 80
    assert cut.half.layers == cut.part.layers // 2
    assert sizing.model_bytes(cut.part, 8192) <= sizing.usable_bytes(int(139e9))
    assert sizing.model_bytes(cut.part.replace(layers=cut.part.layers + 1), 8192) > sizing.usable_bytes(int(139e9))
    # 3 ms outside of the layers and 0.5 ms a layer: the whole takes 3 + 80 · 0.5.
    seconds = [3e-3 + g.layers * 0.5e-3 for g in (cut.part, cut.half)]
    assert cut.whole_seconds(*seconds) == pytest.approx(43e-3)
    assert "of its 80 layers" in str(cut)


def test_a_slice_is_never_longer_than_the_model():
    assert sizing.slice_of(geometry.get("Llama-3.2-1B"), int(139e9)).part.layers == 16


def test_a_slice_of_nothing():
    with pytest.raises(sizing.NothingFits, match="two layers of Llama-3.1-405B"):
        sizing.slice_of(geometry.get("Llama-3.1-405B"), int(8e9))


@pytest.mark.parametrize("name", geometry.catalogue())
def test_every_model_can_be_sliced_and_keeps_its_proportions(name):
    whole = geometry.get(name)
    free = int(0.6 * sizing.model_bytes(whole, 1000) + 2 * sizing.SPARE_BYTES)
    cut = sizing.slice_of(whole, free, context=1000)
    fits = sizing.usable_bytes(free)
    assert sizing.model_bytes(cut.part, 1000) <= fits and cut.half.layers == cut.part.layers // 2
    assert cut.part.layers == whole.layers or sizing.model_bytes(sizing._cut(whole, cut.part.layers + 1), 1000) > fits
    for part in (cut.part, cut.half):
        scale = part.layers / whole.layers
        assert abs(part.sliding_layers - scale * whole.sliding_layers) <= 0.5
        if whole.moe:
            assert abs(part.moe.dense_layers - scale * whole.moe.dense_layers) <= 0.5
    all_of_it = sizing._cut(whole, whole.layers)
    assert all_of_it.replace(name=name) == whole


def test_a_mixture_of_experts_fits_only_with_all_its_experts():
    mixtral = geometry.get("Mixtral-8x7B-v0.1")
    assert sizing.model_bytes(mixtral, 0) == pytest.approx(93.4e9, rel=1e-3)
    with pytest.raises(sizing.NothingFits, match="Mixtral.*needs 93"):
        sizing.fitting([mixtral], int(80e9), context=0)


def test_out_of_memory_steps_down(capsys):
    def build(size):
        if size > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return size

    assert sizing.first_that_fits([8, 5, 3, 1], build) == 3
    assert capsys.readouterr().out.count("does not fit") == 2
    with pytest.raises(sizing.NothingFits, match="tried: 8, 5"):
        sizing.first_that_fits([8, 5], build)


def test_other_errors_are_not_swallowed():
    with pytest.raises(RuntimeError, match="something else"):
        sizing.first_that_fits([1], lambda size: (_ for _ in ()).throw(RuntimeError("something else")))
