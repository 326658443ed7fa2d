"""Turn a template (node, tiers, topologies) and a size into a System: the whole machine under study."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Annotated

from ridgeline.core.errors import InputError, MissingNumber, Problem
from ridgeline.core.evidence import Quoted
from ridgeline.core.records import dataclass
from ridgeline.core.table import Count, Doc, QuotedBytes, QuotedBytesPerS, QuotedCount, QuotedSeconds
from ridgeline.hardware.chip import Chip
from ridgeline.hardware.topology import Ethernet, FatTree, FullMesh, Ring, Switched, Topology, Torus, TorusRule

Shape = Switched | FullMesh | Ring | TorusRule | FatTree | Ethernet


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTemplate:
    """One level of the network before a size is chosen, innermost first.

    chips      chips one instance can join; absent on the outermost tier
    used       how many of them a job uses by custom (64 of a 72-chip domain)
    bandwidth  one direction per chip; absent: the chip's scale-up rate on the first tier, else its scale-out rate
    link       one link in one direction, where a chip has several
    """

    name: str
    topology: Shape
    chips: Count | None = None
    used: Count | None = None
    bandwidth: QuotedBytesPerS | None = None
    latency: QuotedSeconds | None = None
    link: QuotedBytesPerS | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemTemplate:
    """A node and its networks at no particular size."""

    id: str
    name: str
    chip: Annotated[str, Doc("id of the chip")]
    node: Annotated[Count, Doc("chips sharing one host")]
    tier: tuple[TierTemplate, ...]
    host_memory: QuotedBytes | None = None
    host_cores: Annotated[
        QuotedCount | None, Doc("CPU cores of a node's host that ranks get; absent: enough of them")
    ] = None
    notes: str = ""

    def problems(self) -> Iterable[Problem]:
        if not self.tier:
            yield Problem(path="tier", given="no tier", expected="at least one [[tier]]")
        if self.host_cores is not None and self.host_cores.value == 0:
            todo = "leave it out where nobody states it"
            yield Problem(path="host_cores", given="0", expected="more than 0", todo=todo)
        for index, tier in enumerate(self.tier[:-1]):
            if tier.chips is None and not isinstance(tier.topology, TorusRule):
                yield Problem(path=f"tier[{index}].chips", given="nothing", expected="chips that one instance joins")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One level of a sized system: `chips` is how many of the system's chips one instance joins."""

    name: str
    topology: Topology
    chips: int
    bandwidth: Quoted | None
    latency: Quoted | None = None
    link: Quoted | None = None

    def need_bandwidth(self) -> Quoted:
        """One-direction bytes per second per chip, or a `MissingNumber` that names the tier."""
        if self.bandwidth is None:
            raise MissingNumber(f"tier {self.name}", f"system.tier.{self.name}.bandwidth", "GB/s")
        return self.bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A machine of `chips` equal chips and its tiers, innermost first; a tier that would join one chip is left out."""

    name: str
    template: str
    chip: Chip
    chips: int
    node: int
    tiers: tuple[Tier, ...]
    host_memory: Quoted | None = None
    host_cores: Quoted | None = None
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRequest:
    """What is asked of a template: how many chips (or slices of a shape), and how full a domain is."""

    name: str
    chips: int | None = None
    shape: tuple[int, ...] = ()
    domain: int | None = None


def build(template: SystemTemplate, chip: Chip, request: SystemRequest) -> System:
    """The system of the requested size, or an `InputError` that says which sizes would do."""
    first = template.tier[0]
    if isinstance(first.topology, TorusRule):
        inner, chips, assumptions = _slices(first.topology, request, first.used or prod(first.topology.max))
        size = prod(inner.shape)
        topology: Topology = inner
    else:
        if request.shape:
            raise _wrong(request, "a shape", "a torus system", "name the number of chips")
        chips = request.chips or first.chips or 1
        size, assumptions = _domain(first, chips, request)
        topology = first.topology
    tiers = [_sized_tier(first, topology, size, first.bandwidth or chip.scaleup.bandwidth)] if size > 1 else []
    inner_chips = size
    for outer in template.tier[1:]:
        if inner_chips >= chips:
            break
        tier_chips = min(chips, inner_chips * max(1, (outer.chips or chips) // inner_chips))
        if isinstance(outer.topology, TorusRule):
            raise InputError(f"system {template.id}: only the innermost tier can be a torus")
        tiers.append(_sized_tier(outer, outer.topology, tier_chips, outer.bandwidth or chip.scaleout.bandwidth))
        inner_chips = tier_chips
    if inner_chips < chips:
        raise _wrong(request, f"{chips} chips", f"at most {inner_chips} chips", "the template has no further tier")
    return System(
        name=request.name,
        template=template.id,
        chip=chip,
        chips=chips,
        node=min(template.node, chips),
        tiers=tuple(tiers),
        host_memory=template.host_memory,
        host_cores=template.host_cores,
        assumptions=tuple(assumptions),
    )


def _sized_tier(tier: TierTemplate, topology: Topology, chips: int, bandwidth: Quoted | None) -> Tier:
    return Tier(
        name=tier.name, topology=topology, chips=chips, bandwidth=bandwidth, latency=tier.latency, link=tier.link
    )


def _domain(tier: TierTemplate, chips: int, request: SystemRequest) -> tuple[int, list[str]]:
    """Chips of one innermost domain that the job uses: equal in all domains, as full as custom allows."""
    limit = tier.chips or chips
    if request.domain is not None and not 1 <= request.domain <= limit:
        raise _wrong(request, f"domain {request.domain}", f"1 to {limit} chips of a {tier.name} domain", "")
    custom = request.domain or tier.used or limit
    if chips <= custom or (chips <= limit and request.domain is None):
        return chips, []
    if request.domain is not None and chips % custom:
        raise _wrong(request, f"{chips} chips", f"a multiple of the domain ({custom})", "change one of them")
    size = max(part for part in range(1, custom + 1) if chips % part == 0)
    if size * 2 < custom:
        near_by = f"{chips // custom * custom} or {(chips // custom + 1) * custom}"
        raise _wrong(request, f"{chips} chips", f"equally filled {tier.name} domains of {custom}", f"use {near_by}")
    note = f"{chips} chips use {size} of each {limit}-chip {tier.name} domain"
    return size, ([note] if size != limit else [])


def _slices(rule: TorusRule, request: SystemRequest, most: int) -> tuple[Torus, int, list[str]]:
    """The slice's torus of at most `most` chips, the chips of all slices together, and what was assumed."""
    if request.shape:
        shape = request.shape
        if len(shape) > rule.dims or any(
            a > b for a, b in zip(sorted(shape, reverse=True), sorted(rule.max, reverse=True), strict=False)
        ):
            largest = "x".join(str(size) for size in rule.max)
            raise _wrong(request, "x".join(map(str, shape)), f"{rule.dims} axes, at most {largest}", "")
        shape = (1,) * (rule.dims - len(shape)) + shape
        if prod(shape) > most:
            raise _wrong(request, f"a slice of {prod(shape)} chips", f"at most {most}", "use several slices")
        return rule.slice(shape), prod(shape) * (request.chips or 1), []
    chips = request.chips or 1
    for slices in range(-(-chips // most), chips + 1):
        shape_or_none = rule.shape_for(chips // slices) if chips % slices == 0 else None
        if shape_or_none:
            count = f"{slices} slices of " if slices > 1 else "a slice of "
            note = f"{chips} chips are {count}{'x'.join(map(str, shape_or_none))}"
            return rule.slice(shape_or_none), chips, [note]
    raise _wrong(request, f"{chips} chips", "a number that a torus slice can have", "")


def _wrong(request: SystemRequest, given: str, expected: str, todo: str) -> InputError:
    return InputError(Problem(path="system", given=f"{given} in {request.name!r}", expected=expected, todo=todo))
