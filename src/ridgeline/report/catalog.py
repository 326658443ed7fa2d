"""Turn values of the catalogs into entries: facts that `ridgeline show --json` prints and the terminal draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ridgeline.core.documents import JsonObject
from ridgeline.core.dtype import DType, dtype
from ridgeline.core.encode import to_json
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.evidence import Quoted
from ridgeline.core.records import dataclass
from ridgeline.cost import FORMATS, profile_for, shipped_profiles
from ridgeline.hardware.chip import PEAK_KEYS, Chip, Ratio, link_bytes_per_flop, ridge_points
from ridgeline.hardware.system import System, Tier
from ridgeline.hardware.topology import bisection_bytes_per_s, diameter, label
from ridgeline.ir.fusions import FUSIONS
from ridgeline.models import facts
from ridgeline.models.facts import audio_flops, encoder_flops, image_flops, latent_flops
from ridgeline.models.media_tokens import audio_input, image_input, video_input
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.params import count
from ridgeline.models.spec import ModelSpec, Moe
from ridgeline.plan.engine import OVERLAPS, Engine
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import (
    SCHEDULES,
    Costs,
    ScheduleTable,
    actions_of,
    build,
    peak_in_flight,
    requirement,
    run_in_order,
)

LARGEST = {"seq": 10**9, "batch": 10**9, "stages": 256, "microbatches": 4096, "chunks": 64}
CONVENTION = "2 flops a multiply-add; causal attention counted at half; training is 3x forward, no recompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """How much of a model or a schedule to work out: sequence length and batch; microbatches, stages and chunks."""

    seq: int = 8192
    batch: int = 1
    stages: int = 4
    microbatches: int = 8
    chunks: int | None = None
    dtype: str = "bf16"

    def problems(self) -> Iterator[Problem]:
        """Sizes that make no sense or would take forever to draw."""
        for key, most in LARGEST.items():
            value = getattr(self, key)
            if value is not None and not 1 <= value <= most:
                yield Problem(path=f"--{key}", given=str(value), expected=f"a number from 1 to {most:,}")


# -- chips ------------------------------------------------------------------------------------------------------------


def chip_numbers(chip: Chip) -> Iterator[tuple[str, str, Quoted | None]]:
    """Every number of a chip with its path and unit, absent ones too."""
    for key in PEAK_KEYS:
        yield f"peak.{key}", "FLOP/s", chip.peak.get(key)
    yield "vector", "FLOP/s", chip.vector
    yield "cores", "", chip.cores
    for name, memory in (("hbm", chip.hbm), ("cache", chip.cache)):
        yield f"{name}.capacity", "B", memory.capacity
        yield f"{name}.usable", "B", memory.usable
        yield f"{name}.bandwidth", "B/s", memory.bandwidth
    for name, link in (("scaleup", chip.scaleup), ("scaleout", chip.scaleout), ("host", chip.host)):
        yield f"{name}.bandwidth", "B/s", link.bandwidth
        yield f"{name}.domain", "", link.domain
    yield "tdp", "W", chip.tdp
    yield "price", "USD/h", chip.price


NUMBERS = tuple(path for path, _, _ in chip_numbers(Chip(id="", name="", vendor="", system="", peak={})))
OPTIONAL = frozenset({"hbm.usable", "cache.usable", "cache.bandwidth", "scaleout.domain", "host.domain"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipNumber:
    """A quoted number of a chip in its unit."""

    unit: str
    quoted: Quoted

    JSON = "unit *quoted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipEntry:
    """A chip: its quoted numbers, its ratios, the numbers nobody published, and those of its shipped profile."""

    chip: Chip
    numbers: Mapping[str, ChipNumber]
    missing: tuple[str, ...]
    ridge_flops_per_byte: Mapping[str, Ratio]
    bytes_per_flop: Mapping[str, Mapping[str, Ratio]]
    measured: JsonObject

    JSON = """
        kind='chip' id=chip.id name=chip.name vendor=chip.vendor system=chip.system memory=chip.hbm.kind
        scaleup=chip.scaleup.kind scaleout=chip.scaleout.kind host=chip.host.kind numbers missing ridge_flops_per_byte
        bytes_per_flop notes=chip.notes measured?
    """


def chip_entry(chip: Chip) -> ChipEntry:
    """The entry of a chip."""
    numbers = list(chip_numbers(chip))
    return ChipEntry(
        chip=chip,
        numbers={path: ChipNumber(unit=unit, quoted=number) for path, unit, number in numbers if number},
        missing=tuple(path for path, _, number in numbers if number is None and path not in OPTIONAL),
        ridge_flops_per_byte=ridge_points(chip),
        bytes_per_flop={key: link_bytes_per_flop(chip, key) for key in chip.peak},
        measured=_measured_numbers(chip),
    )


def _measured_numbers(chip: Chip) -> JsonObject:
    """Ceilings of the chip's shipped profile by the number each stands beside; empty without one."""
    profile = profile_for(shipped_profiles(), chip.fitted_id)
    if profile is None:
        return {}
    paths = {"copy": "hbm.bandwidth", "h2d pinned": "host.bandwidth"}
    paths |= {f"product {name}": f"peak.{dtype(name).peak}" for name in FORMATS}
    return {
        paths[best.name]: {"value": best.measured, "unit": best.unit, "share": best.share, "where": best.where}
        for best in profile.ceilings(chip)
        if best.name in paths
    } | {"profile": profile.title}


# -- systems ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TierEntry:
    """A tier of a system with what it implies: hops between the chips furthest apart, bytes/s between its halves."""

    tier: Tier
    topology: str
    instances: int
    diameter_hops: int
    bisection_bytes_per_s: float | None

    JSON = """
        name=tier.name topology chips=tier.chips instances bandwidth=tier.bandwidth link=tier.link diameter_hops
        bisection_bytes_per_s
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemTotals:
    """What all chips of a system have together; None where the chip's number is not published."""

    peak_flops_per_s: Mapping[str, float]
    memory_bytes: float | None
    power_w: float | None
    price_usd_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemEntry:
    """A sized system: its tiers from the inside out, and its totals."""

    system: System
    tiers: tuple[TierEntry, ...]
    totals: SystemTotals

    JSON = """
        kind='system' name=system.name template=system.template chip=system.chip.id chips=system.chips node=system.node
        host_memory_bytes=system.host_memory.value host_cores=system.host_cores.value tiers totals
        assumptions=system.assumptions
    """


def system_entry(system: System) -> SystemEntry:
    """The entry of a system."""
    chip, chips = system.chip, system.chips
    memory, power, price = (
        number.value * chips if number else None for number in (chip.hbm.capacity, chip.tdp, chip.price)
    )
    peaks = {key: number.value * chips for key, number in chip.peak.items()}
    totals = SystemTotals(peak_flops_per_s=peaks, memory_bytes=memory, power_w=power, price_usd_per_hour=price)
    return SystemEntry(system=system, tiers=tuple(_tier_entry(tier, system) for tier in system.tiers), totals=totals)


def _tier_entry(tier: Tier, system: System) -> TierEntry:
    rate = tier.bandwidth.value if tier.bandwidth else None
    return TierEntry(
        tier=tier,
        topology=label(tier.topology),
        instances=system.chips // tier.chips,
        diameter_hops=diameter(tier.topology, tier.chips),
        bisection_bytes_per_s=bisection_bytes_per_s(tier.topology, tier.chips, rate) if rate else None,
    )


# -- models -----------------------------------------------------------------------------------------------------------


IMAGES = (1024, 1024), (1080, 1920)  # pixels: height, width
FRAMES = 16
SECONDS = 10, 30
PICTURES = 512, 1024
FILMS = 480, 832, 81  # height, width, frames


def mixer_label(spec: ModelSpec) -> str:
    """How a model's tokens see each other, in a few words."""
    labels: dict[str, None] = {}
    for block in spec.blocks:
        if block.mixers:
            labels[" beside ".join(mixer_parts(mixer, spec.hidden).title for mixer in block.mixers)] = None
        elif block.captured and block.captured.mixes:
            labels["captured"] = None
    return "; ".join(labels)


def experts_label(spec: ModelSpec) -> str:
    """A model's experts in a few words; empty for a dense one."""
    moes = {block.ffn for block in spec.blocks if isinstance(block.ffn, Moe)}
    return "; ".join(
        f"{moe.topk} of {moe.experts}" + (f" + shared {moe.shared_hidden}" if moe.shared_hidden else "") for moe in moes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSize:
    """An image, a video or a clip of one size: what an encoder makes of it, or what a model makes it of."""

    seconds: float | None = None
    height: int | None = None
    width: int | None = None
    frames: int | None = None
    views: float | None = None
    positions: float | None = None
    tokens: float
    flops: float

    JSON = "seconds? height? width? frames? views? positions? tokens flops"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPart:
    """What a model reads or makes beside text, by an encoder or as latents, with flops of some sizes."""

    layers: int | None = None
    hidden: int | None = None
    rule: str | None = None
    reads: str | None = None
    text: int | None = None
    joint: bool | None = None
    positions: int | None = None
    flops: float | None = None
    sizes: tuple[MediaSize, ...] = ()

    JSON = "layers? hidden? rule? reads? text? joint? positions? flops? sizes?"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model: parameters by part, flops, cache and intensity at the given sequence length.

    media   encoders by what they read, each with flops of one forward; None where it has none
    """

    spec: ModelSpec
    detail: Detail
    dtype: DType
    attention: str
    experts: str
    params: Mapping[str, int]
    flops_per_token: JsonObject
    media: Mapping[str, MediaPart | None]
    weight_bytes: float
    kv_cache_bytes_per_token: float
    kv_cache_bytes_per_sequence: float
    state_bytes_per_sequence: float
    arithmetic_intensity: Mapping[str, float]

    JSON = """
        kind='model' id=spec.id name=spec.name source=spec.source layers=spec.layers hidden=spec.hidden vocab=spec.vocab
        context=spec.context attention experts distinct_blocks capture=spec.capture params seq=detail.seq dtype
        batch=detail.batch weight_bytes flops_per_token media=all_media kv_cache_bytes_per_token
        kv_cache_bytes_per_sequence state_bytes_per_sequence arithmetic_intensity
    """

    @property
    def distinct_blocks(self) -> int:
        """Blocks that differ."""
        return len(self.spec.blocks)

    @property
    def all_media(self) -> Mapping[str, object]:
        """Media, and networks of the same file that take no part."""
        companions = [{"name": companion.name, "params": companion.params} for companion in self.spec.companions]
        return {**self.media, "companions": companions}


def model_entry(spec: ModelSpec, detail: Detail) -> ModelEntry:
    """The entry of a model, counted at the length that `detail` says."""
    params, kind, seq = count(spec), dtype(detail.dtype), detail.seq
    forward = facts.forward_flops_per_token(spec, seq)
    return ModelEntry(
        spec=spec,
        detail=detail,
        dtype=kind,
        attention=mixer_label(spec),
        experts=experts_label(spec),
        params={**to_json(params), "total": params.total, "active": params.active},
        flops_per_token={
            "forward": forward.total,
            "training": facts.training_flops_per_token(spec, seq).total,
            "parts": to_json(forward),
            "convention": CONVENTION,
        },
        media={
            "image": _images(spec), "audio": _sounds(spec), "source": _source(spec, seq), "latents": _latents(spec),
        },
        weight_bytes=params.total * kind.bytes_per_element,
        kv_cache_bytes_per_token=facts.kv_cache_bytes_per_token(spec, kind),
        kv_cache_bytes_per_sequence=facts.kv_cache_bytes(spec, seq, kind),
        state_bytes_per_sequence=facts.state_bytes(spec, kind),
        arithmetic_intensity={
            "prefill": facts.arithmetic_intensity_prefill(spec, seq, kind).flops_per_byte,
            "decode": facts.arithmetic_intensity_decode(spec, detail.batch, seq, kind).flops_per_byte,
        },
    )  # fmt: skip


def _images(spec: ModelSpec) -> MediaPart | None:
    vision = spec.vision
    if vision is None:
        return None
    side = vision.image
    inputs = [(high, wide, 1, image_input(vision, high, wide)) for high, wide in dict.fromkeys([(side, side), *IMAGES])]
    inputs.append((side, side, FRAMES, video_input(vision, FRAMES, side, side)))
    sizes = tuple(
        MediaSize(height=high, width=wide, frames=frames, views=seen.views, positions=seen.total, tokens=seen.tokens,
                  flops=image_flops(spec, seen))
        for high, wide, frames, seen in inputs
    )  # fmt: skip
    return MediaPart(layers=vision.layers, hidden=vision.hidden, rule=vision.sizing.rule, sizes=sizes)


def _sounds(spec: ModelSpec) -> MediaPart | None:
    audio = spec.audio
    if audio is None:
        return None
    sizes = tuple(
        MediaSize(seconds=seconds, views=heard.views, positions=heard.total, tokens=heard.tokens,
                  flops=audio_flops(spec, heard))
        for seconds, heard in ((seconds, audio_input(audio.clip, seconds)) for seconds in SECONDS)
    )  # fmt: skip
    return MediaPart(layers=audio.layers, hidden=audio.hidden, sizes=sizes)


def _source(spec: ModelSpec, seq: int) -> MediaPart | None:
    encoder = spec.encoder
    if encoder is None:
        return None
    positions = encoder.context if encoder.reads == "audio" else seq
    return MediaPart(
        layers=encoder.layers, hidden=encoder.hidden, reads=encoder.reads, positions=positions,
        flops=encoder_flops(spec, positions),
    )  # fmt: skip


def _latents(spec: ModelSpec) -> MediaPart | None:
    space = spec.latent_space
    if space is None:
        return None
    sizes = []
    for high, wide, frames in [(side, side, 1) for side in PICTURES] if space.frames == 1 else [FILMS]:
        seq = space.tokens(high, wide, frames) + (space.text if space.joint else 0)
        per_token = facts.forward_flops_per_token(spec, seq, source=0 if space.joint else space.text).total
        flops = seq * per_token + latent_flops(spec, seq)
        sizes.append(MediaSize(height=high, width=wide, frames=frames, tokens=seq, flops=flops))
    return MediaPart(text=space.text, joint=space.joint, sizes=tuple(sizes))


# -- engines, schedules, scenarios, lists -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    """A training software: what it launches and supports; what it fuses and overlaps, with the meaning of each word."""

    engine: Engine
    fuses: Mapping[str, str]
    overlaps: Mapping[str, str]

    JSON = "kind='engine' *engine fuses overlaps"


def engine_entry(engine: Engine) -> EngineEntry:
    """The entry of an engine."""
    fuses = {word: FUSIONS[word].meaning for word in engine.fuses}
    return EngineEntry(engine=engine, fuses=fuses, overlaps={word: OVERLAPS[word] for word in engine.overlaps})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStep:
    """Actions that run at once, and when."""

    actions: tuple[str, ...]
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleEntry:
    """A pipeline schedule at one size: its rows, when each action runs at unit costs, and what it holds and wastes."""

    table: ScheduleTable
    meaning: str
    source: str
    costs: Costs
    makespan: float
    bubble_fraction: float
    peak_in_flight: tuple[int, ...]
    rows: tuple[tuple[ScheduleStep, ...], ...]

    JSON = """
        kind='schedule' id=table.name meaning source stages=table.stages microbatches=table.microbatches
        chunks=table.chunks placement=table.placement costs makespan bubble_fraction peak_in_flight rows
    """


def schedule_entry(name: str, detail: Detail) -> ScheduleEntry:
    """The entry of a schedule at the size that `detail` says; a size it does not have is refused."""
    reason = requirement(name, detail.stages, detail.microbatches, detail.chunks)
    if reason:
        size = f"{detail.stages} stages, {detail.microbatches} microbatches, {detail.chunks or 'its own'} chunks"
        raise InputError(Problem(path=name, given=size, expected=reason, todo="set --stages, --microbatches, --chunks"))
    table = build(name, stages=detail.stages, microbatches=detail.microbatches, chunks=detail.chunks)
    costs, kind = Costs(), SCHEDULES[name]
    run = run_in_order(table, costs)
    rows = tuple(
        tuple(
            ScheduleStep(actions=tuple(map(str, actions_of(step))), start=start, end=end)
            for step, (start, end) in zip(row, times, strict=True)
        )
        for row, times in zip(table.rows, run.times, strict=True)
    )
    return ScheduleEntry(
        table=table, meaning=kind.meaning, source=kind.source, costs=costs, makespan=run.makespan,
        bubble_fraction=run.bubble_fraction, peak_in_flight=tuple(peak_in_flight(table)), rows=rows,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioEntry:
    """A scenario as it was understood, defaults filled in."""

    scenario: Scenario

    JSON = """
        kind='scenario' name=scenario.name model=scenario.model.id system=scenario.system.name
        chips=scenario.system.chips workload=scenario.workload sequences=scenario.workload.sequences plan=scenario.plan
        microbatches=scenario.microbatches placement=scenario.placement recompute assumptions=scenario.assumptions
    """

    @property
    def recompute(self) -> str:
        """What is done again, in words."""
        return str(self.scenario.plan.recompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedScenario:
    """A scenario that can run."""

    scenario: ScenarioEntry
    problems: tuple[Problem, ...] = ()

    JSON = "possible=true problems scenario"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A catalog by its word: a row of facts for each entry."""

    of: str
    rows: tuple[Mapping[str, object], ...]

    JSON = "kind='list' of rows"


Entry = ChipEntry | SystemEntry | ModelEntry | EngineEntry | ScheduleEntry | ScenarioEntry | Listing
