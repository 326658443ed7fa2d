"""Turn a finding into what it would gain, by replaying the timeline with that one thing changed (`what_if`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.hardware.chip import Chip
from ridgeline.trace.analysis.fused_chains import Sizes, reduction_passes, unknown_sizes
from ridgeline.trace.analysis.roofline import bytes_bound_ns
from ridgeline.trace.analysis.what_if import (
    GraphChange,
    Question,
    apply,
    chosen_rows,
    faster,
    fuse_chains,
    no_launch_gaps,
    no_waits,
    scale_rows,
    span_ns,
)
from ridgeline.trace.classes import Rules
from ridgeline.trace.graph.dependency_graph import Graph, replay

LARGEST = 1_000_000  # points of a graph that is replayed for every finding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gains:
    """A graph to be replayed, and the chips whose spans are added up."""

    graph: Graph
    rules: Rules
    chips: int

    def by(self, form: str) -> int:
        """Nanoseconds of all chips together that a question about everything saves."""
        return self.of_rows(form, chosen_rows(self.graph, self.rules, Question(text=form, form=form)))

    def of_rows(self, form: str, rows: NDArray[np.intp]) -> int:
        """The same for a question about some spans; 0 where there are none."""
        question = Question(text=form, form=form)
        if not len(rows):
            return 0
        return self._saved_ns(apply(GraphChange.none(self.graph), question, rows, unknown_sizes))

    def faster(self, classes: Sequence[str], factor: float) -> int:
        """The same for classes that take 1/factor of their time."""
        question = Question(text="", form="faster", what=tuple(classes))
        return self.faster_rows(chosen_rows(self.graph, self.rules, question), factor)

    def faster_rows(self, rows: NDArray[np.intp], factor: float) -> int:
        """The same for spans that take 1/factor of their time."""
        return self._saved_ns(faster(GraphChange.none(self.graph), rows, factor))

    def lasting(self, rows: NDArray[np.intp], kept: NDArray[np.float64]) -> int:
        """The same for spans of which each takes its own share of its time, from 0 to 1."""
        return self._saved_ns(scale_rows(GraphChange.none(self.graph), rows, kept))

    def in_passes(self, rows: NDArray[np.intp]) -> int:
        """The same for chains of spans that become one each, as long as the longest and its further reductions need."""
        return self._saved_ns(fuse_chains(GraphChange.none(self.graph), rows, True, unknown_sizes, reduction_passes))

    def fused_to(self, rows: NDArray[np.intp], share: float) -> int:
        """The same for chains of spans that become one each, in a share of the time they took."""
        line = self.graph.line

        def sizes(every: NDArray[np.intp]) -> NDArray[np.int64]:
            return np.maximum(1, (line.durations_ns(every) * share).astype(np.int64))

        return self._saved_ns(fuse_chains(GraphChange.none(self.graph), rows, False, sizes))

    def without_gaps_of(self, *ranks: int) -> int:
        """The same for hosts of some ranks that take no time."""
        return self._saved_ns(no_launch_gaps(GraphChange.none(self.graph), ranks))

    def without_waits(self) -> int:
        """The same for hosts that never wait for the device."""
        return self._saved_ns(no_waits(GraphChange.none(self.graph)))

    def _saved_ns(self, change: GraphChange) -> int:
        after = replay(change.graph, change.lag, change.delay)
        return (span_ns(self.graph, self.graph.at) - span_ns(self.graph, after)) * self.chips


def sizes_of(graph: Graph, chip: Chip | None) -> Sizes:
    """How long the recorded bytes of spans need on a chip."""

    def sizes(rows: NDArray[np.intp]) -> NDArray[np.int64]:
        return bytes_bound_ns(graph.line, rows, chip)

    return sizes
