"""Turn `ridgeline capture` into a call of the library, and `module:function` into a model file for other verbs.

0  captured        2  the model cannot be built, or its forward cannot be recorded
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, console, count, print_json

if TYPE_CHECKING:
    from ridgeline.models.spec import ModelSpec


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(capture)


def capture(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A config.json, its folder, or module:function for a torch module.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.toml", help="Save it: a model file that needs no torch."),
    ] = None,
    seq: Annotated[
        int, typer.Option(metavar="N", parser=count, help="Sequence length for flops and cache, 8192 or 8k.")
    ] = 8192,
    json: Json = False,
) -> None:
    """Record one forward of a model without its weights, and describe it: layers, flops, parameters, cache."""
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.core.files import refuse_unwritable
    from ridgeline.report.catalog_sheets import Detail, model_sheet
    from ridgeline.report.catalog_tables import draw

    if output is not None:
        if output.suffix.lower() != ".toml":
            raise InputError(Problem(path="-o", given=str(output), expected="a model file, FILE.toml"))
        refuse_unwritable(output)
    spec = _capture_model(model)
    sheet = model_sheet(spec, Detail(seq=seq))
    if output is not None:
        _save(spec, output)
    if json:
        print_json(sheet)
        return
    draw([sheet], console())
    if output is not None:
        say(f"wrote {output}: ridgeline predict {output} --on SYSTEM takes it, without torch")


def named_model(model: str, beside: Path | None = None) -> str:
    """The model argument of a verb: `module:function` as the model file it was captured into, anything else as it is.

    `beside` is the plan that will name the file: it then stays, next to the plan.
    """
    if not is_reference(model):
        return model
    name = model.rpartition(":")[2]
    if beside is not None:
        file = beside.with_name(f"{beside.stem}.{name}.toml")
    else:
        folder = Path(tempfile.mkdtemp(prefix="ridgeline-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        file = folder / f"{name}.toml"
    _save(_capture_model(model), file)
    return str(file)


def is_reference(model: str) -> bool:
    """Whether it is spelled `module:function` or `file.py:function`."""
    module, colon, function = model.rpartition(":")
    return bool(colon) and function.isidentifier() and bool(module) and not Path(model).exists()


def _capture_model(model: str) -> ModelSpec:
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.core.files import read_table
    from ridgeline.models.hf import READERS
    from ridgeline.models.hf.generic import capture_config, captured_module

    say(f"capturing {model}", err=True)
    if is_reference(model):
        return captured_module(model)
    path = Path(model)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        expected = "a config.json, its folder, or module:function"
        raise InputError(Problem(path="MODEL", given=model[:80], expected=expected))
    return capture_config(dict(read_table(file).data), READERS, id=file.resolve().parent.name)


def _save(spec: ModelSpec, file: Path) -> None:
    from ridgeline.core.files import write_text
    from ridgeline.core.toml_text import toml_text
    from ridgeline.models.model_file import dimensions_of

    write_text(file, toml_text(dimensions_of(spec)))
