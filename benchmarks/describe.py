"""How long describing takes: catalogs cold and warm, a scenario, the command line's first answer.

    python benchmarks/describe.py

Each figure is the best and the median of several fresh processes (catalogs, help) or of many repetitions (scenario),
beside a baseline taken in the same run, best against best: starting Python, and parsing the same TOML files with the
standard library and nothing else.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from ridgeline import Plan, Scenario, check, engine, model, system
from ridgeline.hardware.load import FOLDER
from ridgeline.models import load as models
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.workload import Train

ONE = """
import time
import ridgeline
from ridgeline.hardware.load import chip
from ridgeline.models.load import model
start = time.perf_counter()
chip("h100-sxm"); model("llama3-8b")
print(time.perf_counter() - start)
"""
ALL = """
import time
from ridgeline.hardware.load import CHIPS, SYSTEMS
from ridgeline.models.load import MODELS
from ridgeline.plan.engine import ENGINES
start = time.perf_counter()
for catalog in (CHIPS, SYSTEMS, MODELS, ENGINES):
    dict(catalog)
print(time.perf_counter() - start)
"""


def fresh(code: str, times: int = 9) -> list[float]:
    """What the code prints, each time in a new process."""
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(times)
    ]
    return [float(run.stdout) for run in runs]


def command(*arguments: str, times: int = 9) -> list[float]:
    """Wall times of a process."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run(arguments, capture_output=True, check=True)
        taken.append(time.perf_counter() - start)
    return taken


def parse_only() -> float:
    """Seconds the standard library takes to parse every catalog file."""
    folders = [FOLDER, Path(models.__file__).parent / "catalog", FOLDER.parents[1] / "plan" / "engines"]
    texts = [path.read_text() for folder in folders for path in folder.rglob("*.toml")]
    start = time.perf_counter()
    for text in texts:
        tomllib.loads(text)
    return time.perf_counter() - start


def build_scenario(times: int = 300) -> list[float]:
    """Seconds to put loaded parts together and check them."""
    parts = model("llama3-70b"), system("64xh100-sxm"), engine("megatron-core")
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        built = Scenario(
            model=parts[0],
            system=parts[1],
            workload=Train(seq=8192, global_batch=512),
            engine=parts[2],
            plan=Plan(mesh=Mesh(tp=8, pp=2, dp=4)),
        )
        assert check(built) == ()
        taken.append(time.perf_counter() - start)
    return taken


def main() -> None:
    python = min(command(sys.executable, "-c", "pass"))
    parse = min(parse_only() for _ in range(5))
    rows = [
        ("one chip and one model, cold", fresh(ONE), 0.020, "", 0.0),
        ("all chips, systems, models and engines, cold", fresh(ALL), 0.200, "parsing the TOML alone", parse),
        ("a scenario from loaded parts, checked", build_scenario(), 0.001, "", 0.0),
        (
            "ridgeline --help, whole process",
            command(sys.executable, "-m", "ridgeline.cli.main", "--help"),
            0.3,
            "python -c pass",
            python,
        ),
    ]
    for name, taken, target, baseline, other in rows:
        best, middle = min(taken) * 1e3, statistics.median(taken) * 1e3
        beside = f"   {best / other / 1e3:.1f}x {baseline} ({other * 1e3:.1f} ms)" if baseline else ""
        print(f"{name:46} best {best:7.2f} ms   median {middle:7.2f} ms   target {target * 1e3:g} ms{beside}")


if __name__ == "__main__":
    main()
