"""Turn what a sweep kept into plans that differ in kind: the best of each mesh, sharding and recompute.

The fastest plans of a space are often one plan at several numbers of chunks. A kind is everything but the schedule, the
microbatch, dp and the switches; the best plan of another kind than the winner's is exact, since it is the best at
another choice along some axis, all of which the sweep kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from ridgeline.plan.plan import Plan
from ridgeline.plan.plan_table import recompute_words, sharding_words
from ridgeline.search.plan_search import SweepResult, distinct
from ridgeline.search.shortlist import Entry, in_order


def kind_of(plan: Plan) -> Hashable:
    """What plans of one kind share."""
    mesh = plan.mesh
    return mesh.pp, mesh.cp, mesh.tp, mesh.ep, mesh.etp, plan.sharding, str(plan.recompute), plan.recompute.parts


def kind_words(plan: Plan) -> str:
    """A kind in words.

    >>> from ridgeline.plan.mesh import Mesh
    >>> kind_words(Plan(mesh=Mesh(tp=8, pp=2, dp=4)))
    'pp=2 tp=8, no sharding, recompute none'
    """
    mesh = plan.mesh
    degrees = [f"{axis}={getattr(mesh, axis)}" for axis in ("pp", "cp", "tp", "ep", "etp") if getattr(mesh, axis) > 1]
    shard = "no sharding" if plan.sharding.shard == "none" else sharding_words(plan)
    return f"{' '.join(degrees) or 'data-parallel'}, {shard}, recompute {recompute_words(plan)}"


def kinds(swept: SweepResult, most: int) -> tuple[Entry, ...]:
    """The best plan of each kind among all that were kept, fastest first."""
    alternatives = (entry for some in swept.by_choice.values() for entry in some)
    return distinct(first_of_each((*swept.best, *alternatives)))[:most]


def first_of_each(entries: Iterable[Entry]) -> Iterable[Entry]:
    """The fastest entry of each kind, fastest first."""
    seen: set[Hashable] = set()
    for entry in in_order(entries):
        kind = kind_of(entry.plan)
        if kind not in seen:
            seen.add(kind)
            yield entry
