"""The page that describes: a model as a stack of layers, a system as a tree, and a chip from eight fields."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.core.dtype import dtype
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import parse_quantity
from ridgeline.hardware.chip import Chip, ridge_points
from ridgeline.hardware.load import chip as load_chip
from ridgeline.hardware.load import system
from ridgeline.hardware.system import System
from ridgeline.models import facts
from ridgeline.models.load import model as load_model
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.params import count
from ridgeline.models.spec import ModelSpec, Moe
from ridgeline.report.pieces import chip_numbers
from ridgeline.web.blocks import (
    FigureItem,
    FigureRow,
    FormFields,
    GridTable,
    PageBlock,
    PageView,
    TableCell,
    TreeChart,
    TreeNode,
)
from ridgeline.web.controls import state_controls
from ridgeline.web.figures import (
    ExplainedNumber,
    explain_number,
    given_input,
    quantity_words,
    quoted_input,
    quoted_number,
)
from ridgeline.web.scenarios import Shelf, file_of, is_scenario_file, machine_name
from ridgeline.web.state import PageState

DTYPE = "bf16"
FIELDS = (
    ("dense bf16 compute", "peak.bf16", "FLOP/s", "1000 TFLOP/s"),
    ("memory capacity", "hbm.capacity", "B", "96 GB"),
    ("memory bandwidth", "hbm.bandwidth", "B/s", "4 TB/s"),
    ("scale-up bandwidth, one way", "scaleup.bandwidth", "B/s", "450 GB/s"),
    ("scale-out bandwidth, one way", "scaleout.bandwidth", "B/s", "50 GB/s"),
    ("chips of a scale-up domain", "scaleup.domain", "", "8"),
    ("power", "tdp", "W", "600 W"),
    ("price", "price", "USD/h", "2.5 USD/h"),
)
"""The eight fields of a chip: what each is called, its path in a chip file, its unit, an example."""


def describe_view(state: PageState, shelf: Shelf) -> PageView:
    """The model of a state beside its machine; the chip of the eight fields where they are filled in."""
    path = file_of(state, shelf)
    spec = load_model(path if path is not None and not is_scenario_file(path) else state["model"])
    machine = system(machine_name(state))
    blocks = [*_model_blocks(spec, state), *_machine_blocks(machine), *_chip_blocks(state, machine.chip)]
    return PageView(
        page="describe", title=f"What does {spec.id} ask of a machine, and what does {machine.name} offer?",
        answer=f"{quantity_words(count(spec).total, '')} parameters in {spec.layers} layers; "
        f"{machine.chips:,} chips in {len(machine.tiers)} tier(s) of links.",
        controls=state_controls(state, ("model", "seq", "machine", "chips")), blocks=tuple(blocks),
        command=f"ridgeline show {spec.id} {machine.name} --seq {state['seq']}",
        evidence="Numbers of chips are quoted from data sheets, each with its source; those of models are counted.",
        url=state.url,
    )  # fmt: skip


# -- model ------------------------------------------------------------------------------------------------------------


def model_number(value: float, unit: str, formula: str, spec: ModelSpec, *, text: str = "") -> ExplainedNumber:
    inputs = (
        given_input("layers", spec.layers, spec.source or "the model's configuration"),
        given_input("hidden", f"{spec.hidden:,}", spec.source or "the model's configuration"),
        given_input("vocabulary", f"{spec.vocab:,}", spec.source or "the model's configuration"),
    )
    return explain_number(value, unit, formula, inputs, f"counted from the dimensions of {spec.id}", text=text)


def _model_blocks(spec: ModelSpec, state: PageState) -> Iterator[PageBlock]:
    params, seq = count(spec), int(state.amount("seq"))
    forward = facts.forward_flops_per_token(spec, seq)
    cache = facts.kv_cache_bytes_per_token(spec, dtype(DTYPE))
    yield FigureRow(
        items=(
            FigureItem(name="parameters", number=model_number(params.total, "", "sum over all weights", spec)),
            FigureItem(
                name="active for a token",
                number=model_number(params.active, "", "all weights but those of experts that a token skips", spec),
            ),
            FigureItem(
                name=f"forward flops a token at {seq:,}",
                number=model_number(forward.total, "FLOP", "2 × active weights + scores, causal at half", spec),
            ),
            FigureItem(
                name="cache a token", number=model_number(cache, "B", "layers × what attention keeps × bytes", spec)
            ),
        )
    )
    yield TreeChart(name="layers", title=f"{spec.id}, a stack of {spec.layers} layers", root=_model_tree(spec))


def _model_tree(spec: ModelSpec) -> TreeNode:
    def width(value: float, name: str) -> FigureItem:
        return FigureItem(name=name, number=model_number(value, "", "as configured", spec))

    order = spec.order
    blocks = []
    for place, block in enumerate(spec.blocks):
        layers = order.count(place)
        mixers = ", ".join(mixer_parts(mixer, spec.hidden).title for mixer in block.mixers) or "captured ops"
        ffn = block.ffn
        if isinstance(ffn, Moe):
            experts = width(ffn.experts, "experts"), width(ffn.topk, "of them a token"), width(ffn.hidden, "wide")
            network = TreeNode(title="experts", figures=experts)
        else:
            figures = (width(ffn.hidden, "wide"),) if ffn is not None and hasattr(ffn, "hidden") else ()
            network = TreeNode(title="feed-forward", figures=figures)
        blocks.append(
            TreeNode(title=f"{layers} ×", note="layer", children=(TreeNode(title=mixers, note="mixer"), network))
        )
    ends = (width(spec.vocab, "vocabulary"), width(spec.hidden, "hidden"))
    return TreeNode(title="embedding and head", figures=ends, children=tuple(blocks))


# -- machine ----------------------------------------------------------------------------------------------------------


def _machine_blocks(machine: System) -> Iterator[PageBlock]:
    yield TreeChart(name="system", title=f"{machine.name}, from the outside in", root=_machine_tree(machine))
    yield chip_table(machine.chip)


def _machine_tree(machine: System) -> TreeNode:
    chip = machine.chip
    numbers = (
        ("peak, dense bf16", chip.peak.get("bf16"), "FLOP/s"), ("memory", chip.hbm.capacity, "B"),
        ("bandwidth", chip.hbm.bandwidth, "B/s"), ("power", chip.tdp, "W"), ("price", chip.price, "USD/h"),
    )  # fmt: skip
    figures = tuple(
        FigureItem(name=name, number=quoted_number(name, number, unit)) for name, number, unit in numbers if number
    )
    inner = TreeNode(title=chip.name, note=f"{chip.vendor}, {chip.hbm.kind or 'memory'}", figures=figures)
    for tier in machine.tiers:
        chips = explain_number(tier.chips, "", "chips that this tier joins",
                               [given_input("system", machine.name)], f"template {machine.template}")  # fmt: skip
        items = [FigureItem(name="chips", number=chips)]
        if tier.bandwidth is not None:
            rate = quoted_number("bandwidth of a chip, one way", tier.bandwidth, "B/s")
            items.append(FigureItem(name="a chip, one way", number=rate))
        inner = TreeNode(
            title=tier.name,
            note="",
            figures=tuple(items),
            children=(inner,),
        )
    return inner


def chip_table(chip: Chip) -> GridTable:
    """Every number of a chip with its source, absent ones too, and the ridge points that follow."""
    rows: list[tuple[TableCell, ...]] = []
    for path, unit, number in chip_numbers(chip):
        if number is not None:
            rows.append((path, quoted_number(path, number, unit), number.evidence.label, number.source))
    for name, ratio in ridge_points(chip).items():
        inputs = [quoted_input(f"peak.{name}", chip.peak.get(name), "FLOP/s"),
                  quoted_input("hbm.bandwidth", chip.hbm.bandwidth, "B/s")]  # fmt: skip
        ridge = explain_number(
            ratio.value, "", "peak / memory bandwidth", inputs, "computed", text=f"{ratio.value:,.0f}"
        )
        rows.append((f"ridge of {name}, FLOP a byte", ridge, "derived", "peak / bandwidth"))
    return GridTable(
        name="chip", title=f"{chip.name}, number by number", head=("number", "value", "evidence", "source"),
        rows=tuple(rows), text=("number", "evidence", "source"),
    )  # fmt: skip


# -- a chip of eight fields -------------------------------------------------------------------------------------------


def _chip_blocks(state: PageState, catalog_chip: Chip) -> Iterator[PageBlock]:
    texts = state["spec"].split(";") if state["spec"] else [example for *_, example in FIELDS]
    texts = [*texts, *[""] * len(FIELDS)][: len(FIELDS)]
    yield FormFields(
        title="A chip of your own, from eight fields", choice="spec",
        fields=tuple(
            (name, text, f"for example {example}")
            for (name, _, _, example), text in zip(FIELDS, texts, strict=True)
        ),
        note="Everything else is derived from these; a field that is empty stays absent and is never guessed.",
    )  # fmt: skip
    if state["spec"]:
        table = chip_table_of(texts)
        yield chip_difference(load_chip(table), catalog_chip)
        yield derived_table(texts)
        yield _chip_file(table)


def chip_table_of(texts: list[str]) -> dict[str, object]:
    """The chip file that eight fields mean, or an `InputError` with every field that is wrong."""
    problems, table = [], {"id": "mine", "name": "A chip of eight fields", "vendor": "mine", "system": "dgx-h100"}
    chip_table: dict[str, object] = dict(table)
    for (name, path, unit, example), text in zip(FIELDS, texts, strict=True):
        if not text.strip():
            continue
        try:
            value: object = int(text) if not unit else text.strip()
            if unit:
                parse_quantity(text, unit)
        except (InputError, ValueError):
            problems.append(Problem(path=name, given=repr(text[:40]), expected=f"a quantity such as {example}"))
            continue
        number_table = {"value": value, "evidence": "assumed", "source": "user"}
        head, _, tail = path.partition(".")
        if tail:
            part = chip_table.setdefault(head, {})
            assert isinstance(part, dict)
            part[tail] = number_table
        else:
            chip_table[head] = number_table
    if problems:
        raise InputError(problems)
    chip_table.setdefault("peak", {})
    return chip_table


def chip_difference(own_chip: Chip, catalog_chip: Chip) -> GridTable:
    """The chip beside one of the catalog, number by number."""
    catalog_numbers = {path: number for path, _, number in chip_numbers(catalog_chip)}
    rows: list[tuple[TableCell, ...]] = []
    for path, unit, number in chip_numbers(own_chip):
        against = catalog_numbers.get(path)
        if number is None:
            continue
        ratio: TableCell = "–"
        if against is not None and against.value:
            inputs = [quoted_input("mine", number, unit), quoted_input(catalog_chip.id, against, unit)]
            ratio = explain_number(number.value / against.value, "times", "mine / the other's", inputs, "computed")
        rows.append((path, quoted_number(path, number, unit),
                     quoted_number(path, against, unit) if against else "not published", ratio))  # fmt: skip
    return GridTable(
        name="difference",
        title=f"Beside {catalog_chip.name}",
        head=("number", "mine", catalog_chip.id, "ratio"),
        rows=tuple(rows),
        text=("number",),
    )


def derived_table(texts: list[str]) -> GridTable:
    """What follows from the eight fields, each with its rule."""
    amounts = {path: (float(text) if not unit else parse_quantity(text, unit), text, name)
               for (name, path, unit, _), text in zip(FIELDS, texts, strict=True) if text.strip()}  # fmt: skip
    rules = (
        ("ridge, FLOP a byte", "peak.bf16", "hbm.bandwidth", "peak / memory bandwidth", ""),
        ("seconds to read all of memory", "hbm.capacity", "hbm.bandwidth", "capacity / bandwidth", "s"),
        ("memory bytes a FLOP", "hbm.bandwidth", "peak.bf16", "bandwidth / peak", ""),
        ("scale-up bytes a FLOP", "scaleup.bandwidth", "peak.bf16", "link / peak", ""),
        ("scale-up over scale-out", "scaleup.bandwidth", "scaleout.bandwidth", "link / link", "times"),
        ("FLOP a joule at rated power", "peak.bf16", "tdp", "peak / power", ""),
    )
    rows: list[tuple[TableCell, ...]] = []
    for name, above, below, rule, unit in rules:
        if above in amounts and below in amounts and amounts[below][0]:
            inputs = [given_input(amounts[path][2], amounts[path][1], "the field above") for path in (above, below)]
            value = amounts[above][0] / amounts[below][0]
            text = "" if unit else f"{value:.4g}"
            rows.append((name, explain_number(value, unit, rule, inputs, "computed", text=text), rule))
    return GridTable(
        name="derived",
        title="What follows",
        head=("number", "value", "rule"),
        rows=tuple(rows),
        text=("number", "rule"),
    )


def _chip_file(table: dict[str, object]) -> PageBlock:
    from ridgeline.core.encode import toml_text
    from ridgeline.web.blocks import CodeText

    entries = {key: value for key, value in table.items() if key != "id"}
    return CodeText(name="chip-file", title="As a chip file, for the verbs", text=toml_text(entries), file="mine.toml")
