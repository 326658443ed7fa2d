"""Turn an Analysis into one HTML file: an interactive timeline and every number beside it, nothing fetched.

The page is `trace_page/`: a frame, a style and scripts, put into one file with the data. Data is never markup: it lies
in blocks no browser executes, with `<`, `>` and `&` escaped, and the scripts write it as text only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.core.encode import to_json
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text
from ridgeline.report.html import as_data, document, printable
from ridgeline.report.trace_layers import layers_of
from ridgeline.report.trace_pack import MOST, Packed, pack
from ridgeline.trace.analyze import Analysis
from ridgeline.trace.policy import counted_rows
from ridgeline.version import __version__

PARTS = Path(__file__).parent / "trace_page"
SCRIPTS = ("data.js", "lanes.js", "paint.js", "stage.js", "over.js", "input.js", "panel.js",
           "figures.js", "layers.js", "flame.js", "range.js",
           "replay.js", "sections.js", "charts.js", "main.js")  # fmt: skip
OPS = 400  # names in the table of ops
FEWEST = 1000  # spans it makes sense to keep
_MARK = re.compile(r"\{\{(\w+)\}\}")


def write_page(found: Analysis, path: Path, most: int = MOST) -> Packed:
    """Write the page of an analysis, whole or not at all; what was packed says how many spans it keeps."""
    text, packed = page(found, most)
    write_text(path, text)
    return packed


def page(found: Analysis, most: int = MOST) -> tuple[str, Packed]:
    """The text of the page, and what it holds."""
    if most < FEWEST:
        raise InputError(Problem(path="--html-spans", given=str(most), expected=f"a number from {FEWEST:,} up"))
    sheet = to_json(found)
    counted = counted_rows(found.timeline, found.breakdown.policy.name)
    first = int(found.timeline.start_ns.min()) if len(found.timeline) else 0
    columns, tables = layers_of(found, first)
    packed = pack(found.timeline, counted, tuple(_rows(sheet)), most, columns)
    facts = {
        **_cleaned(sheet),
        "title": _title(found),
        "top_ops": [{**to_json(op), "name": printable(op.name)} for op in found.breakdown.names[:OPS]],
        "roof": _roof(found),
        "step_windows": _steps(found, int(packed.tables["first_ns"])),
        "version": __version__,
    }
    layout = {**packed.tables, **tables, "layout": packed.layout, "kept": packed.kept, "of": packed.of}
    paints = {one["id"]: found.rules.group_of(one["id"]) for one in packed.tables["paints"] if one["class"]}
    return _filled({"facts": facts, "layout": layout | {"groups": paints}}, packed.text), packed


def _filled(data: dict[str, Any], spans: str) -> str:
    """The frame with the data put in, each place once; its style and its scripts."""
    places = {"facts": as_data(data["facts"]), "layout": as_data(data["layout"]), "spans": spans}
    frame = (PARTS / "page.html").read_text(encoding="utf-8")
    scripts = "\n".join((PARTS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return document(
        title=f"Ridgeline: {data['facts']['title']}",
        body=_MARK.sub(lambda mark: places[mark[1]], frame),
        style=(PARTS / "page.css").read_text(encoding="utf-8"),
        script=f'"use strict";\n(() => {{\n{scripts}\n}})();\n',
    )


def _title(found: Analysis) -> str:
    names = found.timeline.about.sources
    if found.timeline.about.format == "predicted" and not names:
        return "a predicted step"
    return printable(", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")) or "a timeline"


def _rows(sheet: object) -> Iterator[int]:
    """Every row of the timeline that the JSON of an analysis names, wherever in it."""
    if isinstance(sheet, dict):
        for key, value in sheet.items():
            if key == "span_id" and isinstance(value, int):
                yield value
            elif key == "span_ids" and isinstance(value, list):
                yield from (row for row in value if isinstance(row, int))
            else:
                yield from _rows(value)
    elif isinstance(sheet, list):
        for value in sheet:
            yield from _rows(value)


def _cleaned(value: Any) -> Any:
    """Data whose texts are fit for a page."""
    if isinstance(value, dict):
        return {printable(str(key)): _cleaned(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(inner) for inner in value]
    return printable(value, 600) if isinstance(value, str) else value


def _roof(found: Analysis) -> dict[str, Any] | None:
    """Peaks and bandwidth of the chip, as far as they are published."""
    chip = found.chip
    if chip is None or chip.hbm.bandwidth is None:
        return None
    used = {rate.dtype for rate in found.rates if rate.flops}
    return {
        "chip": chip.id,
        "bytes_per_s": chip.hbm.bandwidth.value,
        "peaks": {dtype: peak.value for dtype, peak in chip.peak.items() if dtype in used},
    }


def _steps(found: Analysis, first: int) -> list[dict[str, Any]]:
    """When each step ran on the chips, all ranks together."""
    line = found.timeline
    rows = np.flatnonzero(counted_rows(line, found.breakdown.policy.name) & (line.step >= 0))
    start, end, step = line.start_ns[rows] - first, line.end_ns[rows] - first, line.step[rows]
    return [
        {"step": number, "start_ns": int(start[step == number].min()), "end_ns": int(end[step == number].max())}
        for number in np.unique(step).tolist()[:500]
    ]
