"""Turn a Plan into the [plan] table that a scenario file takes, and a scenario's tables into the file's text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.encode import encode, toml_text
from ridgeline.core.table import decode
from ridgeline.plan.mesh import ORDERS
from ridgeline.plan.plan import Plan

# what a scenario file should say even where it is the default, because a reader would otherwise have to assume it
SPOKEN = ("dp", "microbatch", "recompute", "precision", "engine")


def plan_table(plan: Plan, *, spoken: bool = False) -> JsonObject:
    """The keys of a plan that are not defaults; with `spoken`, also those that a file would have to assume.

    >>> from ridgeline.plan.mesh import Mesh
    >>> from ridgeline.plan.plan import Recompute
    >>> plan_table(Plan(mesh=Mesh(tp=8, dp=4), recompute=Recompute(kind="selective")))
    {'dp': 4, 'tp': 8, 'recompute': 'selective'}
    """
    table = encode(plan)
    for key, short in (("recompute", plan.recompute.kind), ("precision", plan.precision.compute.id)):
        if key in table and getattr(decode(Plan, {key: short}), key) == getattr(plan, key):
            table[key] = short
    if not spoken:
        return table
    entries = {
        "dp": plan.mesh.dp,
        "microbatch": plan.microbatch,
        "recompute": plan.recompute.kind,
        "precision": plan.precision.compute.id,
        "engine": plan.engine,
    }
    return {**table, **{key: table.get(key, entries[key]) for key in SPOKEN}}


def scenario_text(table: JsonMapping, plan: Plan, note: str = "") -> str:
    """A scenario file: the tables it was asked with and the plan in full."""
    head = "".join(f"# {line}\n" for line in note.splitlines())
    keys = ("name", "notes", "model", "system", "chip", "engine", "workload")
    order = {key: table[key] for key in keys if key in table}
    return head + toml_text({**order, "plan": plan_table(plan, spoken=True)})


def plan_words(plan: Plan) -> str:
    """A plan in one line, as tables and messages name it.

    >>> from ridgeline.plan.mesh import Mesh
    >>> plan_words(Plan(mesh=Mesh(tp=8, pp=2, dp=4)))
    'pp=2 dp=4 tp=8, microbatch 1, 1f1b, bf16'
    """
    degrees = ((axis, getattr(plan.mesh, axis)) for axis in ("pp", "dp", "cp", "tp", "ep", "etp"))
    mesh = " ".join(f"{axis}={degree}" for axis, degree in degrees if degree > 1) or "one rank"
    words = [mesh, *([f"order {plan.mesh.order}"] if plan.mesh.order != ORDERS[0] else [])]
    words += [f"microbatch {plan.microbatch}"]
    words += [schedule_words(plan)] if plan.mesh.pp > 1 else []
    words += [f"layers {runs(plan.placement)}"] if plan.placement else []
    words += [sharding_words(plan)] if plan.sharding.shard != "none" else []
    words += [f"recompute {recompute_words(plan)}"] if plan.recompute.kind != "none" else []
    words += [f"offload {offload_words(plan)}"] if plan.offload != Plan().offload else []
    words += [plan.precision.compute.id, *_switch_words(plan)]
    return ", ".join(words)


def schedule_words(plan: Plan) -> str:
    """The schedule, with its chunks where there are several."""
    return plan.schedule.name + (f" x{plan.schedule.chunks}" if plan.schedule.chunks > 1 else "")


def sharding_words(plan: Plan) -> str:
    """What is sharded, and over how many ranks where that is not all of them."""
    degree = plan.sharding.shard_degree
    return plan.sharding.shard + (f"/{degree}" if degree else "")


def recompute_words(plan: Plan) -> str:
    """What is computed again; the parts where they are not just attention, the layers where they are not all.

    >>> from ridgeline.plan.plan import Recompute
    >>> recompute_words(Plan(recompute=Recompute(kind="full", layers=(2, 1, 1))))
    'full of 2 1x2 layers by stage'
    """
    recompute = plan.recompute
    words = (
        f"{recompute.kind} ({'+'.join(recompute.parts)})"
        if recompute.kind == "selective" and recompute.parts != ("attention",)
        else recompute.kind
    )
    if recompute.layers is None:
        return words
    some = (
        f"{recompute.layers} layers of each"
        if isinstance(recompute.layers, int)
        else f"{runs(recompute.layers)} layers by"
    )
    remaining = f", {recompute.rest} in the rest" if recompute.rest != "none" else ""
    return f"{words} of {some} stage{remaining}"


def runs(numbers: Sequence[int]) -> str:
    """Numbers with those that repeat counted.

    >>> runs((7, 8, 8, 8, 7))
    '7 8x3 7'
    """
    groups = ((number, len(list(same))) for number, same in groupby(numbers))
    return " ".join(f"{number}x{times}" if times > 1 else str(number) for number, times in groups)


def offload_words(plan: Plan) -> str:
    """What rests in host memory."""
    shares = (("optimizer", plan.offload.optimizer), ("activations", plan.offload.activations))
    return " and ".join(f"{share:.0%} of {name}" for name, share in shares if share) or "none"


def _switch_words(plan: Plan) -> list[str]:
    switches = plan.switches
    words = ["no sequence parallelism"] if switches.sequence_parallel is False and plan.mesh.tp > 1 else []
    words += ["heads exchanged over cp"] if switches.cp_kind == "all-to-all" and plan.mesh.cp > 1 else []
    if plan.mesh.ep > 1:
        words += [switches.moe_dispatch] if switches.moe_dispatch else []
        words += ["dispatch overlapped"] if switches.overlap.get("moe") else []
    return words
