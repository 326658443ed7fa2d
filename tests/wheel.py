"""Build the wheel, install it into an empty environment and run its verbs there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent


EXAMPLE = str(ROOT / "examples" / "llama3.2-1b-1xh200.toml")


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
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, str(ROOT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        wheel = next(here.glob("*.whl"))
        venv.create(here / "env", with_pip=True)
        python = here / "env" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

        def run(*arguments: str) -> str:
            command = [str(here / "env" / "bin" / "ridgeline"), *arguments]
            return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=clean).stdout

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
