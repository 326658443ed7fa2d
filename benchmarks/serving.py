"""How many requests the serving simulator handles in a core-second, on the code that reproduces recorded schedulers.

    python benchmarks/serving.py [--requests 10000] [--json]

10,000 requests of 1024 prompt and 211 output tokens, Poisson at 12/s, one replica with the prefix cache on, a pool of
27,000 blocks (an 8B model on an 80 GB chip), which is full after half a minute: every prompt evicts another. CPU
seconds of this process, one thread, the best of several rounds: neighbours on the same core slow all of them. The step
cost is five plain numbers, so that the scheduler, its cache and the event loop are what is timed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from ridgeline.serving.arrivals import at_times, gamma_times
from ridgeline.serving.event_loop import simulate
from ridgeline.serving.metrics import serving_metrics
from ridgeline.serving.request import Request
from ridgeline.serving.served import Served
from ridgeline.serving.sglang_scheduler import SglangScheduler
from ridgeline.serving.sglang_settings import SglangSettings
from ridgeline.serving.step import Policy
from ridgeline.serving.step_cost import LinearStepCost
from ridgeline.serving.vllm_scheduler import VllmScheduler
from ridgeline.serving.vllm_settings import VllmSettings

TARGET = 20_000  # requests a core-second
ROUNDS = 5
BLOCKS = 27_000
COST = LinearStepCost(step_s=7e-3, decode_s=1e-5, kv_token_s=3e-8, prefill_token_s=2.5e-5)
ENGINES: dict[str, Callable[[], Policy]] = {
    "vLLM, synchronous": lambda: VllmScheduler(VllmSettings(num_blocks=BLOCKS)),
    "vLLM, asynchronous": lambda: VllmScheduler(VllmSettings(num_blocks=BLOCKS, async_scheduling=True)),
    "SGLang": lambda: SglangScheduler(SglangSettings(max_total_tokens=BLOCKS * 16)),
}


def main() -> None:
    """Print or dump the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    load = at_times(gamma_times(asked.requests, 12.0, seed=0), [(1024, 211)])
    rows = []
    for name, engine in ENGINES.items():
        seconds, found = min((_timed(load, engine()) for _ in range(ROUNDS)), key=lambda pair: pair[0])
        rows.append(
            {
                "engine": name,
                "requests_per_core_s": round(asked.requests / seconds),
                "steps": found.steps,
                "events": found.events,
                "times_real_time": round(found.duration_s / seconds),
                "ttft_p99_s": serving_metrics(found).ttft.percentiles[99.0],
            }
        )
    if asked.json:
        print(json.dumps({"target": TARGET, "rows": rows}, indent=2))
        return
    print(f"{asked.requests:,} requests of 1024/211 tokens at 12/s; target {TARGET:,} requests a core-second")
    for row in rows:
        print(
            f"{row['engine']:20} {row['requests_per_core_s']:>8,} requests/core-s  "
            f"{row['times_real_time']:>6,} x real time  {row['steps']:,} steps in {row['events']:,} events"
        )


def _timed(load: list[Request], engine: Policy) -> tuple[float, Served]:
    begun = time.process_time()
    found = simulate(load, engine, COST)
    return time.process_time() - begun, found


if __name__ == "__main__":
    main()
