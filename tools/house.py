"""Count what the house weighs, and fail when a figure grows: `python -m tools house [--check] [--json] [--tighten]`.

    lines, files        Python of src, by package
    words               of every Markdown file
    bare variables      share of assigned names that are one bare participle or pronoun, in percent
    bare functions      the same among names of functions
    repeated classes    class names that two modules define
    Any                 uses of `typing.Any` in src
    doors               names that a package's `__init__.pyi` offers, and those of its side doors
    mixer matches       modules of src that match on the union of mixers
    imported modules    Ridgeline's own, by `ridgeline predict` of the README's scenario
    built classes       of Ridgeline, between a Scenario and its Prediction
    long files, functions   over the watch lines (600 and 40 lines); refused over 700 and 60

`house.toml` beside this file holds the most that each figure may be. `--check` fails on a figure above it; `--tighten`
lowers every limit to what is counted now, and never raises one.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ridgeline"
LIMITS = Path(__file__).with_name("house.toml")
PRONOUNS = frozenset(
    (
        *("found", "one", "told", "made", "held", "kept", "own", "mine", "whole"),
        *("beside", "said", "known", "given", "most", "taken", "left", "asked", "shown"),
        *("seen", "heard", "turned", "spread", "around", "away", "again", "often", "both"),
        *("each", "every", "other", "others", "rest", "alone", "apart", "alike"),
    )
)
NOT_PARTICIPLES = frozenset({"speed", "embed", "seed", "need", "feed", "fixed", "shared"})
FILE_WATCH, FILE_LIMIT = 600, 700  # lines: reported, refused
FUNCTION_WATCH, FUNCTION_LIMIT = 40, 60
MIXERS = frozenset({"Attention", "LatentAttention", "CompressedAttention", "Mamba2", "GatedDeltaNet", "Recurrence"})
WALK = """
import sys
from pathlib import Path
from ridgeline import predict, read_scenario
scenario = read_scenario(Path("examples/llama3-70b-64xh100.toml"))
predict(scenario)
built = set()
def note(frame, event, _):
    if event == "call" and frame.f_code.co_name == "__init__":
        kind = type(frame.f_locals.get("self"))
        if kind.__module__.startswith("ridgeline"):
            built.add(kind)
sys.setprofile(note)
predict(scenario)
sys.setprofile(None)
print(len(built))
"""
IMPORTS = """
import sys
sys.argv = ["ridgeline", "predict", "examples/llama3-70b-64xh100.toml", "--json"]
from ridgeline.cli.entry import main
try:
    main()
except SystemExit:
    pass
print(sum(name.split(".")[0] == "ridgeline" for name in sys.modules), file=sys.stderr)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """The figures by name, and the lines of each package."""

    figures: dict[str, float]
    packages: dict[str, tuple[int, int]]
    doors: dict[str, int]
    repeated: tuple[str, ...]
    largest: tuple[tuple[int, str], ...]


def is_bare(name: str) -> bool:
    """Whether a name is a single participle or pronoun, so that it does not say of what."""
    word = name.strip("_")
    participle = len(word) > 4 and word.endswith("ed") and word not in NOT_PARTICIPLES
    return "_" not in word and word.islower() and (word in PRONOUNS or participle)


def count_house(*, walk: bool = True) -> House:
    """Every figure; without `walk` those that need no prediction to run."""
    names: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    packages: dict[str, tuple[int, int]] = {}
    figures: dict[str, float] = dict.fromkeys(("lines", "files", "Any", "mixer_matches", "long_files"), 0)
    sizes: list[tuple[int, str]] = []
    functions: list[tuple[int, str]] = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree, lines = ast.parse(text), text.count("\n")
        package = path.relative_to(SOURCE).parts[0]
        files, total = packages.get(package, (0, 0))
        packages[package] = (files + 1, total + lines)
        sizes.append((lines, str(path.relative_to(SOURCE))))
        figures["Any"] += len(re.findall(r"\bAny\b", text))
        figures["mixer_matches"] += _matches_mixers(tree)
        names.update(_names(tree))
        classes.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        functions += [(size, f"{path.relative_to(SOURCE)} {name}") for size, name in _functions(tree)]
    repeated = tuple(sorted(name for name, number in classes.items() if number > 1))
    figures |= {
        "lines": sum(total for _, total in packages.values()),
        "files": sum(files for files, _ in packages.values()),
        "words": sum(len(page.read_text(encoding="utf-8").split()) for page in _pages()),
        "bare_variables": round(100 * names["bare variable"] / names["variable"], 2),
        "bare_functions": round(100 * names["bare function"] / names["function"], 2),
        "repeated_classes": len(repeated),
        "long_files": sum(size > FILE_WATCH for size, _ in sizes),
        "longest_file": max(sizes)[0],
        "long_functions": sum(size > FUNCTION_WATCH for size, _ in functions),
        "longest_function": max(functions)[0],
    }
    if walk:
        figures |= {"imported_modules": _run(IMPORTS, "stderr"), "built_classes": _run(WALK, "stdout")}
    largest = (*sorted(sizes, reverse=True)[:3], *sorted(functions, reverse=True)[:3])
    return House(figures=figures, packages=packages, doors=_doors(), repeated=repeated, largest=largest)


def _pages() -> Iterator[Path]:
    for page in ROOT.rglob("*.md"):
        if not {".venv", ".pytest_cache", "build"} & set(page.parts):
            yield page


def _names(tree: ast.Module) -> Iterator[str]:
    """`variable` or `function` for every name that is bound, and `bare ...` once more for a bare one."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            kind, name = "function", node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            kind, name = "variable", node.id
        else:
            continue
        yield kind
        if is_bare(name):
            yield f"bare {kind}"


def _functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines and name of every function, its docstring not counted."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            doc = (first.end_lineno or 0) - first.lineno + 1 if text and ast.get_docstring(node) else 0
            yield (node.end_lineno or 0) - node.lineno + 1 - doc, node.name


def _matches_mixers(tree: ast.Module) -> bool:
    """Whether a module has a `match` with cases for two or more kinds of mixers."""
    return any(
        len(
            {
                pattern.cls.id
                for case in node.cases
                for pattern in ast.walk(case.pattern)
                if isinstance(pattern, ast.MatchClass) and isinstance(pattern.cls, ast.Name)
            }
            & MIXERS
        )
        > 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Match)
    )


def _doors() -> dict[str, int]:
    """Names that each package offers in its `__init__.pyi`, and each side door in its own stub."""
    return {
        ".".join(stub.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): sum(
            len(node.names)
            for node in ast.parse(stub.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ImportFrom)
        )
        for stub in sorted(SOURCE.rglob("*.pyi"))
    }


def _run(program: str, stream: str) -> int:
    """The number that a program prints last, run beside this one."""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return int((done.stdout if stream == "stdout" else done.stderr).split()[-1])


def problems(house: House, limits: dict[str, float]) -> list[str]:
    """Every figure above its limit."""
    over = [
        f"{name} is {house.figures[name]:,g}, at most {limit:,g} is allowed"
        for name, limit in limits.items()
        if name in house.figures and house.figures[name] > limit
    ]
    if house.figures["longest_file"] > FILE_LIMIT:
        over.append(f"a file has {house.figures['longest_file']:g} lines, at most {FILE_LIMIT} are allowed")
    if house.figures["longest_function"] > FUNCTION_LIMIT:
        over.append(f"a function has {house.figures['longest_function']:g} lines, at most {FUNCTION_LIMIT} are allowed")
    return over


def _text(house: House) -> str:
    rows = [f"{name.replace('_', ' '):18} {value:>10,g}" for name, value in house.figures.items()]
    rows += [f"{package:18} {lines:>10,} lines in {files} files" for package, (files, lines) in house.packages.items()]
    rows += [f"door of {package}: {names} names" for package, names in house.doors.items()]
    rows += [f"class names twice: {', '.join(house.repeated)}"] if house.repeated else []
    rows += [f"{size:5} lines  {name}" for size, name in house.largest]
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> int:
    """Print the figures; exit code 1 when `--check` finds one above its limit."""
    parser = argparse.ArgumentParser(prog="python -m tools house", description="Count what the house weighs.")
    parser.add_argument("--check", action="store_true", help="fail on a figure above its limit in house.toml")
    parser.add_argument("--tighten", action="store_true", help="lower the limits to what is counted now")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parsed = parser.parse_args(arguments)
    house = count_house()
    limits: dict[str, float] = tomllib.loads(LIMITS.read_text(encoding="utf-8"))
    if parsed.json:
        print(json.dumps({"figures": house.figures, "packages": house.packages, "doors": house.doors}, indent=1))
    elif not parsed.check:
        print(_text(house))
    if parsed.tighten:
        lines = [f"{name} = {min(limit, house.figures[name]):.10g}" for name, limit in limits.items()]
        head = LIMITS.read_text(encoding="utf-8").split("\n\n")[0]
        LIMITS.write_text(head + "\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
    over = problems(house, limits) if parsed.check else []
    for line in over:
        print(f"house: {line}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
