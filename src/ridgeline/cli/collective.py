"""Turn `ridgeline collective` into calls of the library.

0  done        1  run: an output was wrong        2  the input cannot be used, or the algorithm of a file is wrong
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.collective_options import (
    AlgorithmName,
    BackgroundTraffic,
    Beside,
    Broken,
    File,
    GroupBackend,
    Injection,
    Message,
    Outer,
    Output,
    Paths,
    Ranks,
    Seed,
    Seeds,
    Shape,
    Simulate,
    Sizes,
    Slow,
    Stragglers,
    Timeout,
    What,
)
from ridgeline.cli.refuse import UNUSABLE
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, console, print_json


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(collective)


def collective(
    what: What,
    file: File = None,
    on: Annotated[str, typer.Option("--on", metavar="SYSTEM", help="A system such as 64xh100-sxm.")] = "",
    topology: Shape = "",
    link: Annotated[str, typer.Option(metavar="RATE", help="One link, one direction.")] = "50 GB/s",
    outer: Outer = "",
    latency: Annotated[str, typer.Option(metavar="TIME", help="One hop.")] = "0.5 us",
    size: Annotated[str, typer.Option(metavar="SIZE", help="Of the whole vector, see docs.")] = "1 GB",
    algorithm: AlgorithmName = "",
    synthesize: Annotated[bool, typer.Option("--synthesize", help="Build one for this very graph.")] = False,
    without: Broken = None,
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
    output: Output = None,
    ranks: Ranks = 2,
    backend: GroupBackend = "gloo",
    sizes: Sizes = "1KB:64MB",
    timeout: Timeout = 120,
    json: Json = False,
) -> None:
    """How long a collective takes on a network, by which algorithm, and how far that is from the best possible."""
    if what == "verify":
        _verify(file, json)
        return
    if what == "run":
        _run(file, json, ranks=ranks, backend=backend, sizes=sizes, algorithm=algorithm, synthesize=synthesize,
             topology=topology, without=without or (), root=root, timeout_s=timeout)  # fmt: skip
        return
    from ridgeline.comm.algorithm_file import write_algorithm
    from ridgeline.comm.answer import collective as library
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.core.files import refuse_unwritable
    from ridgeline.report.collective import collective_sheet, draw_collective

    if file is not None:
        raise InputError(Problem(path="FILE", given=str(file), expected="nothing after a collective", todo="use -o"))
    if output is not None:
        refuse_unwritable(output)
    found = library(
        what, on=on, topology=topology, link=link, latency=latency, size=size, algorithm=algorithm,
        synthesize=synthesize, without=without or (), chunks=chunks, root=root, outer=outer or None, slow=slow or (),
        simulate=simulate, paths=paths, seed=seed, seeds=seeds, background=background or (),
        straggler=straggler or (), beside=beside or (), injection=injection or None, message=message,
    )  # fmt: skip
    sheet = collective_sheet(found)
    if output is not None:
        write_algorithm(found.algorithm, output)
        say(f"{output}: {sheet['steps']} steps", err=True)
    print_json(sheet) if json else draw_collective(sheet, found, console())


def _verify(file: Path | None, json: bool) -> None:
    """Check a file's algorithm; exit code 2 where it is wrong."""
    from ridgeline.comm.answer import verify_file
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.report.collective import draw_verification, verification_sheet

    if file is None:
        raise InputError(Problem(path="FILE", given="nothing", expected="a file after verify"))
    algorithm, found = verify_file(file)
    sheet = verification_sheet(algorithm, found)
    print_json(sheet) if json else draw_verification(sheet, console())
    if not found.ok:
        raise typer.Exit(UNUSABLE)


def _run(name: Path | None, json: bool, **asked: Any) -> None:
    """Carry a collective out on real ranks; exit code 1 where an output was wrong."""
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.report.collective_run import collective_run_sheet, draw_collective_run
    from ridgeline.runtime.collective_run import collective_run

    if name is None:
        raise InputError(Problem(path="COLLECTIVE", given="nothing", expected="a collective after run, as allreduce"))
    found = collective_run(str(name), **asked)
    if found is None:  # rank 0 of torchrun speaks for all
        return
    sheet = collective_run_sheet(found)
    print_json(sheet) if json else draw_collective_run(sheet, console())
    if not found.correct:
        raise typer.Exit(1)
