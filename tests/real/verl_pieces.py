"""Measure what a step of verl consists of on this machine, at other shapes than its run: verl_pieces.py FOLDER

Prints one line of JSON: seconds of an engine's batch, of a forward pass and an update of one microbatch, of an
optimizer step, of moving bytes to another process, of a call of a Ray actor, and of verl's own functions for rewards
and advantages. FOLDER has the model that `verl_grpo.py` makes. Every figure is the least of several turns.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import verl_grpo as run

FORWARD = ((2, 60), (4, 60), (8, 60), (4, 120), (2, 240))  # sequences of a microbatch, tokens of each
ENGINE = ((8, 24), (8, 48), (16, 24), (48, 24), (48, 48))  # samples, tokens of each answer
ROWS = (8, 16, 64)  # samples of a batch whose advantages are computed
PARTS = (0.25, 0.5)  # of the model's bytes that are moved
TURNS = 4


def least(work: Callable[[], object], turns: int = TURNS) -> float:
    """Seconds of the fastest of several turns; the first one warms up."""
    work()
    seconds = []
    for _ in range(turns):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def engine_seconds(model: Path) -> list[tuple[int, int, float]]:
    """Batches of vLLM alone: samples, tokens of an answer, seconds."""
    import verl_cpu  # noqa: F401  linear layers as the run has them
    from vllm import LLM, SamplingParams, TokensPrompt

    engine = LLM(
        model=str(model), dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=run.SEQS, block_size=32,
        max_num_batched_tokens=2048, disable_log_stats=True,
    )  # fmt: skip
    answer = []
    for samples, tokens in ENGINE:
        asked = SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False)
        turn = iter(range(10**6))

        def batch(samples: int = samples, asked: Any = asked, turn: Any = turn) -> None:
            seed = next(turn)
            prompts = [
                TokensPrompt(prompt_token_ids=[4 + (seed * 997 + row * 31 + at) % 2000 for at in range(run.PROMPT)])
                for row in range(samples)
            ]
            engine.generate(prompts, asked, use_tqdm=False)

        answer.append((samples, tokens, least(batch)))
    return answer


def trainer_seconds(model: Path) -> dict[str, Any]:
    """Microbatches of the trainer: FSDP2 over one rank, logits, log-probabilities, entropy; an optimizer step."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29471", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("gloo")
    actor = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
    mesh = init_device_mesh("cpu", (1,))
    for layer in actor.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(actor, mesh=mesh)
    optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-6)

    def log_probs(sequences: int, tokens: int, *, entropy: bool) -> Any:
        ids = torch.randint(4, run.WORDS, (sequences, tokens))
        logits = actor(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits.float()
        picked = torch.log_softmax(logits, -1).gather(-1, ids[..., None])[..., 0]
        if entropy:
            shares = torch.softmax(logits, -1)
            return picked, torch.logsumexp(logits, -1) - (shares * logits).sum(-1)
        return picked, None

    def forward(shape: tuple[int, int]) -> None:
        with torch.no_grad():
            log_probs(*shape, entropy=True)

    def update(shape: tuple[int, int]) -> None:
        picked, _ = log_probs(*shape, entropy=False)
        ratio = torch.exp(picked - picked.detach())
        torch.maximum(-ratio, -ratio.clamp(0.8, 1.2)).mean().backward()

    def step() -> None:
        for parameter in actor.parameters():
            parameter.grad = torch.ones_like(parameter)
        begin.append(time.perf_counter())
        torch.nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
        optimizer.step()
        ends.append(time.perf_counter() - begin[-1])
        optimizer.zero_grad()

    begin: list[float] = []
    ends: list[float] = []
    answer = {
        "forward": [(*shape, least(lambda shape=shape: forward(shape))) for shape in FORWARD],
        "update": [(*shape, least(lambda shape=shape: update(shape))) for shape in FORWARD],
    }
    least(step)
    return answer | {"optimizer": min(ends[1:])}


def driver_seconds() -> dict[str, Any]:
    """What verl does between phases, as its own timer counts it, on batches of other sizes and with cold caches."""
    import numpy as np
    import torch
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage
    from verl.trainer.ppo.reward import extract_reward
    from verl.utils.debug import marked_timer

    other = np.zeros(1 << 22)

    def batch(rows: int) -> Any:
        scores = torch.zeros(rows, run.ANSWER)
        scores[:, -1] = torch.rand(rows)
        uid = np.array([f"{place // run.SAMPLES}-{time.perf_counter_ns()}" for place in range(rows)], dtype=object)
        tensors = {"response_mask": torch.ones(rows, run.ANSWER), "rm_scores": scores}
        return DataProto.from_dict(tensors, non_tensors={"uid": uid}, meta_info={"reward_extra_keys": []})

    def turn(rows: int) -> tuple[float, float]:
        data, timing = batch(rows), {}
        other.sum()
        with marked_timer("reward", timing, color="yellow"):
            scores, _ = extract_reward(data)
        other.sum()
        with marked_timer("adv", timing, color="brown"):
            data.batch["token_level_scores"] = scores
            data.batch["token_level_rewards"] = data.batch["token_level_scores"]
            compute_advantage(data, adv_estimator="grpo", gamma=1.0, lam=1.0, num_repeat=run.SAMPLES)
        return timing["reward"], timing["adv"]

    turns = {rows: [turn(rows) for _ in range(30)] for rows in ROWS}
    return {
        "advantages": [(rows, float(np.median([adv for _, adv in turns[rows]]))) for rows in ROWS],
        "rewards": float(np.median([reward for reward, _ in turns[ROWS[1]]])),
    }


def _receive(handle: str) -> None:
    import torch
    import verl_cpu  # noqa: F401
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

    own: dict[str, torch.Tensor] = {}

    def load(weights: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
        for name, tensor in weights:
            own.setdefault(name, torch.empty_like(tensor)).copy_(tensor)

    while True:
        BucketedWeightReceiver(zmq_handle=handle, device=torch.device("cpu"), use_shm=True).receive_weights(
            on_bucket_received=load
        )


def transfer_seconds(model: Path) -> list[tuple[float, int, float]]:
    """Weights on their way to another process by verl's own buckets: bytes, tensors, seconds."""
    import asyncio

    import torch
    from safetensors.torch import load_file
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    weights = load_file(next(model.glob("*.safetensors")))
    handle = f"ipc:///tmp/pieces-{os.getpid()}.sock"
    receiver = get_context("spawn").Process(target=_receive, args=(handle,), daemon=True)
    receiver.start()
    answer = []
    for part in PARTS:
        names = list(weights)[: max(int(len(weights) * part), 1)]
        size = sum(weights[name].nbytes for name in names)

        async def pairs(names: list[str] = names) -> Any:
            for name in names:
                yield name, weights[name]

        def send(pairs: Any = pairs) -> None:
            sender = BucketedWeightSender(zmq_handle=handle, bucket_size_mb=run.BUCKET_MB, use_shm=True)
            asyncio.run(sender.async_send_weights(pairs()))

        answer.append((size, len(names), least(send)))
    receiver.terminate()
    del torch
    return answer


def call_seconds(folder: Path) -> dict[str, float]:
    """A call of a Ray actor that does nothing, and one that takes and returns a batch of the run's size."""
    import ray
    import torch

    ray.init(num_cpus=1, include_dashboard=False, _temp_dir=str(folder / "p"), object_store_memory=200_000_000)

    @ray.remote
    class Echo:
        def call(self, value: object) -> object:
            return value

    echo = Echo.remote()
    rows = run.PROMPTS * run.SAMPLES
    batch = {f"column {place}": torch.zeros(rows, run.PROMPT + run.ANSWER) for place in range(6)}
    answer = {
        "call": least(lambda: ray.get(echo.call.remote(None)), 50),
        "batch_call": least(lambda: ray.get(echo.call.remote(batch)), 20),
    }
    ray.shutdown()
    return answer


def part(name: str, folder: Path) -> Any:
    """One part, in a process of its own."""
    if name == "engine":
        return engine_seconds(folder / "model")
    if name == "trainer":
        return trainer_seconds(folder / "model")
    if name == "transfer":
        return transfer_seconds(folder / "model")
    return driver_seconds() if name == "driver" else call_seconds(folder)


PARTS_MEASURED = ("trainer", "engine", "transfer", "driver", "calls")


def main(folder: Path, names: list[str]) -> int:
    if not (folder / "model").exists():
        run.make_model(folder / "model")
    os.environ.update(run.environment(folder))
    if len(names) == 1:
        print("PIECE " + json.dumps({names[0]: part(names[0], folder)}), flush=True)
        return 0
    import subprocess

    found: dict[str, Any] = {}
    for name in PARTS_MEASURED:
        command = [sys.executable, __file__, str(folder), name]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=900, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("PIECE ")]
        if not lines:
            print(done.stdout[-2000:], done.stderr[-4000:], file=sys.stderr)
            return 1
        found |= json.loads(lines[-1].removeprefix("PIECE "))
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
