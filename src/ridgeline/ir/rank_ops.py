"""The kernels and collectives of one rank by size alone: how often a step executes each, by a Program or by a trace.

    gemm                 groups, m, n, k                 m >= n: a product and its transpose are one
    grouped_gemm         groups, rows of all, n, k       of experts, whose rows are sorted by expert; n >= k
    grouped_gemm_dw      the same of their weight gradients, which sum over rows
    attention_forward    heads of all sequences, query, key, width of a key, width of a value; attention_backward alike
    all-gather ...       ranks, stride, bytes            payload as `ir.ops.Collective` says
    send                 stride, bytes

A kernel and how often: `lowering` expects them, a dry run traces them, `compare_ops` holds the two against each other,
size by size. Counts must be equal. What may stand for something else is named, and nothing else may:

    joined      one product over a joined width is several of its parts
    scores      attention as its products: two forward, four or five backward
    ring        an all-gather over n context ranks is n - 1 sends of a share
    heads       one exchange of heads for sequence is one each for queries, keys, values and outputs
    pair        an all-reduce between two ranks is a send each way
    buckets     gradients and weights of a step travel in buckets, whose bytes add up
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import product
from types import MappingProxyType

from ridgeline.core.records import dataclass
from ridgeline.ir.kernel import Kernel

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "gemm": "product", "grouped_gemm": "grouped product", "grouped_gemm_dw": "grouped dW",
        "attention_forward": "attention", "attention_backward": "attention dX",
    }
)  # fmt: skip
"""How people read the ops that compute; a collective is read as it is named."""


def kind_of(kernel: Kernel) -> str:
    """The kind of a kernel or collective, as people read it."""
    return KINDS.get(kernel.op, kernel.op)


def size_text(kernel: Kernel) -> str:
    """A kernel or collective with its sizes, as people read them.

    >>> size_text(product_size(1, 4096, 1024, 512)), size_text(collective_size("all-gather", 8, 1, 1024))
    ('product 4096 x 1024 x 512', 'all-gather 8 ranks, stride 1, 1,024 B')
    """
    if kernel.op in KINDS:
        many, *sides = kernel.dims.values()
        several = "" if kernel.op == "gemm" and many == 1 else f"{many} of "
        return f"{kind_of(kernel)} {several}{' x '.join(map(str, sides))}"
    ranks = f"{kernel.dims['ranks']} ranks, " if "ranks" in kernel.dims else ""
    return f"{kernel.op} {ranks}stride {kernel.dims['stride']}, {kernel.dims['bytes']:,} B"


def product_size(groups: float, m: float, n: float, k: float) -> Kernel:
    """A product of (m x k) by (k x n), or several at once.

    >>> product_size(1, 8, 16, 4) == product_size(1, 16, 8, 4)
    True
    """
    return _kernel("gemm", groups=groups, m=max(m, n), n=min(m, n), k=k)


def grouped_size(groups: float, rows: float, n: float, k: float, *, weights: bool = False) -> Kernel:
    """Products of experts: `rows` of all of them, which a weight gradient sums over; n and k in either order."""
    if groups == 1 and weights:
        return product_size(1, n, k, rows)
    op = "grouped_gemm_dw" if weights else "grouped_gemm"
    return _kernel(op, groups=groups, rows=rows, n=max(n, k), k=min(n, k))


def attention_size(
    heads: float, lengths: tuple[float, float], widths: tuple[float, float], *, backward: bool
) -> Kernel:
    """Attention of all heads: lengths of queries and keys, widths of a key and of a value."""
    op = "attention_backward" if backward else "attention_forward"
    return _kernel(op, heads=heads, query=lengths[0], key=lengths[1], head_dim=widths[0], value_dim=widths[1])


def collective_size(kind: str, ranks: float, stride: float, size_bytes: float) -> Kernel:
    """A collective among ranks that stand a stride apart; a send has no ranks beside the two."""
    if kind == "send":
        return _kernel(kind, stride=stride, bytes=size_bytes)
    return _kernel(kind, ranks=ranks, stride=stride, bytes=size_bytes)


def _kernel(op: str, **dims: float) -> Kernel:
    return Kernel(op=op, dims={name: round(float(size)) for name, size in dims.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPath:
    """Another way to execute an op that is the same work: its name, and the kernels that stand in its place."""

    name: str
    kernels: tuple[tuple[Kernel, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOp:
    """One kernel that a rank is expected to execute, so many times a step.

    paths    what may stand in its place; ops of one `family` go the same way
    summed   a collective that may come in buckets: bytes of its kind, ranks and stride are summed
    """

    label: str
    kernel: Kernel
    count: int
    paths: tuple[OpPath, ...] = field(default=())
    family: str = ""
    summed: bool = False

    @property
    def work(self) -> float:
        """Multiply-adds or bytes of all of them, for an order."""
        computes = self.kernel.op in KINDS or self.kernel.op == "send"
        return self.count * (self.kernel.elements if computes else self.kernel.dims["bytes"])


MOST_COMBINATIONS = 4096  # of paths that are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedOp:
    """One kernel: who expects it, how often, and how often it was traced; bytes where it is a sum of buckets."""

    label: str
    kernel: Kernel
    expected: int
    traced: int
    way: str = ""
    summed: bool = False

    JSON = "op=label kind size sizes expected traced way equal"

    @property
    def kind(self) -> str:
        """The sort of kernel."""
        return kind_of(self.kernel)

    @property
    def size(self) -> str:
        """Kind and sizes in words."""
        return size_text(self.kernel)

    @property
    def sizes(self) -> list[int]:
        """Of a product: groups, rows, columns, depth; of a collective: ranks, stride, payload bytes."""
        return [int(size) for size in self.kernel.dims.values()]

    @property
    def equal(self) -> bool:
        """Whether both are."""
        return self.expected == self.traced


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOps:
    """Ops of the ranks of one distinct pipeline stage, those that differ among them."""

    pipeline_ranks: tuple[int, ...]
    ops: tuple[ComparedOp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """A plan's step traced without its ranks, against what was expected of it.

    engine_given   the scenario's engine; what was traced is Ridgeline's own
    """

    ranks: int
    engine_given: str
    stages: tuple[StageOps, ...]

    JSON = "kind='dry run' equal ranks engine='ridgeline' engine_given differences=difference_count stages"

    @property
    def equal(self) -> bool:
        """Whether every op was traced as expected."""
        return not self.differences

    @property
    def difference_count(self) -> int:
        """Ops that differ."""
        return len(self.differences)

    @property
    def differences(self) -> tuple[tuple[int, ComparedOp], ...]:
        """What differs, with the pipeline rank it is of."""
        return tuple((stage.pipeline_ranks[0], op) for stage in self.stages for op in stage.ops if not op.equal)


Group = tuple[str, tuple[float, ...]]
"""Op of a collective and the ranks it runs among."""


def _group(kernel: Kernel) -> Group:
    return kernel.op, tuple(kernel.dims.values())[:-1]


def compare_ops(expected: Sequence[RankOp], traced: Mapping[Kernel, int]) -> tuple[ComparedOp, ...]:
    """Every kernel that either side has. Of the paths that ops may take, those that differ least are chosen."""
    families: dict[str, list[str]] = {}
    for op in expected:
        if op.paths:
            names = families.setdefault(op.family or op.label, [""])
            names.extend(path.name for path in op.paths if path.name not in names)
    best: tuple[ComparedOp, ...] | None = None
    for attempt, chosen in enumerate(product(*families.values())):
        rows = _compare(expected, Counter(traced), dict(zip(families, chosen, strict=True)))
        differences = sum(not row.equal for row in rows)
        if best is None or differences < sum(not row.equal for row in best):
            best = rows
        if not differences or attempt > MOST_COMBINATIONS:
            break
    return best or ()


def _compare(expected: Sequence[RankOp], traced: Counter[Kernel], chosen: Mapping[str, str]) -> tuple[ComparedOp, ...]:
    """Rows for one choice of path in each family."""
    counts: Counter[Kernel] = Counter()
    labels: dict[Kernel, dict[str, None]] = defaultdict(dict)
    path_names: dict[Kernel, str] = {}
    sums: dict[Group, list[RankOp]] = defaultdict(list)
    for op in expected:
        if op.summed:
            sums[_group(op.kernel)].append(op)
            continue
        path = next((path for path in op.paths if path.name == chosen.get(op.family or op.label)), None)
        for kernel, times in path.kernels if path else ((op.kernel, 1),):
            counts[kernel] += times * op.count
            labels[kernel][op.label] = None
            if path:
                path_names[kernel] = path.name
    rows = [
        ComparedOp(
            label=", ".join(labels[kernel]), kernel=kernel, expected=count,
            traced=_take(traced, kernel, count, sums), way=path_names.get(kernel, ""),
        )
        for kernel, count in counts.items()
        if count
    ]  # fmt: skip
    rows += [_sum_buckets(group, ops, traced) for group, ops in sums.items()]
    leftovers = sorted(traced.items(), key=lambda item: (kind_of(item[0]), tuple(item[0].dims.values())))
    rows += [ComparedOp(label="", kernel=kernel, expected=0, traced=count) for kernel, count in leftovers if count]
    return tuple(rows)


def _take(traced: Counter[Kernel], kernel: Kernel, count: int, sums: Iterable[Group]) -> int:
    """How often a kernel was traced, which is accounted for; what is beyond may be a bucket of its kind."""
    there = traced[kernel]
    if there > count and _group(kernel) in sums:
        traced[kernel] -= count
        return count
    del traced[kernel]
    return there


def _sum_buckets(group: Group, ops: Sequence[RankOp], traced: Counter[Kernel]) -> ComparedOp:
    """All that remains of a kind among the same ranks, in bytes."""
    buckets = [kernel for kernel in traced if _group(kernel) == group]
    there = sum(traced.pop(kernel) * int(kernel.dims["bytes"]) for kernel in buckets)
    bytes_expected = sum(op.count * int(op.kernel.dims["bytes"]) for op in ops)
    label = ", ".join(dict.fromkeys(op.label for op in ops))
    first = ops[0].kernel
    bucket_sum = replace(first, dims={**first.dims, "bytes": bytes_expected})
    return ComparedOp(label=label, kernel=bucket_sum, expected=bytes_expected, traced=there, way="buckets", summed=True)
