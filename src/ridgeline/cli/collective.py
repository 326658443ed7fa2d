"""Turn `ridgeline collective` into calls of the library.

0  done        2  the input cannot be used, or the algorithm of a file is wrong
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ridgeline.cli.collective_options import (
    BackgroundTraffic,
    Beside,
    Injection,
    Message,
    Outer,
    Paths,
    Seed,
    Seeds,
    Shape,
    Simulate,
    Slow,
    Stragglers,
)
from ridgeline.cli.refuse import UNUSABLE
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, console, print_json


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(collective)


def collective(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="allreduce, allgather, reducescatter, alltoall, broadcast, reduce; or verify FILE."
        ),
    ],
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="With verify: any such file.")] = None,
    on: Annotated[str, typer.Option("--on", metavar="SYSTEM", help="A system such as 64xh100-sxm.")] = "",
    topology: Shape = "",
    link: Annotated[str, typer.Option(metavar="RATE", help="One link, one direction.")] = "50 GB/s",
    outer: Outer = "",
    latency: Annotated[str, typer.Option(metavar="TIME", help="One hop.")] = "0.5 us",
    size: Annotated[str, typer.Option(metavar="SIZE", help="Of the whole vector, see docs.")] = "1 GB",
    algorithm: Annotated[str, typer.Option(metavar="NAME", help="One of the library; else its fastest.")] = "",
    synthesize: Annotated[bool, typer.Option("--synthesize", help="Build one for this very graph.")] = False,
    library: Annotated[
        str, typer.Option("--library", metavar="NAME", help="What nccl, rccl or hccl would do, and why; wants --on.")
    ] = "",
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="PART", help="A broken link:3-4 or node:5; may be repeated."),
    ] = None,
    slow: Slow = None,
    chunks: Annotated[int | None, typer.Option(min=1, metavar="K", help="Synthesis: chunks of a rank's part.")] = None,
    root: Annotated[int, typer.Option(min=0, metavar="RANK", help="Of broadcast and reduce.")] = 0,
    simulate: Simulate = False,
    paths: Paths = "ecmp",
    seed: Seed = 0,
    seeds: Seeds = 20,
    background: BackgroundTraffic = None,
    straggler: Stragglers = None,
    beside: Beside = None,
    injection: Injection = "",
    message: Message = "0 s",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the algorithm, or a library's choice.")
    ] = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="TARGET", help="With -o: ridgeline, msccl, rccl, mscclpp; nccl-tuner, hccl."),
    ] = "",
    json: Json = False,
) -> None:
    """How long a collective takes on a network, by which algorithm, and how far that is from the best possible."""
    if what == "verify":
        _verify(file, _Network(on, topology, link, latency, size, to), json)
        return
    from ridgeline.comm.answer import collective as ask
    from ridgeline.comm.formats.files import ALGORITHM_TARGETS, CHOICE_TARGETS, TARGETS, write_collective
    from ridgeline.core.errors import InputError, Problem, not_among
    from ridgeline.core.files import refuse_unwritable
    from ridgeline.report.collective import collective_sheet, draw_collective

    if file is not None:
        raise InputError(Problem(path="FILE", given=str(file), expected="nothing after a collective", todo="use -o"))
    if to and to not in TARGETS:
        raise InputError(not_among("--to", to, TARGETS))
    if to and output is None:
        raise InputError(Problem(path="--to", given=to, expected="-o FILE with it"))
    if output is not None:
        refuse_unwritable(output)
    if library or to in CHOICE_TARGETS:
        if to in ALGORITHM_TARGETS:
            raise InputError(Problem(path="--to", given=f"{to} with --library", expected="nccl-tuner or hccl"))
        _library(what, on, size, library or {"hccl": "hccl"}.get(to, "nccl"), (output, to), json)
        return
    found = ask(
        what, on=on, topology=topology, link=link, latency=latency, size=size, algorithm=algorithm,
        synthesize=synthesize, without=without or (), chunks=chunks, root=root, outer=outer or None, slow=slow or (),
        simulate=simulate, paths=paths, seed=seed, seeds=seeds, background=background or (),
        straggler=straggler or (), beside=beside or (), injection=injection or None, message=message,
    )  # fmt: skip
    sheet = collective_sheet(found)
    if output is not None:
        write_collective(found.algorithm, output, to or "ridgeline")
        say(f"{output}: {sheet['steps']} steps", err=True)
    print_json(sheet) if json else draw_collective(sheet, found, console())


class _Network(NamedTuple):
    """On what a file's algorithm is to be timed, and whose limits it is held against."""

    on: str
    topology: str
    link: str
    latency: str
    size: str
    profile: str


def _library(what: str, on: str, size: str, library: str, target: tuple[Path | None, str], json: bool) -> None:
    """What a library would do for the collective; written as its settings if asked."""
    from ridgeline.comm.formats.choice_settings import write_choice
    from ridgeline.comm.libraries.choice import library_choice
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.report.library_choice import draw_library_choice, library_choice_sheet

    if not on:
        raise InputError(Problem(path="--on", given="nothing", expected="a system, as 64xh100-sxm, with --library"))
    found = library_choice(what, on=on, size=size, library=library)
    output, to = target
    if output is not None:
        write_choice(found, output, to)
        say(f"{output}: written", err=True)
    sheet = library_choice_sheet(found)
    print_json(sheet) if json else draw_library_choice(sheet, console())


def _verify(file: Path | None, network: _Network, json: bool) -> None:
    """Check a file, time its algorithm where a network is given; exit code 2 where it is wrong."""
    from ridgeline.comm.answer import graph_for, timed_file
    from ridgeline.comm.formats.files import read_collective
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.report.collective import collective_sheet, draw_collective, draw_verification, verification_sheet

    if file is None:
        raise InputError(Problem(path="FILE", given="nothing", expected="a file after verify"))
    if network.profile not in ("", "msccl", "rccl"):
        given, expected = (
            f"verify --to {network.profile}",
            "--to rccl or msccl: whose limits an XML file is held against",
        )
        raise InputError(Problem(path="--to", given=given, expected=expected))
    found = read_collective(file, network.profile)
    if found.algorithm is not None and (network.on or network.topology):
        graph = graph_for(network.on, network.topology, network.link, network.latency)
        timed = timed_file(found, graph, network.size)
        whole = collective_sheet(timed)
        print_json(whole) if json else draw_collective(whole, timed, console())
    else:
        sheet = verification_sheet(found)
        print_json(sheet) if json else draw_verification(sheet, console())
    if found.verification is not None and not found.verification.ok:
        raise typer.Exit(UNUSABLE)
