"""Counts the tensors that torch operations read and make: bytes that are certain, where a clock would only hint."""

import math
from collections.abc import Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Traffic(TorchDispatchMode):
    """Use as a context manager; counts every operation inside that is not a mere view.

    Args:
        at_least: tensors with fewer elements are not counted, so that queries and scores stay out of a count of
            what happens to a cache.
        of: tensors of which each part and each copy is counted, however small.

    Attributes:
        read_bytes: sum over operations of the bytes of their inputs; a tensor read by two operations counts twice.
        written_bytes: sum over operations of the bytes of their results.
        largest: elements of the largest tensor made, however small.

    The bytes are those that an operation asks for. What a kernel re-reads inside, or finds in a processor's cache,
    does not show.
    """

    def __init__(self, at_least: int = 0, of: Sequence[torch.Tensor] = ()):
        super().__init__()
        self.at_least, self.read_bytes, self.written_bytes, self.largest = at_least, 0, 0, 0
        self._of = {_storage(tensor): tensor for tensor in of}  # kept alive, or another might get the same storage

    @property
    def bytes(self) -> int:
        """Read and written together."""
        return self.read_bytes + self.written_bytes

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        inputs, made = _tensors((args, kwargs or {})), _tensors(result)
        reshaped = made and not function._schema.is_mutable and all(_shares_memory(t, inputs) for t in made)
        if function.is_view or reshaped:
            return result
        watched = [t.numel() for t in inputs if _storage(t) in self._of]
        if watched:  # what is no smaller than its part of the cache holds a copy of it; scores are smaller
            self._of |= {_storage(t): t for t in made if t.numel() >= max(watched)}
        self.read_bytes += sum(_distinct_bytes(t) for t in inputs if self._counts(t))
        self.written_bytes += sum(t.nbytes for t in made if self._counts(t))
        self.largest = max([self.largest, *(t.numel() for t in made)])
        return result

    def _counts(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() >= self.at_least or _storage(tensor) in self._of


def _tensors(tree) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _distinct_bytes(tensor: torch.Tensor) -> int:
    """Bytes without the repetitions of an expanded view, whose stride is 0."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0)
    return math.prod(sizes) * tensor.element_size()


def _shares_memory(tensor: torch.Tensor, others: list[torch.Tensor]) -> bool:
    return any(_storage(tensor) == _storage(other) for other in others)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # an address would be 0 for all tensors on "meta"
