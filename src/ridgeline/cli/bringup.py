"""Turn `ridgeline bringup` into a call of the library.

0  every op is right        1  an op is wrong, or with --faults one of them was not caught        2  refused
"""

from __future__ import annotations

import json as codec
from pathlib import Path

import typer

import ridgeline
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import answer, check_outputs
from ridgeline.core.encode import to_json
from ridgeline.core.files import write_text


def bringup(
    model: str = "", device: str = "cpu", faults: Path | None = None, fault: str = "", allow: list[str] | None = None,
    seed: int = 0, chip: str | None = None, profile: Path | None = None, save_fingerprint: bool = False,
    graph_breaks: bool = False, msprobe: Path | None = None, html: Path | None = None, output: Path | None = None,
    json: bool = False,
) -> None:  # fmt: skip
    """Run a model on a device: every op, the ladder, invariances; judged against fp64 arithmetic on the host."""
    from ridgeline.runtime import need_torch
    from ridgeline.runtime.bringup import BringUp, FaultsReport

    need_torch("bringup")
    report, repros = _outputs(html, output)

    def show(found: BringUp) -> None:
        if not json and not fault and faults is not None:
            answer(found, json)

    found = ridgeline.bringup(
        model, device, faults=faults or "", fault=fault, allow=allow or (), seed=seed, chip=chip, profile=profile,
        save_fingerprint=save_fingerprint, graph_breaks=graph_breaks, msprobe=msprobe, folder=repros,
        tell=None if json else lambda line: say(line, err=True), each=show,
    )  # fmt: skip
    if html is not None:
        from ridgeline.report import page

        write_text(html, page(found))
    if report is not None:
        write_text(report, codec.dumps(to_json(found), indent=1, allow_nan=False) + "\n")
    answer(found, json)
    is_right = found.caught == len(found.faults) if isinstance(found, FaultsReport) else found.right
    raise typer.Exit(0 if is_right else 1)


def _outputs(html: Path | None, output: Path | None) -> tuple[Path | None, Path | None]:
    """Where the report goes, and where reproductions do; both are refused before the work if they cannot be written."""
    is_file = output is not None and output.suffix == ".json"
    report = output if output is None or is_file else output / "report.json"
    if output is not None and not is_file:
        output.mkdir(parents=True, exist_ok=True)
    check_outputs(html, report)
    return report, None if is_file else output
