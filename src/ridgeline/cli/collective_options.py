"""Options of `ridgeline collective` on its network and on how it is simulated, by name."""

from __future__ import annotations

from typing import Annotated

import typer

Parts = list[str] | None

Shape = Annotated[
    str,
    typer.Option(
        "--topology",
        metavar="SHAPE",
        help="mesh:AxB[xC], torus:AxB[xC], ring:N, switch:N, full:N, domains:NxG, rails:NxGxS, leafspine:LxDxS, "
        "fattree:K, planes:NxP, dragonfly:GxRxP.",
    ),
]
Outer = Annotated[str, typer.Option("--outer", metavar="RATE", help="A link between domains; else as --link.")]
Slow = Annotated[
    Parts,
    typer.Option("--slow", metavar="PART", help="A link:3-4:0.5 or node:5:0.25 of another rate; may be repeated."),
]
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
