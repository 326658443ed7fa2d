"""Turn `ridgeline bringup` into a call of the library.

0  every op is right        1  an op is wrong, or with --faults one of them was not caught        2  refused
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, console, print_json
from ridgeline.core.errors import InputError, Problem

if TYPE_CHECKING:
    from ridgeline.runtime.bringup.roofline import Rates

Device = Annotated[
    str, typer.Option(metavar="NAME", help="A torch device; ridge: a fake one, whose ops can be faulted.")
]
Faults = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Python functions fault_*(op, args, kwargs, result) for ridge.")
]
Chip = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Whose roofline speeds are held against; else by the device's name."),
]
ProfileFile = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE", help="The same from rates that `ridgeline characterize` measured."),
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page as well: one file, offline.")]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE.json", help="Save the report, which `ridgeline diff` compares."),
]
Msprobe = Annotated[
    Path | None,
    typer.Option("--msprobe", metavar="FOLDER", help="Judge what mindstudio-probe dumped elsewhere, without a device."),
]
GraphBreaks = Annotated[
    bool, typer.Option("--graph-breaks", help="Say too where a compiler would leave its graph (dynamo; some seconds).")
]


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(bringup)


def bringup(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="A catalog id, a config.json or a model file; none with --msprobe.")
    ] = "",
    device: Device = "cpu",
    faults: Faults = None,
    fault: Annotated[str, typer.Option(metavar="NAME", help="One fault of the file; else each in turn.")] = "",
    seed: Annotated[int, typer.Option(metavar="N", help="Of weights and inputs.")] = 0,
    chip: Chip = None,
    profile: ProfileFile = None,
    graph_breaks: GraphBreaks = False,
    msprobe: Msprobe = None,
    html: Html = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Run a model's ops on a device and judge every result against fp64 arithmetic on the host."""
    from ridgeline.core.files import refuse_unwritable
    from ridgeline.models.load import model as read_model
    from ridgeline.report.bringup import bringup_sheet, draw_bringup, faults_sheet
    from ridgeline.runtime.bringup.faults import Fault, chosen, read_faults, read_lacks
    from ridgeline.runtime.bringup.verdict import bringup as library
    from ridgeline.runtime.bringup.verdict import unheard
    from ridgeline.runtime.measure import need_torch

    need_torch("bringup")
    for path in filter(None, (html, output)):
        refuse_unwritable(path)
    if msprobe is not None:
        _dumped(msprobe, model, html, output, json)
    spec = read_model(_named(model))
    tell = unheard if json else _aloud
    functions = chosen(read_faults(faults), fault) if faults is not None else {}
    options: dict[str, Any] = {"seed": seed, "tell": tell, "lacks": read_lacks(faults) if faults is not None else None}
    if not functions:
        rates = _rates(device, chip, profile)
        sheet = bringup_sheet(library(spec, device, rates=rates, compiled=graph_breaks, **options))
        _hand_over(sheet, html, output, json)
        raise typer.Exit(0 if sheet["verdict"] == "right" else 1)
    each = []
    for name, alter in functions.items():
        each.append(bringup_sheet(library(spec, device, fault=Fault(name, alter), **options), name))
        if not json and not fault:
            draw_bringup(each[-1], console())
    if fault:
        _hand_over(each[0], html, output, json)
        raise typer.Exit(0 if each[0]["verdict"] == "right" else 1)
    together = faults_sheet(each)
    _hand_over(together, html, output, json)
    raise typer.Exit(0 if together["caught"] == len(each) else 1)


def _named(model: str) -> str:
    if not model:
        expected = "a model to bring up, or --msprobe FOLDER"
        todo = "`ridgeline show models` lists them"
        raise InputError(Problem(path="MODEL", given="none", expected=expected, todo=todo))
    return model


def _dumped(folder: Path, model: str, html: Path | None, output: Path | None, json: bool) -> None:
    """Judge a dump of msprobe, and end."""
    from ridgeline.report.bringup import dump_sheet
    from ridgeline.runtime.bringup.msprobe.imported import bringup_msprobe
    from ridgeline.runtime.bringup.verdict import unheard

    if model:
        raise InputError(Problem(path="MODEL", given=repr(model), expected="none beside --msprobe"))
    sheet = dump_sheet(bringup_msprobe(folder, tell=unheard if json else _aloud))
    _hand_over(sheet, html, output, json)
    raise typer.Exit(0 if sheet["verdict"] == "right" else 1)


def _aloud(line: str) -> None:
    """How far it is, where answers do not go."""
    say(line, err=True)


def _rates(device: str, chip: str | None, profile: Path | None) -> Rates | None:
    """What is possible: of a profile, of a chip that is named, or of the one that the device's name tells."""
    from ridgeline.hardware.load import chip as read_chip
    from ridgeline.runtime.bringup.devices import likely_chip, open_device
    from ridgeline.runtime.bringup.roofline import rates_of

    if profile is not None:
        return _measured(profile)
    if chip is None:
        open_device(device)
        chip = likely_chip(device)
    return rates_of(read_chip(chip)) if chip is not None else None


def _measured(path: Path) -> Rates:
    """The best rates that a profile holds."""
    from ridgeline.cost.ceilings import ceilings
    from ridgeline.cost.profile import read_profile
    from ridgeline.runtime.bringup.roofline import Rates

    profile = read_profile(path)
    best = {one.name: one.measured for one in ceilings(profile)}
    products = {name.removeprefix("product "): rate for name, rate in best.items() if name.startswith("product ")}
    moved = [best[name] for name in ("copy", "read", "write") if name in best]
    name = profile.chip or str(profile.device.get("name", "")) or path.name
    return Rates(
        name=name, flops_per_s=products, bytes_per_s=max(moved, default=None), source=f"measured, {path.name}",
    )  # fmt: skip


def _hand_over(sheet: Any, html: Path | None, output: Path | None, json: bool) -> None:
    """The report on the terminal, as a page and as a file."""
    from json import dumps

    from ridgeline.core.files import write_text
    from ridgeline.report.bringup import draw_bringup, draw_dump
    from ridgeline.report.bringup_html import bringup_page, dump_page, faults_page

    pages = {"bringup": bringup_page, "bringup-faults": faults_page, "bringup-msprobe": dump_page}
    if html is not None:
        write_text(html, pages[sheet["kind"]](sheet))
    if output is not None:
        write_text(output, dumps(sheet, indent=1, allow_nan=False) + "\n")
    if json:
        print_json(sheet)
    elif sheet["kind"] == "bringup-faults":
        say(f"{sheet['caught']} of {len(sheet['faults'])} faults caught")
    elif sheet["kind"] == "bringup-msprobe":
        draw_dump(sheet, console())
    else:
        draw_bringup(sheet, console())
