"""Turn sheets of models into a terminal table, models side by side. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Group, RenderableType
from rich.text import Text

from ridgeline.core.units import format_count, format_quantity
from ridgeline.report.catalog_sheets import Sheet
from ridgeline.report.cells import DASH, clean, headed, listed
from ridgeline.report.media_rows import media_rows

PARTS = (
    "embedding", "attention", "mlp", "experts", "shared_experts", "router", "norms", "head", "vision", "audio",
    "encoder", "companions", "extra",
)  # fmt: skip
Row = tuple[str, Callable[[Sheet], str], str]  # its name, what stands there for a sheet, its style


def models(sheets: Sequence[Sheet]) -> RenderableType:
    """Models side by side: parameters by part, flops, cache, intensity."""
    table = headed(["", *(sheet["id"] for sheet in sheets)], title=", ".join(sheet["name"] for sheet in sheets))
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
    return Group(table, convention, *listed("captured; could not be told", untold))


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
