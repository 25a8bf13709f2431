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
    chunk: int = 512,
    done: Callable[[float], None] = lambda fraction: None,
    skip: int = 0,
) -> torch.Tensor:
    """Loss in nats of tokens max(skip, 1) … n-1, each given those before it as `cache` kept them.

    Args:
        tokens: [n] token ids, n > skip.
        chunk: tokens per forward pass, so that n · vocab logits are never held at once.
        done: told after each pass how much of the text is read, 0 to 1.
        skip: tokens at the beginning that are read and not scored. Their logits would take a fifth of their time.

    Returns:
        float32 [n − max(skip, 1)].
    """
    parts, last = [], len(tokens) - 1
    for start in range(0, last, chunk):
        end = min(start + chunk, last)
        scored = min(end - start, end + 1 - skip)  # tokens of this pass, its latest, whose next one is scored
        read = decoder.prefill(tokens[None, start:end], cache, all_positions=scored > 1)
        if scored > 0:
            logits = read[0, -scored:] if scored > 1 else read
            parts.append(F.cross_entropy(logits.float(), tokens[end + 1 - scored : end + 1], reduction="none"))
        done(end / last)
    return torch.cat(parts)


def perplexity(decoder: Decoder, cache: KVCache, tokens: torch.Tensor, skip: int = 512) -> float:
    """exp(mean loss) over all but the first `skip` tokens: the early ones have little context under any cache.

    Raises:
        ValueError: fewer than skip + 2 tokens.
    """
    if len(tokens) < skip + 2:
        raise ValueError(f"{len(tokens)} tokens leave nothing to measure after the first {skip}")
    with Progress("perplexity") as bar:
        return float(losses(decoder, cache, tokens, done=bar.to, skip=skip).mean().exp())
