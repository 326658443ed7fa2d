"""Turn a space into priced cells: every structure (which ops there are) at every choice of degrees that size its ops.

The sections of a layer depend on tp, cp, ep, etp and the microbatch alone, so they are lowered once per structure with
arrays for sizes, and priced once. What a pipeline, sharding and a schedule make of them comes later: ``sweep``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.parameters import Calibration
from ridgeline.cost.rates import machines_of, rates_of
from ridgeline.lowering.program import sections_of
from ridgeline.lowering.shape import Degrees, Shape, shape_of
from ridgeline.plan.check import blocks, context, experts, precision, tensor
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Plan
from ridgeline.plan.scenario import Scenario
from ridgeline.search.space import Space
from ridgeline.sim.batch import spread
from ridgeline.sim.holding import Needs, Widths, needs_of, widths_of
from ridgeline.sim.predict import not_predictable
from ridgeline.sim.run import Runs, runs_of
from ridgeline.sim.step import Rows, Sections, price_slots, rows_of

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Priced cells of structures with as many sections, placed alike; section s of cell c stands at s cells + c.

    structure   which of `scenarios` a cell belongs to; those carry everything but degrees
    degrees     tp, cp, ep, etp and microbatch by cell
    runs, widths, needs   as `sim` takes them, by cell
    """

    scenarios: tuple[Scenario, ...]
    shape: Shape
    structure: Index
    degrees: Degrees
    sections: Sections
    runs: Runs
    widths: tuple[Widths, ...]
    needs: Needs
    rows: Rows
    kinds: int

    def __len__(self) -> int:
        return len(self.structure)

    def places(self, cells: Index) -> Index:
        """Where the sections of these cells stand, section by section."""
        return (np.arange(self.kinds)[:, None] * len(self) + cells).ravel()

    def taken(self, cells: Index) -> Sections:
        """The sections of these cells as cells of their own."""
        at, own = self.places(cells), self.sections
        return Sections(
            cell=np.tile(np.arange(len(cells)), self.kinds),
            params=own.params[:, at],
            away=own.away[at],
            seconds=own.seconds[:, :, at],
            issue_s=own.issue_s[at],
        )

    def needed(self, cells: Index) -> Needs:
        """The needs of these cells."""
        at, own = self.places(cells), self.needs
        by_cell = {name: getattr(own, name)[cells] for name in _BY_CELL}
        return Needs(columns=own.columns[:, at], layer=own.layer[at], norm=own.norm, **by_cell)

    def width(self, cells: Index) -> Widths:
        """Bytes a parameter takes, as columns by row."""
        which = self.structure[cells]

        def column(name: str) -> Array:
            return np.array([getattr(width, name) for width in self.widths], dtype=np.float64)[which]

        return replace(
            self.widths[0],
            weights=column("weights"),
            gradients=column("gradients"),
            optimizer=column("optimizer"),
            gathered=column("gathered"),
            reduced=column("reduced"),
        )


_BY_CELL = ("loss", "sends", "crossing", "head", "widest", "shared")


RULES = (precision, blocks, not_predictable)  # what a structure alone can get wrong


def priced_cells(base: Scenario, space: Space, calibration: Calibration) -> list[Cells]:
    """The cells of a space, one value for all structures that stand in stages alike and run at the same rates."""
    groups: dict[tuple[int, object, str | None], list[_Structure]] = {}
    for recompute, formats, switches in space.structures:
        plan = replace(base.plan, recompute=recompute, precision=formats, switches=switches)
        scenario = replace(base, plan=plan)
        degrees = _degrees(scenario, space)
        possible = not any(problem for rule in RULES for problem in rule(scenario))
        if possible and len(degrees):
            made = _structure(scenario, degrees, calibration)
            key = (len(made.sections.cell) // len(degrees), recompute.layers, switches.graph)
            groups.setdefault(key, []).append(made)
    return [_joined(structures, kinds) for (kinds, *_), structures in groups.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Structure:
    scenario: Scenario
    shape: Shape
    degrees: Array
    sections: Sections
    needs: Needs
    runs: Runs
    rows: Rows


def _degrees(scenario: Scenario, space: Space) -> Array:
    """tp, cp, ep, etp, microbatch of every cell that can run somewhere, one row each; judged by `plan.check`."""
    plan, chips = scenario.plan, scenario.system.chips
    tps = [tp for tp in space.tp if not any(tensor(_with(scenario, tp=tp)))]
    pairs = [
        (tp, cp)
        for tp, cp in product(tps, space.cp)
        if chips % (tp * cp) == 0
        and not _repeated(plan, space, tp, cp)
        and not any(context(_with(scenario, tp=tp, cp=cp)))
    ]
    folded = [
        (ep, etp)
        for ep, etp in product(space.ep, space.etp)
        if chips % (ep * etp) == 0 and not any(experts(_with(scenario, dp=ep * etp, ep=ep, etp=etp)))
    ]
    made = [(*pair, *fold, size) for pair, fold, size in product(pairs, folded, space.microbatch)]
    return np.array(made, dtype=np.float64).reshape(-1, 5)


def _repeated(plan: Plan, space: Space, tp: int, cp: int) -> bool:
    """Whether another structure is the same at these degrees: a switch for ranks that are not there."""
    own = plan.switches
    same = (
        (tp == 1 and own.sequence_parallel is not None, replace(own, sequence_parallel=None)),
        (cp == 1 and own.cp_kind != "ring", replace(own, cp_kind="ring")),
    )
    return any(idle and other in space.switches for idle, other in same)


def _with(scenario: Scenario, **degrees: int) -> Scenario:
    return replace(scenario, plan=replace(scenario.plan, mesh=Mesh(**degrees)))


def _structure(scenario: Scenario, degrees: Array, calibration: Calibration) -> _Structure:
    """One structure lowered with arrays for sizes, and priced."""
    tp, cp, ep, etp, microbatch = degrees.T
    shape = replace(
        shape_of(scenario),
        degrees=Degrees(tp=tp, cp=cp, ep=ep, etp=etp, microbatch=microbatch),
        sequence_parallel=scenario.plan.switches.sequence_parallel is not False,
    )
    sections, runs = sections_of(shape), runs_of([_with(scenario)])
    rates = rates_of(calibration, [scenario.system.chip.id], [scenario.plan.engine])
    rows = rows_of(machines_of([scenario.system]), rates, runs)
    return _Structure(
        scenario=scenario,
        shape=shape,
        degrees=degrees,
        sections=price_slots(spread(sections, len(degrees)), rows),
        needs=needs_of(shape, sections, len(degrees)),
        runs=runs,
        rows=rows,
    )


def _together(columns: Array) -> Array:
    """Columns of needs with the bytes kept by all parts in one."""
    return np.concatenate([columns[:3], columns[3:].sum(0, keepdims=True)])


def _joined(parts: Sequence[_Structure], kinds: int) -> Cells:
    """Structures side by side, their sections in one table."""
    structure = np.repeat(np.arange(len(parts)), [len(part.degrees) for part in parts])
    degrees = np.concatenate([part.degrees for part in parts])
    tp, cp, ep, etp, microbatch = degrees.T

    def beside(columns: Sequence[Array], axis: int = 0) -> Array:
        """Columns by section and cell of each part as one."""
        head = [column.shape[:axis] for column in columns]
        split = [
            column.reshape(*shape, kinds, -1, *column.shape[axis + 1 :])
            for column, shape in zip(columns, head, strict=True)
        ]
        joined = np.concatenate(split, axis=axis + 1)
        return joined.reshape(*head[0], -1, *columns[0].shape[axis + 1 :])

    sections, needs = [part.sections for part in parts], [part.needs for part in parts]
    return Cells(
        scenarios=tuple(part.scenario for part in parts),
        shape=parts[0].shape,
        structure=structure,
        degrees=Degrees(tp=tp, cp=cp, ep=ep, etp=etp, microbatch=microbatch),
        sections=Sections(
            cell=np.tile(np.arange(len(structure)), kinds),
            params=beside([part.params for part in sections], 1),
            away=beside([part.away for part in sections]),
            seconds=beside([part.seconds for part in sections], 2),
            issue_s=beside([part.issue_s for part in sections]),
        ),
        runs=Runs(
            **{
                item.name: np.concatenate([getattr(part.runs, item.name) for part in parts])[structure]
                for item in fields(Runs)
            }
        ),
        widths=tuple(widths_of(part.shape, part.scenario) for part in parts),
        needs=Needs(
            columns=beside([_together(need.columns) for need in needs], 1),
            layer=beside([need.layer for need in needs]),
            norm=needs[0].norm,
            **{name: np.concatenate([getattr(need, name) for need in needs]) for name in _BY_CELL},
        ),
        rows=parts[0].rows,
        kinds=kinds,
    )
