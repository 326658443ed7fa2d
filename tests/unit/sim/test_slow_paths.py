"""A prediction names what of it libraries have no fast kernels for."""

from __future__ import annotations

from typing import Any

from ridgeline import predict, scenario
from ridgeline.sim.prediction import Prediction

MODEL: dict[str, Any] = {
    "hidden": 2048,
    "layers": 4,
    "vocab": 50257,
    "attention": {"heads": 16, "kv_heads": 16, "head_dim": 80},
    "moe": {"experts": 8, "topk": 2, "hidden": 1024},
}


def notes(system: str, engine: str, *settings: str) -> list[str]:
    table = {
        "model": MODEL,
        "system": system,
        "workload": {"seq": 4096, "global_batch": 8},
        "plan": {"dp": 8, "engine": engine},
    }
    made = predict(scenario(table, settings))
    assert isinstance(made, Prediction)
    told = ("not aligned", "run as heads", "one by one")
    return [note for note in made.assumptions if any(words in note for words in told)]


def test_slow_paths_are_named() -> None:
    found = notes("8xh100-sxm", "deepspeed")
    assert found == [
        "logits: rows of 50257 and 2048 elements are not aligned to 16 bytes and miss the matrix unit: "
        "0.93 TFLOP/s a core, as measured on an H200; pad to a multiple of 8",
        "heads of 80 run as heads of 96: attention kernels have no size between",
        "experts are launched one by one: engine deepspeed names no grouped product",
    ]


def test_software_that_pads_and_groups_has_none_of_it() -> None:
    assert notes("8xh100-sxm", "megatron-core", "model.attention.head_dim=128") == []


def test_a_compiler_that_pads_has_no_unaligned_rows() -> None:
    assert notes("8xtpu-v5p", "maxtext", "model.attention.head_dim=128") == []
