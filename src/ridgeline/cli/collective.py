"""Turn `ridgeline collective` into calls of the library.

0  done        1  run: an output was wrong        2  the input cannot be used, or the algorithm of a file is wrong
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import typer

from ridgeline.cli import collective_options as options
from ridgeline.cli.refuse import UNUSABLE
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, console, print_json


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(collective)


def collective(
    what: options.What,
    file: options.File = None,
    on: options.On = "",
    topology: options.Shape = "",
    link: options.Link = "50 GB/s",
    outer: options.Outer = "",
    latency: options.Latency = "0.5 us",
    size: options.Size = "1 GB",
    algorithm: options.AlgorithmName = "",
    synthesize: options.Synthesize = False,
    library: options.Library = "",
    without: options.Without = None,
    slow: options.Slow = None,
    chunks: options.Chunks = None,
    root: options.Root = 0,
    groups: options.Groups = "",
    pair: options.Pair = None,
    matrix: options.Matrix = None,
    experts: options.Experts = 0,
    top_k: options.TopK = 1,
    tokens: options.Tokens = 64,
    simulate: options.Simulate = False,
    paths: options.Paths = "ecmp",
    seed: options.Seed = 0,
    seeds: options.Seeds = 20,
    background: options.BackgroundTraffic = None,
    straggler: options.Stragglers = None,
    beside: options.Beside = None,
    injection: options.Injection = "",
    message: options.Message = "0 s",
    by_size: options.BySize = False,
    picture: options.Picture = None,
    output: options.Output = None,
    to: options.To = "",
    ranks: options.Ranks = 2,
    backend: options.Backend = "gloo",
    sizes: options.Sizes = "1KB:64MB",
    timeout: options.Timeout = 120,
    json: Json = False,
) -> None:
    """How long a collective takes on a network, by which algorithm, and how far that is from the best possible."""
    network = _Network(on, topology, link, latency, size, to, picture)
    if what in ("verify", "list"):
        _verify(file, network, json) if what == "verify" else _list(network, outer, without or (), groups, json)
        return
    if what == "run":
        _run(file, json, ranks=ranks, backend=backend, sizes=sizes, algorithm=algorithm, synthesize=synthesize,
             topology=topology, without=without or (), root=root, timeout_s=timeout)  # fmt: skip
        return
    if _written_as(file, output, to, library):
        _library(what, on, size, library or {"hccl": "hccl"}.get(to, "nccl"), (output, to), json)
        return
    outputs = _Shown(output, to, picture, json)
    _ask(
        what, outputs, on=on, topology=topology, link=link, latency=latency, size=size, algorithm=algorithm,
        synthesize=synthesize, without=without or (), chunks=chunks, root=root, outer=outer or None, slow=slow or (),
        by_size=by_size, simulate=simulate, paths=paths, seed=seed, seeds=seeds, background=background or (),
        straggler=straggler or (), beside=beside or (), injection=injection or None, message=message, groups=groups,
        pairs=pair or (), matrix=matrix, experts=experts, top_k=top_k, tokens=tokens, routing_seed=seed,
    )  # fmt: skip


def _written_as(file: Path | None, output: Path | None, to: str, library: str) -> bool:
    """Whether a library's choice is asked for, and no algorithm; what cannot be written is refused before any work."""
    from ridgeline.comm import ALGORITHM_TARGETS, CHOICE_TARGETS, TARGETS
    from ridgeline.core.errors import InputError, Problem, not_among
    from ridgeline.core.files import refuse_unwritable

    if file is not None:
        raise InputError(Problem(path="FILE", given=str(file), expected="nothing after a collective", todo="use -o"))
    if to and to not in TARGETS:
        raise InputError(not_among("--to", to, TARGETS))
    if to and output is None:
        raise InputError(Problem(path="--to", given=to, expected="-o FILE with it"))
    if output is not None:
        refuse_unwritable(output)
    chosen = bool(library) or to in CHOICE_TARGETS
    if chosen and to in ALGORITHM_TARGETS:
        raise InputError(Problem(path="--to", given=f"{to} with --library", expected="nccl-tuner or hccl"))
    return chosen


class _Shown(NamedTuple):
    """What is made of an answer: files, a picture, JSON."""

    output: Path | None
    to: str
    picture: Path | None
    json: bool


def _ask(what: str, shown: _Shown, **asked: Any) -> None:
    """An algorithm for the collective, proven and timed; written and drawn if asked."""
    from ridgeline.api import collective as answered
    from ridgeline.comm import write_collective
    from ridgeline.core.files import refuse_unwritable
    from ridgeline.report.collective import draw_collective
    from ridgeline.report.schedule_picture import refuse_unknown_picture, write_picture

    if shown.picture is not None:
        refuse_unknown_picture(shown.picture)
        refuse_unwritable(shown.picture)
    time = answered(what, **asked)
    if shown.output is not None:
        write_collective(time.algorithm, shown.output, shown.to or "ridgeline")
        say(f"{shown.output}: {time.algorithm.step_count} steps", err=True)
    if shown.picture is not None:
        write_picture(time, shown.picture, time.by_size or ())
        say(f"{shown.picture}: written", err=True)
    print_json(time) if shown.json else draw_collective(time, console())


class _Network(NamedTuple):
    """On what a file's algorithm is to be timed and drawn, and whose limits it is held against."""

    on: str
    topology: str
    link: str
    latency: str
    size: str
    profile: str
    picture: Path | None


def _list(network: _Network, outer: str, without: Any, groups: str, json: bool) -> None:
    """Every algorithm of the library, for each collective it can do on this network."""
    from ridgeline.comm import asked_graph, bytes_of, list_algorithms
    from ridgeline.report.collective import draw_library

    topology = network.topology if network.on or network.topology else "torus:4x4"
    graph = asked_graph(network.on, topology, network.link, network.latency, outer or None, without, (), groups)
    library = list_algorithms(graph, bytes_of(network.size))
    print_json(library) if json else draw_library(library, console())


def _library(what: str, on: str, size: str, library: str, target: tuple[Path | None, str], json: bool) -> None:
    """What a library would do for the collective; written as its settings if asked."""
    from ridgeline.api import library_choice
    from ridgeline.comm import write_choice
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.report.collective import draw_library_choice

    if not on:
        raise InputError(Problem(path="--on", given="nothing", expected="a system, as 64xh100-sxm, with --library"))
    choice = library_choice(what, on=on, size=size, library=library)
    output, to = target
    if output is not None:
        write_choice(choice, output, to)
        say(f"{output}: written", err=True)
    print_json(choice) if json else draw_library_choice(choice, console())


def _verify(file: Path | None, network: _Network, json: bool) -> None:
    """Check a file, time its algorithm where a network is given; exit code 2 where it is wrong."""
    from ridgeline.comm import graph_for, read_collective, timed_file
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.report.collective import draw_collective, draw_verification
    from ridgeline.report.schedule_picture import refuse_unknown_picture, write_picture

    if file is None:
        raise InputError(Problem(path="FILE", given="nothing", expected="a file after verify"))
    if network.profile not in ("", "msccl", "rccl"):
        given_text, expected_text = (
            f"verify --to {network.profile}",
            "--to rccl or msccl: whose limits an XML file is held against",
        )
        raise InputError(Problem(path="--to", given=given_text, expected=expected_text))
    if network.picture is not None:
        refuse_unknown_picture(network.picture)
    content = read_collective(file, network.profile)
    if content.algorithm is not None and (network.on or network.topology or network.picture):
        flat = f"switch:{content.algorithm.ranks}"  # where no network is given
        topology = network.topology if network.on or network.topology else flat
        time = timed_file(content, graph_for(network.on, topology, network.link, network.latency), network.size)
        if network.picture is not None:
            write_picture(time, network.picture)
        print_json(time) if json else draw_collective(time, console())
    else:
        print_json(content) if json else draw_verification(content, console())
    if content.verification is not None and not content.verification.ok:
        raise typer.Exit(UNUSABLE)


def _run(name: Path | None, json: bool, **asked: Any) -> None:
    """Carry a collective out on real ranks; exit code 1 where an output was wrong."""
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.report.collective import draw_collective_run
    from ridgeline.runtime import collective_run

    if name is None:
        raise InputError(Problem(path="COLLECTIVE", given="nothing", expected="a collective after run, as allreduce"))
    run = collective_run(str(name), **asked)
    if run is None:  # rank 0 of torchrun speaks for all
        return
    print_json(run) if json else draw_collective_run(run, console())
    if not run.correct:
        raise typer.Exit(1)
