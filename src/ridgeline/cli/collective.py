"""Turn `ridgeline collective` into calls of the library.

0  done        1  run: an output was wrong        2  the input cannot be used, or the algorithm of a file is wrong
"""

from __future__ import annotations

from pathlib import Path

import typer

import ridgeline
from ridgeline.api import refuse_options
from ridgeline.cli.refuse import UNUSABLE
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import answer, check_outputs, command_line
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem, not_among


def collective(
    what: str, file: Path | None = None, on: str = "", topology: str = "", link: str = "50 GB/s", outer: str = "",
    latency: str = "0.5 us", size: str = "1 GB", algorithm: str = "", synthesize: bool = False, library: str = "",
    without: list[str] | None = None, slow: list[str] | None = None, chunks: int | None = None, root: int = 0,
    groups: str = "", pair: list[str] | None = None, matrix: Path | None = None, experts: int = 0, top_k: int = 1,
    tokens: int = 64, simulate: bool = False, paths: str = "ecmp", seed: int = 0, seeds: int = 20,
    background: list[str] | None = None, straggler: list[str] | None = None, beside: list[str] | None = None,
    injection: str = "", message: str = "0 s", by_size: bool = False, picture: Path | None = None,
    output: Path | None = None, to: str = "", ranks: int = 2, backend: str = "gloo", sizes: str = "1KB:64MB",
    timeout: float = 120, json: bool = False,
) -> None:  # fmt: skip
    """How long a collective takes on a network, by which algorithm, and how far that is from the best possible."""
    network: JsonObject = {"on": on, "topology": topology, "link": link, "latency": latency, "size": size}
    if what in ("verify", "list", "run"):
        usual = "a collective, as allreduce, whose algorithm is written"
        refuse_options(usual, f"drop it from {what}", output=output, picture=None if what == "verify" else picture)
    if what == "list":
        answer(ridgeline.collective_list(outer=outer or None, without=without or (), groups=groups, **network), json)
        return
    if what == "verify":
        _verify(file, network, to, picture, json)
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
        refuse_options("an algorithm: a library's choice has no schedule to draw", "drop it", picture=picture)
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
        from ridgeline.report import write_picture

        write_picture(time, picture, command_line())
        say(f"{picture}: written", err=True)
    answer(time, json)


def _check_picture(picture: Path | None) -> None:
    """Refuse a picture of a kind or place that cannot be, before any work."""
    if picture is not None:
        from ridgeline.report import refuse_picture

        refuse_picture(picture, "collective")
        check_outputs(picture)


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


def _verify(file: Path | None, network: JsonObject, to: str, picture: Path | None, json: bool) -> None:
    """Check a file, time its algorithm where a network is given; exit code 2 where it is wrong."""
    from ridgeline.comm import CollectiveTime
    from ridgeline.report import refuse_picture, write_picture

    if file is None:
        raise InputError(Problem(path="FILE", given="nothing", expected="a file after verify"))
    refuse_picture(picture, "collective")
    found = ridgeline.collective_verify(file, profile=to, timed=picture is not None, **network)
    if picture is not None and isinstance(found, CollectiveTime):
        write_picture(found, picture, command_line())
    answer(found, json)
    if found.verification is not None and not found.verification.ok:
        raise typer.Exit(UNUSABLE)
