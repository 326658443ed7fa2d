"""Arguments and options of `ridgeline collective` by name: on what, by which algorithm, simulated, run, written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Parts = list[str] | None

Shape = Annotated[
    str,
    typer.Option(
        "--topology",
        metavar="SHAPE",
        help="mesh:AxB[xC], torus:AxB[xC], ring:N, switch:N, sharp:N, full:N, random:NxD, domains:NxG, rails:NxGxS, "
        "leafspine:LxDxS, fattree:K, planes:NxP, dragonfly:GxRxP.",
    ),
]
Outer = Annotated[str, typer.Option("--outer", metavar="RATE", help="A link between domains; else as --link.")]
Slow = Annotated[
    Parts,
    typer.Option("--slow", metavar="PART", help="A link:3-4:0.5 or node:5:0.25 of another rate; may be repeated."),
]
BySize = Annotated[
    bool, typer.Option("--by-size", help="Which algorithm is fastest at which size; with --synthesize made ones too.")
]
Picture = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE", help="Draw the schedule, rounds x links, as .html, .svg or .png."),
]
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
BackgroundTraffic = Annotated[
    Parts,
    typer.Option(
        "--background", metavar="TRAFFIC", help='With --simulate: "3-9:10 GB/s", or 20% of links between switches.'
    ),
]
Stragglers = Annotated[
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
On = Annotated[str, typer.Option("--on", metavar="SYSTEM", help="A system such as 64xh100-sxm.")]
Link = Annotated[str, typer.Option("--link", metavar="RATE", help="One link, one direction.")]
Latency = Annotated[str, typer.Option("--latency", metavar="TIME", help="One hop.")]
Size = Annotated[str, typer.Option("--size", metavar="SIZE", help="Of the whole vector, see docs.")]
AlgorithmName = Annotated[
    str, typer.Option("--algorithm", metavar="NAME", help="One of the library; else its fastest. With run also a file.")
]
Synthesize = Annotated[bool, typer.Option("--synthesize", help="Build one for this very graph.")]
Library = Annotated[
    str, typer.Option("--library", metavar="NAME", help="What nccl, rccl or hccl would do, and why; wants --on.")
]
Without = Annotated[
    Parts, typer.Option("--without", metavar="PART", help="A broken link:3-4 or node:5; may be repeated.")
]
Chunks = Annotated[int | None, typer.Option("--chunks", min=1, metavar="K", help="Synthesis: chunks of a rank's part.")]
Root = Annotated[int, typer.Option("--root", min=0, metavar="RANK", help="Of broadcast and reduce.")]
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
