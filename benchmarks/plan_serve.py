"""How long sizing a deployment takes, and where a peer's choice for the same problem differs.

    python benchmarks/plan_serve.py TRACE [--peer /path/to/aiconfigurator] [--json]

trace     Models on up to 32 chips under an hour of requests (Azure 2023 conversations, 19,366 of them), TTFT 500 ms and
          TPOT 30 ms at p99 (DeepSeek V3 on H200: 1 s and 50 ms): the fewest chips, queueing and all.
goodput   Llama 3.1 8B in bf16 on 32 H100, 1155 + 211 tokens, the same limits: the most requests a second. The peer
          (AIConfigurator 0.12) answers the same question from static batches; its choice is then simulated here.

CPU seconds of one thread, this process and the peer's; the load of the machine is printed.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import re
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

from ridgeline.plan.scenario_file import assemble
from ridgeline.search.deployment.recommendation import DeploymentAnswer, recommend_deployment
from ridgeline.search.deployment.request import DeploymentRequest
from ridgeline.serving.serving_prediction import ServingPrediction, predict_serving

LIMITS = {"ttft": "500ms", "tpot": "30ms"}
TRACED = {
    "llama3.1-70b": ("32xh100-sxm", LIMITS),
    "qwen3-30b-a3b": ("32xh100-sxm", LIMITS),
    "qwen3-235b-a22b": ("32xh100-sxm", LIMITS),
    "deepseek-v3": ("32xh200-sxm", {"ttft": "1s", "tpot": "50ms"}),
}
"""Where models are placed under the trace, and what they must keep."""
ISL, OSL, CHIPS = 1155, 211, 32
TARGET_S = 15.0
ROW = re.compile(r"^\|\s+1\s+\|\s+vllm.*?\|\s+tp(\d+)pp(\d+)\s+\|\s+(\d+)\s+\|", re.M)
RATE = re.compile(r"Request Rate: ([\d.]+) req/s")
BASIS = re.compile(r"Best Experiment Chosen: (\w+)")


def timed(request: DeploymentRequest) -> tuple[DeploymentAnswer, dict[str, Any]]:
    """The answer, and what it says in short."""
    began = time.process_time()
    found = recommend_deployment(request)
    taken = time.process_time() - began
    best = found.best
    search = found.outcomes[0].search
    return found, {
        "cpu_s": taken,
        "trials": search.bench.trials,
        "simulated_requests": search.bench.requests,
        "words": best.candidate.words if best else None,
        "chips": best.candidate.chips if best else None,
        "rate": best.rate if best else None,
        "kept_ms": {name: kept.found * 1e3 for name, kept in best.prediction.kept.items()} if best else {},
    }


def peer_choice(program: str) -> dict[str, Any]:
    """What the peer chooses, and what it took."""
    command = [program, "cli", "default", "--model", "meta-llama/Meta-Llama-3.1-8B", "--total-gpus", str(CHIPS),
               "--system", "h100_sxm", "--backend", "vllm", "--isl", str(ISL), "--osl", str(OSL), "--ttft", "500",
               "--tpot", "30", "--no-color"]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    row, rate, basis = ROW.search(said), RATE.search(said), BASIS.search(said)
    assert row, said[-2000:]
    assert rate, said[-2000:]
    assert basis, said[-2000:]
    return {
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "split": basis[1], "tp": int(row[1]), "pp": int(row[2]), "batch": int(row[3]), "rate": float(rate[1]),
    }  # fmt: skip


def simulated(choice: dict[str, Any], share: float) -> dict[str, Any]:
    """The peer's deployment under Poisson arrivals at a share of the rate that it states."""
    rate = choice["rate"] * share
    table = {
        "model": "llama3.1-8b",
        "system": f"{CHIPS}xh100-sxm",
        "workload": {
            "kind": "serve", "arrivals": {"kind": "poisson", "rate": rate}, "requests": 20_000, "isl": ISL, "osl": OSL,
            "objective": {"ttft": "500 ms", "tpot": "30 ms"},
        },
        "plan": {
            "engine": "vllm", "tp": choice["tp"], "pp": choice["pp"],
            "serving": {"router": "least-loaded", "vllm": {"max_num_seqs": choice["batch"]}},
        },
    }  # fmt: skip
    built, problems = assemble(table)
    assert built is not None, problems
    assert not problems, problems
    found = predict_serving(built)
    assert isinstance(found, ServingPrediction)
    return {"rate": rate, "kept_ms": {name: one.found * 1e3 for name, one in found.kept.items()}, "met": found.met}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--peer", default="")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    told: dict[str, Any] = {"load": os.getloadavg()[0]}
    for model, (system, limits) in TRACED.items():
        asked = DeploymentRequest.from_options(model, on=system, requests=args.trace, **limits)  # type: ignore[arg-type]
        told[f"trace, {model} on {system}"] = timed(asked)[1]
    pins = ["plan.precision=bf16"]
    most = DeploymentRequest.from_options(
        "llama3.1-8b", on=f"{CHIPS}xh100-sxm", isl=ISL, osl=OSL, settings=pins, **LIMITS
    )  # type: ignore[arg-type]
    told["goodput"] = timed(most)[1]
    if args.peer:
        told["peer"] = peer_choice(args.peer)
        told["peer_simulated"] = [simulated(told["peer"], share) for share in (1.0, 0.9, 0.8)]
    if args.json:
        print(json.dumps(told, indent=1))
        return
    for name, facts in told.items():
        print(name, facts)
    print(f"target: {TARGET_S:g} s of CPU for each model under the trace")


if __name__ == "__main__":
    main()
