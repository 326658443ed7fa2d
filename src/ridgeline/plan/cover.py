"""Turn recompute that differs by stage or block into the nearest that does not and covers it.

Software with one choice for all layers is given as much recompute everywhere as the plan has anywhere: a plan that fits
in memory then still fits, and is slower by what is computed again needlessly.
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.engine import RecomputeKind
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario

MORE: tuple[RecomputeKind, ...] = ("none", "selective", "full")  # each covers those before it


def same_everywhere(scenario: Scenario) -> Recompute:
    """One kind for all layers: the most that any layer has. What does not differ comes back as it is.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192,
    ...     "global_batch": 8}, "plan": {"pp": 2, "recompute": {"kind": "full", "layers": [3, 0]}}})
    >>> same_everywhere(made)
    Recompute(kind='full', parts=('attention',), layers=None, rest='none', blocks=mappingproxy({}))
    """
    own = scenario.plan.recompute
    if own.layers is None and not own.blocks:
        return own
    kind = max(_kinds(scenario), key=MORE.index)
    return Recompute(kind=kind, parts=own.parts)


def same_in_stages(scenario: Scenario) -> Recompute:
    """One number of fully recomputed layers for every virtual stage, or one kind for all layers where more differs.

    >>> import ridgeline
    >>> table = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192, "global_batch": 8}}
    >>> def cover(**recompute):
    ...     made = ridgeline.scenario({**table, "plan": {"pp": 2, "recompute": {"kind": "full", **recompute}}})
    ...     return str(same_in_stages(made))
    >>> cover(layers=[3, 1]), cover(layers=[3, 1], rest="selective"), cover(layers=[0, 0]), cover(layers=[16, 3])
    ('full (3 layers of each stage)', 'full', 'none', 'full')
    """
    own, held = scenario.plan.recompute, scenario.placement
    if own.kind != "full" or own.rest != "none" or own.layers is None or own.blocks:
        return same_everywhere(scenario)
    most = max(own.layers_of(stage, layers) for stage, layers in enumerate(held))
    if most == 0 or most >= max(held):
        return same_everywhere(scenario)
    return Recompute(kind="full", parts=own.parts, layers=most)


def _kinds(scenario: Scenario) -> Iterator[RecomputeKind]:
    """What some layer does, each kind at least once."""
    own, layer = scenario.plan.recompute, 0
    yield "none"
    if scenario.model.mtp is not None:
        yield own.kind  # blocks that predict further tokens
    for stage, held in enumerate(scenario.placement):
        again = own.layers_of(stage, held)
        for place in range(held):
            yield own.blocks.get(str(scenario.model.order[layer]), own.kind) if place < again else own.rest
            layer += 1
