"""Rows of every schedule, and the notation that split and paired ones are written in.

gpipe, 1f1b and interleaved walk one order of forwards and one of backwards; they differ in how many forwards run before
the first backward, and therefore in how many activations a rank holds:

    gpipe         all m of them                        held: m
    1f1b          p - r - 1, then in pairs             held: min(m, p - r)
    interleaved   2 (p - r - 1) + (v - 1) p, in pairs  held: one more, at most m v

p = stages, r = rank, v = chunks per rank, m = microbatches. Held counts chunks, each 1/v of a stage.

The zero bubble schedules split the backward: only its input half I is on the path from the last virtual stage to the
first, and its weight half W fills gaps. DualPipe runs two mirrored pipelines over the same ranks; cut in half, rank r
keeps the chunks of virtual stages r and 2 p - 1 - r. These are written as phases (how often, pattern), as papers do:

    F@c  B@c  I@c     the next microbatch of that phase on chunk c (B and I count together)
    W                 the oldest input backward whose weight backward is still owed, whatever its chunk
    F@c&B@d           a forward and a full backward as one overlapped step
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ridgeline.plan.schedules.table import Action, Overlap, Phase, Row, Step, flatten

Phases: TypeAlias = Iterable[tuple[int, str]]

Actions: TypeAlias = Mapping[tuple[Phase, int], Sequence[Action]]
"""All actions of a table by (phase, chunk), then by microbatch; ranks share them, since an action names no rank."""


def all_actions(microbatches: int, chunks: int) -> Actions:
    """Every action a row may use, made once for all ranks."""
    return {
        (phase, chunk): [Action(phase=phase, microbatch=i, chunk=chunk) for i in range(microbatches)]
        for phase in Phase
        for chunk in range(chunks)
    }


def write_row(phases: Phases, actions: Actions) -> Row:
    """Number the words of a row's phases, left to right.

    >>> row = write_row([(1, "F@0"), (2, "F@0 I@0"), (1, "I@0 W"), (2, "W")], all_actions(3, 1))
    >>> print(*row)
    F0@0 F1@0 I0@0 F2@0 I1@0 I2@0 W0@0 W1@0 W2@0
    """
    forwards = {chunk: iter(numbers) for (phase, chunk), numbers in actions.items() if phase is Phase.FORWARD}
    backwards = {chunk: _backward_choices(actions, chunk) for chunk in forwards}
    owed: deque[Action] = deque()

    def backward(phase: Phase, chunk: int) -> Action:
        full, split, weight = next(backwards[chunk])
        if phase is Phase.BACKWARD:
            return full
        owed.append(weight)
        return split

    def reader(word: str) -> Callable[[], Step]:
        if word == "W":
            return owed.popleft
        if "&" in word:
            forward, back = (reader(half) for half in word.split("&"))
            return lambda: _overlap(forward(), back())
        phase, chunk = Phase(word[0]), int(word[2:])
        if phase is Phase.FORWARD:
            return forwards[chunk].__next__
        return lambda: backward(phase, chunk)

    row: list[Step] = []
    for times, pattern in phases:
        readers = [reader(word) for word in pattern.split()]
        for _ in range(times):
            row.extend([read() for read in readers])
    return tuple(row)


def _backward_choices(actions: Actions, chunk: int) -> Iterator[tuple[Action, Action, Action]]:
    """Per microbatch (B, I, W): either the first is used, or the other two."""
    full, split = actions[Phase.BACKWARD, chunk], actions[Phase.BACKWARD_INPUT, chunk]
    return zip(full, split, actions[Phase.BACKWARD_WEIGHT, chunk], strict=True)


def _overlap(forward: Step, backward: Step) -> Overlap:
    if not (isinstance(forward, Action) and isinstance(backward, Action)):
        raise TypeError(f"an overlapped step holds two plain actions, got {forward} and {backward}")
    return Overlap(forward=forward, backward=backward)


def gpipe_rows(stages: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """Every forward, then every backward."""
    return _rows(stages, microbatches, chunks, [microbatches * chunks] * stages)


def one_f_one_b_rows(stages: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """Just enough forwards for the first backward to come back, then one forward, one backward."""
    return _rows(stages, microbatches, chunks, [stages - rank - 1 for rank in range(stages)])


def interleaved_rows(stages: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """1f1b over groups of p microbatches, each group taken through all chunks of a rank before the next begins.

    p is the group size because the output of a chunk needs p forwards to travel round the loop: a group of p keeps the
    rank busy exactly until its first microbatch is back for the next chunk.
    """
    warmup = [2 * (stages - rank - 1) + (chunks - 1) * stages for rank in range(stages)]
    return _rows(stages, microbatches, chunks, warmup)


def _rows(stages: int, microbatches: int, chunks: int, warmup: Sequence[int]) -> tuple[Row, ...]:
    actions = all_actions(microbatches, chunks)
    groups = [range(first, min(first + stages, microbatches)) for first in range(0, microbatches, stages)]
    forwards = [actions[Phase.FORWARD, chunk][i] for group in groups for chunk in range(chunks) for i in group]
    backwards = [
        actions[Phase.BACKWARD, chunk][i] for group in groups for chunk in reversed(range(chunks)) for i in group
    ]
    return tuple(_alternate(forwards, backwards, count) for count in warmup)


def _alternate(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> Row:
    """``warmup`` forwards, then forward and backward in turn, then the backwards that are left."""
    warmup = min(warmup, len(forwards))
    paired = len(forwards) - warmup
    pairs = zip(forwards[warmup:], backwards[:paired], strict=True)
    return (*forwards[:warmup], *(action for pair in pairs for action in pair), *backwards[paired:])


def zero_bubble_h1_rows(stages: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """1f1b with W of microbatch i right after I of microbatch i + r, so that rank r saves r W's for its drain.

    r = rank, p = stages. A rank holds p - r microbatches that await I, as in 1f1b, and r that await W: p in all, on
    every rank. With at least p microbatches the bubble is

        (p - 1) (F + I - min(F, I, W))

    The paper's (p - 1) (F + I - W) is the case of W the cheapest of the three.
    """
    actions = all_actions(microbatches, chunks)
    return tuple(write_row(_h1_phases(stages, rank, microbatches), actions) for rank in range(stages))


def _h1_phases(stages: int, rank: int, microbatches: int) -> Phases:
    warmup = min(stages - rank - 1, microbatches)
    pairs = microbatches - warmup
    quiet = min(rank, pairs)
    quiet_drain = min(rank - quiet, warmup)
    return (
        (warmup, "F@0"),
        (quiet, "F@0 I@0"),
        (pairs - quiet, "F@0 I@0 W"),
        (quiet_drain, "I@0"),
        (warmup - quiet_drain, "I@0 W"),
        (quiet + quiet_drain, "W"),
    )


def zbv_rows(stages: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """Two chunks in a V: F, I and W each take one slot, and once a rank has started no slot is empty.

    So with F = I = W every rank works without a gap from its own start to its own end, and rank r only starts r slots
    late. At most 2 p chunks are held, each half a stage: the memory of 1f1b, on every rank.

    The pattern is laid out for at least 2 p - 1 microbatches. For fewer, the surplus ones are struck out: values
    never cross microbatches, so what is left of a valid table is valid, and holds no more than before.
    """
    drawn = max(microbatches, 2 * stages - 1)
    actions = all_actions(drawn, chunks)
    rows = (write_row(_zbv_phases(stages, rank, drawn), actions) for rank in range(stages))
    return tuple(_keep(row, microbatches) for row in rows)


def _zbv_phases(stages: int, rank: int, microbatches: int) -> Phases:
    remaining = stages - rank
    return (
        (2 * remaining - 1, "F@0"),
        (rank, "F@1 F@0"),
        (remaining, "F@1 I@1 W"),
        (microbatches - stages - remaining + 1, "F@0 I@0 W F@1 I@1 W"),
        (remaining - 1, "I@0 W F@1 I@1 W"),
        (rank, "I@0 I@1"),
        (remaining, "I@0 W"),
        (2 * rank, "W"),
    )


def _keep(row: Row, microbatches: int) -> tuple[Action, ...]:
    return tuple(action for action in flatten(row) if action.microbatch < microbatches)


def dualpipe_v_rows(stages: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """The published phases; the first pair of the last rank is left apart, which shortens the bubble.

        bubble = (p - 1) (F&B + B - 3 W)                held = 2 p + 1 chunks of half a stage

    p = stages, B = I + W, F&B = an overlapped pair. The bubble is DeepSeek's, counted in ranks instead of virtual
    stages; under in-order execution it is exact where F = I >= W and a pair costs F + B.
    """
    actions = all_actions(microbatches, chunks)
    return tuple(write_row(_phases(stages, rank, microbatches), actions) for rank in range(stages))


def _phases(stages: int, rank: int, microbatches: int) -> Phases:
    """Of the last 2 (r + 1) backwards the later half is split, which leaves r + 1 W's to fill the drain."""
    after, upto = stages - rank - 1, rank + 1
    pairs = microbatches - 2 * stages + upto
    separate = 1 if after == 0 else 0
    return (
        (2 * after, "F@0"),
        (upto, "F@0 F@1"),
        (after, "I@1 W F@1"),
        (separate, "F@0 B@1 F@1&B@0"),
        (pairs - separate, "F@0&B@1 F@1&B@0"),
        (after, "B@1 F@1&B@0"),
        (upto // 2, "B@1 B@0"),
        (upto % 2, "B@1 I@0"),
        (upto // 2, "I@1 I@0"),
        (after, "W I@0"),
        (upto, "W"),
    )
