"""Turn the sizes and stage times of many plans into the seconds of their pipelines, without running them.

A run of a table ends when its longest chain of waits ends: a path of steps, each after the one before it in its row or
after the one whose value it waits for. Which path is the longest depends on the times, but only a few can be, and how
often each goes through a forward, a backward or a send depends on the sizes alone. So

    seconds = max over paths of  sum over what it passes of  (how often x how long)

One path goes down to the last rank, stays there for all microbatches and comes back up; one stays at the first rank;
one goes round and round, because a value needs longer for its way down and up than the ranks need for their work.
`longest_paths.txt` holds the counts as expressions in p, v and m. The cost per plan depends neither on microbatches nor
on stages nor on chunks.

No path listed is longer than any run it was tried on, so the closed form does not exceed the event loop; it falls short
where none of those listed is the longest. Shortfall in % of the event loop, 4000 random plans each: p 1 to 8, m 1 to
6 p, v 2 to 4, I and W 0.5 to 2 times F, the first and the last stage up to 30 % heavier, sends up to 20 % of F,
overlapped or blocking, pairs gaining up to 30 %:

    gpipe   1f1b   interleaved   zero-bubble-h1   zbv   dualpipe-v
      0.0    0.6           1.4              1.2   1.7          1.6    worst
      0.0    0.0           0.0              0.0   0.0          0.1    mean

Where inner stages differ from each other their order matters, and a mean and a slowest do not tell it. With one layer
more than 4 on a random half of all stages the closed form is off by 0.4 to 2 % in the mean and by up to 9 % either way
(interleaved); gpipe stays exact.

Not counted: queues on a link, which begin when a send takes longer than the steps between two sends; slow ranks and
links, since only the event loop knows which one it is; the tail after the last step.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.records import dataclass
from ridgeline.plan.schedules import SCHEDULES, requirement


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSeconds:
    """Seconds of one microbatch on one virtual stage, a number or one per plan."""

    forward_s: ArrayLike
    backward_input_s: ArrayLike
    backward_weight_s: ArrayLike


@dataclass(frozen=True, slots=True, kw_only=True)
class PathWork:
    """What the closed form needs to know of a pipeline's virtual stages, each value a number or one per plan.

    first, last       the ends, with the embedding and the head; of a single virtual stage only ``first`` counts
    inner             mean of the stages between
    slowest           mean of the inner stages on the rank that has most to do; left out, inner stages are alike
    send_s            one message between ranks
    overlapped_gain   the share of its time that an overlapped pair saves
    """

    first: PhaseSeconds
    inner: PhaseSeconds
    last: PhaseSeconds
    slowest: PhaseSeconds | None = None
    send_s: ArrayLike = 0.0
    overlapped_gain: ArrayLike = 0.0


def closed_form(
    name: str,
    *,
    stages: ArrayLike,
    chunks: ArrayLike,
    microbatches: ArrayLike,
    work: PathWork,
    send_blocks: ArrayLike = False,
) -> Array:
    """Seconds of the schedule, one per plan; nan where the schedule does not exist at that size.

    The paths that matter most, for equal stages (p = stages, m = microbatches, v = chunks, F, I, W of a virtual stage,
    B = I + W, s = send_s, overlapped):

        gpipe            (m + p - 1) (F + B) + 2 (p - 1) s
        1f1b             (m + p - 1) (F + B) + 2 (m + p - 2 - ceil((m - 1) / p)) s
        interleaved      (m v + p - 1) (F + B) + 2 (p v - 1) s
        zero-bubble-h1   m (F + B) + (p - 1) (F + I - min(F, I, W))           m >= p, s = 0
        zbv              2 m (F + B) + (p - 1) F                              m >= 2 p - 1, F = I = W, s = 0
        dualpipe-v       2 m (F + B) + (p - 1) (F + 2 B - 3 W)                F = I >= W, no gain, s = 0

    In 1f1b a microbatch is sent down and up again before the rank that sent it can go on, once per p microbatches: that
    is the second term in m. Blocking sends lengthen the step that sends by s. Stages that differ make the path linger
    where there is most to do.

    >>> one = PhaseSeconds(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    >>> work = PathWork(first=one, inner=one, last=one, send_s=np.array([0.0, 0.25]))
    >>> for name, kind in SCHEDULES.items():
    ...     seconds = closed_form(name, stages=4, chunks=kind.fewest_chunks, microbatches=8, work=work)
    ...     print(f"{name:<15}", *seconds)
    gpipe           33.0 34.5
    1f1b            33.0 37.0
    interleaved     57.0 60.5
    zero-bubble-h1  27.0 30.0
    zbv             51.0 54.25
    dualpipe-v      54.0 60.25
    >>> print(*closed_form("interleaved", stages=4, chunks=2, microbatches=[7, 8], work=work))
    nan 60.5
    """
    if name not in SCHEDULES:
        raise ValueError(requirement(name, 1, 1))
    sizes, columns = (stages, chunks, microbatches), _columns(name, work, np.asarray(send_blocks, dtype=bool))
    shape = np.broadcast_shapes(*(np.shape(values) for values in (*sizes, *columns)))
    prices = np.empty((len(columns), *shape))
    for place, column in enumerate(columns):
        prices[place] = column
    prices = prices.reshape(len(columns), -1)
    seconds = np.empty(prices.shape[1])
    for size, alike in _equal_sizes(sizes, shape):
        seconds[alike] = _size_seconds(name, size, prices[:, alike])
    return seconds.reshape(shape)


class _Size(NamedTuple):
    p: int
    v: int
    m: int


def _equal_sizes(sizes: tuple[ArrayLike, ...], shape: tuple[int, ...]) -> Iterator[tuple[_Size, slice]]:
    """Runs of plans of one size, as they stand: a search has them sorted."""
    flat = np.stack([np.broadcast_to(values, shape).ravel() for values in sizes]).astype(np.int64)
    cuts = (flat[:, 1:] != flat[:, :-1]).any(0).nonzero()[0] + 1
    ends = [0, *cuts.tolist(), flat.shape[1]]
    for start, end in pairwise(ends):
        if end > start:
            yield _Size(*flat[:, start].tolist()), slice(start, end)


# of what a path passes: forward, input and weight backward of the first, inner and last stage; sends, overlapped and
# blocking; what the slowest inner stage takes beyond the mean; what overlapped pairs gain
_SENDS, _EXTRA, _GAIN = slice(9, 11), slice(11, 14), slice(14, 20)


def _columns(name: str, work: PathWork, blocks: Mask) -> list[ArrayLike]:
    """Prices of what a path passes, in the order of its counts."""
    places = (work.first, work.inner, work.last)
    slowest = work.slowest or work.inner
    phases = [[getattr(place, phase) for place in (*places, slowest)] for phase in PhaseSeconds.__slots__]
    made = [column for phase in phases for column in phase[:3]]
    made += [np.where(blocks, 0.0, work.send_s), np.where(blocks, work.send_s, 0.0)]
    made += [np.subtract(phase[3], phase[1]) for phase in phases]
    if SCHEDULES[name].pairs:
        forward, inputs, weights = (phase[:3] for phase in phases)
        pairs = [*forward, *map(np.add, inputs, weights)]
        made += [np.multiply(np.negative(work.overlapped_gain), pair) for pair in pairs]
    return made


def _size_seconds(name: str, size: _Size, prices: Array) -> Array | float:
    """Plans of one size: the largest of the paths that exist there."""
    if not _exists(name, size):
        return float("nan")
    if SCHEDULES[name].all_forwards_first and size.p > 1:
        return _gpipe(size, prices)
    return np.asarray((_counts(name, size) @ prices).max(axis=0))


def _exists(name: str, size: _Size) -> bool:
    """Where ``requirement`` has nothing to say."""
    kind, (p, v, m) = SCHEDULES[name], size
    fits = p >= 1 and m >= 1 and kind.fewest_chunks <= v <= (kind.most_chunks or v)
    return fits and kind.objection(p, m) is None


def _gpipe(size: _Size, prices: Array) -> Array:
    """Two flow shops, one after the other: exact for stages that differ, and for links slower than stages.

        sum F + (m - 1) max F  +  sum B + (m - 1) max B  +  2 (p - 1) s

    The maxima run over ranks and, where sends overlap, links. A blocking send is part of its step instead.
    """
    middle = size.p - 2
    overlapped: Array = prices[_SENDS.start]
    blocking: Array = prices[_SENDS.start + 1]

    def flow(first: Array, inner: Array, last: Array, extra: Array) -> Array:
        slowest: Array = np.maximum(np.maximum(first, last), overlapped)
        if middle > 0:
            slowest = np.maximum(slowest, inner + extra)
        return first + middle * inner + last + (size.m - 1) * slowest + (size.p - 1) * overlapped

    forward, inputs, weights = prices[:9].reshape(3, 3, -1)
    backward, extra = inputs + weights, prices[_EXTRA]
    down = flow(forward[0] + blocking, forward[1] + blocking, forward[2], extra[0])
    up = flow(backward[0], backward[1] + blocking, backward[2] + blocking, extra[1] + extra[2])
    return down + up


@lru_cache(maxsize=8192)
def _counts(name: str, size: _Size) -> Array:
    """How often each path passes each column: counts are linear in the symbols."""
    if size.p == 1:
        return _single_schedule(name, size)
    paths = _paths(name)
    table: Array = np.tensordot([_SYMBOLS[symbol](size) for symbol in paths.symbols], paths.counts, 1)
    broken = np.array([c + p * size.p + m * size.m < 0 for c, p, m in paths.conditions], dtype=np.bool_)
    table = table[~(paths.needs & broken).any(1)]
    # each inner stage is passed once by its mean; what lingers, lingers at the slowest
    lingering = np.maximum(table[:, 1:9:3] - (size.p * size.v - 2), 0.0)
    return np.hstack([table[:, : _SENDS.stop], lingering, table[:, _SENDS.stop :]])


def _single_schedule(name: str, size: _Size) -> Array:
    """m times the work of all chunks: nobody to wait for. dualpipe-v pairs m - 2 of one chunk, m - 1 of the other."""
    _, v, m = size
    table = np.zeros((1, _GAIN.stop if SCHEDULES[name].pairs else _EXTRA.stop))
    table[0, :9] = (m, m * (v - 2), m) * 3 if v > 1 else (m, 0, 0) * 3
    if SCHEDULES[name].pairs:
        table[0, _GAIN] = (m - 2, 0, m - 1, m - 1, 0, m - 2)
    return table


_SYMBOLS: Mapping[str, Callable[[_Size], int]] = MappingProxyType(
    {
        "": lambda size: 1,  # noqa: ARG005
        "p": lambda size: size.p,
        "v": lambda size: size.v,
        "m": lambda size: size.m,
        "pv": lambda size: size.p * size.v,
        "mv": lambda size: size.m * size.v,
        "L": lambda size: (size.m - 1) // size.p,
        "M": lambda size: (size.m - 2) // size.p,
        "h": lambda size: size.m // 2,
        "q": lambda size: size.p // 2,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Paths:
    """A schedule's paths as matrices."""

    symbols: tuple[str, ...]
    counts: Array
    """symbol x path x column"""
    conditions: tuple[tuple[int, int, int], ...]
    """factors of 1, p and m; held where the sum is not negative"""
    needs: Mask
    """path x condition: whether the path needs it"""


@cache
def _path_texts() -> dict[str, str]:
    """The lines of `longest_paths.txt` by schedule."""
    text = Path(__file__).with_name("longest_paths.txt").read_text(encoding="utf-8")
    return {name: lines for name, _, lines in (block.partition("]\n") for block in text.split("\n[")[1:])}


@cache
def _paths(name: str) -> _Paths:
    rows = [line.split("|") for line in _path_texts()[name].strip().replace("\n    ", " ").splitlines()]
    expressions = [[_linear(word) for word in counts.split()] for _, counts in rows]
    demands = [[rule for word in words.split() if word != "-" for rule in _rules(word)] for words, _ in rows]
    symbols = tuple(s for s in _SYMBOLS if any(s in word for row in expressions for word in row))
    table = np.array([[[word.get(s, 0) for word in row] for row in expressions] for s in symbols], dtype=np.float64)
    distinct = tuple(dict.fromkeys(rule for own in demands for rule in own))
    return _Paths(
        symbols=symbols,
        counts=table,
        conditions=distinct,
        needs=np.array([[rule in own for rule in distinct] for own in demands], dtype=np.bool_).reshape(len(rows), -1),
    )


def _linear(text: str) -> dict[str, int]:
    """
    >>> _linear("2m-p+1")
    {'m': 2, 'p': -1, '': 1}
    """
    terms = re.findall(r"([+-]?)(\d*)([a-zA-Z]*)", text)
    return {symbol: int(sign + (digits or "1")) for sign, digits, symbol in terms if digits or symbol}


def _rules(text: str) -> list[tuple[int, int, int]]:
    """
    >>> _rules("m>=2p-1")
    [(1, -2, 1)]
    """
    left, relation, right = re.split(r"(>=|<=|=)", text)
    one, other = _linear(left), _linear(right)
    above = tuple(one.get(s, 0) - other.get(s, 0) for s in ("", "p", "m"))
    below = tuple(-value for value in above)
    sides = {">=": [above], "<=": [below], "=": [above, below]}[relation]
    return [(c, p, m) for c, p, m in sides]
