"""Turn catalog values into sheets: plain nested facts that `--json` prints and the terminal draws."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.core.documents import JsonObject
from ridgeline.core.dtype import dtype
from ridgeline.core.encode import to_json
from ridgeline.core.errors import Problem
from ridgeline.core.evidence import Quoted
from ridgeline.core.records import dataclass
from ridgeline.cost import FORMATS, ceilings, profile_for, shipped_profiles
from ridgeline.hardware.chip import PEAK_KEYS, Chip
from ridgeline.hardware.facts import Ratio, link_bytes_per_flop, ridge_points
from ridgeline.hardware.system import System, Tier
from ridgeline.hardware.topology import bisection_bytes_per_s, diameter, label
from ridgeline.ir.fusions import FUSIONS
from ridgeline.models import facts
from ridgeline.models.facts import forward_flops_per_token
from ridgeline.models.flops import audio_flops, encoder_flops, image_flops, latent_flops
from ridgeline.models.media_tokens import audio_input, image_input, video_input
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.params import count
from ridgeline.models.sizing import EncoderInput
from ridgeline.models.spec import ModelSpec, Moe
from ridgeline.plan.engine import OVERLAPS, Engine
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import Costs, ScheduleTable, actions_of, peak_in_flight, run_in_order
from ridgeline.plan.schedules.registry import SCHEDULES

Sheet = JsonObject  # a catalog entry as JSON
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


def chip_sheet(chip: Chip) -> Sheet:
    """A chip: its quoted numbers, its ratios, and the numbers nobody published."""
    numbers = list(chip_numbers(chip))
    measured = measured_numbers(chip)
    return {
        "kind": "chip",
        "id": chip.id,
        "name": chip.name,
        "vendor": chip.vendor,
        "system": chip.system,
        "memory": chip.hbm.kind,
        "scaleup": chip.scaleup.kind,
        "scaleout": chip.scaleout.kind,
        "host": chip.host.kind,
        "numbers": {path: {"unit": unit, **to_json(number)} for path, unit, number in numbers if number},
        "missing": [path for path, _, number in numbers if number is None and path not in OPTIONAL],
        "ridge_flops_per_byte": {key: _ratio(ratio) for key, ratio in ridge_points(chip).items()},
        "bytes_per_flop": {
            key: {name: _ratio(ratio) for name, ratio in link_bytes_per_flop(chip, key).items()} for key in chip.peak
        },
        "notes": chip.notes,
        **({"measured": measured} if measured else {}),
    }


def measured_numbers(chip: Chip) -> Sheet:
    """Ceilings of the chip's shipped profile by the number each stands beside; empty without one."""
    profile = profile_for(shipped_profiles(), chip.fitted_id)
    if profile is None:
        return {}
    beside = {"copy": "hbm.bandwidth", "h2d pinned": "host.bandwidth"}
    beside |= {f"product {name}": f"peak.{dtype(name).peak}" for name in FORMATS}
    return {
        beside[ceiling.name]: {
            "value": ceiling.measured,
            "unit": ceiling.unit,
            "share": ceiling.share,
            "where": ceiling.where,
        }
        for ceiling in ceilings(profile, chip)
        if ceiling.name in beside
    } | {"profile": profile.title}


def _ratio(ratio: Ratio) -> Sheet:
    return {"value": ratio.value, "evidence": ratio.evidence.label}


def system_sheet(system: System) -> Sheet:
    """A sized system: its tiers with what each implies."""
    return {
        "kind": "system",
        "name": system.name,
        "template": system.template,
        "chip": system.chip.id,
        "chips": system.chips,
        "node": system.node,
        "host_memory_bytes": system.host_memory.value if system.host_memory else None,
        "host_cores": system.host_cores.value if system.host_cores else None,
        "tiers": [_tier_sheet(tier, system) for tier in system.tiers],
        "totals": _totals(system),
        "assumptions": list(system.assumptions),
    }


def _tier_sheet(tier: Tier, system: System) -> Sheet:
    rate = tier.bandwidth.value if tier.bandwidth else None
    return {
        "name": tier.name,
        "topology": label(tier.topology),
        "chips": tier.chips,
        "instances": system.chips // tier.chips,
        "bandwidth": to_json(tier.bandwidth) if tier.bandwidth else None,
        "link": to_json(tier.link) if tier.link else None,
        "diameter_hops": diameter(tier.topology, tier.chips),
        "bisection_bytes_per_s": bisection_bytes_per_s(tier.topology, tier.chips, rate) if rate else None,
    }


def _totals(system: System) -> Sheet:
    """What all chips have together; None where the chip's number is not published."""
    chip, chips = system.chip, system.chips

    def all_of(number: Quoted | None) -> float | None:
        return number.value * chips if number else None

    return {
        "peak_flops_per_s": {key: number.value * chips for key, number in chip.peak.items()},
        "memory_bytes": all_of(chip.hbm.capacity),
        "power_w": all_of(chip.tdp),
        "price_usd_per_hour": all_of(chip.price),
    }


def mixer_label(spec: ModelSpec) -> str:
    """How a model's tokens see each other, in a few words."""
    found: dict[str, None] = {}
    for block in spec.blocks:
        if block.mixers:
            found[" beside ".join(mixer_parts(mixer, spec.hidden).title for mixer in block.mixers)] = None
        elif block.captured and block.captured.mixes:
            found["captured"] = None
    return "; ".join(found)


def experts_label(spec: ModelSpec) -> str:
    """A model's experts in a few words; empty for a dense one."""
    moes = {block.ffn for block in spec.blocks if isinstance(block.ffn, Moe)}
    return "; ".join(
        f"{moe.topk} of {moe.experts}" + (f" + shared {moe.shared_hidden}" if moe.shared_hidden else "") for moe in moes
    )


def model_sheet(spec: ModelSpec, detail: Detail) -> Sheet:
    """A model: parameters by part, flops, cache and intensity at the given sequence length."""
    params = count(spec)
    kind = dtype(detail.dtype)
    forward = facts.forward_flops_per_token(spec, detail.seq)
    return {
        "kind": "model",
        "id": spec.id,
        "name": spec.name,
        "source": spec.source,
        "layers": spec.layers,
        "hidden": spec.hidden,
        "vocab": spec.vocab,
        "context": spec.context,
        "attention": mixer_label(spec),
        "experts": experts_label(spec),
        "distinct_blocks": len(spec.blocks),
        "capture": to_json(spec.capture) if spec.capture else None,
        "params": {**to_json(params), "total": params.total, "active": params.active},
        "seq": detail.seq,
        "dtype": kind.id,
        "batch": detail.batch,
        "weight_bytes": params.total * kind.bytes_per_element,
        "flops_per_token": {
            "forward": forward.total,
            "training": facts.training_flops_per_token(spec, detail.seq).total,
            "parts": to_json(forward),
            "convention": CONVENTION,
        },
        "media": media_sheet(spec, detail.seq),
        "kv_cache_bytes_per_token": facts.kv_cache_bytes_per_token(spec, kind),
        "kv_cache_bytes_per_sequence": facts.kv_cache_bytes(spec, detail.seq, kind),
        "state_bytes_per_sequence": facts.state_bytes(spec, kind),
        "arithmetic_intensity": {
            "prefill": facts.arithmetic_intensity_prefill(spec, detail.seq, kind).flops_per_byte,
            "decode": facts.arithmetic_intensity_decode(spec, detail.batch, detail.seq, kind).flops_per_byte,
        },
    }


def engine_sheet(engine: Engine) -> Sheet:
    """A training software: what it fuses, overlaps, launches and supports."""
    return {
        "kind": "engine",
        **to_json(engine),
        "fuses": {word: FUSIONS[word].meaning for word in engine.fuses},
        "overlaps": {word: OVERLAPS[word] for word in engine.overlaps},
    }


def schedule_sheet(table: ScheduleTable) -> Sheet:
    """A pipeline schedule at one size: its rows, when each action runs at unit costs, and what it holds and wastes."""
    costs = Costs()
    run = run_in_order(table, costs)
    kind = SCHEDULES[table.name]
    return {
        "kind": "schedule",
        "id": table.name,
        "meaning": kind.meaning,
        "source": kind.source,
        "stages": table.stages,
        "microbatches": table.microbatches,
        "chunks": table.chunks,
        "placement": to_json(table.placement),
        "costs": to_json(costs),
        "makespan": run.makespan,
        "bubble_fraction": run.bubble_fraction,
        "peak_in_flight": list(peak_in_flight(table)),
        "rows": [
            [
                {"actions": [str(action) for action in actions_of(step)], "start": start, "end": end}
                for step, (start, end) in zip(row, times, strict=True)
            ]
            for row, times in zip(table.rows, run.times, strict=True)
        ],
    }


def scenario_sheet(scenario: Scenario) -> Sheet:
    """A scenario as it was understood, defaults filled in."""
    plan = scenario.plan
    return {
        "kind": "scenario",
        "name": scenario.name,
        "model": scenario.model.id,
        "system": scenario.system.name,
        "chips": scenario.system.chips,
        "workload": to_json(scenario.workload),
        "sequences": scenario.workload.sequences,
        "plan": to_json(plan),
        "microbatches": scenario.microbatches,
        "placement": list(scenario.placement),
        "recompute": str(plan.recompute),
        "assumptions": list(scenario.assumptions),
    }


# -- media sheet ------------------------------------------------------------------------------------------------------


IMAGES = (1024, 1024), (1080, 1920)  # pixels: height, width
FRAMES = 16
SECONDS = 10, 30
PICTURES = 512, 1024
FILMS = 480, 832, 81  # height, width, frames


def media_sheet(spec: ModelSpec, seq: int) -> Sheet:
    """Encoders of a model by what they read, each with flops of one forward; None where it has none."""
    return {
        "image": _images(spec),
        "audio": _sounds(spec),
        "source": _source(spec, seq),
        "latents": _latents(spec),
        "companions": [{"name": companion.name, "params": companion.params} for companion in spec.companions],
    }


def _images(spec: ModelSpec) -> Sheet | None:
    vision = spec.vision
    if vision is None:
        return None
    sizes = dict.fromkeys([(vision.image, vision.image), *IMAGES])
    drawing = [(high, wide, 1, image_input(vision, high, wide)) for high, wide in sizes]
    drawing.append((vision.image, vision.image, FRAMES, video_input(vision, FRAMES, vision.image, vision.image)))
    return {
        "layers": vision.layers,
        "hidden": vision.hidden,
        "rule": vision.sizing.rule,
        "sizes": [
            {"height": high, "width": wide, "frames": frames, **_read(seen), "flops": image_flops(spec, seen)}
            for high, wide, frames, seen in drawing
        ],
    }


def _read(seen: EncoderInput) -> Sheet:
    return {"views": seen.views, "positions": seen.total, "tokens": seen.tokens}


def _sounds(spec: ModelSpec) -> Sheet | None:
    audio = spec.audio
    if audio is None:
        return None
    heard = [(seconds, audio_input(audio.clip, seconds)) for seconds in SECONDS]
    return {
        "layers": audio.layers,
        "hidden": audio.hidden,
        "sizes": [{"seconds": seconds, **_read(one), "flops": audio_flops(spec, one)} for seconds, one in heard],
    }


def _source(spec: ModelSpec, seq: int) -> Sheet | None:
    encoder = spec.encoder
    if encoder is None:
        return None
    positions = encoder.context if encoder.reads == "audio" else seq
    flops = encoder_flops(spec, positions)
    own = {"layers": encoder.layers, "hidden": encoder.hidden, "reads": encoder.reads}
    return {**own, "positions": positions, "flops": flops}


def _latents(spec: ModelSpec) -> Sheet | None:
    space = spec.latent_space
    if space is None:
        return None
    sizes = [(side, side, 1) for side in PICTURES] if space.frames == 1 else [FILMS]
    found = []
    for high, wide, frames in sizes:
        latents = space.tokens(high, wide, frames)
        seq = latents + (space.text if space.joint else 0)
        each = forward_flops_per_token(spec, seq, source=0 if space.joint else space.text).total
        flops = seq * each + latent_flops(spec, seq)
        found.append({"height": high, "width": wide, "frames": frames, "tokens": seq, "flops": flops})
    return {"text": space.text, "joint": space.joint, "sizes": found}
