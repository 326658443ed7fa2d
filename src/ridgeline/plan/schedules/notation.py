"""Turn a row written as phases, like ``(3, "F@0 F@1")``, into numbered actions.

A phase is (how often, pattern). A pattern is a line of words:

    F@c  B@c  I@c     the next microbatch of that phase on chunk c (B and I count together)
    W                 the oldest input backward whose weight backward is still owed, whatever its chunk
    F@c&B@d           a forward and a full backward as one overlapped step

Papers describe schedules in just these phases: warm-up, steady state, drain. Writing the table the same way lets a
reader hold the code against the figure.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ridgeline.plan.schedules.table import Action, Overlap, Phase, Row, Step

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
