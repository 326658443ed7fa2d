"""Exports to serving engines against the engines' own argument parsers: vLLM's and SGLang's, in environments of theirs.

    RIDGELINE_VLLM=/path/to/python-with-vllm RIDGELINE_SGLANG=/path/to/python-with-sglang \
        python -m pytest tests/real/test_target_engines.py

The words of launch.sh are what a shell passes on. The parser takes them all, and its values are the plan's; the names
in `targets/options` are the parser's, none more and none less. The recorded lists cover the default run.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.api import export
from ridgeline.targets.options import options

PYTHON = {"vllm": os.environ.get("RIDGELINE_VLLM", ""), "sglang": os.environ.get("RIDGELINE_SGLANG", "")}
QUIET = {
    "HF_HUB_OFFLINE": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16", "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
PARSE = {
    "vllm": (
        "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
        "from vllm.entrypoints.launchers.cli_args import make_arg_parser\n"
        "parser = make_arg_parser(FlexibleArgumentParser())\n"
    ),
    "sglang": (
        "import argparse\nfrom sglang.srt.server_args import ServerArgs\n"
        "parser = argparse.ArgumentParser()\nServerArgs.add_cli_args(parser)\n"
    ),
}
READ = (
    "import json, sys\n"
    "out = []\n"
    "for words in json.load(sys.stdin):\n"
    "    out.append({key: str(value) for key, value in vars(parser.parse_args(words)).items()})\n"
    "print('PARSED' + json.dumps(out))\n"
)
WORK = {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 4}, "isl": 512, "osl": 64}
FP8 = {"compute": "fp8-e4m3", "weights": "fp8-e4m3", "kv": "fp8-e4m3", "scaling": "block"}
PLANS: dict[str, tuple[tuple[str, dict[str, Any], dict[str, str]], ...]] = {
    "vllm": (
        ("llama3-8b", {"tp": 2, "pp": 2}, {"tensor_parallel_size": "2", "pipeline_parallel_size": "2"}),
        ("llama3-8b", {"precision": FP8}, {"quantization": "fp8_per_block", "kv_cache_dtype": "fp8_e4m3"}),
        ("llama3-8b", {"graph": "none"}, {"enforce_eager": "True"}),
        ("llama3-8b", {"graph": "partial"}, {}),
        ("llama3-8b", {"speculation": {"draft": "ngram", "draft_tokens": 3}}, {}),
        ("llama3-8b", {"serving": {"replicas": 8, "router": "least-loaded"}}, {"data_parallel_size": "8"}),
        ("qwen3-30b-a3b", {"tp": 2, "ep": 8, "serving": {"data_parallel_size": 4}, "moe_dispatch": "deepep"},
         {"enable_expert_parallel": "True", "data_parallel_size": "4", "all2all_backend": "deepep_low_latency"}),
        ("llama3-8b", {"serving": {"vllm": {
            "max_num_batched_tokens": 4096, "max_num_seqs": 77, "max_model_len": 4096, "block_size": 32,
            "gpu_memory_utilization": 0.8, "num_gpu_blocks_override": 999, "enable_prefix_caching": False,
            "enable_chunked_prefill": False, "scheduling_policy": "priority", "long_prefill_token_threshold": 64,
            "async_scheduling": True}}},
         {"max_num_batched_tokens": "4096", "max_num_seqs": "77", "max_model_len": "4096", "block_size": "32",
          "gpu_memory_utilization": "0.8", "num_gpu_blocks_override": "999", "enable_prefix_caching": "False",
          "enable_chunked_prefill": "False", "scheduling_policy": "priority", "long_prefill_token_threshold": "64",
          "async_scheduling": "True"}),
    ),
    "sglang": (
        ("llama3-8b", {"tp": 2, "pp": 2}, {"tp_size": "2", "pp_size": "2"}),
        ("llama3-8b", {"precision": FP8}, {"quantization": "fp8", "kv_cache_dtype": "fp8_e4m3"}),
        ("llama3-8b", {"graph": "none", "compiled": True}, {"disable_cuda_graph": "True"}),
        ("llama3-8b", {"serving": {"replicas": 8}}, {"dp_size": "8", "load_balance_method": "round_robin"}),
        ("qwen3-30b-a3b", {"tp": 2, "ep": 8, "serving": {"data_parallel_size": 4}, "moe_dispatch": "deepep"},
         {"tp_size": "8", "dp_size": "4", "enable_dp_attention": "True", "ep_size": "8", "moe_a2a_backend": "deepep"}),
        ("llama3-8b", {"speculation": {"draft": "ngram", "draft_tokens": 3}}, {"speculative_algorithm": "NGRAM"}),
        ("llama3-8b", {"serving": {"sglang": {
            "chunked_prefill_size": 4096, "max_prefill_tokens": 8192, "max_running_requests": 99,
            "max_total_tokens": 50000, "mem_fraction_static": 0.7, "page_size": 16, "disable_radix_cache": True,
            "schedule_policy": "lpm", "schedule_conservativeness": 0.5}}},
         {"chunked_prefill_size": "4096", "max_prefill_tokens": "8192", "max_running_requests": "99",
          "max_total_tokens": "50000", "mem_fraction_static": "0.7", "page_size": "16", "disable_radix_cache": "True",
          "schedule_policy": "lpm", "schedule_conservativeness": "0.5"}),
    ),
}  # fmt: skip


def made(engine: str, model: str, plan: dict[str, Any]) -> Scenario:
    table = {"model": model, "system": "8xb200-sxm", "workload": WORK, "plan": {"engine": engine, **plan}}
    return ridgeline.scenario(table)


def words_of(script: str, folder: Path) -> list[str]:
    """What the script passes to the program, as a shell has it."""
    for program in ("vllm", "python3"):
        fake = folder / program
        fake.write_text("#!/bin/bash\nprintf '%s\\0' \"$@\"\n", encoding="utf-8")
        fake.chmod(0o755)
    (folder / "launch.sh").write_text(script, encoding="utf-8")
    path = {"PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "launch.sh"], cwd=folder, env=path, capture_output=True, check=True)
    words = done.stdout.decode().split("\0")[:-1]
    return words[1:] if words[0] == "serve" else words[2:]  # behind `vllm serve`, or `-m sglang.launch_server`


def parsed(engine: str, lines: list[list[str]]) -> list[dict[str, str]]:
    """The engine's own parser on each command line."""
    done = subprocess.run(
        [PYTHON[engine], "-c", PARSE[engine] + READ], input=json.dumps(lines), capture_output=True, text=True,
        env={**os.environ, **QUIET, "PYTHONPATH": ""}, timeout=300, check=False,
    )  # fmt: skip
    assert "PARSED" in done.stdout, done.stderr[-2000:]
    found: list[dict[str, str]] = json.loads(done.stdout.rpartition("PARSED")[2])
    return found


@pytest.mark.real
@pytest.mark.parametrize("engine", PARSE)
def test_the_engines_parser_takes_every_export(engine: str, tmp_path: Path) -> None:
    if not PYTHON[engine]:
        pytest.skip(f"RIDGELINE_{engine.upper()} names no Python with it")
    cases = PLANS[engine]
    scripts = [export(made(engine, model, plan), to=engine).files["launch.sh"] for model, plan, _ in cases]
    found = parsed(engine, [words_of(script, tmp_path) for script in scripts])
    for (_, plan, expected), values in zip(cases, found, strict=True):
        held = {name: values.get(name) for name in expected}
        assert held == expected, plan


@pytest.mark.real
@pytest.mark.parametrize("engine", PARSE)
def test_the_recorded_names_are_the_parsers(engine: str) -> None:
    if not PYTHON[engine]:
        pytest.skip(f"RIDGELINE_{engine.upper()} names no Python with it")
    done = subprocess.run(
        [PYTHON[engine], "-m", "tools", "record", engine], capture_output=True, text=True,
        cwd=Path(__file__).parents[2], env={**os.environ, **QUIET, "PYTHONPATH": ""}, timeout=300, check=True,
    )  # fmt: skip
    import tomllib

    fresh = tomllib.loads(done.stdout[done.stdout.index("# Names only") :])
    assert fresh["version"] == options(engine).version
    assert set(fresh["flags"]) == options(engine).flags
    assert set(fresh["values"]) == options(engine).values
