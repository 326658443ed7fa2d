"""Build the wheel and the source distribution, look into both, install the wheel into an empty environment and run its
verbs there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator, Mapping
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
EXAMPLE = str(ROOT / "examples" / "llama3.2-1b-1xh200.toml")
MOST_BYTES = 4 * 2**20  # of the wheel
DIST_INFO = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
STRAY = re.compile(r"(^|/)(tests?|test_\w+\.py|__pycache__|\..*)(/|$)|\.(pyc|so|o|bak|orig|rej|log|tmp|swp)$|~$")
EXTRAS = "aiconfigurator_core", "ninja", "pytest", "ray", "tensorboard", "torch", "transformers", "viztracer"
EVERY_NAME = f"""
import importlib.util, ridgeline
assert not [name for name in {EXTRAS} if importlib.util.find_spec(name)]
lacking = []
for name in ridgeline.__all__:
    try:
        getattr(ridgeline, name)
    except ModuleNotFoundError as missing:
        lacking.append((name, missing.name))
assert not lacking, lacking
print(ridgeline.__version__)
"""


def build(folder: Path, *options: str) -> Path:
    """The wheel that a build writes; without options it is built from the source distribution."""
    command = [sys.executable, "-m", "build", *options, "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("*.whl"))


def contents(wheel: Path) -> Mapping[str, bytes]:
    """The files of a wheel by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def content_problems(wheel: Path) -> Iterator[str]:
    """What is missing in a wheel, or does not belong there: it has the files of the package and nothing else."""
    files = contents(wheel)
    package = {
        str(path.relative_to(SOURCE)): path.read_bytes()
        for path in (SOURCE / "ridgeline").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    info = {name: name.partition(".dist-info/")[2] for name in files if ".dist-info/" in name}
    yield from (f"{name} is missing" for name in package.keys() - files.keys())
    strange = files.keys() - package.keys() - info.keys() | {name for name in files if STRAY.search(name)}
    yield from (f"{name} does not belong there" for name in strange)
    yield from (f"{name} has other bytes" for name in package.keys() & files.keys() if package[name] != files[name])
    if set(info.values()) != DIST_INFO:
        yield f"its metadata are the files {sorted(info.values())}"
    if "ridgeline/py.typed" not in files:
        yield "py.typed is missing: type checkers would not read it"
    if wheel.stat().st_size > MOST_BYTES:
        yield f"it has {wheel.stat().st_size / 2**20:.1f} MiB"


def metadata_problems(wheel: Path) -> Iterator[str]:
    """Where the metadata of a wheel is not what pyproject.toml and version.py say."""
    files = {
        name.partition(".dist-info/")[2]: text.decode() for name, text in contents(wheel).items() if "-info/" in name
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(r'__version__ = "(.+)"', (SOURCE / "ridgeline" / "version.py").read_text(encoding="utf-8"))
    given = Parser().parsestr(files["METADATA"])
    expected = {
        "Name": "ridgeline", "Version": version[1] if version else "", "Summary": project["description"],
        "License-Expression": "Apache-2.0", "Requires-Python": project["requires-python"],
        "Description-Content-Type": "text/markdown",
    }  # fmt: skip
    yield from (f"{key} is {given[key]!r} and not {want!r}" for key, want in expected.items() if given[key] != want)
    if sorted(given.get_all("Provides-Extra", [])) != sorted(project["optional-dependencies"]):
        yield f"its extras are {given.get_all('Provides-Extra')}"
    if f"## {given['Version']} (" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        yield f"CHANGELOG.md has no heading and date of {given['Version']}"
    if files["entry_points.txt"].split() != ["[console_scripts]", "ridgeline", "=", "ridgeline.cli.entry:main"]:
        yield f"its entry points are {files['entry_points.txt']!r}"


def _answers(run: Callable[..., str], folder: Path) -> str:
    """What an installed verb misses of its data: parameters, measured runs, options of targets, the page of a trace."""
    if json.loads(run("predict", EXAMPLE, "--json"))["step_time_s"] <= 0:
        return "ridgeline predict answered no time"
    if not json.loads(run("validate", "--where", "source=h200", "--json")):
        return "ridgeline validate found no runs"
    if not json.loads(run("export", EXAMPLE, "--to", "megatron", "--allow-misfit", "--json"))["files"]:
        return "ridgeline export wrote no files"
    run("timeline", EXAMPLE, "-o", str(folder / "step.json"), "--html", str(folder / "step.html"))
    run("analyze", str(folder / "step.json"), "--json")
    return "" if (folder / "step.html").stat().st_size > 10_000 else "ridgeline timeline wrote an empty page"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        wheel = build(here, "--wheel")
        problems = [*content_problems(wheel), *metadata_problems(wheel)]
        if contents(build(here / "sdist")) != contents(wheel):
            problems.append("the source distribution builds another wheel")
        for problem in problems:
            print(f"wheel: {problem}")
        if problems:
            return 1
        venv.create(here / "env", with_pip=True)
        python = here / "env" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

        def run(*arguments: str) -> str:
            command = [str(here / "env" / "bin" / "ridgeline"), *arguments]
            return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=clean).stdout

        every_name = [python, "-W", "error", "-c", EVERY_NAME]
        named = subprocess.run(every_name, check=True, stdout=subprocess.PIPE, text=True, cwd=folder, env=clean)
        if run("--version") != f"ridgeline {named.stdout}":
            print(f"wheel: ridgeline --version answered {run('--version')!r}")
            return 1
        sheets = json.loads(run("show", "llama3-70b", "64xh100-sxm", "1f1b", "megatron-core", "--json"))
        kinds = [sheet["kind"] for sheet in sheets]
        if kinds != ["model", "system", "schedule", "engine"]:
            print(f"wheel: ridgeline show answered {kinds}")
            return 1
        problem = _answers(run, here)
        if problem:
            print(f"wheel: {problem}")
            return 1
        counted = {
            what: len(json.loads(run("show", what, "--json"))[0]["rows"]) for what in ("chips", "systems", "models")
        }
        print(f"wheel: {wheel.name} ({wheel.stat().st_size // 1024} KiB) installs and shows {counted}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
