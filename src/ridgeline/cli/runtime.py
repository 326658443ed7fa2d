"""Turn `ridgeline characterize` and `ridgeline preflight` into calls of the library.

0  done, nothing wrong        1  preflight: a chip, link or setting is wrong        2  the input cannot be used
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, console, print_json, stderr_console
from ridgeline.core.documents import JsonObject

Device = Annotated[str, typer.Option(metavar="NAME", help="Any torch device string: cuda, cuda:1, cpu, npu, xpu, mps.")]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="PACKAGE", help="A package that adds a device or ops; may be repeated."),
]
GroupBackend = Annotated[
    str,
    typer.Option("--backend", metavar="NAME", help="Of torch.distributed: nccl, gloo, hccl; else the device's own."),
]


Output = Annotated[Path, typer.Option("-o", "--output", metavar="PROFILE", help="The profile to write.")]
Only = Annotated[
    str | None,
    typer.Option(
        metavar="GROUPS",
        help="Some of gemm,grouped,attention,rows,optimizer,memory,host,overlap,sustained,interconnect.",
    ),
]
Merge = Annotated[
    list[Path] | None,
    typer.Option("--merge", metavar="FILE", help="Measure nothing: join profiles of ranks; may be repeated."),
]
Standalone = Annotated[
    Path | None,
    typer.Option(
        "--standalone", metavar="FILE.pyz", help="Measure nothing: write one file that runs with torch alone."
    ),
]


def register(app: typer.Typer) -> None:
    """Give the command line the verbs of this module."""
    app.command()(characterize)
    app.command()(preflight)


def characterize(
    device: Device = "cuda",
    minutes: Annotated[float, typer.Option(metavar="N", help="The time box; the most informative shapes first.")] = 5.0,
    output: Output = Path("profile.json"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the journal of a run that broke off.")] = False,
    only: Only = None,
    chip: Annotated[
        str | None, typer.Option(metavar="ID", help="Catalog id of the chip, where its name does not tell.")
    ] = None,
    imports: Imports = None,
    backend: GroupBackend = "",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random inputs.")] = 0,
    merge: Merge = None,
    standalone: Standalone = None,
    json: Json = False,
) -> None:
    """Measure a device: kernels, memory, host, links, overlap and energy, into a profile that prices are read from."""
    from ridgeline.report.run import draw_characterization
    from ridgeline.runtime import characterize as library
    from ridgeline.runtime import merge_profiles

    if standalone is not None:
        _write_standalone(standalone, json)
        return
    if merge:
        found = merge_profiles(merge, output)
    else:
        groups = [part.strip() for part in (only or "").split(",") if part.strip()]
        told: JsonObject = {"minutes": minutes, "output": output, "resume": resume, "only": groups, "chip": chip}
        with _progress("measuring") as tell:
            found = library(device, imports=imports or (), backend=backend, seed=seed, progress=tell, **told)
    print_json(found) if json else draw_characterization(found, console())


def preflight(
    device: Device = "cuda",
    reference: Annotated[
        Path | None, typer.Option(metavar="PROFILE", help="What a sound chip measures: a profile of `characterize`.")
    ] = None,
    drill: Annotated[
        int | None, typer.Option(metavar="RANK", help="Slow this rank on purpose, to see that it is found.")
    ] = None,
    imports: Imports = None,
    backend: GroupBackend = "",
    json: Json = False,
) -> None:
    """Find the slow chip, slow link and wrong setting before a run; start it with torchrun or srun.

    Exit code 1 when something is wrong.
    """
    from ridgeline.report.run import draw_preflight
    from ridgeline.runtime import preflight as library

    found = library(device, reference=reference, drill=drill, imports=imports or (), backend=backend)
    if found is None:  # rank 0 speaks for all
        return
    print_json(found) if json else draw_preflight(found, console())
    if not found.ok:
        raise typer.Exit(1)


def _write_standalone(path: Path, json: bool) -> None:
    from ridgeline.core.files import refuse_unwritable
    from ridgeline.runtime import write_standalone

    refuse_unwritable(path)
    written = write_standalone(path)
    if json:
        print_json(written)
    else:
        say(f"{path}: python {path.name} --device cuda --minutes 8 -o profile.json")


@contextmanager
def _progress(verb: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on standard error."""
    from rich.progress import Progress

    with Progress(console=stderr_console(), transient=True, disable=not sys.stderr.isatty()) as bar:
        shown = bar.add_task(verb, total=None)

        def tell(count: int, total: int, what: str) -> None:
            bar.update(shown, description=f"{verb} {what}", completed=count, total=total)

        yield tell
