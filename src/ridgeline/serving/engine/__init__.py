"""Schedulers of vLLM, SGLang and TensorRT-LLM: which requests run in a step."""
