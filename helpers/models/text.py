"""The text that the real model is measured on: the language reference that every CPython ships inside itself."""

from pydoc_data.topics import topics

import tokenizers
import torch


def documentation(topic: str | None = None) -> str:
    """The Python documentation topics in alphabetical order, or one of them.

    Raises:
        ValueError: CPython ships no topic of that name.
    """
    if topic is None:
        return "\n\n".join(topics[name] for name in sorted(topics))
    if topic not in topics:
        raise ValueError(f"no topic {topic!r}; there are {len(topics)}, among them {', '.join(sorted(topics)[:5])}")
    return topics[topic]


def tokens(count: int, tokenizer: tokenizers.Tokenizer) -> torch.Tensor:
    """The first `count` tokens of the documentation, int64 [count].

    Raises:
        ValueError: count is not positive, or exceeds the text.
    """
    if count < 1:
        raise ValueError(f"asked for {count} tokens; ask for at least one")
    # A token is at least one character, and never more than 30 here on average: tokenise only what can be needed.
    ids = tokenizer.encode(documentation()[: 30 * count]).ids
    if len(ids) < count:
        raise ValueError(f"asked for {count} tokens; the documentation has {len(ids)}")
    return torch.tensor(ids[:count])


def chat(user: str, system: str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face") -> str:
    """One user turn in SmolLM2's chat format, up to where the assistant speaks; encode it as it is."""
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
