"""Turn sheets of the catalogs into terminal tables and grids. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

from ridgeline.core.records import dataclass
from ridgeline.core.units import format_count, format_quantity
from ridgeline.hardware.chip import PEAK_KEYS
from ridgeline.hardware.load import sources as known_sources
from ridgeline.report.catalog_sheets import NUMBERS, Sheet
from ridgeline.report.cells import DASH, WEAK, clean, facts, header_table, list_lines

COLOURS = {"F": "white on blue", "B": "black on green", "I": "black on cyan", "W": "black on yellow"}


def draw(sheets: Sequence[Sheet], console: Console) -> None:
    """Print the sheets; neighbours of one kind that compare well stand side by side."""
    index = 0
    while index < len(sheets):
        kind = sheets[index]["kind"]
        end = index + 1
        while kind in SIDE_BY_SIDE and end < len(sheets) and sheets[end]["kind"] == kind:
            end += 1
        if kind in SIDE_BY_SIDE:
            console.print(SIDE_BY_SIDE[kind](sheets[index:end]))
        else:
            console.print(ALONE[kind](sheets[index]))
        index = end


# -- chips ------------------------------------------------------------------------------------------------------------


def chips(sheets: Sequence[Sheet]) -> RenderableType:
    """Chips side by side: quoted numbers, ridge points, bytes per flop; weaker evidence is coloured."""
    table = header_table(["", *(sheet["id"] for sheet in sheets)], title=", ".join(sheet["name"] for sheet in sheets))
    for path in NUMBERS:
        if any(path in sheet["numbers"] for sheet in sheets):
            table.add_row(Text(path), *(_side_note(sheet, path) for sheet in sheets))
    table.add_section()
    for key in PEAK_KEYS:
        cells = [sheet["ridge_flops_per_byte"].get(key) for sheet in sheets]
        if not any(cells):
            continue
        table.add_row(
            f"ridge {key}", *(_graded_text(cell, f"{cell['value']:.0f} FLOP/B" if cell else DASH) for cell in cells)
        )
    table.add_section()
    for link in ("hbm", "scaleup", "scaleout", "host"):
        cells = [sheet["bytes_per_flop"].get(_main_peak(sheet), {}).get(link) for sheet in sheets]
        table.add_row(
            f"{link} B/kFLOP", *(_graded_text(cell, f"{cell['value'] * 1000:.3g}" if cell else DASH) for cell in cells)
        )
    legend = Text.assemble(("analytic", "cyan"), "  ", ("assumed", "yellow"), "  * sources differ", style="dim")
    if any("measured" in sheet for sheet in sheets):
        legend.append("  measured", "green").append(
            ": best of the shipped profile, beside the data sheet's number", "dim"
        )
    under = Text(
        "B/kFLOP: bytes one way per thousand flops at the bf16 peak (fp16, fp8 where there is none)", style="dim"
    )
    return Group(table, legend, under, *_missing(sheets))


def _missing(sheets: Sequence[Sheet]) -> list[RenderableType]:
    return [
        Text.assemble((f"{sheet['id']}: not published: ", "dim"), ", ".join(sheet["missing"]))
        for sheet in sheets
        if sheet["missing"]
    ]


def _main_peak(sheet: Sheet) -> str:
    return next((key for key in ("bf16", "fp16", "fp8") if key in sheet["bytes_per_flop"]), "")


def _side_note(sheet: Sheet, path: str) -> Text:
    """A number, and what was measured of it."""
    made, found = _number(sheet["numbers"].get(path)), sheet.get("measured", {}).get(path)
    if found is None:
        return made
    share = f", {found['share']:.0%}" if found["share"] else ""
    return Text.assemble(made, (f"  {format_quantity(found['value'], found['unit'], 4)} measured{share}", "green"))


def _number(number: Sheet | None) -> Text:
    if number is None:
        return Text(DASH, style="dim")
    value = f"{number['value']:g}" if not number["unit"] else format_quantity(number["value"], number["unit"])
    return _graded_text(number, value + ("*" if "conflicts" in number else ""))


def _graded_text(number: Sheet | None, text: str) -> Text:
    return Text(text, style=WEAK.get(number["evidence"], "") if number else "dim")


def sources(sheets: Sequence[Sheet]) -> RenderableType:
    """Where every number of the chips comes from, and who disagrees."""
    known = known_sources()
    parts: list[RenderableType] = []
    for sheet in sheets:
        table = header_table(("number", "value", "evidence", "source", "note"), title=f"{sheet['id']}: sources")
        for path, number in sheet["numbers"].items():
            source = clean(known.get(number["source"], number["source"]))
            table.add_row(path, _number(number), number["evidence"], source, clean(number.get("note", "")))
            for other in number.get("conflicts", ()):
                value = format_quantity(other["value"], number["unit"]) if number["unit"] else f"{other['value']:g}"
                name = clean(known.get(other["source"], other["source"]))
                table.add_row("", Text(value, style="red"), "differs", name, clean(other.get("note", "")))
        parts.append(table)
    return Group(*parts)


# -- the rest ---------------------------------------------------------------------------------------------------------


def system(sheet: Sheet) -> RenderableType:
    """A sized system: its tiers from the inside out, and its totals."""
    heads = ("tier", "topology", "chips", "instances", "per chip, one way", "bisection", "hops")
    tiers = header_table(heads, title=sheet["name"])
    for tier in sheet["tiers"]:
        rate = tier["bandwidth"]
        tiers.add_row(
            clean(tier["name"]),
            clean(tier["topology"]),
            str(tier["chips"]),
            str(tier["instances"]),
            _graded_text(rate, format_quantity(rate["value"], "B/s"))
            if rate
            else Text("not published", style="yellow"),
            format_quantity(tier["bisection_bytes_per_s"], "B/s") if tier["bisection_bytes_per_s"] else DASH,
            str(tier["diameter_hops"]),
        )
    totals = sheet["totals"]
    peaks = ", ".join(f"{key} {format_quantity(value, 'FLOP/s')}" for key, value in totals["peak_flops_per_s"].items())
    about = facts(
        ("chips", f"{sheet['chips']} x {sheet['chip']}, {sheet['node']} per host ({sheet['template']})"),
        ("peak", peaks),
        ("memory", format_quantity(totals["memory_bytes"], "B") if totals["memory_bytes"] else DASH),
        ("power", format_quantity(totals["power_w"], "W") if totals["power_w"] else DASH),
        ("price", f"{totals['price_usd_per_hour']:.2f} USD/h" if totals["price_usd_per_hour"] else DASH),
    )
    return Group(tiers, about, *list_lines("assumed", sheet["assumptions"]))


def engine(sheet: Sheet) -> RenderableType:
    """A training software."""
    supports = sheet["supports"]
    about = facts(
        ("engine", f"{sheet['id']}: {sheet['name']}"),
        ("launch", sheet["launch"]["mode"]),
        ("attention", sheet["attention"]),
        ("gradients", sheet["gradients"]),
        *((key.replace("_", " "), _words(value)) for key, value in supports.items()),
        ("evidence", f"{sheet['evidence']}: {sheet['source']}"),
        ("notes", sheet["notes"]),
    )
    fuses = [f"{word}: {meaning}" for word, meaning in sheet["fuses"].items()]
    overlaps = [f"{word}: {meaning}" for word, meaning in sheet["overlaps"].items()]
    return Group(about, *list_lines("fuses", fuses), *list_lines("overlaps", overlaps))


def _words(value: str | bool | Sequence[str | Sequence[str]]) -> str:
    """A word, yes or no, or several words; those that go together joined.

    >>> _words("each"), _words(True), _words(["attention", ["norm", "mlp"]])
    ('each', 'yes', 'attention, norm+mlp')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return ", ".join(one if isinstance(one, str) else "+".join(one) for one in value)


def schedule(sheet: Sheet) -> RenderableType:
    """A schedule as a coloured grid: a row a rank, as wide as each action takes, phase and microbatch inside."""
    wide = len(str(sheet["microbatches"] - 1)) + 1
    grid = []
    for rank, row in enumerate(sheet["rows"]):
        line, clock = Text(), 0.0
        for step in row:
            line.append(" " * round((step["start"] - clock) * wide))
            line.append_text(_cells(step, wide))
            clock = step["end"]
        grid.append((f"rank {rank:<3}", line))
    size = f"{sheet['stages']} stages, {sheet['microbatches']} microbatches, {sheet['chunks']} chunk(s) per rank"
    about = facts(
        (sheet["id"], sheet["meaning"]),
        ("size", size),
        ("bubble", f"{sheet['bubble_fraction']:.1%} of {sheet['makespan']:g} units, every F, I and W costing one"),
        ("held", f"{' '.join(map(str, sheet['peak_in_flight']))} chunk activations at most, by rank"),
        ("source", sheet["source"]),
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


def _cells(step: Sheet, wide: int) -> Text:
    """One step: its actions share its time, each drawn in its colour."""
    drawn = Text()
    width = round((step["end"] - step["start"]) * wide)
    shares = [width * (index + 1) // len(step["actions"]) for index in range(len(step["actions"]))]
    for action, begin, end in zip(step["actions"], [0, *shares], shares, strict=False):
        number, _, chunk = action[1:].partition("@")
        style = COLOURS[action[0]] + (" underline" if chunk not in ("", "0") else "")
        drawn.append((action[0] + number).ljust(end - begin)[: end - begin], style=style)
    return drawn


def _phase_text(work: Sheet, batch: str) -> str:
    """What a workload asks."""
    if work["kind"] != "serve":
        return f"{work['kind']}, {work.get('seq') or work.get('context')} tokens, {batch}"
    arrivals = work["arrivals"]
    rate = f" at {arrivals['rate']:g}/s" if arrivals.get("rate") else ""
    lengths = f", {work['isl']} + {work['osl']} tokens" if work["isl"] else ""
    return f"serve, {arrivals['kind']} arrivals{rate}{lengths}"


def scenario(sheet: Sheet) -> RenderableType:
    """A scenario as it was understood."""
    work, plan = sheet["workload"], sheet["plan"]
    degrees = {axis: degree for axis, degree in plan["mesh"].items() if axis != "order"}
    mesh = " ".join(f"{axis}={degree}" for axis, degree in degrees.items() if degree > 1) or "one rank"
    batch = f"{sheet['sequences']} sequences a step"
    about = facts(
        ("scenario", sheet["name"]),
        ("model", sheet["model"]),
        ("system", f"{sheet['system']} ({sheet['chips']} chips)"),
        ("workload", _phase_text(work, batch)),
        ("mesh", mesh),
        ("microbatches", f"{sheet['microbatches']} of {plan['microbatch']} sequence(s)"),
        (
            "schedule",
            f"{plan['schedule']['name']}, {plan['schedule']['chunks']} chunk(s)" if plan["mesh"]["pp"] > 1 else "",
        ),
        ("layers by stage", " ".join(map(str, sheet["placement"])) if plan["mesh"]["pp"] > 1 else ""),
        ("sharding", plan["sharding"]["shard"]),
        ("recompute", sheet["recompute"]),
        ("precision", plan["precision"]["compute"]),
        ("engine", plan["engine"]),
    )
    return Group(about, *list_lines("assumed", sheet["assumptions"]))


def listing(sheet: Sheet) -> RenderableType:
    """A catalog as one table."""
    rows = sheet["rows"]
    columns = list(rows[0]) if rows else []
    numbers = [key for key in columns if any(isinstance(row[key], (int, float)) for row in rows)]
    table = header_table(
        [key.replace("_", " ") for key in columns],
        right=[key.replace("_", " ") for key in numbers],
        title=f"{len(rows)} {sheet['of']}",
    )
    for row in rows:
        table.add_row(*(clean(_cell(key, row[key])) for key in columns))
    return table


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
Row = tuple[str, Callable[[Sheet], str], str]  # its name, what stands there for a sheet, its style


def models(sheets: Sequence[Sheet]) -> RenderableType:
    """Models side by side: parameters by part, flops, cache, intensity."""
    table = header_table(["", *(sheet["id"] for sheet in sheets)], title=", ".join(sheet["name"] for sheet in sheets))
    for section in (_shape_rows(), _param_rows(), _flop_rows(sheets), media_rows(sheets), _cache_rows()):
        for name, cell, style in section:
            cells = [cell(sheet) for sheet in sheets]
            if any(text not in ("", "0", DASH) for text in cells):
                table.add_row(Text(name, style=style), *(clean(text) for text in cells))
        table.add_section()
    untold = [
        f"{sheet['id']}: {line}" for sheet in sheets if sheet["capture"] for line in sheet["capture"]["untold"]
    ]  # fmt: skip
    convention = Text(sheets[0]["flops_per_token"]["convention"], style="dim")
    return Group(table, convention, *list_lines("captured; could not be told", untold))


def _shape_rows() -> list[Row]:
    return [
        ("layers x hidden", lambda sheet: f"{sheet['layers']} x {sheet['hidden']}", ""),
        ("captured", lambda sheet: f"by {sheet['capture']['by']}" if sheet["capture"] else DASH, ""),
        ("attention", lambda sheet: str(sheet["attention"]), ""),
        ("experts", lambda sheet: str(sheet["experts"] or DASH), ""),
        ("vocabulary", lambda sheet: f"{sheet['vocab']:,}", ""),
        ("context", lambda sheet: f"{sheet['context']:,}" if sheet["context"] else DASH, ""),
    ]


def _param_rows() -> list[Row]:
    def counted(key: str) -> Callable[[Sheet], str]:
        return lambda sheet: format_count(sheet["params"][key], 4) if sheet["params"][key] else "0"

    def exact(sheet: Sheet) -> str:
        return f"{format_count(sheet['params']['total'], 4)}  ({sheet['params']['total']:,})"

    return [
        ("parameters", exact, "bold"),
        ("  active per token", counted("active"), ""),
        *((f"  {part.replace('_', ' ')}", partial(_share, part=part), "") for part in PARTS),
        ("  mtp, beside the total", counted("mtp"), ""),
        ("weights", lambda sheet: f"{format_quantity(sheet['weight_bytes'], 'B')} in {sheet['dtype']}", ""),
    ]


def _flop_rows(sheets: Sequence[Sheet]) -> list[Row]:
    def per_token(key: str) -> Callable[[Sheet], str]:
        return lambda sheet: f"{format_quantity(sheet['flops_per_token'][key], 'FLOP')}/token"

    parts = dict.fromkeys(part for sheet in sheets for part in sheet["flops_per_token"]["parts"])
    return [
        ("forward", lambda sheet: f"{per_token('forward')(sheet)} at {sheet['seq']:,}", "bold"),
        *((f"  {part.replace('_', ' ')}", partial(_flops, part=part), "") for part in parts),
        ("training", per_token("training"), ""),
    ]


def _cache_rows() -> list[Row]:
    return [
        ("KV cache", lambda sheet: f"{format_quantity(sheet['kv_cache_bytes_per_token'], 'B')}/token", ""),
        (
            "  at this length",
            lambda sheet: f"{format_quantity(sheet['kv_cache_bytes_per_sequence'], 'B')}/sequence",
            "",
        ),
        ("recurrent state", lambda sheet: _bytes(sheet["state_bytes_per_sequence"]), ""),
        ("intensity, prefill", lambda sheet: f"{sheet['arithmetic_intensity']['prefill']:.4g} FLOP/B", ""),
        (
            "intensity, decode",
            lambda sheet: f"{sheet['arithmetic_intensity']['decode']:.3g} FLOP/B at batch {sheet['batch']}",
            "",
        ),
    ]


def _bytes(value: float) -> str:
    return f"{format_quantity(value, 'B')}/sequence" if value else "0"


def _share(sheet: Sheet, part: str) -> str:
    value = sheet["params"][part]
    return f"{format_count(value, 4)}  {value / sheet['params']['total']:.1%}" if value else "0"


def _flops(sheet: Sheet, part: str) -> str:
    value = sheet["flops_per_token"]["parts"].get(part, 0)
    return f"{value / sheet['flops_per_token']['forward']:.1%}" if value else "0"


# -- media rows -------------------------------------------------------------------------------------------------------


def media_rows(sheets: Sequence[Sheet]) -> Iterator[tuple[str, Callable[[Sheet], str], str]]:
    """A row for each size of image, video and clip that any of the models reads, or makes."""
    for kind, told in (("image", _pixels), ("audio", _seconds), ("latents", _pixels)):
        for name in dict.fromkeys(told(one) for sheet in sheets for one in _sizes(sheet, kind)):
            yield name, _media_rows_cell(kind, told, name), ""
    yield "encoder of a source", _source, ""
    yield "beside it", lambda sheet: ", ".join(one["name"] for one in sheet["media"]["companions"]) or DASH, ""


def _sizes(sheet: Sheet, kind: str) -> list[Sheet]:
    part = sheet["media"][kind]
    return part["sizes"] if part else []


def _pixels(one: Sheet) -> str:
    what = f"video of {one['frames']} frames, " if one["frames"] > 1 else "image of "
    return f"{what}{one['height']} x {one['width']}"


def _seconds(one: Sheet) -> str:
    return f"sound of {one['seconds']} s"


def _media_rows_cell(kind: str, told: Callable[[Sheet], str], name: str) -> Callable[[Sheet], str]:
    def cell(sheet: Sheet) -> str:
        found = next((one for one in _sizes(sheet, kind) if told(one) == name), None)
        if found is None:
            return DASH
        return f"{format_quantity(found['flops'], 'FLOP')}, {found['tokens']:,.0f} tokens"

    return cell


def _source(sheet: Sheet) -> str:
    part = sheet["media"]["source"]
    return f"{format_quantity(part['flops'], 'FLOP')} of {part['positions']:,}" if part else DASH


SIDE_BY_SIDE: dict[str, Callable[[Sequence[Sheet]], RenderableType]] = {"chip": chips, "model": models}
ALONE: dict[str, Callable[[Sheet], RenderableType]] = {
    "system": system,
    "engine": engine,
    "schedule": schedule,
    "scenario": scenario,
    "list": listing,
}
