"""A key of a workload by another name is refused with the key that it has; every key named exists."""

from __future__ import annotations

from dataclasses import fields

import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.workload import Decode, Prefill, Serve, Train
from ridgeline.plan.workload_words import WORDS

KINDS = {"train": Train, "prefill": Prefill, "decode": Decode, "serve": Serve}


@pytest.mark.parametrize(
    ("kind", "given", "right"),
    [
        ("decode", {"cached": 2048}, "context"),
        ("decode", {"seq": 2048}, "context"),
        ("decode", {"context": 2048, "batch_size": 8}, "batch"),
        ("prefill", {"context": 2048}, "seq"),
        ("prefill", {"seq": 2048, "prefix": 512}, "cached"),
        ("train", {"seq": 2048, "batch": 8}, "global_batch"),
        ("serve", {"qps": 3}, "arrivals.rate"),
    ],
)
def test_the_right_key_is_named(kind: str, given: dict[str, int], right: str) -> None:
    table = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"kind": kind, **given}}
    with pytest.raises(InputError) as refused:
        ridgeline.scenario(table)
    assert f"did you mean {right!r}?" in str(refused.value)


@pytest.mark.parametrize("kind", WORDS)
def test_words_are_no_keys_and_mean_one_each(kind: str) -> None:
    own = {field.name for field in fields(KINDS[kind])}
    words = [word for entries in WORDS[kind].values() for word in entries]
    assert {key.split(".")[0] for key in WORDS[kind]} <= own
    assert not own & set(words)
    assert len(words) == len(set(words))
