"""Turn sources that a fit never saw into how fast anchoring learns them: error and coverage after 0, 1, 2, 3, 5 runs.

A run is picked by the hash of its id, several times over; what is scored are the runs of other configurations. How far
one run is believed is estimated from all sources but the one that is judged. In what proportion effects are shared is
given (`Components`: errors hardly depend on it); how large they are beside the noise, and how large all of it is, are

    minimise  sum over sources of sqrt(rows) x mean |log(measured / predicted)|, anchored         shared effects / noise
    maximise  the same sum of its log density, Student with 4 degrees of freedom                  scale
    90 %      of runs inside the narrowed interval                                                narrowing

Beside it stands what others do, multiplying by measured / predicted of the runs (`naive`). Steps are taken as linear in
offsets here (`cost.anchoring`), which spares two thousand predictions of every row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Literal

import numpy as np

from ridgeline.calibrate.anchor import FREEDOM, condition_on
from ridgeline.calibrate.fit import STEP, OffsetLayout
from ridgeline.calibrate.folds import Dataset
from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.documents import JsonObject
from ridgeline.cost import PARAMETERS, owners
from ridgeline.cost.anchoring import PARTS, Components, Sensitivity, basis, shape_of

RUNS = (0, 1, 2, 3, 5)
PICKS, SOUGHT_PICKS = 24, 10  # times that runs are picked to be scored, and to seek components
ENOUGH = 6  # configurations of a source before its curve says something: one is left after five runs
LADDER = (0.4, 0.55, 0.75, 1.0, 1.35, 1.8, 2.5)  # times larger that components are tried
SOUGHT = (1, 2, 3)  # runs with which components are sought
NARROWINGS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
COVERAGE = 0.9
Scope = Literal["same", "source"]
Spans = tuple[Array, Array]  # by row of the table: logs of low and of high over predicted, before anchoring


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """The runs of a source, predicted by a fit that never saw it.

    rows     their places in the table
    gaps     log(measured / predicted)
    groups   the configuration of each
    cells    engine and chip of each
    parts    covariances among them for components of 1
    """

    source: str
    rows: Index
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    cells: tuple[str, ...]
    gaps: Array
    parts: tuple[Array, ...]


def unseen(table: Dataset, mine: Mask, layout: OffsetLayout, offsets: Array, name: str) -> Unseen:
    """The rows of a source of that name under the offsets of a fit that left it out."""
    rows = np.flatnonzero(mine)
    here = np.log(table.steps(layout.rates(offsets)).step_s)
    slopes: dict[str, Array] = {}
    for name in PARAMETERS:
        shifted_offsets = offsets.copy()
        shifted_offsets[layout.rows.common[name]] += STEP
        slopes[name] = (np.log(table.steps(layout.rates(shifted_offsets)).step_s) - here) / STEP
    sensitivities = [
        Sensitivity(
            owners=owners(scenario.system.chip, scenario.engine).of_training,
            shape=shape_of(scenario),
            slopes=MappingProxyType({name: float(slopes[name][row]) for name in PARAMETERS}),
        )
        for scenario, row in ((table.scenarios[row], row) for row in rows)
    ]
    return Unseen(
        source=name,
        rows=rows,
        ids=tuple(table.rows[row].id for row in rows),
        groups=tuple(table.rows[row].group for row in rows),
        cells=tuple(f"{table.engines[row]} on {table.chips[row]}" for row in rows),
        gaps=(np.log(table.measured_s) - here)[rows],
        parts=basis(sensitivities, sensitivities),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """Runs that anchor, and those that are scored.

    scored                 places in their source
    among, across, own     covariances of anchors, of scored with anchors, and variances of scored, by `PARTS`
    gaps, rest             log(measured / predicted) of anchors, and of scored
    """

    runs: int
    scored: Index
    among: Array
    across: Array
    own: Array
    gaps: Array
    rest: Array


def picks(source: Unseen, scope: Scope, times: int = PICKS) -> Iterator[Pick]:
    """Runs to anchor on, by hash: of the whole source, or of each engine and chip in it by itself."""
    cells = source.cells if scope == "same" else ("",) * len(source.ids)
    for cell in dict.fromkeys(cells):
        inside = [place for place in range(len(source.ids)) if cells[place] == cell]
        if len({source.groups[place] for place in inside}) < ENOUGH:
            continue
        for attempt in range(times):
            hashes = {place: sha256(f"{attempt} {source.ids[place]}".encode()).hexdigest() for place in inside}
            order = sorted(inside, key=lambda place: hashes[place])
            firsts = {source.groups[place]: place for place in reversed(order)}  # of each configuration
            chosen = sorted(firsts.values(), key=order.index)
            for runs in RUNS if attempt == 0 else RUNS[1:]:
                groups = {source.groups[place] for place in chosen[:runs]}
                candidates = [place for place in inside if source.groups[place] not in groups]
                anchors, scored = np.array(chosen[:runs], np.int64), np.array(candidates, np.int64)
                yield Pick(
                    runs=len(anchors),
                    scored=scored,
                    among=np.array([part[np.ix_(anchors, anchors)] for part in source.parts]),
                    across=np.array([part[np.ix_(scored, anchors)] for part in source.parts]),
                    own=np.array([np.diag(part)[scored] for part in source.parts]),
                    gaps=source.gaps[anchors],
                    rest=source.gaps[scored],
                )


def anchored_gaps(pick: Pick, components: Components) -> tuple[Array, Array, Array]:
    """What anchoring leaves of the gaps of scored runs, their variance, and the variance before."""
    sizes = np.array([getattr(components, name) ** 2 for name in PARTS])
    before = sizes @ pick.own + components.noise**2
    if not pick.runs:
        return pick.rest, before, before
    among, across = np.tensordot(sizes, pick.among, 1), np.tensordot(sizes, pick.across, 1)
    weight, noise = condition_on(among, pick.gaps, components.noise)
    gain = np.linalg.solve(among + np.diag(noise**2), across.T)
    return pick.rest - across @ weight, before - np.einsum("ij,ji->i", across, gain), before


class ComponentSearch:
    """The components that predict anchored runs of some sources best; what each is worth on each source is kept."""

    def __init__(self, sources: Sequence[Unseen], spans: Spans) -> None:
        self._sources, self._spans = {item.source: item for item in sources}, spans
        self._picks = {
            item.source: [pick for scope in SCOPES for pick in picks(item, scope, SOUGHT_PICKS) if pick.runs in SOUGHT]
            for item in sources
        }
        self._votes = {item.source: math.sqrt(len(item.rows)) for item in sources}
        self._covered: dict[Components, dict[str, float]] = {}
        self._known: dict[Components, tuple[dict[str, float], dict[str, float]]] = {}

    def _worth(self, components: Components) -> tuple[dict[str, float], dict[str, float]]:
        """By source: mean |log(measured / predicted)| of scored runs, and mean log density of it."""
        if components not in self._known:
            off: dict[str, float] = {}
            dense: dict[str, float] = {}
            for source, chosen in self._picks.items():
                gaps = [anchored_gaps(pick, components)[:2] for pick in chosen]
                if gaps:
                    off[source] = float(np.mean([np.abs(gaps).mean() for gaps, _ in gaps]))
                    dense[source] = float(np.mean([_density(gaps, variance) for gaps, variance in gaps]))
            self._known[components] = off, dense
        return self._known[components]

    def best(self, without: str = "") -> Components:
        """The components that are best for all sources but one: first what is shared against noise, then the scale."""
        shared = [_scale_components(Components(), factor, PARTS) for factor in LADDER]
        best = min(shared, key=lambda item: self._total(item, 0, without))
        candidates = [_scale_components(best, factor, (*PARTS, "noise")) for factor in LADDER]
        best = max(candidates, key=lambda item: self._total(item, 1, without))
        powers = [replace(best, narrowing=power) for power in NARROWINGS]
        return min(powers, key=lambda item: abs(self._coverage(item, without) - COVERAGE))

    def _coverage(self, components: Components, without: str) -> float:
        """Share of scored runs in their narrowed intervals, all sources but one."""
        if components not in self._covered:
            self._covered[components] = {}
            for source, chosen in self._picks.items():
                inside = [_inside(self._sources[source], pick, components, self._spans).mean() for pick in chosen]
                if inside:
                    self._covered[components][source] = float(np.mean(inside))
        shares = [(self._votes[name], share) for name, share in self._covered[components].items() if name != without]
        return sum(votes * share for votes, share in shares) / max(sum(votes for votes, _ in shares), 1.0)

    def _total(self, components: Components, which: int, without: str) -> float:
        worths = self._worth(components)[which]
        return sum(self._votes[source] * value for source, value in worths.items() if source != without)


def _scale_components(components: Components, factor: float, names: Sequence[str]) -> Components:
    return replace(components, **{name: round(getattr(components, name) * factor, 4) for name in names})


def _inside(source: Unseen, pick: Pick, components: Components, spans: Spans) -> Mask:
    """Which scored runs lie in their interval, narrowed by the anchors."""
    gaps, after, before = anchored_gaps(pick, components)
    rows, ratio = source.rows[pick.scored], np.sqrt(after / before) ** components.narrowing
    inside: Mask = (spans[0][rows] * ratio <= gaps) & (gaps <= spans[1][rows] * ratio)
    return inside


def _density(gaps: Array, variance: Array) -> float:
    """Mean log density of a Student distribution, but for a constant."""
    return -float(((FREEDOM + 1) / 2 * np.log1p(gaps**2 / variance / FREEDOM) + np.log(variance) / 2).mean())


SCOPES: tuple[Scope, ...] = ("same", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One row after so many runs, averaged over picks: how far off it is, naively too, and how often covered."""

    row: int
    source: str
    engine: str
    off: float
    naive: float
    covered: float


def score_rows(
    sources: Sequence[Unseen], chosen: Mapping[str, Components], spans: Spans, scope: Scope
) -> dict[int, list[Scored]]:
    """By number of runs, every row that is left."""
    figures: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
    about: dict[int, tuple[str, str]] = {}
    for source in sources:
        components = chosen[source.source]
        for pick in picks(source, scope):
            gaps = anchored_gaps(pick, components)[0]
            simple = pick.rest - (pick.gaps.mean() if pick.runs else 0.0)
            inside = _inside(source, pick, components, spans)
            for at, row in enumerate(source.rows[pick.scored].tolist()):
                about[row] = source.source, source.cells[pick.scored[at]].partition(" on ")[0]
                figures.setdefault((pick.runs, row), []).append((_off(gaps[at]), _off(simple[at]), float(inside[at])))
    rows_by_count: dict[int, list[Scored]] = {}
    for (runs, row), values in figures.items():
        off, naive, coverage = np.mean(values, axis=0).tolist()
        score = Scored(row=row, source=about[row][0], engine=about[row][1], off=off, naive=naive, covered=coverage)
        rows_by_count.setdefault(runs, []).append(score)
    return rows_by_count


def _off(gap: float) -> float:
    """|predicted / measured - 1|."""
    return float(abs(np.expm1(-gap)))


def curve_sheet(sources: Sequence[Unseen], spans: Spans, headline: Mask) -> tuple[Components, JsonObject]:
    """Components from all sources, and the learning curve as `docs/accuracy.json` holds it."""
    search = ComponentSearch(sources, spans)
    chosen = {item.source: search.best(item.source) for item in sources}
    best = search.best()
    sheet: JsonObject = {"runs": list(RUNS), "picks": PICKS}
    sheet["components"] = {name: getattr(best, name) for name in Components.__slots__}
    for scope in SCOPES:
        scores = score_rows(sources, chosen, spans, scope)
        sheet[scope] = [_point(runs, scores[runs], headline) for runs in RUNS if runs in scores]
        for by in ("source", "engine"):
            sheet[f"{scope}_by_{by}"] = _by(scores, by)
    return best, sheet


def _point(runs: int, rows: Sequence[Scored], headline: Mask) -> JsonObject:
    some = [row for row in rows if headline[row.row]]
    return {
        "runs": runs,
        "rows": len(rows),
        "mape": _mean(rows, "off"),
        "median_ape": round(float(np.median([row.off for row in rows])), 4),
        "naive": _mean(rows, "naive"),
        "coverage90": _mean(rows, "covered"),
        "headline_rows": len(some),
        "headline": _mean(some, "off"),
        "headline_naive": _mean(some, "naive"),
    }


def _mean(rows: Sequence[Scored], what: str) -> float | None:
    return round(float(np.mean([getattr(row, what) for row in rows])), 4) if rows else None


def _by(scores: Mapping[int, Sequence[Scored]], by: str) -> JsonObject:
    """Mean error after each number of runs, by source or engine, the most rows first."""
    groups: dict[str, dict[int, list[Scored]]] = {}
    for runs, rows in scores.items():
        for row in rows:
            groups.setdefault(getattr(row, by), {}).setdefault(runs, []).append(row)
    order = sorted(groups, key=lambda name: (-len(groups[name][0]), name))
    return {
        name: {"n": len(groups[name][0]), "mape": [_mean(groups[name].get(runs, ()), "off") for runs in RUNS]}
        for name in order
    }
