"""Turn `ridgeline collective` into calls of the library.

0  done        1  run: an output was wrong        2  the input cannot be used, or the algorithm of a file is wrong
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

import ridgeline
from ridgeline.cli.refuse import UNUSABLE
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, OneSystem, answer, check_outputs
from ridgeline.core.errors import InputError, Problem, not_among

Parts = list[str] | None


What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="allreduce, allgather, reducescatter, alltoall, broadcast, reduce, sendrecv, alltoallv, dispatch, "
        "combine; list (the library); verify FILE; or run COLLECTIVE.",
    ),
]
File = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="With verify: the algorithm to check. With run: the collective to run."),
]
Topology = Annotated[
    str,
    typer.Option(
        "--topology",
        metavar="SHAPE",
        help="mesh:AxB[xC], torus:AxB[xC], ring:N, switch:N, sharp:N, full:N, random:NxD, domains:NxG, "
        "rails:NxGxS, leafspine:LxDxS, fattree:K, planes:NxP, dragonfly:GxRxP.",
    ),
]
Link = Annotated[str, typer.Option("--link", metavar="RATE", help="One link, one direction.")]
Outer = Annotated[str, typer.Option("--outer", metavar="RATE", help="A link between domains; else as --link.")]
Latency = Annotated[str, typer.Option("--latency", metavar="TIME", help="One hop.")]
Size = Annotated[str, typer.Option("--size", metavar="SIZE", help="Of the whole vector, see docs.")]
Algorithm = Annotated[
    str,
    typer.Option("--algorithm", metavar="NAME", help="One of the library; else its fastest. With run also a file."),
]
Synthesize = Annotated[bool, typer.Option("--synthesize", help="Build one for this very graph.")]
Library = Annotated[
    str, typer.Option("--library", metavar="NAME", help="What nccl, rccl or hccl would do, and why; wants --on.")
]
Without = Annotated[
    Parts, typer.Option("--without", metavar="PART", help="A broken link:3-4 or node:5; may be repeated.")
]
Slow = Annotated[
    Parts,
    typer.Option("--slow", metavar="PART", help="A link:3-4:0.5 or node:5:0.25 of another rate; may be repeated."),
]
Chunks = Annotated[int | None, typer.Option("--chunks", min=1, metavar="K", help="Synthesis: chunks of a rank's part.")]
Root = Annotated[int, typer.Option("--root", min=0, metavar="RANK", help="Of broadcast and reduce.")]
Groups = Annotated[str, typer.Option("--groups", metavar="SIZES", help="All-reduce on groups of unequal size, 2+3.")]
Pair = Annotated[
    Parts, typer.Option("--pair", metavar="A-B", help="Sendrecv: rank A sends M to rank B; may be repeated.")
]
Matrix = Annotated[
    Path | None, typer.Option("--matrix", metavar="CSV", help="Alltoallv: row i, column j is what i sends to j.")
]
Experts = Annotated[int, typer.Option("--experts", min=0, metavar="E", help="Dispatch, combine: else one a rank.")]
TopK = Annotated[int, typer.Option("--top-k", min=1, metavar="K", help="Dispatch, combine: experts of a token.")]
Tokens = Annotated[int, typer.Option("--tokens", min=1, metavar="N", help="Dispatch, combine: of each rank.")]
Simulate = Annotated[bool, typer.Option("--simulate", help="Also as flows that share links.")]
Paths = Annotated[str, typer.Option("--paths", metavar="RULE", help="With --simulate: ecmp, spray, rail or shortest.")]
Seed = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="With --simulate: of hashed paths.")]
Seeds = Annotated[
    int, typer.Option("--seeds", min=1, max=1000, metavar="N", help="With --simulate: how many are tried.")
]
Background = Annotated[
    Parts,
    typer.Option(
        "--background", metavar="TRAFFIC", help='With --simulate: "3-9:10 GB/s", or 20% of links between switches.'
    ),
]
Straggler = Annotated[
    Parts,
    typer.Option(
        "--straggler", metavar="RANK:HOW", help="With --simulate: 5:1.5 is slower, 5:2ms late; may be repeated."
    ),
]
Beside = Annotated[
    Parts,
    typer.Option("--beside", metavar="WHAT:SIZE", help="With --simulate: another collective at once, alltoall:256MB."),
]
Injection = Annotated[
    str, typer.Option("--injection", metavar="RATE", help="With --simulate: what a rank sends at most.")
]
Message = Annotated[str, typer.Option("--message", metavar="TIME", help="With --simulate: what each message costs.")]
BySize = Annotated[
    bool,
    typer.Option("--by-size", help="Which algorithm is fastest at which size; with --synthesize made ones too."),
]
Picture = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE", help="Draw the schedule, rounds x links, as .html, .svg or .png."),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the algorithm, or a library's choice.")
]
To = Annotated[
    str, typer.Option("--to", metavar="TARGET", help="With -o: ridgeline, msccl, rccl, mscclpp; nccl-tuner, hccl.")
]
Ranks = Annotated[int, typer.Option("--ranks", min=2, metavar="N", help="Run: processes to start, without torchrun.")]
Backend = Annotated[
    str, typer.Option("--backend", metavar="NAME", help="Run: gloo, nccl, or ridge_shm for ranks of one host.")
]
Sizes = Annotated[
    str, typer.Option("--sizes", metavar="LOW:HIGH", help="Run: sizes by factors of four, or some with commas.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1, metavar="SECONDS", help="Run: for one size, and for one call.")
]


def collective(
    what: What, file: File = None, on: OneSystem = "", topology: Topology = "", link: Link = "50 GB/s",
    outer: Outer = "", latency: Latency = "0.5 us", size: Size = "1 GB", algorithm: Algorithm = "",
    synthesize: Synthesize = False, library: Library = "", without: Without = None, slow: Slow = None,
    chunks: Chunks = None, root: Root = 0, groups: Groups = "", pair: Pair = None, matrix: Matrix = None,
    experts: Experts = 0, top_k: TopK = 1, tokens: Tokens = 64, simulate: Simulate = False, paths: Paths = "ecmp",
    seed: Seed = 0, seeds: Seeds = 20, background: Background = None, straggler: Straggler = None,
    beside: Beside = None, injection: Injection = "", message: Message = "0 s", by_size: BySize = False,
    picture: Picture = None, output: Output = None, to: To = "", ranks: Ranks = 2, backend: Backend = "gloo",
    sizes: Sizes = "1KB:64MB", timeout: Timeout = 120, json: Json = False,
) -> None:  # fmt: skip
    """How long a collective takes on a network, by which algorithm, and how far that is from the best possible."""
    network = _FileNetwork(on, topology, link, latency, size, to, picture)
    if what in ("verify", "list"):
        _verify(file, network, json) if what == "verify" else _list(network, outer, without, groups, json)
        return
    if what == "run":
        if file is None:
            expectation = "a collective after run, as allreduce"
            raise InputError(Problem(path="COLLECTIVE", given="nothing", expected=expectation))
        run = ridgeline.collective_run(
            str(file), ranks=ranks, backend=backend, sizes=sizes, algorithm=algorithm, synthesize=synthesize,
            topology=topology, without=without or (), root=root, timeout_s=timeout,
        )  # fmt: skip
        if run is not None:  # rank 0 of torchrun speaks for all
            answer(run, json)
            if not run.correct:
                raise typer.Exit(1)
        return
    if _asks_library(file, output, to, library):
        _library(what, on, size, library or {"hccl": "hccl"}.get(to, "nccl"), (output, to), json)
        return
    _check_picture(picture)
    time = ridgeline.collective(
        what, on=on, topology=topology, link=link, latency=latency, size=size, algorithm=algorithm,
        synthesize=synthesize, without=without or (), chunks=chunks, root=root, outer=outer or None, slow=slow or (),
        by_size=by_size, simulate=simulate, paths=paths, seed=seed, seeds=seeds, background=background or (),
        straggler=straggler or (), beside=beside or (), injection=injection or None, message=message, groups=groups,
        pairs=pair or (), matrix=matrix, experts=experts, top_k=top_k, tokens=tokens, routing_seed=seed,
    )  # fmt: skip
    if output is not None:
        from ridgeline.comm.formats import write_collective

        write_collective(time.algorithm, output, to or "ridgeline")
        say(f"{output}: {time.algorithm.step_count} steps", err=True)
    if picture is not None:
        from ridgeline.report.collective import write_picture

        write_picture(time, picture, time.by_size or ())
        say(f"{picture}: written", err=True)
    answer(time, json)


def _check_picture(path: Path | None) -> None:
    """Refuse a picture that cannot be drawn or written, before the work."""
    if path is not None:
        from ridgeline.report.collective import refuse_unknown_picture

        refuse_unknown_picture(path)
        check_outputs(path)


def _asks_library(file: Path | None, output: Path | None, to: str, library: str) -> bool:
    """Whether a library's choice is asked for, and no algorithm; what cannot be written is refused before any work."""
    from ridgeline.comm.formats import ALGORITHM_TARGETS, CHOICE_TARGETS, TARGETS

    if file is not None:
        raise InputError(Problem(path="FILE", given=str(file), expected="nothing after a collective", todo="use -o"))
    if to and to not in TARGETS:
        raise InputError(not_among("--to", to, TARGETS))
    if to and output is None:
        raise InputError(Problem(path="--to", given=to, expected="-o FILE with it"))
    check_outputs(output)
    is_choice = bool(library) or to in CHOICE_TARGETS
    if is_choice and to in ALGORITHM_TARGETS:
        raise InputError(Problem(path="--to", given=f"{to} with --library", expected="nccl-tuner or hccl"))
    return is_choice


class _FileNetwork(NamedTuple):
    """On what a file's algorithm is to be timed and drawn, and whose limits it is held against."""

    on: str
    topology: str
    link: str
    latency: str
    size: str
    profile: str
    picture: Path | None

    def shape(self, usual: str) -> str:
        """The topology, or the usual one where no network is given."""
        return self.topology if self.on or self.topology else usual


def _list(network: _FileNetwork, outer: str, without: Parts, groups: str, json: bool) -> None:
    """Every algorithm of the library, for each collective it can do on this network."""
    from ridgeline.comm import asked_graph, bytes_of, list_algorithms

    shape = network.shape("torus:4x4")
    graph = asked_graph(network.on, shape, network.link, network.latency, outer or None, without or (), (), groups)
    answer(list_algorithms(graph, bytes_of(network.size)), json)


def _library(what: str, on: str, size: str, library: str, target: tuple[Path | None, str], json: bool) -> None:
    """What a library would do for the collective; written as its settings if asked."""
    from ridgeline.comm.formats import write_choice

    if not on:
        raise InputError(Problem(path="--on", given="nothing", expected="a system, as 64xh100-sxm, with --library"))
    choice = ridgeline.library_choice(what, on=on, size=size, library=library)
    output, to = target
    if output is not None:
        write_choice(choice, output, to)
        say(f"{output}: written", err=True)
    answer(choice, json)


def _verify(file: Path | None, network: _FileNetwork, json: bool) -> None:
    """Check a file, time its algorithm where a network is given; exit code 2 where it is wrong."""
    from ridgeline.comm import graph_for, timed_file
    from ridgeline.comm.formats import read_collective
    from ridgeline.report.collective import refuse_unknown_picture, write_picture

    if file is None:
        raise InputError(Problem(path="FILE", given="nothing", expected="a file after verify"))
    if network.profile not in ("", "msccl", "rccl"):
        expectation = "--to rccl or msccl: whose limits an XML file is held against"
        raise InputError(Problem(path="--to", given=f"verify --to {network.profile}", expected=expectation))
    if network.picture is not None:
        refuse_unknown_picture(network.picture)
    content = read_collective(file, network.profile)
    if content.algorithm is not None and (network.on or network.topology or network.picture):
        shape = network.shape(f"switch:{content.algorithm.ranks}")
        time = timed_file(content, graph_for(network.on, shape, network.link, network.latency), network.size)
        if network.picture is not None:
            write_picture(time, network.picture)
        answer(time, json)
    else:
        answer(content, json)
    if content.verification is not None and not content.verification.ok:
        raise typer.Exit(UNUSABLE)
