"""Op graphs of modules that transformers builds against lowering: the description is proven against PyTorch.

Every configuration whose parameters are proven (`test_transformers_params`) is recorded, forward and backward, and its
flops are held against those that lowering gives the description that Ridgeline reads of the same config.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parent))
from test_transformers_params import CASES  # noqa: E402

from ridgeline.graph import check_lowering  # noqa: E402
from ridgeline.models.hf import from_config  # noqa: E402
from ridgeline.runtime.capture import graph_of_config  # noqa: E402

pytestmark = pytest.mark.slow
WITHIN = 0.005
ELSEWHERE = {
    "gpt-neo-2.7b": "it attends through whole score matrices, the masked half among them",
    "gpt-j-6b": "it attends through whole score matrices, the masked half among them",
    "glm-4.5": "transformers builds no blocks that predict further tokens",
    "deepseek-v3": "transformers builds no blocks that predict further tokens",
    "deepseek-v3-with-biases": "transformers builds no blocks that predict further tokens",
    "deepseek-v4-flash": "transformers builds no blocks that predict further tokens",
    "deepseek-v4-windows": "transformers builds no blocks that predict further tokens",
    "llama-4-scout-text": "transformers runs every expert on every token",
    "llama-4-maverick": "transformers runs every expert on every token",
    "qwen3-next-80b-a3b": "its scan runs as products of chunks, padded",
    "qwen-3.5-35b-a3b": "its scan runs as products of chunks, padded",
    "kimi-linear-48b-a3b": "its scan runs as products of chunks, padded",
    "nemotron-h-8b": "its scan runs as products of chunks, padded",
    "nemotron-h-56b": "its scan runs as products of chunks, padded",
    "nemotron-3-nano-30b-a3b": "its scan runs as products of chunks, padded",
}
"""Configurations whose flops differ by more, and why."""
UNRECORDED = (
    "mpt-30b", "deepseek-v3.2", "glm-5", "glm-5-shared-choice", "gemma-3n-e4b-text", "gemma-3n-e2b-text",
    "gemma-3n-other", "gemma-4-e2b-text", "gemma-4-rows", "mamba2-2.7b", "bamba-9b",
)  # fmt: skip
"""Configurations whose forward needs values, keys of another layer that was cut, or a scan that runs for minutes."""
FAST_ENOUGH = [name for name in CASES if name not in UNRECORDED]


@pytest.mark.parametrize("name", FAST_ENOUGH[: FAST_ENOUGH.index("minimax-text-01") + 1])
def test_flops_are_those_of_lowering(name: str) -> None:
    kind, changes = CASES[name]
    saved = transformers.AutoConfig.for_model(kind, **json.loads(json.dumps(changes))).to_dict()
    config = {**saved, "model_type": kind}
    graph = graph_of_config(config, seq=512, batch=1, name=name)
    check = check_lowering(graph, from_config(config), seq=512, batch=1)
    if name in ELSEWHERE:
        assert check.differences
        return
    assert abs(check.share) <= WITHIN, [(row.part, row.kind, row.phase, row.share) for row in check.differences]
