"""Record the options of vLLM or SGLang from its own argument parser, as `targets/options` keeps them.

    PYTHON -m tools record vllm > src/ridgeline/targets/options/vllm-vVERSION.toml
    PYTHON -m tools record sglang > src/ridgeline/targets/options/sglang-vVERSION.toml
    PYTHON -m tools record dynamo FOLDER > src/ridgeline/targets/options/dynamo-vVERSION.toml

PYTHON is that of an environment with the engine; nothing of Ridgeline is imported. An option that takes several forms
(`--x` and `--no-x`) is listed with both. Dynamo's workers take the options of the engine that they wrap and some of
their own, which are read from the unpacked wheel ai-dynamo in FOLDER, by syntax alone.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

WIDTH = 118
PARSERS = {"vllm": "vllm/entrypoints/launchers/cli_args.py", "sglang": "sglang/srt/server_args.py"}
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
DYNAMO = ("vllm/backend_args.py", "sglang/backend_args.py", "trtllm/backend_args.py", "frontend/frontend_args.py")


def actions(engine: str) -> list[argparse.Action]:
    """Every action of the engine's own parser."""
    if engine == "vllm":
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        return list(make_arg_parser(FlexibleArgumentParser())._actions)
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return list(parser._actions)


def option_lines(engine: str) -> Iterator[str]:
    """The text of the options file."""
    flags: set[str] = set()
    values: set[str] = set()
    choices: dict[str, list[str]] = {}
    aliases: dict[str, str] = {}
    for action in actions(engine):
        names = [name[2:].replace("_", "-") for name in action.option_strings if name.startswith("--")]
        first = [name for name in names if not name.startswith("no-")][:1] or names[:1]
        all_names = [name.lstrip("-").replace("_", "-") for name in action.option_strings]
        aliases |= {name: first[0] for name in all_names if first and name != first[0] and not name.startswith("no-")}
        (flags if action.nargs == 0 else values).update(names)
        if action.choices and action.nargs is None:
            choices |= {name: [str(word) for word in action.choices if word is not None] for name in names}
    release = version(engine).partition("+")[0]
    yield from head(TITLES[engine], release, f"the parser that {PARSERS[engine]} of {engine} {release} makes")
    yield from toml_list("flags", flags - {"help"})
    yield from toml_list("values", values)
    yield from toml_table("choices", {name: json.dumps(words) for name, words in sorted(choices.items())})
    yield from toml_table("aliases", {name: json.dumps(full) for name, full in sorted(aliases.items()) if name != "h"})


def dynamo(folder: Path) -> Iterator[str]:
    """Options that Dynamo adds to those of the engines it wraps."""
    root = folder / "dynamo"
    groups = sorted((root / "common" / "configuration" / "groups").glob("*_args.py"))
    names = {name for path in (*(root / part for part in DYNAMO), *groups) for name in flag_names(path)}
    release = next(folder.glob("ai_dynamo-*.dist-info"), Path("ai_dynamo-unknown.dist-info")).name.split("-")[1]
    release = release.removesuffix(".dist")
    source = f"{', '.join(DYNAMO)} and common/configuration/groups of the wheel ai-dynamo {release}"
    yield from head("Dynamo", release, source)
    yield from toml_list("flags", {name for name, takes in names if not takes})
    yield from toml_list("values", {name for name, takes in names if takes})


def flag_names(path: Path) -> Iterator[tuple[str, bool]]:
    """Names in calls such as add_argument(flag_name="--x"), and whether they take a value."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function = node.func.id if isinstance(node.func, ast.Name) else ""
        for word in node.keywords:
            if word.arg == "flag_name" and isinstance(word.value, ast.Constant):
                name = str(word.value.value)[2:]
                takes = function != "add_negatable_bool_argument"
                yield name, takes
                if not takes:
                    yield f"no-{name}", False


def head(target: str, release: str, source: str) -> Iterator[str]:
    yield "# Names only, gathered by python -m tools record."
    yield f"target = {json.dumps(target)}"
    yield f"version = {json.dumps(release)}"
    yield f"source = {json.dumps(source)}"


def toml_list(key: str, names: Iterable[str]) -> Iterator[str]:
    """A TOML list in lines of at most WIDTH."""
    yield ""
    yield f"{key} = ["
    line = "   "
    for name in sorted(names):
        word = f" {json.dumps(name)},"
        if len(line) + len(word) > WIDTH:
            yield line
            line = "   "
        line += word
    yield line
    yield "]"


def toml_table(key: str, rows: dict[str, str]) -> Iterator[str]:
    yield ""
    yield f"[{key}]"
    yield from (f"{name} = {value}" for name, value in rows.items())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path)


def run(arguments: argparse.Namespace) -> int:
    """Print the list of one engine."""
    print("\n".join(dynamo(arguments.folder) if arguments.name == "dynamo" else option_lines(arguments.name)))
    return 0
