"""Turn a space into priced cells: every structure (which ops there are) at every choice of degrees that size its ops.

The sections of a layer depend on tp, cp, ep, etp and the microbatch alone, so they are lowered once per structure with
arrays for sizes, and priced once. What a pipeline, sharding and a schedule make of them comes later: ``sweep``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration, machines_of, parameter_columns, sustained_rates
from ridgeline.lowering.context import Degrees, LoweringContext, lowering_context
from ridgeline.lowering.plan_columns import PlanColumns, plan_columns
from ridgeline.lowering.program import sections_of
from ridgeline.plan.check import blocks, context, experts, precision, tensor
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Plan, Precision
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.supported import tells_expert_overlap
from ridgeline.search.space import Space
from ridgeline.sim import PlanModel, join_models, not_predictable


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeGrid:
    """Priced cells of structures with as many sections, placed alike.

    structure     which of `scenarios` a cell belongs to; those carry everything but degrees
    degrees       tp, cp, ep, etp and microbatch by cell; those that make as many microbatches stand side by side
    weight_group  the same for cells that hold the same weights on the same ranks: their mesh and precision are equal
    plans         as `lowering` lays them out, by cell
    """

    scenarios: tuple[Scenario, ...]
    context: LoweringContext
    structure: Index
    degrees: Degrees
    weight_group: Index
    plans: PlanColumns
    model: PlanModel

    def __len__(self) -> int:
        return len(self.structure)


RULES = (precision, blocks, not_predictable)  # what a structure alone can get wrong


def priced_grids(base: Scenario, space: Space, calibration: Calibration) -> list[DegreeGrid]:
    """The cells of a space, one value for all structures that stand in stages alike and run at the same rates."""
    groups: dict[tuple[int, object, str | None], list[_Structure]] = {}
    structure_prices: dict[tuple[str, bytes], _Structure] = {}
    degrees_by_switches = [
        _degrees(replace(base, plan=replace(base.plan, switches=item)), space) for item in space.switches
    ]
    for recompute, formats, switches in space.structures:
        plan = replace(base.plan, recompute=recompute, precision=formats, switches=switches)
        scenario = replace(base, plan=plan)
        degrees = degrees_by_switches[space.switches.index(switches)]
        possible = not any(problem for rule in RULES for problem in rule(scenario))
        possible &= not (recompute.kind == "full" and len(space.recompute) > 1 and _overlap_told(scenario))
        if possible and len(degrees):
            # what overlaps changes no op
            same = str(replace(plan, switches=replace(switches, overlap={}))), degrees.tobytes()
            if same not in structure_prices:
                structure_prices[same] = _structure(scenario, degrees, calibration)
            structure = replace(
                structure_prices[same], scenario=scenario, degrees=degrees, plans=plan_columns([_with(scenario)])
            )
            key = (structure.model.kinds, recompute.layers, switches.graph)
            groups.setdefault(key, []).append(structure)
    return [_join_structures(structures) for structures in groups.values()]


def _overlap_told(scenario: Scenario) -> bool:
    """Whether an engine that can is told to overlap expert dispatch: its backward cannot begin with a forward then."""
    return "moe" in scenario.engine.supports.features.overlaps and tells_expert_overlap(scenario)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Structure:
    scenario: Scenario
    context: LoweringContext
    degrees: Array
    plans: PlanColumns
    model: PlanModel


def _degrees(scenario: Scenario, space: Space) -> Array:
    """tp, cp, ep, etp, microbatch of every cell that can run somewhere, one row each; judged by `plan.check`.

    Formats and recompute have no say in it.
    """
    plan, chips = scenario.plan, scenario.system.chips
    tps = [tp for tp in space.tp if not any(tensor(_with(scenario, tp=tp)))]
    pairs = [
        (tp, cp)
        for tp, cp in product(tps, space.cp)
        if chips % (tp * cp) == 0
        and not _is_duplicate_cell(plan, space, tp, cp)
        and not any(context(_with(scenario, tp=tp, cp=cp)))
    ]
    expert_pairs = [
        (ep, etp)
        for ep, etp in product(space.ep, space.etp)
        if chips % (ep * etp) == 0
        and not (ep * etp == 1 and _idle_overlap(plan, space))
        and not any(experts(_with(scenario, dp=ep * etp, ep=ep, etp=etp)))
    ]
    cells = [(*pair, *fold, size) for pair, fold, size in product(pairs, expert_pairs, space.microbatch)]
    return np.array(cells, dtype=np.float64).reshape(-1, 5)


def _is_duplicate_cell(plan: Plan, space: Space, tp: int, cp: int) -> bool:
    """Whether another structure is the same at these degrees: a switch for ranks that are not there."""
    switches = plan.switches
    same = (
        (tp == 1 and switches.sequence_parallel is not None, replace(switches, sequence_parallel=None)),
        (cp == 1 and switches.cp_kind != "ring", replace(switches, cp_kind="ring")),
    )
    return any(idle and alternative in space.switches for idle, alternative in same)


def _idle_overlap(plan: Plan, space: Space) -> bool:
    """Whether another structure is the same while no expert is exchanged: one not told to overlap that."""
    switches = plan.switches
    remainder = {word: on for word, on in switches.overlap.items() if word != "moe"}
    return "moe" in switches.overlap and replace(switches, overlap=remainder) in space.switches


def _with(scenario: Scenario, **degrees: Any) -> Scenario:
    return replace(scenario, plan=replace(scenario.plan, mesh=Mesh(**degrees)))


def _structure(scenario: Scenario, degrees: Array, calibration: Calibration) -> _Structure:
    """One structure lowered with arrays for sizes, and priced."""
    tp, cp, ep, etp, microbatch = degrees.T
    one, plans = lowering_context(scenario), plan_columns([_with(scenario)])
    split = scenario.plan.switches.sequence_parallel is not False
    context = replace(
        one,
        degrees=Degrees(tp=tp, cp=cp, ep=ep, etp=etp, microbatch=microbatch),
        resolved=replace(one.resolved, sequence_parallel=split),
    )
    sections, parameters = sections_of(context), parameter_columns(calibration, [scenario])
    rates = sustained_rates(machines_of([scenario.system]), parameters, plans=plans)
    return _Structure(
        scenario=scenario,
        context=context,
        degrees=degrees,
        plans=plans,
        model=PlanModel.of(scenario, context, sections, rates, len(degrees), calibration.profiles),
    )


def _join_structures(parts: Sequence[_Structure]) -> DegreeGrid:
    """Structures side by side, their sections in one table, sorted by how many microbatches they make."""
    degrees = np.concatenate([part.degrees for part in parts])
    tp, cp, _, _, microbatch = degrees.T
    base = parts[0].scenario
    microbatches = base.workload.sequences * tp * cp / (base.system.chips * microbatch)  # microbatches for a stage
    order = np.lexsort((microbatches, microbatches % 1 > 0))  # loops take whole numbers of them
    tp, cp, ep, etp, microbatch = degrees[order].T
    model = join_models([part.model for part in parts], order)
    columns = {item.name: [getattr(part.plans, item.name) for part in parts] for item in fields(PlanColumns)}
    precisions = [part.scenario.plan.precision for part in parts]
    return DegreeGrid(
        scenarios=tuple(part.scenario for part in parts),
        context=parts[0].context,
        structure=model.structure,
        degrees=Degrees(tp=tp, cp=cp, ep=ep, etp=etp, microbatch=microbatch),
        weight_group=_weight_group(precisions, model.structure, degrees[order, :4]),
        plans=PlanColumns(**{name: _column(values, model.structure) for name, values in columns.items()}),
        model=model,
    )


def _weight_group(precisions: Sequence[Precision], structure: Index, degrees: Array) -> Index:
    """A number for every mesh and precision."""
    which = np.array([precisions.index(precision) for precision in precisions])[structure]
    return np.unique(np.column_stack([degrees, which]), axis=0, return_inverse=True)[1].ravel()


def _column(values: Sequence[Array], structure: Index) -> Array:
    """A column by cell of what structures have one entry of; one entry where that is the same for all."""
    column = np.concatenate(values)
    return column[:1] if (column == column[0]).all() else column[structure]
