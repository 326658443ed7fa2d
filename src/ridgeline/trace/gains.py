"""Turn a finding into what it would gain, by replaying the timeline with that one thing changed (see `whatif`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.hardware.chip import Chip
from ridgeline.trace.classes import Rules
from ridgeline.trace.graph import Graph, replay
from ridgeline.trace.roofline import bytes_bound_ns
from ridgeline.trace.whatif import Change, Question, Sizes, apply, chosen_rows, faster, span_ns

LARGEST = 1_000_000  # points of a graph that is replayed for every finding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gains:
    """A graph to be replayed, and the chips whose spans are added up."""

    graph: Graph
    rules: Rules
    chips: int

    def by(self, form: str, *what: str, longest: bool = False) -> int:
        """Nanoseconds of all chips together that a question's change saves; 0 when nothing is of that sort."""
        asked = Question(text=form, form=form, what=self._present(what), longest=longest)
        rows = chosen_rows(self.graph, self.rules, asked)
        if form != "no launch gaps" and not len(rows):
            return 0
        return self._saved(apply(Change.none(self.graph), asked, rows, lambda own: np.zeros(len(own), np.int64)))

    def faster(self, class_: str, factor: float) -> int:
        """The same for a class that takes 1/factor of its time."""
        asked = Question(text="", form="faster", what=(class_,))
        return self._saved(faster(Change.none(self.graph), chosen_rows(self.graph, self.rules, asked), factor))

    def _present(self, what: tuple[str, ...]) -> tuple[str, ...]:
        line = self.graph.line
        known = {line.classes[code] for code in np.unique(line.class_[self.graph.points.work]).tolist()}
        return tuple(one for one in what if one in known or one in ("compute", "communication", "copy"))

    def _saved(self, change: Change) -> int:
        after = replay(change.graph, change.lag, change.delay)
        return (span_ns(self.graph, self.graph.at) - span_ns(self.graph, after)) * self.chips


def sizes_of(graph: Graph, chip: Chip | None) -> Sizes:
    """How long the recorded bytes of spans need on a chip."""

    def sizes(rows: NDArray[np.intp]) -> NDArray[np.int64]:
        return bytes_bound_ns(graph.line, rows, chip)

    return sizes
