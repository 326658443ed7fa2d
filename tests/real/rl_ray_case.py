"""Runs of post-training on a Ray cluster of two chips, into a JSON file: rl_ray_case.py CASE FOLDER.

placements          every placement, four steps each
algorithms          an algorithm with a critic, with pairs and with a teacher, four steps each
kills PLACEMENT     with seven random kills of its actors
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray

import ridgeline
from ridgeline.runtime.rl import RlStepRow
from ridgeline.runtime.rl.crew import Worker
from ridgeline.runtime.rl.ray_crew import RayCrew, RayProcess
from ridgeline.runtime.rl.request import RlRunRequest, Seat
from ridgeline.runtime.rl.run_rl import run_post_training
from ridgeline.runtime.train.request import RunOptions

TINY: dict[str, Any] = {
    "model": {"hidden": 32, "layers": 2, "vocab": 48, "tied": True, "attention": {"heads": 4}, "mlp": {"hidden": 64}},
    "system": "2xcpu",
    "workload": {
        "kind": "rl", "algorithm": "grpo", "prompts": 8, "samples": 4, "prompt_tokens": 4, "response_tokens": 5,
        "learning": {"task": "arithmetic", "rate": 1e-2, "warm_up": 25},
    },
    "plan": {"precision": "fp32", "microbatch": 8, "engine": "ridgeline"},
}  # fmt: skip
PLACEMENTS: dict[str, dict[str, Any]] = {
    "colocated": {},
    "split": {"placement": "split", "train_chips": 1},
    "one-step-off": {"placement": "one-step-off", "train_chips": 1},
    "async": {"placement": "async", "train_chips": 1, "staleness": 2, "partial_rollouts": True},
}
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "ppo": ("workload.roles.critic=true",),
    "dpo": ("workload.roles.reference=true", "workload.samples=1"),
    "distill-on-policy": ("workload.roles.teacher=true",),
}
KILLS, STEPS = 7, 60


def scenario(name: str, *settings: str) -> Any:
    table = json.loads(json.dumps(TINY))
    table["plan"]["rl"] = PLACEMENTS[name]
    return ridgeline.scenario(table, settings)


class DoomedCrew(RayCrew):
    """Actors that somebody can kill."""

    def __init__(self) -> None:
        super().__init__(RlRunRequest(scenario=scenario("async"), options=RunOptions(), constants=None))  # type: ignore[arg-type]
        self.workers: list[Worker] = []

    def start(self, request: RlRunRequest, seats: tuple[Seat, ...]) -> list[Worker]:
        started = super().start(request, seats)
        self.workers = [one for one in self.workers if one.seat not in seats] + started
        return started

    def kill(self, draw: random.Random) -> str:
        worker = draw.choice(self.workers)
        assert isinstance(worker, RayProcess)
        pid = ray.get(worker.actor.__ray_call__.remote(lambda _: os.getpid()), timeout=60)
        os.kill(pid, signal.SIGKILL)
        return worker.seat.name


def placements() -> dict[str, Any]:
    found = {}
    for name in PLACEMENTS:
        outcome = run_post_training(scenario(name), RunOptions(steps=4, launcher="ray"))
        found[name] = {
            "rewards": [row.reward for row in outcome.rows],
            "lags": [row.staleness.largest for row in outcome.rows],
            "mismatches": [row.mismatch.largest for row in outcome.rows],
            "replicas": outcome.replicas,
        }
    return found


def algorithms() -> dict[str, Any]:
    found = {}
    for name, settings in ALGORITHMS.items():
        built = scenario("colocated", f"workload.algorithm={name}", *settings)
        outcome = run_post_training(built, RunOptions(steps=4, launcher="ray"))
        found[name] = {"losses": [row.loss for row in outcome.rows], "ranks": outcome.train_ranks}
    return found


def kills(folder: Path, placement: str) -> dict[str, Any]:
    crew, draw, ended = DoomedCrew(), random.Random(11), threading.Event()
    told: list[RlStepRow] = []
    hits: list[str] = []

    def hunt() -> None:
        while len(hits) < KILLS and not ended.is_set():
            seen = len(told)
            while len(told) < seen + 2 and not ended.is_set():
                time.sleep(0.05)
            time.sleep(draw.random() * 0.2)
            try:
                hits.append(crew.kill(draw))
            except ray.exceptions.RayError:
                continue  # it was being started again

    hunter = threading.Thread(target=hunt)
    hunter.start()
    options = RunOptions(steps=STEPS, launcher="ray", folder=str(folder / "run"), every=1, restarts=1000)
    try:
        outcome = run_post_training(scenario(placement), options, tell=told.append, crew=crew)
    finally:
        ended.set()
        hunter.join()
    return {
        "hits": hits, "restarts": outcome.restarts, "told": [row.step for row in told],
        "samples": sorted({row.samples for row in told}), "lags": max(row.staleness.largest for row in told),
        "lost": sum(row.lost for row in told),
    }  # fmt: skip


def main() -> None:
    (case, _, placement), folder = sys.argv[1].partition(" "), Path(sys.argv[2])
    found = {"placements": placements, "algorithms": algorithms}.get(case, lambda: kills(folder, placement))()
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
