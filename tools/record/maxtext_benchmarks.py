"""Record the named benchmarks of MaxText from its own checkout; nothing of it is run.

    python -m tools record maxtext-benchmarks CHECKOUT > src/ridgeline/targets/dialects/maxtext/benchmarks.toml

A script of `benchmarks.benchmark_runner` says little more than a name; what the name stands for is kept in MaxText's
`benchmarks/maxtext_*_model_configs.py`, as calls of MaxTextModel with literal options. Kept are the options that decide
the step.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ridgeline.targets.dialects.maxtext.write import CONTEXT, INPUT, OTHERS, PROJECTIONS, WIDE

KEPT = (
    "per_device_batch_size", "max_target_length", "remat_policy", "gradient_accumulation_steps", "quantization",
    "dtype", "weight_dtype", "opt_type", "attention", "num_experts", "num_experts_per_tok", "megablox",
    "sparse_matmul", "capacity_factor", "global_parameter_scale", "shard_optimizer_over_data",
    "optimizer_memory_host_offload", "packing", "base_num_decoder_layers", "base_emb_dim", "base_mlp_dim",
    "base_num_query_heads", "base_num_kv_heads", "head_dim", "vocab_size", "decoder_block",
    "num_pipeline_microbatches", "num_layers_per_pipeline_stage", "mtp_num_layers", "allow_split_physical_axes",
    "custom_mesh", "context_parallel_strategy", "use_ring_of_experts",
    INPUT, *PROJECTIONS, *WIDE, *CONTEXT, *OTHERS,
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkout", type=Path)


def run(arguments: argparse.Namespace) -> int:
    """Print the table of a checkout."""
    folder = arguments.checkout / "benchmarks"
    print("# the named benchmarks of MaxText, as benchmarks/maxtext_*_model_configs.py defines them")
    print("# python -m tools record maxtext-benchmarks CHECKOUT")
    for path in sorted(folder.glob("maxtext_*_model_configs.py")):
        for name, options in benchmarks(path):
            row = ", ".join(f"{key} = {json.dumps(value)}" for key, value in sorted(options.items()))
            print(f"{json.dumps(name)} = {{ {row} }}")
    return 0


def benchmarks(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every benchmark of a file by the name that the runner knows it by, with the options that decide its step."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "MaxTextModel":
            keywords = {word.arg: word.value for word in node.keywords}
            name = ast.literal_eval(keywords["model_name"]).replace("-", "_")
            options = dict(literals(keywords["tuning_params"]))
            yield name, {"model_name": ast.literal_eval(keywords["model_type"]), **options}


def literals(node: ast.expr) -> Iterator[tuple[str, Any]]:
    """The options of a dictionary that are kept and whose values stand there."""
    assert isinstance(node, ast.Dict)
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant) and (key.value in KEPT or str(key.value).endswith("_parallelism")):
            yield str(key.value), ast.literal_eval(value)
