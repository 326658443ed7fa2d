"""How much of published software's own launch configurations can be imported and predicted.

    python benchmarks/import_corpus.py CHECKOUT... [--only PATTERN] [--list FILE] [--top 15]

Every launcher file of the checkouts (scripts, job files, tables, recipes) is imported and the step it means predicted,
on as many chips as it names or on the smallest of a ladder that its mesh divides. Counted by target: predicted,
imported but refused by the predictor, other work (files that do not train a decoder: generation, encoders, evaluation,
conversion), refused (with the commonest reasons), and tracebacks, which are always wrong. A configuration of DeepSpeed
or of Accelerate's launcher names neither model nor sequence: those of `GIVEN` are given, as a user gives them with
--model and --seq. A model that a file names and the catalog lacks is a refusal.
A wheel stands for the files it holds, so what ships inside installable packages is a corpus too:

    pip download --no-deps -d build/wheels torchtitan verl megatron-bridge
    python benchmarks/import_corpus.py build/wheels/*.whl

Nothing of a checkout is executed. Files that no target recognises are counted apart.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.targets.api import import_run, on_system, read_files
from ridgeline.targets.registry import SERVE, detect
from ridgeline.targets.target import Files, Imported

LADDER = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 1, 2, 4, 48, 96)
# chips to try, by target: the second has formats that the first has not
CHIPS = {
    "mindspeed": ("ascend-910b2", "ascend-950dt"),
    "maxtext": ("tpu-v5p", "tpu-v7x", "h100-sxm"),
    "primus": ("mi300x", "mi355x"),
}
USUAL = ("h100-sxm", "b200-sxm")
GIVEN: dict[str, Any] = {"model": "llama3-8b", "seq": 4096}
LAUNCHES = ("deepspeed", "accelerate")  # targets with files that speak of the launch alone
OTHER = "training of a decoder"  # what is expected of a file that does other work
SUFFIXES = (".sh", ".slurm", ".sbatch", ".toml", ".yaml", ".yml", ".json", ".py")
BIGGEST = 400_000  # bytes; no launcher file is larger


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one file."""

    file: str
    target: str
    how: str  # predicted, predict refuses, other work, refused, traceback
    why: str = ""
    step: str = ""


def main() -> int:
    """Try every launcher file of the named checkouts and print the tally."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--only", default="*", help="paths to try, as a shell pattern")
    parser.add_argument("--list", type=Path, help="write the outcome of each file here, a line of JSON each")
    parser.add_argument("--every", type=int, default=1, help="try one of so many files")
    parser.add_argument("--top", type=int, default=12, help="reasons to print")
    given = parser.parse_args()
    found: list[Outcome] = []
    strange: Counter[str] = Counter()
    kept = TemporaryDirectory()
    for checkout in (unpacked(path, Path(kept.name)) for path in given.checkouts):
        began = time.perf_counter()
        todo: list[tuple[str, str]] = []
        for path in launchers(checkout, given.only):
            target = recognised(path)
            if target is None:
                strange[path.suffix] += 1
            elif target not in SERVE:
                todo += [(source, target) for source in sources(path, target)]
        found += [tried(source, target, checkout) for source, target in todo[:: given.every]]
        print(f"{checkout.name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    if given.list:
        given.list.write_text("".join(json.dumps(vars_of(one)) + "\n" for one in found))
    report(found, strange, given.top)
    return int(any(one.how == "traceback" for one in found))


def unpacked(path: Path, under: Path) -> Path:
    """A folder as it is; of a wheel, a folder with the files that could be launcher files."""
    if path.suffix != ".whl":
        return path
    folder = under / path.name.split("-")[0]
    with ZipFile(path) as wheel:
        for part in wheel.infolist():
            plain = part.filename.endswith(SUFFIXES) and part.file_size < BIGGEST and ".." not in part.filename
            if plain and not part.filename.startswith("/"):
                wheel.extract(part, folder)
    (folder / "LICENSE").touch()  # the top of a checkout, inside which imports are followed
    return folder


def vars_of(one: Outcome) -> dict[str, str]:
    return {name: getattr(one, name) for name in ("file", "target", "how", "why", "step")}


def launchers(checkout: Path, only: str) -> Iterator[Path]:
    """Files that could be launcher files, by name."""
    for path in sorted(checkout.rglob("*")):
        plain = path.suffix in SUFFIXES and path.is_file() and not path.is_symlink() and path.stat().st_size < BIGGEST
        if plain and fnmatch(str(path), only):
            yield path


def recognised(path: Path) -> str | None:
    """The target whose file it is; None where no target says so."""
    try:
        return detect(read_files(path)).id
    except InputError:
        return None


def functions_in(files: Files, target: str) -> list[str]:
    """Names of the functions of a Python file that each configure a run of the target."""
    name = f"ridgeline.targets.dialects.{target.replace('-', '_')}"
    module = import_module(f"{name}.read" if hasattr(import_module(name), "__path__") else name)
    try:
        return list(module.functions(files)) if hasattr(module, "functions") else []
    except (InputError, RecursionError):
        return []


def sources(path: Path, target: str) -> list[str]:
    """The file, or the functions of a Python file that each configure a run."""
    if path.suffix != ".py":
        return [str(path)]
    return [f"{path}::{name}" for name in functions_in(read_files(path), target)]


def tried(source: str, target: str, checkout: Path) -> Outcome:
    """Import one configuration and predict its step."""
    name = source.removeprefix(f"{checkout.parent}/")
    how = "refused"
    try:
        first = imported(source, target)
        how = "predict refuses"
        wrong: InputError | None = None
        counts = tuple(dict.fromkeys((*((first.chips,) if first.chips else ()), *LADDER, *multiples(first))))
        for chip, chips in ((chip, chips) for chip in CHIPS.get(first.target, USUAL) for chips in counts):
            try:
                found = on_system(first, f"{chips}x{chip}")
                predicted = ridgeline.predict(ridgeline.scenario(found.settings))
                step = getattr(predicted, "step_time_s", None)
                said = f"{step:.4g} s" if step is not None else "cannot run"
                return Outcome(file=name, target=first.target, how="predicted", step=f"{said} on {chips}x{chip}")
            except InputError as problem:
                wrong = wrong or problem
                if not divides(problem):
                    break
        return Outcome(file=name, target=first.target, how=how, why=reason(wrong))
    except InputError as problem:
        other = any(one.expected == OTHER for one in problem.problems)
        return Outcome(file=name, target=target, how="other work" if other else how, why=reason(problem))
    except Exception as crash:
        last = traceback.extract_tb(crash.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return Outcome(file=name, target=target, how="traceback", why=f"{type(crash).__name__}: {crash} {where}"[:200])


def multiples(found: Imported) -> tuple[int, ...]:
    """Numbers of chips that a mesh of no power of two divides."""
    plan = found.settings.get("plan", {})
    least = math.prod(plan.get(axis, 1) for axis in ("tp", "pp", "cp"))
    return tuple(least * copies for copies in (1, 2, 4, 8, 16))


def imported(source: str, target: str) -> Imported:
    """What a file says by itself, or on a machine where it leaves a degree to that."""
    given = GIVEN if target == "deepspeed" else {}
    try:
        found = import_run(source, **given)
    except InputError:
        return replace(import_run(source, system=f"64x{CHIPS.get(target, USUAL)[0]}", **given), chips=64)
    silent = "model" not in found.settings and not any(part.option == "model" for part in found.unread)
    return import_run(source, **GIVEN) if target in LAUNCHES and silent else found


def divides(problem: InputError) -> bool:
    """Whether another number of chips could do."""
    return any(word in str(problem) for word in ("chip", "divi", "dp", "batch", "peak", "node"))


def reason(problem: InputError | None) -> str:
    """A refusal without the values of one file."""
    if problem is None:
        return ""
    return " | ".join(
        f"{one.path}: got {str(one.given)[:60]}, expected {str(one.expected)[:60]}" for one in problem.problems[:2]
    )


def report(found: list[Outcome], strange: Counter[str], top: int) -> None:
    """The tally by target and the commonest reasons."""
    by: dict[str, Counter[str]] = defaultdict(Counter)
    for one in found:
        by[one.target][one.how] += 1
    kinds = ("predicted", "predict refuses", "refused", "traceback", "other work")
    print(f"{'target':<20}{'files':>7}" + "".join(f"{kind:>17}" for kind in kinds))
    for target, tally in [*sorted(by.items()), ("all", sum(by.values(), Counter()))]:
        files = sum(tally.values())
        print(f"{target:<20}{files:>7}" + "".join(f"{tally[kind]:>17}" for kind in kinds))
    trains = [one for one in found if one.how != "other work"]
    if trains:
        good = sum(one.how == "predicted" for one in found)
        print(f"{good / len(trains):.0%} of the files that train a decoder, {good / len(found):.0%} of all, predicted")
    reasons = Counter(f"{one.how}: {re.sub(r'[0-9]+', 'N', one.why)}" for one in found if one.how != "predicted")
    for why, count in reasons.most_common(top):
        print(f"{count:>6}  {why}")
    print("not recognised: " + ", ".join(f"{count} {suffix}" for suffix, count in sorted(strange.items())))


if __name__ == "__main__":
    sys.exit(main())
