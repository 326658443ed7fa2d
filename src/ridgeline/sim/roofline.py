"""Turn a model on a chip into its roofline: every op with its flops, bytes and seconds, and the roofs above them.

    attainable flops/s = min(peak, intensity * memory)        ridge = peak / memory        intensity = flops / bytes

train     forward, backward and optimizer of one microbatch, as a training step lowers them
prefill   the forward of `batch` prompts; logits of their last tokens
decode    one token for each of `batch` sequences; attention reads the cache, as much as `models.facts` counts

One chip as if it held the whole model: no op is split, none communicates. Serving engines fuse otherwise than training
ones do: the engine named decides which kernels there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from ridgeline.core.documents import JsonObject
from ridgeline.core.dtype import dtype, peak_key
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.evidence import Evidence
from ridgeline.core.files import SUFFIXES
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration, Profile, profile_for
from ridgeline.cost.pricing import MeasuredOps, OpEstimate, OpTable, SustainedRates
from ridgeline.hardware.load import system
from ridgeline.ir.kernel import Kernel, stream_kernel
from ridgeline.ir.ops import Attend, Collective, MatMul, Op
from ridgeline.ir.program import Program, Section, SectionRole
from ridgeline.lowering.plan_columns import plan_columns
from ridgeline.lowering.program import lower
from ridgeline.models.facts import kv_cache_bytes
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import scenario as assemble
from ridgeline.sim.predict_step import default_calibration

Phase = Literal["train", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("train", "prefill", "decode")
LAST_TOKEN = ("logits",)  # products that inference runs for the last token of a prompt alone
TRAINING_ONLY = ("loss",)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofOp:
    """One op, all its runs in a step on the chip together.

    runs   of each of its kernels how often it runs, the kernel, and the seconds of one run
    """

    label: str
    phase: str
    bound: str
    evidence: Evidence
    runs: tuple[tuple[float, Kernel, float], ...]

    @property
    def peak(self) -> str:
        """The peak it runs at; empty where it has no flops."""
        return self.runs[0][1].dtype

    @property
    def count(self) -> float:
        return sum(times for times, _, _ in self.runs)

    @property
    def flops(self) -> float:
        return sum(kernel.flops * times for times, kernel, _ in self.runs)

    @property
    def moved_bytes(self) -> float:
        return sum(kernel.bytes * times for times, kernel, _ in self.runs)

    @property
    def seconds(self) -> float:
        return sum(seconds * times for times, _, seconds in self.runs)

    @property
    def flops_per_s(self) -> float:
        """Flops of a second of it."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def intensity(self) -> float:
        """Flops for a byte."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedOp:
    """An op under its roof.

    share   of the time of all ops
    roof    seconds that its roof allows over those it takes
    """

    op: RoofOp
    share: float
    roof: float

    JSON = """
        op=op.label phase=op.phase count=op.count flops=op.flops bytes=op.moved_bytes seconds=op.seconds
        intensity=op.intensity flops_per_s=op.flops_per_s share bound=op.bound roof evidence=op.evidence
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Ridge:
    """Flops for a byte of one level of memory at which a format is bound by neither: data sheet, and measured."""

    dtype: str
    level: str
    intensity: float | None
    measured: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Ops under the roofs of a chip; rates in flops/s by format and bytes/s by level of memory."""

    scenario: Scenario
    phase: Phase
    ops: tuple[RoofOp, ...]
    peaks: Mapping[str, float]
    measured_peaks: Mapping[str, float]
    memory: Mapping[str, float]
    measured_memory: Mapping[str, float]
    notes: tuple[str, ...]

    JSON = """
        kind='roofline' model=scenario.model.id chip=scenario.system.chip.id phase seconds peaks measured_peaks
        memory measured_memory ridges bounds ops=placed_ops notes
    """

    @property
    def placed_ops(self) -> tuple[PlacedOp, ...]:
        """Every op with its share of the time and of its roof."""
        total_s = self.seconds
        return tuple(
            PlacedOp(op=op, share=op.seconds / total_s, roof=self.roof_s(op) / op.seconds if op.seconds else 1.0)
            for op in self.ops
        )

    @property
    def ridges(self) -> tuple[Ridge, ...]:
        """By format and level of memory: data sheet over data sheet, and measured over measured."""
        ridges = []
        for format, peak in self.peaks.items():
            best = self.measured_peaks.get(format)
            for level in dict.fromkeys((*self.memory, *self.measured_memory)):
                rate, real = self.memory.get(level), self.measured_memory.get(level)
                measured = best / real if best and real else None
                ridges.append(
                    Ridge(dtype=format, level=level, intensity=peak / rate if rate else None, measured=measured)
                )
        return tuple(ridges)

    @property
    def seconds(self) -> float:
        """All ops one after the other."""
        return sum(op.seconds for op in self.ops)

    def roof_s(self, op: RoofOp) -> float:
        """Seconds of an op at data-sheet rates."""
        peak = self.peaks.get(op.peak) or self.peaks.get("bf16") or float("inf")
        return max(op.flops / peak, op.moved_bytes / self.memory["hbm"])

    @property
    def bounds(self) -> dict[str, float]:
        """Share of the time under each roof: the peak of a format, or memory."""
        shares: dict[str, float] = {}
        for op in self.ops:
            name = "memory" if op.bound == "memory" else op.peak
            shares[name] = shares.get(name, 0.0) + op.seconds / self.seconds
        return dict(sorted(shares.items(), key=lambda entry: -entry[1]))


def roofline(
    model: str,
    on: str,
    *,
    phase: Phase = "train",
    seq: int = 4096,
    batch: int = 1,
    engine: str = "",
    settings: Sequence[str] = (),
    calibration: Calibration | None = None,
) -> Roofline:
    """Every op of a model on a chip's roofline.

    on        a chip or a system, also the file of one, whose chip it is
    settings  keys of the scenario that differ: chip.hbm.bandwidth=8 TB/s
    seq       tokens of a sequence; decode: tokens in the cache

    >>> found = roofline("llama3-8b", "h100-sxm", phase="decode", batch=8)
    >>> max(found.bounds, key=found.bounds.get), found.peaks["bf16"] / found.memory["hbm"] > 250
    ('memory', True)
    """
    if phase not in PHASES:
        raise InputError(Problem(path="--phase", given=repr(phase)[:30], expected=" or ".join(PHASES)))
    built = _scenario(model, on, phase, (seq, batch), engine, settings)
    used = calibration or default_calibration()
    plans = plan_columns([built])
    program = _phase_program(lower(built, plans, tensors=False), built, phase)
    table, rates = OpTable.of([program]), SustainedRates.of_scenario(used, built, plans)
    measured = MeasuredOps.of(table, rates.machines, [built], used.profiles)
    prices = rates.price_ops(table, measured=measured)
    each = prices.estimates(program.sections, Evidence.FITTED, measured)
    ops = sorted(_sum_equal_ops(each, program), key=lambda op: -op.seconds)
    if program.step is not None:
        update = stream_kernel(float(np.asarray(program.step.optimizer.stream_bytes).max()))
        run = (1.0, update, update.bytes / float(rates.update[0]))
        ops.append(RoofOp(label="optimizer", phase="step", bound="memory", evidence=Evidence.FITTED, runs=(run,)))
    profile = profile_for(used.profiles, built.system.chip.fitted_id)
    return _roofline(built, phase, ops, profile)


def _scenario(
    model: str, on: str, phase: Phase, size: tuple[int, int], engine: str, settings: Sequence[str]
) -> Scenario:
    """One chip of the named kind, as a file or settings change it, that holds the whole model."""
    seq, batch = size
    named = system(on if "x" in on.partition("-")[0] or on.lower().endswith(SUFFIXES) else f"1x{on}")
    work: JsonObject = {"kind": phase, "seq": seq, "batch": batch}
    if phase == "train":
        work = {"kind": phase, "seq": seq, "global_batch": batch}
    elif phase == "decode":
        work = {"kind": phase, "context": seq, "batch": batch}
    plan = {"microbatch": batch, **({"engine": engine} if engine else {})}
    single = system(f"1x{named.chip.id}")
    built = assemble({"model": model, "system": single.name, "workload": work, "plan": plan}, settings)
    if named.chip in (single.chip, built.system.chip):
        return built
    if chip_settings := [setting for setting in settings if setting.startswith("chip.")]:
        expected = "numbers of a chip of the catalog; --on names a file that changes some"
        raise InputError(
            Problem(path="--set", given=chip_settings[0], expected=expected, todo="write them into that file")
        )
    return replace(built, system=replace(built.system, chip=named.chip))


def _phase_program(program: Program, built: Scenario, phase: Phase) -> Program:
    """The program without what only training does, and with the cache that a decode step reads."""
    if phase == "train":
        return program
    tokens, batch = built.workload.tokens, built.workload.sequences
    heads = [
        replace(one, forward=tuple(_head(op, batch / tokens) for op in one.forward if op.label not in TRAINING_ONLY))
        if one.role is SectionRole.HEAD
        else one
        for one in program.sections
    ]
    if phase == "decode":
        size = built.plan.precision.activations.id
        cache = kv_cache_bytes(built.model, built.workload.seq, dtype(size)) * batch
        heads = [*_reading(heads, program, cache)]
    return replace(program, sections=tuple(heads))


def _head(op: Op, share: float) -> Op:
    return replace(op, m=op.m * share) if isinstance(op, MatMul) and op.label in LAST_TOKEN else op


def _reading(sections: Sequence[Section], program: Program, cache: float) -> Iterator[Section]:
    """Sections whose attention reads the cache, each op as much as it has of all scores."""
    often = np.array(program.stages).sum(0)
    scores = sum(
        float(op.flops) * times
        for section, times in zip(sections, often, strict=True)
        for op in section.forward
        if isinstance(op, Attend)
    )
    for section in sections:
        ops = tuple(
            replace(op, stream_bytes=op.stream_bytes + cache * float(op.flops) / scores)
            if isinstance(op, Attend)
            else op
            for op in section.forward
        )
        yield replace(section, forward=ops)


def _sum_equal_ops(each: Iterator[OpEstimate], program: Program) -> Iterator[RoofOp]:
    """Ops of one label, pass and bound together."""
    often = dict(zip((section.name for section in program.sections), np.array(program.stages).sum(0), strict=True))
    runs: dict[tuple[str, str, str], list[tuple[float, Kernel, float]]] = {}
    evidence: dict[tuple[str, str, str], Evidence] = {}
    for one in each:
        times, price = float(often[one.section]), one.estimate
        if isinstance(one.op, Collective) or not times:
            continue
        key = (one.op.label, one.phase, price.bound)
        runs.setdefault(key, []).append((times, one.op.kernel, price.seconds))
        evidence[key] = min(evidence.get(key, price.evidence), price.evidence)
    for (label, phase, bound), kernels in runs.items():
        grade = evidence[label, phase, bound]
        yield RoofOp(label=label, phase=phase, bound=bound, evidence=grade, runs=tuple(kernels))


def _roofline(built: Scenario, phase: Phase, ops: Sequence[RoofOp], profile: Profile | None) -> Roofline:
    chip = built.system.chip
    used = [key for key in dict.fromkeys(op.peak for op in ops) if key]
    known = {key: chip.peak[key].value for key in used if key in chip.peak}
    found = profile.ceilings(chip) if profile else ()
    best: dict[str, float] = {}
    for one in found:
        key = peak_key(one.name.removeprefix("product "), known) if one.name.startswith("product ") else ""
        if key in known:
            best[key] = max(best.get(key, 0.0), one.measured)
    copies = [one.measured for one in found if one.name == "copy"]
    levels = {"hbm": copies[-1]} if copies else {}
    if profile is not None and (cached := _cache_rate(profile)):
        levels["cache"] = cached
    notes = ["one chip as if it held the whole model; nothing is split or exchanged"]
    notes += ["the engine's training kernels stand for a server's"] if phase != "train" else []
    notes += ["streams (norms, activations, casts) have no flops of the matrix unit and stand at the left edge"]
    notes += (
        [f"measured ceilings: {profile.title}"] if profile else [f"no profile of {chip.id}: data-sheet roofs alone"]
    )
    return Roofline(
        scenario=built,
        phase=phase,
        ops=tuple(sorted(ops, key=lambda op: -op.seconds)),
        peaks=MappingProxyType(known),
        measured_peaks=MappingProxyType(best),
        memory=MappingProxyType({"hbm": chip.need("hbm.bandwidth").value}),
        measured_memory=MappingProxyType(levels),
        notes=tuple(notes),
    )


def _cache_rate(profile: Profile) -> float | None:
    """Bytes/s that reads of a buffer that stays in the cache reach at best."""
    warm = [row for row in profile.of("read", "copy") if row.figures.get("cold") == 0]
    rates = [(2 if row.op == "copy" else 1) * row.dims["bytes"] / row.seconds for row in warm]
    return max(rates, default=None)
