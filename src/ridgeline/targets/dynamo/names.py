"""Dynamo's words: which module wraps which engine, routers, roles, and where a deployment keeps them."""

from __future__ import annotations

ID = "dynamo"
FILE = "deployment.yaml"
WORKER = "worker.sh"

MODULES = {"vllm": "dynamo.vllm", "sglang": "dynamo.sglang", "tensorrt-llm": "dynamo.trtllm"}
RUNTIMES = {"vllm": "vllm-runtime", "sglang": "sglang-runtime", "tensorrt-llm": "tensorrtllm-runtime"}
MODEL_OPTION = {"vllm": "--model", "sglang": "--model-path", "tensorrt-llm": "--model"}
ROUTERS = {"round-robin": "round-robin", "least-loaded": "least-loaded", "prefix-aware": "kv"}
FIELDS = "--override-engine-args"  # of a TensorRT-LLM worker: the fields of its YAML as a JSON object
KINDS = {"both": "worker", "prefill": "prefill", "decode": "decode"}
