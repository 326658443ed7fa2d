"""Turn `ridgeline show`, `check`, `schema` and `capture` into calls of the library, and `module:function` into a model
file for other verbs.

0  done        2  the input cannot be used; capture: the model cannot be built, or its forward cannot be recorded
"""

from __future__ import annotations

import json as codec
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ridgeline
from ridgeline import api
from ridgeline.cli.streams import is_unicode, note, say
from ridgeline.cli.terminal import check_outputs, console, print_json
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text

if TYPE_CHECKING:
    pass


def _completions(prefix: str) -> list[str]:
    """Names that `show` takes and that begin so, for the shell's completion."""
    from ridgeline.report import known_names

    return [name for name in known_names() if name.startswith(prefix)]


Names = Annotated[
    list[str],
    typer.Argument(
        metavar="WHAT",
        autocompletion=_completions,
        help="chips, systems, models, engines, schedules, dtypes; or ids, system names (64xh100-sxm), files.",
    ),
]


def show(
    names: Names, json: bool = False, seq: int = 8192, batch: int = 1, dtype: str = "bf16", stages: int = 4,
    microbatches: int = 8, chunks: int | None = None, sources: bool = False, settings: list[str] | None = None,
) -> None:  # fmt: skip
    """Show what the catalogs know: chips and models side by side, systems, engines, schedules, files."""
    from ridgeline.report import Detail, entries

    detail = Detail(seq=seq, batch=batch, stages=stages, microbatches=microbatches, chunks=chunks, dtype=dtype)
    shown = entries(
        *(api.named_model(name, note=note) for name in names), detail=detail, settings=tuple(settings or ())
    )
    if json:
        print_json(shown)
        return
    from ridgeline.report import draw_entries

    draw_entries(shown, console(), sources=sources)


def check(scenario: Path, settings: list[str] | None = None, json: bool = False) -> None:
    """Check a scenario file: print it as understood, or every reason why it cannot run (exit code 2)."""
    from ridgeline.report import CheckedScenario, ScenarioEntry

    entry = ScenarioEntry(scenario=ridgeline.read_scenario(scenario, settings or ()))
    if json:
        print_json(CheckedScenario(scenario=entry))
        return
    from ridgeline.report import draw_entries

    draw_entries([entry], console())


def schema(verb: str = "", output: Path | None = None, json: bool = False) -> None:
    """Print the JSON schema of scenario files, for editors that complete and check them, or of a verb's answers."""
    from ridgeline.report import verb_schema

    table = verb_schema(verb) if verb else ridgeline.schema()
    if output is not None:
        write_text(output, codec.dumps(table, indent=2) + "\n")
    elif json:
        print_json(table)
    else:
        say(codec.dumps(table, indent=2, ensure_ascii=not is_unicode(sys.stdout)))


def capture(model: str, output: Path | None = None, seq: int = 8192, json: bool = False) -> None:
    """Record one forward of a model without its weights, and describe it: layers, flops, parameters, cache."""
    from ridgeline.report import Detail, draw_entries, model_entry

    if output is not None and output.suffix.lower() != ".toml":
        raise InputError(Problem(path="-o", given=str(output), expected="a model file, FILE.toml"))
    check_outputs(output)
    spec = api.captured_model(model, note=note)
    entry = model_entry(spec, Detail(seq=seq))
    if output is not None:
        api.write_model(spec, output)
    if json:
        print_json(entry)
        return
    draw_entries([entry], console())
    if output is not None:
        say(f"wrote {output}: ridgeline predict {output} --on SYSTEM takes it, without torch")
