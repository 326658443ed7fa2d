"""An installed vLLM's own scheduler on random workloads: the simulated one makes every decision it makes.

RIDGELINE_VLLM=/path/to/python-with-vllm python -m pytest tests/real/test_vllm_scheduler.py
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ridgeline.serving.replay import read_recording, replay

VLLM = os.environ.get("RIDGELINE_VLLM", "")
CASES = 40
FIRST = CASES * (int(os.environ.get("RIDGELINE_SEED", "1")) - 1)
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 128,
    "max_position_embeddings": 8192, "torch_dtype": "float32",
}  # fmt: skip
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}


def workload(seed: int) -> dict[str, Any]:
    """A pool too small for its load, prompts that share prefixes, answers that stop early, and any switch."""
    dice = random.Random(seed)
    block, longest = dice.choice([4, 8, 16, 32]), dice.choice([80, 150, 400])
    chunked, watermark = dice.random() < 0.85, dice.choice([0.0, 0.0, 0.0, 0.05])
    blocks = 1 + -(-(longest + 90) // block) * dice.choice([1, 1, 2, 4]) + dice.randrange(5)
    budget = dice.choice([16, 32, 64, 128, 512]) if chunked else 512
    requests, at = [], 0
    for index in range(dice.choice([5, 15, 40])):
        at += dice.randrange(4)
        shared, own = dice.choice([0, 16, 32, 64]), dice.randrange(1, longest - 63)
        prompt = [[900 + dice.randrange(3), min(shared, longest - own)], [dice.choice([index, index, 77]), own]]
        tokens = dice.randrange(1, 90)
        prompt = [piece for piece in prompt if piece[1] > 0]
        if -(-(sum(piece[1] for piece in prompt) + tokens) // block) + int(watermark * blocks) < blocks:
            requests.append(
                {
                    "id": f"r{index}",
                    "arrival_step": at,
                    "prompt": prompt,
                    "max_tokens": tokens,
                    "output_tokens": dice.randrange(1, tokens + 1) if dice.random() < 0.3 else tokens,
                    "priority": dice.randrange(3),
                }
            )
    config = {
        "block_size": block, "num_blocks": blocks, "max_model_len": 512, "max_num_batched_tokens": budget,
        "max_num_seqs": min(dice.choice([2, 4, 8, 16]), budget), "enable_prefix_caching": dice.random() < 0.7,
        "enable_chunked_prefill": chunked, "policy": dice.choice(["fcfs", "priority"]), "watermark": watermark,
        "long_prefill_token_threshold": dice.choice([0, 0, 24, 64]) if chunked else 0,
        "scheduler_reserve_full_isl": dice.random() < 0.8, "async_depth": dice.choice([1, 2]),
    }  # fmt: skip
    return {"config": config, "requests": requests}


@pytest.mark.real
@pytest.mark.skipif(not VLLM, reason="RIDGELINE_VLLM names no Python with vLLM")
def test_every_decision_of_the_real_scheduler(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    cases = [case for case in map(workload, range(FIRST, FIRST + CASES)) if case["requests"]]
    done = subprocess.run(
        [VLLM, str(Path(__file__).with_name("drive_vllm.py")), str(tmp_path)],
        input=json.dumps(cases), capture_output=True, text=True, env={**os.environ, **QUIET}, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    steps = 0
    for number, recording in enumerate(json.loads(done.stdout[done.stdout.index("[{") :])):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(recording), encoding="utf-8")
        found = replay(read_recording(path))
        assert found.first_difference is None, (number, cases[number]["config"], found.first_difference)
        steps += found.steps
    assert steps > 1000
