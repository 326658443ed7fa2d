"""Turn the dims of a contraction, or of a convolution, into the product that a kernel runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ridgeline.core.records import dataclass
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.op_graph import GraphTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractedDims:
    """Which dims of the left and of the right operand are summed over, and which pair up as batches."""

    left_dims: tuple[int, ...]
    right_dims: tuple[int, ...]
    left_batch: tuple[int, ...] = ()
    right_batch: tuple[int, ...] = ()


def matmul_dims(first: Sequence[int], right: Sequence[int]) -> ContractedDims:
    """The dims of a product as frameworks write it: [.., m, k] by [.., k, n], or a vector on either side."""
    batches = min(len(first), len(right)) - 2
    rank_left, rank_right = len(first), len(right)
    shared = tuple(
        (rank_left - 3 - place, rank_right - 3 - place)
        for place in range(max(batches, 0))
        if first[rank_left - 3 - place] == right[rank_right - 3 - place]
    )
    return ContractedDims(
        left_dims=(rank_left - 1,), right_dims=(max(rank_right - 2, 0),),
        left_batch=tuple(pair[0] for pair in shared), right_batch=tuple(pair[1] for pair in shared),
    )  # fmt: skip


def contraction_kernel(
    first: GraphTensor, right: GraphTensor, result: GraphTensor, dims: ContractedDims
) -> Kernel | None:
    """The product of two tensors; None where the dims do not fit their shapes.

    >>> a, b, c = (GraphTensor(id=0, shape=shape, dtype="bf16") for shape in ((4, 64, 32), (4, 32, 16), (4, 64, 16)))
    >>> dict(contraction_kernel(a, b, c, matmul_dims(a.shape, b.shape)).dims)
    {'groups': 4, 'm': 64, 'n': 16, 'k': 32}
    """
    places = ((dims.left_dims, first), (dims.left_batch, first), (dims.right_dims, right), (dims.right_batch, right))
    if any(not 0 <= place < len(tensor.shape) for group, tensor in places for place in group):
        return None
    inner = [first.shape[place] for place in dims.left_dims]
    if inner != [right.shape[place] for place in dims.right_dims]:
        return None
    groups = prod(first.shape[place] for place in dims.left_batch)
    m = prod(size for place, size in enumerate(first.shape) if place not in (*dims.left_dims, *dims.left_batch))
    n = prod(size for place, size in enumerate(right.shape) if place not in (*dims.right_dims, *dims.right_batch))
    return product_of_sizes((groups, m, n, prod(inner)), (first, right, result))


def product_of_sizes(sizes: tuple[int, int, int, int], tensors: Sequence[GraphTensor]) -> Kernel:
    """The product of groups, m, n and k, which moves each of its tensors once, in the format of its left operand."""
    groups, m, n, k = sizes
    moved_bytes = sum(tensor.bytes for tensor in tensors)
    return Kernel(op="gemm", dtype=tensors[0].dtype, dims={"groups": groups, "m": m, "n": n, "k": k}, moved=moved_bytes)


def convolution_kernel(
    image: GraphTensor, weights: GraphTensor, result: GraphTensor, outputs_dim: int, groups: int = 1
) -> Kernel | None:
    """The product that a convolution is: output positions by output channels, over the window and its channels.

    outputs_dim   which dim of the weights is the output channels
    """
    if not 0 <= outputs_dim < len(weights.shape) or not weights.shape[outputs_dim]:
        return None
    channels = weights.shape[outputs_dim]
    window = prod(weights.shape) // channels
    positions = prod(result.shape) // channels if channels else 0
    many = max(groups, 1)
    return product_of_sizes((many, positions, max(channels // many, 1), window), (image, weights, result))


def einsum_dims(equation: str) -> ContractedDims | None:
    """The dims of an equation of two operands; None where it is no plain product (a repeated letter, an ellipsis).

    >>> einsum_dims("bhqd,bhkd->bhqk")
    ContractedDims(left_dims=(3,), right_dims=(3,), left_batch=(0, 1), right_batch=(0, 1))
    """
    operands, _, result = equation.replace(" ", "").partition("->")
    first, _, right = operands.partition(",")
    words = (first, right, result)
    if not first or not right or any(len(set(word)) != len(word) or not word.isalpha() for word in words if word):
        return None
    shared = [letter for letter in first if letter in right]
    summed_axes = [letter for letter in shared if letter not in result]
    batch_letters = [letter for letter in shared if letter in result]
    return ContractedDims(
        left_dims=tuple(map(first.index, summed_axes)), right_dims=tuple(map(right.index, summed_axes)),
        left_batch=tuple(map(first.index, batch_letters)), right_batch=tuple(map(right.index, batch_letters)),
    )  # fmt: skip
