"""Turn `ridgeline bringup` into a call of the library.

0  every op is right        1  an op is wrong, or with --faults one of them was not caught        2  refused
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, console, print_json


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(bringup)


def bringup(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A catalog id, a config.json, a model file, or module:function for a torch module."
        ),
    ],
    device: Annotated[
        str,
        typer.Option(metavar="NAME", help="A torch device; ridge: a fake one, whose ops can be faulted."),
    ] = "cpu",
    faults: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Python functions fault_*(op, args, kwargs, result) for ridge.")
    ] = None,
    fault: Annotated[str, typer.Option(metavar="NAME", help="One fault of the file; else each in turn.")] = "",
    seed: Annotated[int, typer.Option(metavar="N", help="Of weights and inputs.")] = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="Where reproductions of findings go.")
    ] = None,
    json: Json = False,
) -> None:
    """Run a model on a device: every op, the ladder, invariances; judged against fp64 arithmetic on the host."""
    from ridgeline.report.bringup import bringup_sheet, draw_bringup, faults_sheet
    from ridgeline.runtime.bringup.findings import unheard
    from ridgeline.runtime.bringup.supervise import bringup as library
    from ridgeline.runtime.bringup.supervise import fault_names, folder_of, target_of
    from ridgeline.runtime.measure import need_torch

    need_torch("bringup")
    target = target_of(model)
    tell = unheard if json else say
    if faults is None:
        folder = folder_of(output, target, device)
        sheet = bringup_sheet(library(target, device, seed=seed, tell=tell, folder=folder))
        print_json(sheet) if json else draw_bringup(sheet, console())
        raise typer.Exit(0 if sheet["verdict"] == "right" else 1)
    each = []
    for name in fault_names(faults, fault):
        folder = folder_of(output, target, device, name)
        found = library(target, device, faults=faults, fault=name, seed=seed, tell=tell, folder=folder)
        each.append(bringup_sheet(found, name))
        if not json:
            draw_bringup(each[-1], console())
    if fault:
        print_json(each[0]) if json else None
        raise typer.Exit(0 if each[0]["verdict"] == "right" else 1)
    together = faults_sheet(each)
    print_json(together) if json else say(f"{together['caught']} of {len(each)} faults caught")
    raise typer.Exit(0 if together["caught"] == len(each) else 1)
