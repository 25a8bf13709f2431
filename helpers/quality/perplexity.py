"""What a cache does to the model's predictions: the loss of every token of a text, and perplexity."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from helpers.caches import KVCache
from helpers.models.decoder import Decoder
from helpers.progress import Progress


@torch.inference_mode()
def losses(
    decoder: Decoder,
    cache: KVCache,
    tokens: torch.Tensor,
    chunk: int = 256,
    done: Callable[[float], None] = lambda fraction: None,
) -> torch.Tensor:
    """Loss in nats of every token but the first, given those before it as `cache` kept them.

    Args:
        tokens: [n] token ids.
        chunk: tokens per forward pass, so that n · vocab logits are never held at once.
        done: told after each pass how much of the text is read, 0 to 1.

    Returns:
        float32 [n − 1].
    """
    parts = []
    for start in range(0, len(tokens) - 1, chunk):
        piece = tokens[start : min(start + chunk, len(tokens) - 1)]
        logits = decoder.prefill(piece[None], cache, all_positions=True)[0]
        parts.append(F.cross_entropy(logits.float(), tokens[start + 1 : start + 1 + len(piece)], reduction="none"))
        done((start + len(piece)) / (len(tokens) - 1))
    return torch.cat(parts)


def perplexity(decoder: Decoder, cache: KVCache, tokens: torch.Tensor, skip: int = 512) -> float:
    """exp(mean loss) over all but the first `skip` tokens: the early ones have little context under any cache.

    Raises:
        ValueError: fewer than skip + 2 tokens.
    """
    if len(tokens) < skip + 2:
        raise ValueError(f"{len(tokens)} tokens leave nothing to measure after the first {skip}")
    with Progress("perplexity") as bar:
        scored = losses(decoder, cache, tokens, done=bar.to)
    return float(scored[skip - 1 if skip else 0 :].mean().exp())
