"""Torch operations that a learner's function asks for, on tensors that stay with the grader.

Where a check counts what a function reads (`helpers.exercises.traffic`), the function over there gets no data: its
tensors have shapes and types alone, and each operation on them is done here, under the check's own counter. What it did
not ask for it cannot have computed, so the count needs nothing of what the learner's process says.

These operations run in the grader's process, so they are few, none of them reads memory that is not its inputs', and
how much they may make is limited before they run.
"""

import torch
from torch.utils._pytree import tree_leaves, tree_map

# Names below torch.ops.aten; none has a result whose size depends on data, opens a file or looks behind a tensor's end.
NAMES = frozenset(
    """
    abs add add_ addbmm addcdiv addcmul addmm addmm_ addmv alias all amax amin any arange argmax argmin baddbmm baddbmm_
    bitwise_and bitwise_not bitwise_or bmm cat clamp clamp_ clamp_max clamp_min clamp_min_ clone constant_pad_nd copy_
    cumsum detach div div_ dot empty empty_like eq exp exp2 exp2_ exp_ expand expm1 eye fill_ flip full full_like gather
    ge gt index index_add_ index_copy_ index_put_ index_select isfinite isinf isnan le lerp lift_fresh linspace log
    log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logsumexp lt masked_fill masked_fill_ max maximum
    mean min minimum mm mul mul_ mv nan_to_num ne neg neg_ new_empty new_full new_ones new_zeros ones ones_like permute
    pow pow_ prod reciprocal reciprocal_ relu repeat roll rsqrt rsqrt_ rsub scalar_tensor select sigmoid sigmoid_ sign
    slice softplus split split_with_sizes sqrt sqrt_ square squeeze stack sub sub_ sum t tanh transpose tril triu unbind
    unsqueeze vdot view where zero_ zeros zeros_like
    _log_softmax _safe_softmax _softmax _to_copy _unsafe_view
    _scaled_dot_product_flash_attention_for_cpu
    """.split()
)
TELLING = {"_local_scalar_dense", "allclose", "equal"}  # these give a number or a truth value to the other side
FORMATS = {str(f): f for f in (torch.contiguous_format, torch.preserve_format)}
MOST_ELEMENTS = 1 << 24  # of one result
MOST_BYTES = 1 << 30  # of all results together
MOST_TENSORS = 20_000
MOST_NUMBERS = 64  # that the learner's code may read: it may look whether a result is finite, and copies nothing


class Distant:
    """Stands, on its way to the learner's process, for a tensor that stays here."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor


class Operations:
    """Does operations inside `counting`, a context manager, while one function of the learner's runs."""

    def __init__(self, counting):
        self.counting = counting
        self.known: dict[int, Distant] = {}
        self.made = self.made_bytes = self.told = 0

    def distant(self, tree):
        """`tree` with a stand-in for each tensor, the same one for the same tensor."""
        return tree_map(lambda x: self._stand_in(x) if isinstance(x, torch.Tensor) else x, tree)

    @staticmethod
    def here(tree):
        """`tree` with the tensors that its stand-ins stand for."""
        return tree_map(lambda x: x.tensor if isinstance(x, Distant) else x, tree)

    def run(self, name: str, args: list, kwargs: dict):
        """The result of an operation such as "aten.bmm.default", with stand-ins for its tensors.

        Raises RuntimeError for what is no operation of this list, or too much; what torch raises passes.
        """
        function = self._operation(name)
        kwargs = {k: FORMATS[v] if k == "memory_format" and v in FORMATS else v for k, v in kwargs.items()}
        self._refuse_writing_elsewhere(function, args, kwargs)
        args, kwargs = self.here(args), self.here(kwargs)
        self._refuse_too_much(function, args, kwargs)
        if self.counting is None:
            raise RuntimeError("the call that this tensor was made for is over")
        with self.counting:
            made = function(*args, **kwargs)
        if "empty" in name:
            made.zero_()  # as it was found, memory may hold what this process had there
        return self.distant(made)

    def end(self) -> None:
        """Do nothing more: another call has another count."""
        self.counting = None

    def _stand_in(self, tensor: torch.Tensor) -> Distant:
        return self.known.setdefault(id(tensor), Distant(tensor))

    @staticmethod
    def _operation(name: str):
        space, packet, overload, *more = [*str(name).split("."), "", ""]
        if space != "aten" or packet not in NAMES | TELLING or not overload or any(more):
            raise RuntimeError(f"{packet or name} cannot be counted: use plain products, sums and views of torch")
        if not hasattr(getattr(torch.ops.aten, packet), overload):
            raise RuntimeError(f"torch has no {packet}.{overload}")
        return getattr(getattr(torch.ops.aten, packet), overload)

    @staticmethod
    def _refuse_writing_elsewhere(function, args, kwargs) -> None:
        """A tensor that the learner made outside of the call travels as a copy, in which nothing can be written."""
        for place, argument in enumerate(function._schema.arguments):
            if argument.is_write:
                target = args[place] if place < len(args) else kwargs.get(argument.name)
                if not isinstance(target, Distant):
                    raise RuntimeError("write into tensors that your function makes itself, or that it was given")

    def _refuse_too_much(self, function, args, kwargs) -> None:
        name = function._schema.name.removeprefix("aten::")
        if name in TELLING:
            self.told += 1
            if self.told > MOST_NUMBERS:
                raise RuntimeError("it looks at too many single numbers: stay in torch")
            return
        if name == "_scaled_dot_product_flash_attention_for_cpu":
            q, k, v = args[:3]
            _refuse_uneven(q, k, v, kwargs.get("attn_mask"))
        meta = dict(kwargs)
        if any(argument.name == "device" for argument in function._schema.arguments):
            meta["device"] = "meta"
        meta = tree_map(_without_data, meta)
        made = tree_leaves(function(*tree_map(_without_data, args), **meta))
        if any(isinstance(x, torch.Tensor) and x.shape != meta[key].shape for key, x in kwargs.items()):
            raise RuntimeError("a tensor that is given as out= has to have the shape of the result")
        self.made += len(made)
        sizes = [t.numel() for t in made if isinstance(t, torch.Tensor)]
        if not function.is_view:
            self.made_bytes += sum(t.nbytes for t in made if isinstance(t, torch.Tensor))
        if self.made > MOST_TENSORS:
            raise RuntimeError(f"it makes more than {MOST_TENSORS:,} tensors: take more tokens at a time")
        if max(sizes, default=0) > MOST_ELEMENTS or self.made_bytes > MOST_BYTES:
            raise RuntimeError("it makes more than a gigabyte of tensors, or a single one of 17 million elements")


def _without_data(value):
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _refuse_uneven(q, k, v, mask) -> None:
    """The fused attention trusts its caller with shapes."""
    even = q.ndim == k.ndim == v.ndim == 4 and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    even = even and k.shape == v.shape and q.shape[1] % k.shape[1] == 0 and q.dtype == k.dtype == v.dtype
    if even and mask is not None:
        whole = (*q.shape[:3], k.shape[2])
        even = mask.ndim in (2, 4) and torch.broadcast_shapes(mask.shape, whole) == whole
    if not even:
        raise RuntimeError("the shapes of q, k, v and mask do not fit scaled_dot_product_attention")
