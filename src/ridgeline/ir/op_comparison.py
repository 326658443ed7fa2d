"""Hold the ops that a Program expects of a rank against those that a trace of it has, size by size.

Counts must be equal. What may stand for something else is named, and nothing else may:

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
from itertools import product

from ridgeline.core.records import dataclass
from ridgeline.ir.rank_ops import OpSize, RankOp

AT_ONCE = 4096  # combinations of ways that are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedOp:
    """One size: who expects it, how often, and how often it was traced; bytes where it is a sum of buckets."""

    label: str
    size: OpSize
    expected: int
    traced: int
    way: str = ""
    summed: bool = False

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

    @property
    def differences(self) -> tuple[tuple[int, ComparedOp], ...]:
        """What differs, with the pipeline rank it is of."""
        return tuple((stage.pipeline_ranks[0], op) for stage in self.stages for op in stage.ops if not op.equal)


def compare_ops(expected: Sequence[RankOp], traced: Mapping[OpSize, int]) -> tuple[ComparedOp, ...]:
    """Every size that either side has. Of the ways that ops may go, those that differ least are taken."""
    families: dict[str, list[str]] = {}
    for op in expected:
        if op.ways:
            names = families.setdefault(op.family or op.label, [""])
            names.extend(way.name for way in op.ways if way.name not in names)
    best: tuple[ComparedOp, ...] | None = None
    for tried, chosen in enumerate(product(*families.values())):
        found = _compared(expected, Counter(traced), dict(zip(families, chosen, strict=True)))
        wrong = sum(not one.equal for one in found)
        if best is None or wrong < sum(not one.equal for one in best):
            best = found
        if not wrong or tried > AT_ONCE:
            break
    return best or ()


def _compared(expected: Sequence[RankOp], traced: Counter[OpSize], ways: Mapping[str, str]) -> tuple[ComparedOp, ...]:
    counts: Counter[OpSize] = Counter()
    labels: dict[OpSize, dict[str, None]] = defaultdict(dict)
    taken: dict[OpSize, str] = {}
    sums: dict[tuple[str, tuple[int, ...]], list[RankOp]] = defaultdict(list)
    for op in expected:
        if op.summed:
            sums[op.size.kind, op.size.sizes[:-1]].append(op)
            continue
        way = next((one for one in op.ways if one.name == ways.get(op.family or op.label)), None)
        for size, times in way.ops if way else ((op.size, 1),):
            counts[size] += times * op.count
            labels[size][op.label] = None
            if way:
                taken[size] = way.name
    rows = [
        ComparedOp(
            label=", ".join(labels[size]), size=size, expected=count, traced=_take(traced, size, count, sums),
            way=taken.get(size, ""),
        )
        for size, count in counts.items()
        if count
    ]  # fmt: skip
    rows += [_summed(key, ops, traced) for key, ops in sums.items()]
    rows += [
        ComparedOp(label="", size=size, expected=0, traced=count) for size, count in sorted(traced.items()) if count
    ]
    return tuple(rows)


def _take(traced: Counter[OpSize], size: OpSize, count: int, sums: Iterable[tuple[str, tuple[int, ...]]]) -> int:
    """How often a size was traced, which is accounted for; what is beyond may be a bucket of its kind."""
    there = traced[size]
    if there > count and (size.kind, size.sizes[:-1]) in sums:
        traced[size] -= count
        return count
    del traced[size]
    return there


def _summed(key: tuple[str, tuple[int, ...]], ops: Sequence[RankOp], traced: Counter[OpSize]) -> ComparedOp:
    """All that is left of a kind among the same ranks, in bytes."""
    kind, who = key
    mine = [size for size in traced if (size.kind, size.sizes[:-1]) == key]
    there = sum(traced.pop(size) * size.bytes for size in mine)
    wanted = sum(op.count * op.size.bytes for op in ops)
    label = ", ".join(dict.fromkeys(op.label for op in ops))
    return ComparedOp(
        label=label, size=OpSize(kind, (*who, wanted)), expected=wanted, traced=there, way="buckets", summed=True
    )
