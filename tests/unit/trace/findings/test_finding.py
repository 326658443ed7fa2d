"""Advice fits the software and the chip a trace was recorded of."""

from __future__ import annotations

import pytest

from ridgeline.trace.findings.finding import Software, advice, software_of
from ridgeline.trace.timeline import Span, Timeline


def named(*names: str) -> Timeline:
    return Timeline.of(
        Span(process="chip 0", stream="7", name=name, kind="kernel", start_ns=place, duration_ns=1)
        for place, name in enumerate(names)
    )


@pytest.mark.parametrize(
    ("names", "topic", "says"),
    [
        (("vllm::reshape_and_cache_flash_kernel",), "launch", "enforce-eager"),
        (("sgl_kernel::rmsnorm",), "launch", "disable-cuda-graph"),
        (("Cijk_Ailk_Bljk_BBS_MT64x32x64",), "products", "hipBLASLt"),
        (("jit_train_step", "PjitFunction(f)"), "launch", "command buffers"),
        (("Torch-Compiled Region: 0/0",), "launch", "cpp_wrapper"),
        (("cudaLaunchKernel",), "launch", "CUDA graphs"),
        (("sgl_kernel::rmsnorm",), "overlap", "two-batch"),
        (("jit_train_step", "PjitFunction(f)"), "overlap", "latency-hiding"),
        (("Default/network/AllReduce-op1",), "overlap", "comm_fusion"),
    ],
)
def test_names_tell_the_software(names: tuple[str, ...], topic: str, says: str) -> None:
    assert says in software_of(named(*names), None).says(topic)


def test_every_topic_has_words_for_anybody() -> None:
    topics = {topic: words for topic, words in advice().items() if topic not in ("cures", "overlaps", "copies")}
    assert all(words.get("") for words in topics.values())
    assert all(Software().says(topic) == words[""] for topic, words in topics.items())


def test_an_old_chip_has_no_bf16() -> None:
    assert not software_of(named("volta_sgemm_128x64_nn"), None).bf16
    assert software_of(named("ampere_sgemm_128x64_nn"), None).bf16
