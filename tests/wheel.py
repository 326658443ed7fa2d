"""Build the wheel, install it into an empty environment and run `ridgeline show` there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent


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
        counted = {
            what: len(json.loads(run("show", what, "--json"))[0]["rows"]) for what in ("chips", "systems", "models")
        }
        print(f"wheel: {wheel.name} ({wheel.stat().st_size // 1024} KiB) installs and shows {counted}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
