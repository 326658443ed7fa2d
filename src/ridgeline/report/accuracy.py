"""Turn the sheet of `docs/accuracy.json` into the tables of the documentation, and check that they still hold.

docs/accuracy.json           every figure
docs/concepts/accuracy.md    all tables, each between <!-- NAME --> and <!-- /NAME -->
README.md                    the table of sets, where it has the markers
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ridgeline.calibrate.folds import shipped_parameters
from ridgeline.calibrate.validate import validate
from ridgeline.calibrate.validation import Validation, accuracy_of, differences
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import read_text, write_text
from ridgeline.core.units import signed_share
from ridgeline.plan.engine import default_engine
from ridgeline.report.cells import DASH, percent

Sheet = JsonObject

FIGURES = Path("docs") / "accuracy.json"
NESTED = Path("docs") / "nested.json"
PAGES = (
    Path("docs") / "concepts" / "accuracy.md",
    Path("docs") / "how-to" / "anchor-on-your-runs.md",
    Path("README.md"),
)
BESIDE = MappingProxyType(
    {
        "all": "every row that is predicted",
        "mixture of experts": "mixture-of-experts models",
        "dense": "dense models",
        "hybrid": "hybrid models (attention and state space)",
        "default engine": f"the default engine ({default_engine(None)})",
        "unseen sources": "sources that took no part in the fit",
    }
)
MEASURES = MappingProxyType({"mape": "mean", "median_ape": "median", "coverage90": "inside the interval"})


def checkout() -> Path:
    """The folder of the source checkout this package runs from; parameters and tables are written nowhere else."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "pyproject.toml").is_file() or not (root / "docs").is_dir():
        expected = "a source checkout: it writes parameters and documentation"
        todo = "clone the repository and `pip install -e .`; --quick fits without writing"
        raise InputError(Problem(path="ridgeline fit", given="an installed package", expected=expected, todo=todo))
    return root


def write_tables(sheet: Sheet, root: Path) -> list[Path]:
    """Write the figures, or what priors chosen inside folds are worth, and every table of them; pages without markers
    stay as they are."""
    figures = root / (NESTED if "candidates" in sheet else FIGURES)
    write_text(figures, json.dumps(sheet, indent=1) + "\n")
    written = [figures]
    for path in (root / page for page in PAGES):
        old = read_text(path) if path.is_file() else ""
        new = with_tables(old, sheet)
        if new != old:
            write_text(path, new)
            written.append(path)
    return written


def nested_table(sheet: Sheet) -> str:
    """What was left out, the error on headline and on all rows, and which candidates the folds chose."""
    rows = [
        (what, percent(entry["figure"]["reached"]), percent(entry["all"]["reached"]), "; ".join(entry["chosen"]))
        for what in LEFT
        for entry in (sheet[what],)
    ]
    return _table(("left out, a quarter at a time", "headline rows", "all rows", "chosen by the inner folds"), rows)


def stale_tables(root: Path | None = None, found: Validation | None = None) -> list[str]:
    """What is out of date: figures that the shipped parameters no longer give, and pages that show other figures."""
    root = checkout() if root is None else root
    sheet = json.loads(read_text(root / FIGURES))
    fresh = accuracy_of(validate() if found is None else found, shipped_parameters())
    stale = differences({name: sheet.get(name) for name in fresh}, fresh)
    nested = [(NESTED, json.loads(read_text(root / NESTED)))] if (root / NESTED).is_file() else []
    for name, figures in ((FIGURES, sheet), *nested):
        for page in PAGES:
            path = root / page
            if path.is_file() and with_tables(text := read_text(path), figures) != text:
                stale.append(f"{page} shows other figures than {name}")
    return stale


def write_current(root: Path | None = None, found: Validation | None = None) -> list[Path]:
    """Write the tables that follow from the shipped parameters; what only a fit can tell stays as it was left."""
    root = checkout() if root is None else root
    sheet = json.loads(read_text(root / FIGURES))
    return write_tables({**sheet, **accuracy_of(validate() if found is None else found, shipped_parameters())}, root)


def with_tables(text: str, sheet: Sheet) -> str:
    """A page with the tables between its markers taken from the sheet.

    >>> with_tables("a <!-- nothing --> b", {})
    'a <!-- nothing --> b'
    """
    for name, table in ({"nested": nested_table} if "candidates" in sheet else TABLES).items():
        head, begin, marked = text.partition(f"<!-- {name} -->\n")
        _, end, tail = marked.partition(f"<!-- /{name} -->")
        if end:
            text = f"{head}{begin}{table(sheet)}\n{end}{tail}"
    return text


def figures_table(sheet: Sheet) -> str:
    """The table that `ridgeline fit` prints of a sheet."""
    return nested_table(sheet) if "candidates" in sheet else sets_table(sheet)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def sets_table(sheet: Sheet) -> str:
    """Set, target, reached."""
    lines = list(sheet["sets"])
    for key in ("learning_curve", "left_out_families", "left_out_engines", "left_out_laboratories"):
        if key in sheet:
            lines[3:3] = [sheet[key][name] for name in ("figure", "all", "coverage") if name in sheet[key]]
    rows = []
    for item in lines:
        low, high = item["target"]
        target = f"{low * 100:g}–{high * 100:g} %" if low else f"≤ {high * 100:g} %"
        name, measure = item["set"], MEASURES[item["measure"]]
        reached = percent(item["reached"])
        rows.append((f"{name}, {measure}", str(item["rows"]), target, reached if item["met"] else f"**{reached}**"))
    return _table(("set", "rows", "target", "reached"), rows)


def beside_table(sheet: Sheet) -> str:
    """The headline beside what it leaves out."""
    measures = ("mape", "median_ape", "p90_ape", "coverage90")
    rows: list[tuple[str, ...]] = [
        (BESIDE.get(item["set"], item["set"]), str(item["rows"]), *(percent(item[measure]) for measure in measures))
        for item in sheet["beside"]
    ]
    if "left_out_laboratories" in sheet:
        figure = sheet["left_out_laboratories"]["figure"]
        rows.append(
            (
                "headline, each laboratory left out of the fit",
                str(figure["rows"]),
                percent(figure["reached"]),
                *[DASH] * 3,
            )
        )
    return _table(("set", "rows", "mean", "median", "nine of ten within", "inside the interval"), rows)


LEFT = ("laboratories", "engines", "families")
STRANGERS = MappingProxyType(
    {
        "laboratories": "a new laboratory: everything of it left out",
        "engines": "new software: every run of it left out",
        "families": "a new family of chips: every run of it left out",
    }
)


def strangers_table(sheet: Sheet) -> str:
    """How far off each kind of user's runs are: of software and machines in the fit, and of those that are not."""
    headline_figures = next(item for item in sheet["beside"] if item["set"] == "headline")
    rows = [_stranger_cells("software and machines of the tables, each configuration left out", headline_figures)]
    for key in LEFT:
        if (sheet_part := sheet.get(f"left_out_{key}")) is not None:
            members = sheet_part[key].values()
            bias = sum(item["n"] * item["bias"] for item in members) / sum(item["n"] for item in members)
            figures = {"rows": sheet_part["all"]["rows"], "mape": sheet_part["all"]["reached"], "bias": bias}
            rows.append(_stranger_cells(STRANGERS[key], figures | {"coverage90": sheet_part["coverage"]["reached"]}))
    if "learning_curve" in sheet:
        anchored_figures = next(point for point in sheet["learning_curve"]["same"] if point["runs"] == 1)
        rows.append(_stranger_cells("a new laboratory, anchored by one run of its own", anchored_figures))
    return _table(("predicted", "rows", "mean", "bias", "inside the interval"), rows)


def _stranger_cells(name: str, item: Sheet) -> tuple[str, ...]:
    bias = signed_share(item["bias"]) if "bias" in item else DASH
    return name, str(item["rows"]), percent(item["mape"]), bias, percent(item["coverage90"])


def _sources_table(sheet: Sheet) -> str:
    """By source and by engine: the group left out; by laboratory, engine and family of chips: all of it left out."""
    grouped_rows, left_out = sheet["groups"], {key: sheet.get(f"left_out_{key}", {}).get(key, {}) for key in LEFT}
    rows = [
        ("source", name, str(item["n"]), percent(item["mape"]), "", "") for name, item in grouped_rows["source"].items()
    ]
    rows += [
        ("engine", name, str(item["n"]), percent(item["mape"]), *_left_cells(left_out["engines"].get(name, {})))
        for name, item in grouped_rows["framework"].items()
    ]
    for key, word in (("laboratories", "laboratory"), ("families", "family")):
        rows += [(word, name, str(item["n"]), "", *_left_cells(item)) for name, item in left_out[key].items()]
    return _table(("by", "name", "rows", "group left out", "all of it left out", "bias then"), rows)


def _left_cells(item: Sheet) -> tuple[str, str]:
    return percent(item.get("mape")), signed_share(item["bias"]) if "bias" in item else ""


def curve_table(sheet: Sheet) -> str:
    """Error on the rest of a source that was left out after so many anchoring runs, beside the naive correction."""
    curve, rows = sheet.get("learning_curve", {}), []
    for scope, told in (("same", "same software and machine"), ("source", "anywhere in the source")):
        for point in curve.get(scope, ()):
            cells = ("mape", "naive", "headline", "headline_naive", "coverage90")
            rows.append((told, str(point["runs"]), str(point["rows"]), *(percent(point[cell]) for cell in cells)))
    figures = ("mean", "mean, naive", "headline", "headline, naive", "inside the interval")
    return _table(("anchored by runs of", "runs", "rows", *figures), rows)


def curve_by_table(sheet: Sheet) -> str:
    """The same by source and by engine, anchored by runs of the same software and machine."""
    curve, rows = sheet.get("learning_curve", {}), []
    for by in ("source", "engine"):
        for name, item in curve.get(f"same_by_{by}", {}).items():
            rows.append((by, name, str(item["n"]), *(percent(value) for value in item["mape"])))
    return _table(("by", "name", "rows", *(f"after {runs}" for runs in curve.get("runs", ()))), rows)


def _groups_table(sheet: Sheet) -> str:
    rows = [
        (grouping, name, str(item["n"]), percent(item["mape"]))
        for grouping in ("accelerator", "arch")  # engines are in the table of sources
        for name, item in sheet["groups"][grouping].items()
    ]
    return _table(("by", "name", "rows", "mean"), rows)


def _ablation_table(sheet: Sheet) -> str:
    rows = [
        (item["group"], ", ".join(item["parameters"]), percent(item["mape"]),
         signed_share(item["buys"], unit=" points"))
        for item in sheet.get("ablation", ())
    ]  # fmt: skip
    return _table(("group", "parameters held at their defaults", "headline mean", "what fitting them buys"), rows)


def _parameters_table(sheet: Sheet) -> str:
    rows = []
    for item in sheet["parameters"]:
        spread = " to ".join(_value(value) for value in item["range"]) + f" by {item['per']}" if item["range"] else ""
        plausible = " to ".join(_value(value) for value in item["plausible"])
        rows.append((item["name"], item["unit"], _value(item["value"]), spread, plausible, item["meaning"]))
    return _table(("parameter", "unit", "value", "range", "plausible", "meaning"), rows)


def _value(value: float) -> str:
    return f"{value:.3g}"


TABLES: Mapping[str, Callable[[Sheet], str]] = MappingProxyType(
    {
        "accuracy": sets_table,
        "accuracy-beside": beside_table,
        "accuracy-strangers": strangers_table,
        "accuracy-sources": _sources_table,
        "learning-curve": curve_table,
        "learning-curve-by": curve_by_table,
        "accuracy-groups": _groups_table,
        "accuracy-ablation": _ablation_table,
        "accuracy-parameters": _parameters_table,
    }
)
