"""Turn entries of the catalogs into terminal tables and grids. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.encode import to_json
from ridgeline.core.evidence import Evidence
from ridgeline.core.records import dataclass
from ridgeline.core.units import format_count, format_quantity
from ridgeline.hardware.chip import PEAK_KEYS, Ratio
from ridgeline.hardware.load import sources as known_sources
from ridgeline.hardware.what_if import system_title
from ridgeline.plan.rl_roles import chip_shares, rollout_scenario
from ridgeline.plan.scenario import Scenario, is_post_training
from ridgeline.plan.workload import Workload
from ridgeline.report import catalog
from ridgeline.report.cells import DASH, WEAK, clean, facts, header_table, list_lines

COLOURS = {"F": "white on blue", "B": "black on green", "I": "black on cyan", "W": "black on yellow"}


def draw_entries(entries: Sequence[catalog.Entry], console: Console, *, sources: bool = False) -> None:
    """Print the entries; neighbours of one kind that compare well stand side by side; where asked, their sources."""
    for kind, group in groupby(entries, type):
        page = PAGES[kind]
        for neighbours in [list(group)] if kind in SIDE_BY_SIDE else group:
            console.print(page(neighbours))
    for entry in entries if sources else ():
        if isinstance(entry, catalog.ChipEntry):
            console.print(_sources(entry))


# -- chips ------------------------------------------------------------------------------------------------------------


def chips(entries: Sequence[catalog.ChipEntry]) -> RenderableType:
    """Chips side by side: quoted numbers, ridge points, bytes per flop; weaker evidence is coloured."""
    columns = ["", *(entry.chip.id for entry in entries)]
    table = header_table(columns, title=", ".join(entry.chip.name for entry in entries))
    for path in catalog.NUMBERS:
        if any(path in entry.numbers for entry in entries):
            table.add_row(Text(path), *(_side_note(entry, path) for entry in entries))
    table.add_section()
    for key in PEAK_KEYS:
        ridges = [entry.ridge_flops_per_byte.get(key) for entry in entries]
        if any(ridges):
            table.add_row(f"ridge {key}", *(_ratio_text(ridge, 1, "{:.0f} FLOP/B") for ridge in ridges))
    table.add_section()
    for link in ("hbm", "scaleup", "scaleout", "host"):
        ratios = [
            entry.bytes_per_flop.get(
                next((key for key in ("bf16", "fp16", "fp8") if key in entry.bytes_per_flop), ""), {}
            ).get(link)
            for entry in entries
        ]
        table.add_row(f"{link} B/kFLOP", *(_ratio_text(ratio, 1000, "{:.3g}") for ratio in ratios))
    legend = Text.assemble(("analytic", "cyan"), "  ", ("assumed", "yellow"), "  * sources differ", style="dim")
    if any(entry.measured for entry in entries):
        note = ": best of the shipped profile, beside the data sheet's number"
        legend.append("  measured", "green").append(note, "dim")
    under = "B/kFLOP: bytes one way per thousand flops at the bf16 peak (fp16, fp8 where there is none)"
    missing = [
        Text.assemble((f"{entry.chip.id}: not published: ", "dim"), ", ".join(entry.missing))
        for entry in entries
        if entry.missing
    ]
    return Group(table, legend, Text(under, style="dim"), *missing)


def _side_note(entry: catalog.ChipEntry, path: str) -> Text:
    """A number, and what was measured of it."""
    number, best = _number(entry.numbers.get(path)), entry.measured.get(path)
    if best is None:
        return number
    share = f", {best['share']:.0%}" if best["share"] else ""
    return Text.assemble(number, (f"  {format_quantity(best['value'], best['unit'], 4)} measured{share}", "green"))


def _number(number: catalog.ChipNumber | None) -> Text:
    if number is None:
        return Text(DASH, style="dim")
    text = _in_unit(number.quoted.value, number.unit) + ("*" if number.quoted.conflicts else "")
    return Text(text, style=_colour(number.quoted.evidence))


def _in_unit(value: float, unit: str) -> str:
    return format_quantity(value, unit) if unit else f"{value:g}"


def _colour(evidence: Evidence) -> str:
    return WEAK.get(evidence.label, "")


def _ratio_text(ratio: Ratio | None, factor: float, form: str) -> Text:
    if ratio is None:
        return Text(DASH, style="dim")
    return Text(form.format(ratio.value * factor), style=_colour(ratio.evidence))


def _sources(entry: catalog.ChipEntry) -> Table:
    """Where every number of a chip comes from, and who disagrees."""
    known = known_sources()
    table = header_table(("number", "value", "evidence", "source", "note"), title=f"{entry.chip.id}: sources")
    for path, number in entry.numbers.items():
        quoted = number.quoted
        source = clean(known.get(quoted.source, quoted.source))
        table.add_row(path, _number(number), quoted.evidence.label, source, clean(quoted.note))
        for dissent in quoted.conflicts:
            value = Text(_in_unit(dissent.value, number.unit), style="red")
            name = clean(known.get(dissent.source, dissent.source))
            table.add_row("", value, "differs", name, clean(dissent.note))
    return table


# -- the rest ---------------------------------------------------------------------------------------------------------


def system(entry: catalog.SystemEntry) -> RenderableType:
    """A sized system: its tiers from the inside out, and its totals."""
    about, totals = entry.system, entry.totals
    tiers = header_table(
        ("tier", "topology", "chips", "instances", "per chip, one way", "bisection", "hops"), title=about.name
    )
    for tier in entry.tiers:
        rate = tier.tier.bandwidth
        tiers.add_row(
            clean(tier.tier.name),
            clean(tier.topology),
            str(tier.tier.chips),
            str(tier.instances),
            Text(format_quantity(rate.value, "B/s"), style=_colour(rate.evidence))
            if rate
            else Text("not published", style="yellow"),
            format_quantity(tier.bisection_bytes_per_s, "B/s") if tier.bisection_bytes_per_s else DASH,
            str(tier.diameter_hops),
        )
    peaks = ", ".join(f"{key} {format_quantity(value, 'FLOP/s')}" for key, value in totals.peak_flops_per_s.items())
    rows = facts(
        ("chips", f"{about.chips} x {about.chip.id}, {about.node} per host ({about.template})"),
        ("peak", peaks),
        ("memory", format_quantity(totals.memory_bytes, "B") if totals.memory_bytes else DASH),
        ("power", format_quantity(totals.power_w, "W") if totals.power_w else DASH),
        ("price", f"{totals.price_usd_per_hour:.2f} USD/h" if totals.price_usd_per_hour else DASH),
    )
    return Group(tiers, rows, *list_lines("assumed", about.assumptions))


def engine(entry: catalog.EngineEntry) -> RenderableType:
    """A training software."""
    about = entry.engine
    rows = facts(
        ("engine", f"{about.id}: {about.name}"),
        ("launch", about.launch.mode),
        ("attention", about.attention),
        ("gradients", about.gradients),
        *((key.replace("_", " "), _words(value)) for key, value in to_json(about.supports).items()),
        ("evidence", f"{about.evidence.label}: {about.source}"),
        ("notes", about.notes),
    )
    lists = (
        list_lines(name, [f"{word}: {meaning}" for word, meaning in words.items()])
        for name, words in (("fuses", entry.fuses), ("overlaps", entry.overlaps))
    )
    return Group(rows, *(line for lines in lists for line in lines))


def _words(value: str | bool | Sequence[str | Sequence[str]]) -> str:
    """A word, yes or no, or several words; those that go together joined.

    >>> _words("each"), _words(True), _words(["attention", ["norm", "mlp"]])
    ('each', 'yes', 'attention, norm+mlp')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return ", ".join(word if isinstance(word, str) else "+".join(word) for word in value)


def schedule(entry: catalog.ScheduleEntry) -> RenderableType:
    """A schedule as a coloured grid: a row a rank, as wide as each action takes, phase and microbatch inside."""
    table = entry.table
    wide = len(str(table.microbatches - 1)) + 1
    grid = []
    for rank, row in enumerate(entry.rows):
        line, clock = Text(), 0.0
        for step in row:
            line.append(" " * round((step.start - clock) * wide))
            line.append_text(_cells(step, wide))
            clock = step.end
        grid.append((f"rank {rank:<3}", line))
    size = f"{table.stages} stages, {table.microbatches} microbatches, {table.chunks} chunk(s) per rank"
    about = facts(
        (table.name, entry.meaning),
        ("size", size),
        ("bubble", f"{entry.bubble_fraction:.1%} of {entry.makespan:g} units, every F, I and W costing one"),
        ("held", f"{' '.join(map(str, entry.peak_in_flight))} chunk activations at most, by rank"),
        ("source", entry.source),
    )
    legend = Text.assemble(
        ("F forward", COLOURS["F"]), " ", ("B backward", COLOURS["B"]), " ",
        ("I backward, input", COLOURS["I"]), " ", ("W backward, weights", COLOURS["W"]),
        "  later chunks are underlined",
    )  # fmt: skip
    return Group(about, _Bands(rows=tuple(grid)), legend)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bands:
    """Labelled lines too long for the terminal, cut at the same columns and drawn band below band."""

    rows: tuple[tuple[str, Text], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        label = max(len(name) for name, _ in self.rows)
        longest = max(len(line) for _, line in self.rows)
        wide = max(options.max_width - label, 8)
        for start in range(0, longest, wide):
            if start:
                yield Text()
            for name, line in self.rows:
                yield Text(name.ljust(label)) + line[start : start + wide]


def _cells(step: catalog.ScheduleStep, wide: int) -> Text:
    """One step: its actions share its time, each drawn in its colour."""
    line = Text()
    width = round((step.end - step.start) * wide)
    shares = [width * (index + 1) // len(step.actions) for index in range(len(step.actions))]
    for action, begin, end in zip(step.actions, [0, *shares], shares, strict=False):
        number, _, chunk = action[1:].partition("@")
        style = COLOURS[action[0]] + (" underline" if chunk not in ("", "0") else "")
        line.append((action[0] + number).ljust(end - begin)[: end - begin], style=style)
    return line


def _load_text(work: Workload) -> str:
    """What a workload asks."""
    if work.kind == "rl":
        roles = ", ".join(work.roles.models)
        beside = f", beside the actor: {roles.replace('_', ' ')}" if roles else ""
        return f"{work.algorithm}, {work.data.prompts} prompts x {work.data.samples} samples a step{beside}"
    if work.kind != "serve":
        return f"{work.kind}, {work.seq} tokens, {work.sequences} sequences a step"
    rate = getattr(work.arrivals, "rate", None)
    speed = f" at {rate:g}/s" if rate else ""
    lengths = f", {work.isl} + {work.osl} tokens" if work.isl else ""
    return f"serve, {work.arrivals.kind} arrivals{speed}{lengths}"


def _pools_text(scenario: Scenario) -> str:
    """Chips of the pools of a post-training scenario."""
    if not is_post_training(scenario):
        return ""
    rl, shares = scenario.plan.rl, chip_shares(scenario)
    if not rl.separate:
        return f"{rl.placement}, every role on {shares.train} chips"
    lag = f", at most {rl.staleness:g} versions behind" if rl.staleness is not None else ""
    return f"{rl.placement}: {shares.train} chips train, {shares.rollout} generate{lag}"


def _rollout_text(scenario: Scenario) -> str:
    """Replicas that generate."""
    if not is_post_training(scenario) or not scenario.workload.generates:
        return ""
    built, rollout = rollout_scenario(scenario), scenario.plan.rl.rollout
    mesh = " ".join(f"{axis}={size}" for axis in ("tp", "pp", "ep", "dp") if (size := getattr(rollout, axis)) > 1)
    shape = mesh or "one chip each"
    sync = scenario.plan.rl.weight_sync.method
    return f"{built.plan.serving.replicas} replicas of {rollout.engine}, {shape}; weights come by {sync}"


def scenario(entry: catalog.ScenarioEntry) -> RenderableType:
    """A scenario as it was understood."""
    about, plan = entry.scenario, entry.scenario.plan
    mesh = " ".join(f"{axis}={degree}" for axis, degree in to_json(plan.mesh).items() if axis != "order" and degree > 1)
    is_pipelined = plan.mesh.pp > 1
    rows = facts(
        ("scenario", about.name),
        ("model", about.model.id),
        ("system", f"{system_title(about.system)} ({about.system.chips} chips)"),
        ("workload", _load_text(about.workload)),
        ("placement", _pools_text(about)),
        ("rollout", _rollout_text(about)),
        ("mesh", mesh or "one rank"),
        ("microbatches", f"{about.microbatches} of {plan.microbatch} sequence(s)"),
        ("schedule", f"{plan.schedule.name}, {plan.schedule.chunks} chunk(s)" if is_pipelined else ""),
        ("layers by stage", " ".join(map(str, about.placement)) if is_pipelined else ""),
        ("sharding", plan.sharding.shard),
        ("recompute", entry.recompute),
        ("precision", plan.precision.compute.id),
        ("engine", plan.engine),
    )
    return Group(rows, *list_lines("assumed", about.assumptions))


def listing(entry: catalog.Listing) -> RenderableType:
    """A catalog as one table."""
    names = {key: key.replace("_", " ") for key in entry.rows[0]} if entry.rows else {}
    return header_table(
        names.values(),
        ([clean(_cell(key, row[key])) for key in names] for row in entry.rows),
        right=[names[key] for key in names if any(isinstance(row[key], (int, float)) for row in entry.rows)],
        title=f"{len(entry.rows)} {entry.of}",
    )


def _cell(key: str, value: object) -> str:
    if value is None or value == "":
        return DASH
    if not isinstance(value, (int, float)):
        return str(value)
    for ending, unit in (("flops_per_s", "FLOP/s"), ("bytes_per_s", "B/s"), ("bytes", "B"), ("_w", "W")):
        if key.endswith(ending):
            return format_quantity(value, unit)
    return format_count(value, 4) if key in ("params", "active") else f"{value:g}"


# -- model tables -----------------------------------------------------------------------------------------------------


PARTS = (
    "embedding", "attention", "mlp", "experts", "shared_experts", "router", "norms", "head", "vision", "audio",
    "encoder", "companions", "extra",
)  # fmt: skip
Row = tuple[str, Callable[[catalog.ModelEntry], str]]  # its name, and what stands there for a model
HEADS = ("parameters", "forward")  # rows that others follow as parts


def models(entries: Sequence[catalog.ModelEntry]) -> RenderableType:
    """Models side by side: parameters by part, flops, cache, intensity."""
    columns = ["", *(entry.spec.id for entry in entries)]
    table = header_table(columns, title=", ".join(entry.spec.name for entry in entries))
    for section in (SHAPE_ROWS, _param_rows(), _flop_rows(entries), _media_rows(entries), CACHE_ROWS):
        for name, cell in section:
            cells = [cell(entry) for entry in entries]
            if any(text not in ("", "0", DASH) for text in cells):
                table.add_row(Text(name, style="bold" if name in HEADS else ""), *(clean(text) for text in cells))
        table.add_section()
    untold = [
        f"{entry.spec.id}: {line}" for entry in entries if entry.spec.capture for line in entry.spec.capture.untold
    ]
    return Group(table, Text(catalog.CONVENTION, style="dim"), *list_lines("captured; could not be told", untold))


SHAPE_ROWS: tuple[Row, ...] = (
    ("layers x hidden", lambda entry: f"{entry.spec.layers} x {entry.spec.hidden}"),
    ("captured", lambda entry: f"by {entry.spec.capture.by}" if entry.spec.capture else DASH),
    ("attention", lambda entry: entry.attention),
    ("experts", lambda entry: entry.experts or DASH),
    ("vocabulary", lambda entry: f"{entry.spec.vocab:,}"),
    ("context", lambda entry: f"{entry.spec.context:,}" if entry.spec.context else DASH),
)
CACHE_ROWS: tuple[Row, ...] = (
    ("KV cache", lambda entry: f"{format_quantity(entry.kv_cache_bytes_per_token, 'B')}/token"),
    ("  at this length", lambda entry: f"{format_quantity(entry.kv_cache_bytes_per_sequence, 'B')}/sequence"),
    (
        "recurrent state",
        lambda entry: (
            f"{format_quantity(entry.state_bytes_per_sequence, 'B')}/sequence"
            if entry.state_bytes_per_sequence
            else "0"
        ),
    ),
    ("intensity, prefill", lambda entry: f"{entry.arithmetic_intensity['prefill']:.4g} FLOP/B"),
    (
        "intensity, decode",
        lambda entry: f"{entry.arithmetic_intensity['decode']:.3g} FLOP/B at batch {entry.detail.batch}",
    ),
)


def _param_rows() -> Iterator[Row]:
    def share_of(part: str) -> Callable[[catalog.ModelEntry], str]:
        def cell(entry: catalog.ModelEntry) -> str:
            value = entry.params[part]
            return f"{format_count(value, 4)}  {value / entry.params['total']:.1%}" if value else "0"

        return cell

    def count_of(key: str) -> Callable[[catalog.ModelEntry], str]:
        return lambda entry: format_count(entry.params[key], 4) if entry.params[key] else "0"

    yield "parameters", lambda entry: f"{format_count(entry.params['total'], 4)}  ({entry.params['total']:,})"
    yield "  active per token", count_of("active")
    yield from ((f"  {part.replace('_', ' ')}", share_of(part)) for part in PARTS)
    yield "  mtp, beside the total", count_of("mtp")
    yield "weights", lambda entry: f"{format_quantity(entry.weight_bytes, 'B')} in {entry.dtype.id}"


def _flop_rows(entries: Sequence[catalog.ModelEntry]) -> Iterator[Row]:
    def per_token(entry: catalog.ModelEntry, key: str) -> str:
        return f"{format_quantity(entry.flops_per_token[key], 'FLOP')}/token"

    def share_of(part: str) -> Callable[[catalog.ModelEntry], str]:
        def cell(entry: catalog.ModelEntry) -> str:
            value = entry.flops_per_token["parts"].get(part, 0)
            return f"{value / entry.flops_per_token['forward']:.1%}" if value else "0"

        return cell

    parts = dict.fromkeys(part for entry in entries for part in entry.flops_per_token["parts"])
    yield "forward", lambda entry: f"{per_token(entry, 'forward')} at {entry.detail.seq:,}"
    yield from ((f"  {part.replace('_', ' ')}", share_of(part)) for part in parts)
    yield "training", lambda entry: per_token(entry, "training")


def _media_rows(entries: Sequence[catalog.ModelEntry]) -> Iterator[Row]:
    """A row for each size of image, video and clip that any of the models reads, or makes."""

    def flops_of(kind: str, name: str) -> Callable[[catalog.ModelEntry], str]:
        def cell(entry: catalog.ModelEntry) -> str:
            size = next((size for size in _sizes(entry, kind) if _size_name(size) == name), None)
            return DASH if size is None else f"{format_quantity(size.flops, 'FLOP')}, {size.tokens:,.0f} tokens"

        return cell

    for kind in ("image", "audio", "latents"):
        for name in dict.fromkeys(_size_name(size) for entry in entries for size in _sizes(entry, kind)):
            yield name, flops_of(kind, name)
    yield "encoder of a source", _source
    yield "beside it", lambda entry: ", ".join(one.name for one in entry.spec.companions) or DASH


def _sizes(entry: catalog.ModelEntry, kind: str) -> tuple[catalog.MediaSize, ...]:
    part = entry.media[kind]
    return part.sizes if part else ()


def _size_name(size: catalog.MediaSize) -> str:
    if size.seconds is not None:
        return f"sound of {size.seconds} s"
    what = f"video of {size.frames} frames, " if (size.frames or 1) > 1 else "image of "
    return f"{what}{size.height} x {size.width}"


def _source(entry: catalog.ModelEntry) -> str:
    part = entry.media["source"]
    return f"{format_quantity(part.flops or 0.0, 'FLOP')} of {part.positions:,}" if part else DASH


PAGES: Mapping[type, Callable[..., RenderableType]] = {
    catalog.ChipEntry: chips, catalog.ModelEntry: models, catalog.SystemEntry: system, catalog.EngineEntry: engine,
    catalog.ScheduleEntry: schedule, catalog.ScenarioEntry: scenario, catalog.Listing: listing,
}  # fmt: skip
SIDE_BY_SIDE = (catalog.ChipEntry, catalog.ModelEntry)  # whose pages take several
