"""Turn `ridgeline profile` into calls of the library.

0  done        2  the input cannot be used
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, console, print_json


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(profile)


def profile(
    names: Annotated[
        list[str],
        typer.Argument(metavar="PROFILE...", help="Files of `characterize`, or aiconfigurator:CHIP; several merge."),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the profile, several nodes as one.")
    ] = None,
    json: Json = False,
) -> None:
    """Show what was measured of a machine: ceilings against the data sheet, slow chips; import and merge profiles."""
    from ridgeline.api import profile as library
    from ridgeline.core.files import refuse_unwritable, write_text
    from ridgeline.cost import profile_report, profile_text
    from ridgeline.report.roofline import draw_profile

    if output is not None:
        refuse_unwritable(output)
    found = library(*names)
    if output is not None:
        write_text(output, profile_text(found))
        say(f"{output}: {len(found.rows)} measurements", err=True)
    report = profile_report(found)
    print_json(report) if json else draw_profile(report, console())
