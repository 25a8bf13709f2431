"""Greedy generation: one prefill, then one decode step a token."""

import torch

from helpers.models.decoder import Decoder


def greedy(decoder: Decoder, cache, prompt: torch.Tensor, count: int, stop: int | None = None) -> list[int]:
    """The `count` most likely next tokens, each chosen given the ones before.

    Args:
        prompt: [t] token ids, appended to what the cache holds (batch 1).
        stop: a token id that ends the answer early; it is not returned.

    Returns:
        The new token ids, without the prompt.
    """
    answer: list[int] = []
    logits = decoder.prefill(prompt[None], cache)
    for step in range(count):
        token = int(logits.argmax(dim=-1))
        if token == stop:
            break
        answer.append(token)
        if step < count - 1:
            logits = decoder.decode(torch.tensor([token], device=logits.device), cache)
    return answer
