"""How many plans a core prices in a second, time and memory both, beside a peer.

    python benchmarks/plan.py [--peer PYTHON] [--rounds 5] [--json]

gpt3       GPT-3 175B on 1024 A100 80GB, 3072 sequences of 2048: every tp to 32, pipeline, interleaving, microbatch,
           recompute and sharding, sequence parallelism and overlap on and off, no offload. Calculon's search of this
           problem without offload has 348,832 plans; its program, which has no package on the index (the name there is
           another project's), prices 158 to 183 of them in a core-second: about 980 core-seconds.
deepseek   DeepSeek-V3 in fp8 on 98,304 H100: the default space, no flag given.

CPU seconds of one thread (set before numpy starts), the best round; wall seconds beside them. The load of the machine
is printed, since neighbours on the same core take their share of its caches.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product

from peer import Peer, measured

from ridgeline.plan.plan import Schedule, Switches
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.choices import divisors
from ridgeline.search.training.plan_search import find_plan
from ridgeline.search.training.space import Pins

CALCULON_PLANS, CALCULON_CORE_S = 348_832, 980.0
TARGET = 500_000  # plans a core-second
MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One search: plans priced and feasible, seconds, and plans a core-second."""

    considered: int
    feasible: int
    cpu_seconds: float
    seconds: float
    per_core_s: float
    best_step_s: float


def problem(model: str, system: str, work: dict[str, int], **plan: str) -> Scenario:
    """A scenario whose plan is still to be found."""
    made, _ = assemble({"model": model, "system": system, "workload": work, "plan": plan})
    assert made is not None
    return made


def gpt3() -> tuple[Scenario, Pins]:
    """The problem of the peers, at least as wide as Calculon has it."""
    work = {"seq": 2048, "global_batch": 3072}
    made = problem("gpt3-175b", "1024xa100-80-sxm", work)
    switches = tuple(
        Switches(
            sequence_parallel=order, overlap={"tp": tensor, "grad-reduce": data, "param-gather": data, "pp": sends}
        )
        for order, tensor, data, sends in product((None, False), (False, True), (False, True), (False, True))
    )
    loops = tuple(Schedule(name="interleaved", chunks=chunks) for chunks in divisors(96, 96) if chunks > 1)
    return made, Pins(
        tp=(1, 2, 4, 8, 16, 32),
        microbatch=tuple(divisors(3072, 64)),
        schedule=(Schedule(), *loops),
        shard=("none", "zero1", "zero2", "zero3"),
        shard_degree=(0, 8),
        switches=switches,
    )


def deepseek() -> tuple[Scenario, Pins]:
    """A hundred thousand chips, nothing pinned."""
    work = {"seq": 4096, "global_batch": 49_152}
    return problem("deepseek-v3", "98304xh100-sxm", work, precision="fp8"), Pins()


def best_of(rounds: int, asked: Callable[[], tuple[Scenario, Pins]]) -> Figures:
    """The round with the least CPU time."""
    made, pins = asked()
    return min((one_round(made, pins) for _ in range(rounds)), key=lambda figures: figures.cpu_seconds)


def one_round(made: Scenario, pins: Pins) -> Figures:
    """One search, timed."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = find_plan(made, pins, most=1)
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    return Figures(
        considered=found.swept.considered,
        feasible=found.swept.feasible,
        cpu_seconds=cpu_seconds,
        seconds=seconds,
        per_core_s=found.swept.considered / cpu_seconds,
        best_step_s=found.plans[0].step_time_s,
    )


def show(figures: dict[str, Figures], peer: Peer | None, load: float) -> None:
    """The table."""
    print(f"{'':24}{'plans':>12}{'feasible':>12}{'CPU s':>8}{'wall s':>8}{'plans/core-s':>14}")
    for name, own in figures.items():
        cells = f"{own.considered:>12,}{own.feasible:>12,}{own.cpu_seconds:>8.2f}{own.seconds:>8.2f}"
        print(f"{name:24}{cells}{own.per_core_s:>14,.0f}")
    if peer:
        print(f"{peer.name:24}{peer.plans:>12,}{'':12}{'':16}{peer.per_core_s:>14,.0f}   one by one, over and over")
    ours = figures["gpt3, 1024 A100"]
    print(f"target {TARGET:,} plans a core-second; load of the machine {load:.1f} on {os.cpu_count()} cores")
    ratio = ours.per_core_s * CALCULON_CORE_S / CALCULON_PLANS
    print(
        f"Calculon's space: {CALCULON_PLANS:,} plans in about {CALCULON_CORE_S:.0f} core-seconds; here "
        f"{ours.considered:,} in {ours.cpu_seconds:.2f}: {ratio:,.0f} times as many a core-second"
    )
    if peer:
        print(
            f"beside {peer.name} in the same run: {ours.per_core_s / peer.per_core_s:,.0f} times as many a core-second"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Plans priced a core-second, beside a peer.")
    parser.add_argument("--peer", help="a Python that has llm-analysis")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    figures = {
        "gpt3, 1024 A100": best_of(asked.rounds, gpt3),
        "deepseek-v3, 98,304 H100": best_of(asked.rounds, deepseek),
    }
    peer, load = measured(asked.peer), os.getloadavg()[0]
    if asked.json:
        told = {name: asdict(own) for name, own in figures.items()}
        print(json.dumps({**told, "peer": asdict(peer) if peer else None, "load": load}, indent=2))
    else:
        show(figures, peer, load)
    assert figures["gpt3, 1024 A100"].considered >= CALCULON_PLANS
    assert figures["deepseek-v3, 98,304 H100"].seconds < MINUTE


if __name__ == "__main__":
    main()
