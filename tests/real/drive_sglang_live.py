"""Run live SGLang engines, model and all, through cases and write down each decision of the scheduler inside them.

    python drive_sglang_live.py MODEL_FOLDER < cases.json > recordings.json   (the Python of an environment with SGLang)

Nothing of Ridgeline is imported. MODEL_FOLDER needs a config.json alone: weights are random. Requests are sent while
the engine runs; which step they arrived at is what the scheduler saw. The engine wants a socket on every interface:
run this in a network namespace with loopback alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

VOCABULARY = 30_000
LOG = "RIDGELINE_SGLANG_LOG"
QUIET = {
    "device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch", "grammar_backend": "none",
    "dtype": "float32", "load_format": "dummy", "disable_cuda_graph": True,
    "skip_tokenizer_init": True, "disable_custom_all_reduce": True, "mem_fraction_static": 0.05, "log_level": "error",
}  # fmt: skip


def recording_scheduler(*words: Any, **named: Any) -> Any:
    """The engine's scheduler process, which writes a line for every batch that it runs."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler, run_scheduler_process

    log = Path(os.environ[LOG]).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115 (as long as the process)
    arrived: list[str] = []
    dropped: list[str] = []
    enter, start, decide = Scheduler._add_request_to_queue, Scheduler.run_batch, Scheduler.get_next_batch_to_run
    release = ScheduleBatch.release_req
    paused = [True]  # the last line is a pause, or there is none yet

    def entered(self: Any, request: Any, is_retracted: bool = False) -> Any:
        if request.rid not in seen:
            seen.add(request.rid)
            arrived.append(request.rid)
        return enter(self, request, is_retracted)

    def released(self: Any, place: int, *more: Any, **options: Any) -> Any:
        dropped.append(self.reqs[place].rid)
        return release(self, place, *more, **options)

    def started(self: Any, batch: Any, *more: Any, **options: Any) -> Any:
        extend = batch.forward_mode.is_extend()
        line = {
            "mode": batch.forward_mode.name,
            "reqs": [one.rid for one in batch.reqs],
            "tokens": list(batch.extend_lens) if extend else [1] * len(batch.reqs),
            "prefix": list(batch.prefix_lens) if extend else [length - 1 for length in batch.seq_lens_cpu.tolist()],
            "new_token_ratio": self.new_token_ratio_tracker.current,
        }
        write(self, line)
        paused[0] = False
        return start(self, batch, *more, **options)

    def decided(self: Any, *more: Any, **options: Any) -> Any:
        due = self.enable_overlap and self.last_batch is not None  # a result that the loop waits for
        plan = decide(self, *more, **options)
        if plan.batch_to_run is None and not paused[0]:
            write(self, {"mode": "IDLE"})
            paused[0] = not due
        return plan

    def write(self: Any, line: dict[str, Any]) -> None:
        common = {
            "waiting": [one.rid for one in self.waiting_queue],
            "chunked": getattr(self.chunked_req, "rid", None),
            "free_tokens": int(self.token_to_kv_pool_allocator.available_size()),
            "evictable": int(self.tree_cache.evictable_size()),
            "retracted": dropped.copy(),
        }
        log.write(json.dumps({"arrived": arrived.copy(), **line, **common}) + "\n")
        arrived.clear()
        dropped.clear()

    seen: set[str] = set()
    Scheduler._add_request_to_queue, Scheduler.run_batch, Scheduler.get_next_batch_to_run = entered, started, decided
    ScheduleBatch.release_req = released
    return run_scheduler_process(*words, **named)


def tokens(prompt: list[list[int]]) -> list[int]:
    """A prompt of known text: pieces of equal seeds are equal."""
    return [4 + (seed * 1_000_003 + at * 7_919) % VOCABULARY for seed, count in prompt for at in range(count)]


async def load(engine: Any, rows: list[dict[str, Any]], ignore_eos: bool) -> None:
    """Send every request after its pause; wait for all answers, and note how long those are that may stop early."""

    async def ask(row: dict[str, Any]) -> None:
        how = {"max_new_tokens": row["max_tokens"], "ignore_eos": ignore_eos, "temperature": 1.0}
        if row.get("stops"):
            how["stop_token_ids"] = list(range(row["stops"]))
        told = await engine.async_generate(
            input_ids=tokens(row["prompt"]), sampling_params=how, rid=row["id"], priority=row.get("priority")
        )
        if row.get("stops"):
            row["output_tokens"] = told["meta_info"]["completion_tokens"]

    waiting = []
    for row in rows:
        await asyncio.sleep(row["pause_ms"] / 1000)
        waiting.append(asyncio.create_task(ask(row)))
    await asyncio.gather(*waiting)


def run(case: dict[str, Any], folder: str, log: Path) -> dict[str, Any]:
    """A recording of the case, made by an engine of its own."""
    from sglang.srt.entrypoints.engine import Engine

    class Recorded(Engine):
        run_scheduler_process_func = staticmethod(recording_scheduler)

    os.environ[LOG] = str(log)
    config = case["config"]
    knobs = {name: value for name, value in config.items() if name != "ignore_eos"}
    engine = Recorded(model_path=folder, **{**QUIET, **knobs})
    asyncio.get_event_loop().run_until_complete(load(engine, case["requests"], config["ignore_eos"]))
    engine.shutdown()
    steps = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    while steps[-1]["mode"] == "IDLE":
        steps.pop()
    order = {name: at for at, step in enumerate(steps) for name in step["arrived"]}
    place = {name: at for at, name in enumerate(name for step in steps for name in step["arrived"])}
    rows = sorted(case["requests"], key=lambda row: place[row["id"]])
    rows = [{**row, "arrival_step": order[row["id"]]} for row in rows]
    return {"sglang": version("sglang"), "config": config, "requests": rows, "steps": steps}


if __name__ == "__main__":
    place = Path(sys.argv[1]) / "steps.jsonl"
    made = [run(case, sys.argv[1], place) for case in json.load(sys.stdin)]
    print("RECORDINGS" + json.dumps(made))
