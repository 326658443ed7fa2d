"""Live vLLM and SGLang engines, model and all, on random workloads: the simulated schedulers make every decision.

    RIDGELINE_VLLM=/path/to/python-with-vllm RIDGELINE_SGLANG=/path/to/python-with-sglang \
        python -m pytest -m real tests/real

Each variable names the Python of an environment of its own; tests of an absent one are skipped. How the engines are
installed on a machine without an accelerator stands in docs/how-to/check-against-live-engines.md. They are run in a
network namespace that has loopback alone, for SGLang opens a socket on every interface.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ridgeline.serving.replay import read_recording, replay

VLLM, SGLANG = os.environ.get("RIDGELINE_VLLM", ""), os.environ.get("RIDGELINE_SGLANG", "")
SEED = int(os.environ.get("RIDGELINE_SEED", "1"))
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 32000,
    "max_position_embeddings": 8192, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": None,
    "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip
QUIET = {
    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16",
    "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}  # fmt: skip
ALONE = ("unshare", "-rn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")

VLLM_BASE: dict[str, Any] = {
    "block_size": 32, "num_blocks": 24, "max_model_len": 512, "max_num_seqs": 8, "max_num_batched_tokens": 128,
    "enable_prefix_caching": True, "enable_chunked_prefill": True, "policy": "fcfs",
    "long_prefill_token_threshold": 0, "scheduler_reserve_full_isl": True,
}  # fmt: skip
VLLM_CHANGES: dict[str, dict[str, Any]] = {
    "prefixes": {},
    "priority": {"policy": "priority", "num_blocks": 18},
    "threshold": {"long_prefill_token_threshold": 48, "max_num_batched_tokens": 96},
    "no-cache": {"enable_prefix_caching": False, "num_blocks": 17, "scheduler_reserve_full_isl": False},
    "stops": {},
}
SGLANG_BASE: dict[str, Any] = {
    "max_total_tokens": 1200, "max_running_requests": 12, "chunked_prefill_size": 256, "page_size": 1,
    "ignore_eos": True, "schedule_policy": "fcfs", "disable_overlap_schedule": True,
}  # fmt: skip
SGLANG_CHANGES: dict[str, dict[str, Any]] = {
    "prefixes": {},
    "longest-prefix": {"schedule_policy": "lpm"},
    "pages": {"page_size": 16, "max_total_tokens": 1280},
    "no-cache": {"disable_radix_cache": True},
    "retraction": {"ignore_eos": False, "schedule_conservativeness": 0.1},
    "priority": {"enable_priority_scheduling": True, "disable_priority_preemption": True},
    "preemption": {"enable_priority_scheduling": True, "max_running_requests": 4},
    "stops": {"ignore_eos": False},
    "overlap": {"disable_overlap_schedule": False},
    "overlap-pages": {"disable_overlap_schedule": False, "page_size": 16, "max_total_tokens": 1280},
    "overlap-retraction": {"disable_overlap_schedule": False, "ignore_eos": False, "schedule_conservativeness": 0.1},
    "overlap-stops": {"disable_overlap_schedule": False, "ignore_eos": False},
    "overlap-no-cache": {"disable_overlap_schedule": False, "disable_radix_cache": True},
}
STOPS = 900  # token ids that end an answer, of 32,000


def requests(seed: int, *, stops: bool) -> list[dict[str, Any]]:
    """Prompts that share prefixes, answers of any length, pauses between them; more than the pool holds."""
    dice = random.Random(seed)
    rows: list[dict[str, Any]] = []
    at = 0
    for index in range(40):
        at += dice.randrange(4)
        row = {
            "id": f"r{index}", "arrival_step": at, "pause_ms": dice.choice([0, 0, 0, 5, 20]),
            "prompt": [[900 + dice.randrange(3), 64], [index, dice.randrange(1, 200)]],
            "max_tokens": dice.randrange(1, 90), "priority": dice.choice([0, 5, 40]),
        }  # fmt: skip
        rows.append(row | {"stops": STOPS} if stops else row)
    return rows


def recorded(python: str, driver: str, folder: Path, config: dict[str, Any], *, stops: bool) -> Path:
    """What a live engine decided, as a recording in a file."""
    (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    command = [python, str(Path(__file__).with_name(driver)), str(folder)]
    if shutil.which("unshare"):
        command = [*ALONE, *command]
    done = subprocess.run(
        command, input=json.dumps([{"config": config, "requests": requests(SEED, stops=stops)}]),
        capture_output=True, text=True, env={**os.environ, **QUIET}, timeout=400, check=False,
    )  # fmt: skip
    assert "RECORDINGS" in done.stdout, done.stderr[-2000:]
    [made] = json.loads(done.stdout.rpartition("RECORDINGS")[2])
    path = folder / "recording.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    return path


@pytest.mark.real
@pytest.mark.skipif(not VLLM, reason="RIDGELINE_VLLM names no Python with vLLM")
@pytest.mark.parametrize("case", VLLM_CHANGES)
def test_every_decision_of_a_live_vllm(case: str, tmp_path: Path) -> None:
    config = VLLM_BASE | VLLM_CHANGES[case]
    found = replay(read_recording(recorded(VLLM, "drive_vllm_live.py", tmp_path, config, stops="stops" in case)))
    assert found.first_difference is None, (config, found.first_difference)
    assert found.steps > 100


@pytest.mark.real
@pytest.mark.skipif(not SGLANG, reason="RIDGELINE_SGLANG names no Python with SGLang")
@pytest.mark.parametrize("case", SGLANG_CHANGES)
def test_every_decision_of_a_live_sglang(case: str, tmp_path: Path) -> None:
    config = SGLANG_BASE | SGLANG_CHANGES[case]
    found = replay(read_recording(recorded(SGLANG, "drive_sglang_live.py", tmp_path, config, stops="stops" in case)))
    assert found.first_difference is None, (config, found.first_difference)
    assert found.steps > 100
