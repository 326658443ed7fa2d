"""Every decision about how work is split, as one frozen value that is priced, simulated, executed and exported.

`plan_table` turns it into the [plan] table of a scenario file, `plan_words` into one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import groupby
from types import MappingProxyType
from typing import Annotated, Literal

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.encode import encode, toml_text
from ridgeline.core.errors import Problem, not_among
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Doc, Flat, Size, Via, decode
from ridgeline.plan.engine import OVERLAPS, RecomputeKind, RecomputePart
from ridgeline.plan.formats import NARROW as NARROW
from ridgeline.plan.formats import Precision as Precision
from ridgeline.plan.formats import Sharding as Sharding
from ridgeline.plan.formats import precision_table
from ridgeline.plan.mesh import ORDERS, Mesh
from ridgeline.plan.rl_plan import RlPlan
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.plan.serving_plan import ServingPlan, Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The pipeline schedule and how many chunks (virtual stages) each rank holds."""

    name: str = "1f1b"
    chunks: Count = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """What the backward pass computes again instead of keeping.

    kind    none, selective (the parts named), or full (a layer keeps only its input)
    parts   for selective: attention is the score part between projections, latent-up the projections out of a latent,
            alternate everything but attention and every second product
    layers  how many layers of each virtual stage it applies to, from the stage's first: one number for all stages, or
            one for each in model order; absent: all
    rest    what the layers beyond those do: none, or selective with the same parts where kind is full
    blocks  a kind by distinct block index of the model, where it differs
    """

    kind: RecomputeKind = "none"
    parts: tuple[RecomputePart, ...] = ("attention",)
    layers: Annotated[
        Size | tuple[Size, ...] | None,
        Doc("layers of each virtual stage it applies to: a number, or one for each stage"),
    ] = None
    rest: Annotated[RecomputeKind, Doc("what the layers beyond `layers` do")] = "none"
    blocks: Mapping[str, RecomputeKind] = field(default_factory=lambda: MappingProxyType({}))

    def layers_of(self, stage: int, held: int) -> int:
        """How many of the layers a virtual stage holds are computed again.

        >>> Recompute(layers=(4, 0)).layers_of(0, 3), Recompute(layers=2).layers_of(1, 3), Recompute().layers_of(1, 3)
        (3, 2, 3)
        """
        if self.layers is None:
            return held
        return min(held, self.layers if isinstance(self.layers, int) else self.layers[stage])

    def __str__(self) -> str:
        """
        >>> str(Recompute(kind="full", layers=(2, 0), rest="selective")), str(Recompute(kind="full", layers=3))
        ('full (2 0 layers by stage, selective in the rest)', 'full (3 layers of each stage)')
        """
        if self.layers is None:
            return self.kind
        count = (
            f"{self.layers} layers of each stage"
            if isinstance(self.layers, int)
            else f"{' '.join(map(str, self.layers))} layers by stage"
        )
        return f"{self.kind} ({count}{f', {self.rest} in the rest' if self.rest != 'none' else ''})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Shares of state kept in host memory, 0 to 1."""

    activations: Annotated[float, AtLeast(0)] = 0.0
    optimizer: Annotated[float, AtLeast(0)] = 0.0

    def problems(self) -> Iterable[Problem]:
        for key, share in (("activations", self.activations), ("optimizer", self.optimizer)):
            if share > 1:
                yield Problem(path=key, given=f"{share:g}", expected="a share between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What a plan may switch against the engine's habit; absent means as the engine does.

    sequence_parallel  norms and dropouts are split over tp too; absent: when tp > 1
    cp_kind            how context parallelism exchanges keys: around a ring, or heads for sequence (all-to-all)
    compiled           pointwise chains are compiled into one kernel
    launch_blocking    the host waits for every kernel, as when debugging (CUDA_LAUNCH_BLOCKING=1): nothing overlaps
    """

    sequence_parallel: bool | None = None
    cp_kind: Literal["ring", "all-to-all"] = "ring"
    attention: Literal["flash", "unfused"] | None = None
    graph: Literal["none", "partial", "full"] | None = None
    moe_dispatch: Literal["all-to-all", "deepep", "hybridep"] | None = None
    moe_imbalance: Annotated[float, AtLeast(1), Doc("tokens of the busiest expert rank over the mean")] = 1.0
    compiled: bool | None = None
    launch_blocking: bool = False
    overlap: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))

    def problems(self) -> Iterable[Problem]:
        for key in self.overlap:
            if key not in OVERLAPS:
                yield not_among(f"overlap.{key}", key, OVERLAPS)


def _schedule(value: object) -> object:
    """`"zbv"`, or a table; chunks left out are the fewest the schedule takes."""
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not isinstance(name := table.get("name", "1f1b"), str):
        return table
    return {"chunks": SCHEDULES[name].fewest_chunks, **table} if name in SCHEDULES else table


def _kind(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


def shares(value: object) -> object:
    """`"optimizer"` or `["optimizer", "activations"]`: all of it; a table gives shares."""
    if isinstance(value, str):
        return {} if value == "none" else {value: 1.0}
    if not isinstance(value, (list, tuple)) or not all(isinstance(part, str) for part in value):
        return value
    return dict.fromkeys(value, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A complete set of decisions. In a file the mesh, sharding and switches stand directly under [plan]."""

    mesh: Annotated[Mesh, Flat()] = Mesh()
    microbatch: Annotated[Count, Doc("sequences one data-parallel rank handles at a time")] = 1
    schedule: Annotated[Schedule, Via(_schedule)] = Schedule()
    placement: Annotated[
        tuple[Annotated[int, AtLeast(0)], ...], Doc("layers of each virtual stage, in model order")
    ] = ()
    sharding: Annotated[Sharding, Flat()] = Sharding()
    recompute: Annotated[Recompute, Via(_kind)] = Recompute()
    offload: Annotated[Offload, Via(shares, "array")] = Offload()
    precision: Annotated[Precision, Via(precision_table)] = Precision()
    switches: Annotated[Switches, Flat()] = Switches()
    speculation: Annotated[Speculation | None, Doc("speculative decoding; absent: none")] = None
    engine: Annotated[str, Doc("id of the software that runs it")] = "megatron-core"
    serving: Annotated[ServingPlan, Doc("knobs of the scheduler, and the fleet")] = ServingPlan()
    rl: Annotated[RlPlan, Doc("where the roles of post-training run, and how they wait for each other")] = RlPlan()

    @property
    def virtual_stages(self) -> int:
        """Pipeline stages times the chunks each holds."""
        return self.mesh.pp * self.schedule.chunks

    @property
    def sequence_parallel(self) -> bool:
        """Whether norms and dropouts are split over the tensor-parallel ranks too."""
        chosen = self.switches.sequence_parallel
        return self.mesh.tp > 1 if chosen is None else chosen

    @property
    def shard_degree(self) -> int:
        """Ranks that one shard of state is split over; 1 without sharding."""
        if self.sharding.shard == "none":
            return 1
        return self.sharding.shard_degree or self.mesh.dp * self.mesh.cp


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
    # what a file should say even where it is the default, because a reader would otherwise have to assume it
    entries: JsonObject = {"dp": plan.mesh.dp, "microbatch": plan.microbatch, "recompute": plan.recompute.kind}
    entries |= {"precision": plan.precision.compute.id, "engine": plan.engine}
    return {**table, **{key: table.get(key, entry) for key, entry in entries.items()}}


def scenario_text(table: JsonMapping, plan: Plan, note: str = "") -> str:
    """A scenario file: the tables it was asked with and the plan in full."""
    head = "".join(f"# {line}\n" for line in note.splitlines())
    keys = ("name", "notes", "model", "system", "chip", "engine", "workload")
    order = {key: table[key] for key in keys if key in table}
    decisions = plan_table(plan, spoken=True)
    workload = table.get("workload")
    if isinstance(workload, Mapping) and workload.get("kind") != "train" and plan.precision.compute.peak in NARROW:
        decisions["precision"] = encode(plan.precision)  # a name alone would mean weights too
    return head + toml_text({**order, "plan": decisions})


def plan_words(plan: Plan) -> str:
    """A plan in one line, as tables and messages name it.

    >>> from ridgeline.plan.mesh import Mesh
    >>> plan_words(Plan(mesh=Mesh(tp=8, pp=2, dp=4)))
    'pp=2 dp=4 tp=8, microbatch 1, 1f1b, bf16'
    """
    mesh = " ".join(f"{axis}={degree}" for axis, degree in plan.mesh.split.items()) or "one rank"
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
