"""How fast machines that do not exist are priced: designs a minute on one core, and CPU milliseconds of sensitivities.

python benchmarks/design.py [POINTS]        of compute and of memory bandwidth, in the example's space; else 24
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from ridgeline.design.frontier import find_frontier
from ridgeline.design.sense import sense
from ridgeline.design.space import DesignSpace
from ridgeline.design.study import read_study
from ridgeline.plan.scenario_file import read_scenario

EXAMPLES = Path(__file__).parents[1] / "examples"
ROUNDS = 7


def least_cpu_s(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The least CPU seconds of several rounds, the first apart."""
    work()
    least = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        work()
        least = min(least, time.process_time() - began)
    return least


def main() -> None:
    points = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    settings = [
        f'space.compute={{from="700 TFLOP/s",to="4 PFLOP/s",points={points}}}',
        f'space.memory.bandwidth={{from="2.5 TB/s",to="16 TB/s",points={points}}}',
        'space.scaleup.bandwidth={from="300 GB/s",to="1.8 TB/s",points=16}',
        'space.scaleout.bandwidth={from="50 GB/s",to="200 GB/s",points=8}',
    ]
    study = read_study(EXAMPLES / "design-next-chip.toml", settings)
    spent = least_cpu_s(lambda: find_frontier(DesignSpace(study)), 1)
    front = find_frontier(DesignSpace(study)).certificate
    per_minute = study.points / spent * 60
    print(f"{study.points:,} designs in {spent:.2f} CPU s: {per_minute:,.0f} a minute; {front}")
    for name in ("llama3-70b-64xh100", "llama3-70b-decode-4xh100", "deepseek-v3-prefill-8xh200"):
        scenario = read_scenario(EXAMPLES / f"{name}.toml")
        cpu_s = least_cpu_s(lambda chosen=scenario: sense(chosen))  # type: ignore[misc]
        print(f"sense {name}: {cpu_s * 1000:.1f} CPU ms")


if __name__ == "__main__":
    main()
