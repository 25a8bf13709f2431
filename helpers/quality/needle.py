"""A fact hidden in a long text, and the question for it: does a cache still know what was said?"""

import tokenizers
import torch

from helpers.models import text
from helpers.models.decoder import Decoder
from helpers.models.generate import greedy

CODES = ("4831", "7206", "9154", "3067", "5629", "8340", "2795", "6418")
FACT = "\nThe secret access code is {code}.\n"
QUESTION = "\nQuestion: What is the secret access code?\nAnswer: The secret access code is "


def prompt(tokenizer: tokenizers.Tokenizer, code: str, tokens: int, place: float) -> torch.Tensor:
    """Documentation of `tokens` tokens, the fact planted at `place` (0 the beginning, 1 the end), then the question.

    Raises:
        ValueError: a place outside 0 … 1, or fewer than 2 tokens.
    """
    if not 0 <= place <= 1:
        raise ValueError(f"the fact is planted at a fraction of the text, from 0 to 1, not at {place}")
    if tokens < 2:
        raise ValueError(f"{tokens} tokens of text hide nothing; give two or more")
    filler = text.tokens(tokens, tokenizer)
    fact, question = (torch.tensor(tokenizer.encode(s).ids) for s in (FACT.format(code=code), QUESTION))
    cut = int(place * tokens)
    return torch.cat((filler[:cut], fact, filler[cut:], question))


def ask(decoder: Decoder, tokenizer: tokenizers.Tokenizer, cache, tokens: torch.Tensor, digits: int = 4) -> str:
    """What the model answers, greedily, to a prompt [n] read through `cache` (batch 1); every digit is one token."""
    return tokenizer.decode(greedy(decoder, cache, tokens.to(decoder.device), digits)).strip()
