"""How many requests the serving simulator handles in a core-second, on the code that reproduces recorded schedulers.

    python benchmarks/serving.py [--requests 10000] [--dynamo PYTHON] [--json]

10,000 requests of 1024 prompt and 211 output tokens, Poisson at 12/s, one replica with the prefix cache on, a pool of
27,000 blocks (an 8B model on an 80 GB chip), which is full after half a minute: every prompt evicts another. CPU
seconds of this process, one thread, the best of several rounds: neighbours on the same core slow all of them. The step
cost is five plain numbers, so that the scheduler, its cache and the event loop are what is timed; one line more times
steps priced from a model and a chip, and says what pricing took. With --dynamo, the
Python of an environment with ai-dynamo-runtime, Dynamo's replay (Rust) gets the same requests in the same run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ridgeline.plan.scenario_file import read_scenario
from ridgeline.serving.deployment import fleet_of, instances_of
from ridgeline.serving.engine.sglang import sglang_scheduler
from ridgeline.serving.engine.sglang_prefill import SglangSettings
from ridgeline.serving.engine.step import Policy
from ridgeline.serving.engine.tensorrt_llm import TensorrtLlmScheduler, TensorrtLlmSettings
from ridgeline.serving.engine.vllm import VllmScheduler, VllmSettings
from ridgeline.serving.fleet import simulate, simulate_fleet
from ridgeline.serving.load import at_times, gamma_times
from ridgeline.serving.request import Request
from ridgeline.serving.served import Served, serving_metrics
from ridgeline.serving.step_cost import LinearStepCost

TARGET = 20_000  # requests a core-second
ROUNDS = 5
BLOCKS = 27_000
COST = LinearStepCost(step_s=7e-3, decode_s=1e-5, kv_token_s=3e-8, prefill_token_s=2.5e-5)
ENGINES: dict[str, Callable[[], Policy]] = {
    "vLLM, synchronous": lambda: VllmScheduler(VllmSettings(num_blocks=BLOCKS)),
    "vLLM, asynchronous": lambda: VllmScheduler(VllmSettings(num_blocks=BLOCKS, async_scheduling=True)),
    "SGLang": lambda: sglang_scheduler(SglangSettings(max_total_tokens=BLOCKS * 16, disable_overlap_schedule=True)),
    "SGLang, overlapped": lambda: sglang_scheduler(
        SglangSettings(max_total_tokens=BLOCKS * 16, disable_overlap_schedule=False)
    ),
    "TensorRT-LLM": lambda: TensorrtLlmScheduler(TensorrtLlmSettings(blocks=BLOCKS // 2)),
}


def main() -> None:
    """Print or dump the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--dynamo", metavar="PYTHON", help="a Python that has ai-dynamo-runtime")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    load = at_times(gamma_times(asked.requests, 12.0, seed=0), [(1024, 211)])
    rows: list[dict[str, object]] = []
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
    rows.append(_priced(load))
    dynamo = round(asked.requests / _dynamo(load, asked.dynamo)) if asked.dynamo else None
    if asked.json:
        print(json.dumps({"target": TARGET, "rows": rows, "dynamo_requests_per_core_s": dynamo}, indent=2))
        return
    print(f"{asked.requests:,} requests of 1024/211 tokens at 12/s; target {TARGET:,} requests a core-second")
    for row in rows:
        print(
            f"{row['engine']:22} {row['requests_per_core_s']:>8,} requests/core-s  "
            f"{row['times_real_time']:>6,} x real time  {row['steps']:,} steps in {row['events']:,} events"
        )
    if dynamo:
        print(f"{'Dynamo replay':22} {dynamo:>8,} requests/core-s")


def _priced(load: list[Request]) -> dict[str, object]:
    """The same requests under the prices of Llama 3.1 8B on an H100, behind a fleet of one."""
    scenario = read_scenario(Path(__file__).parents[1] / "examples" / "serve-llama3.1-8b-1xh100.toml")
    best, pricing = float("inf"), float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        instances = instances_of(scenario)
        priced = time.process_time()
        run = simulate_fleet(load, fleet_of(scenario, instances, 0.0))
        pricing, best = min(pricing, priced - begun), min(best, time.process_time() - priced)
    found = run.served
    return {
        "engine": f"vLLM, priced in {pricing * 1e3:.0f} ms",
        "requests_per_core_s": round(len(load) / best),
        "steps": found.steps,
        "events": found.events,
        "times_real_time": round(found.duration_s / best),
        "ttft_p99_s": serving_metrics(found).ttft.percentiles[99.0],
    }


def _dynamo(load: list[Request], python: str) -> float:
    """CPU seconds of Dynamo's replay on the same requests."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        with trace.open("w", encoding="utf-8") as lines:
            for number, request in enumerate(load):
                blocks = -(-request.prompt_tokens // 512)
                row = {"timestamp": round(request.arrival_s * 1e3), "input_length": request.prompt_tokens}
                row |= {"output_length": request.output_tokens}
                hashes = list(range(number * blocks, (number + 1) * blocks))
                lines.write(json.dumps({**row, "hash_ids": hashes}) + "\n")
        script = Path(__file__).with_name("dynamo_replay.py")
        command = [python, str(script), str(trace), str(BLOCKS), str(ROUNDS)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _timed(load: list[Request], engine: Policy) -> tuple[float, Served]:
    begun = time.process_time()
    found = simulate(load, engine, COST)
    return time.process_time() - begun, found


if __name__ == "__main__":
    main()
