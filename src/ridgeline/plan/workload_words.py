"""Turn the names that engines, launchers and papers give to numbers of a workload into the keys that it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ridgeline.core.errors import Problem

BATCH = ("batch_size", "bs", "sequences", "num_seqs", "concurrency", "global_batch")
LENGTH = ("seq_len", "seq_length", "sequence_length", "max_seq_len", "length")
PROMPT = ("isl", "prompt", "prompt_len", "prompt_tokens", "input_len", "input_tokens")
WORDS: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "train": MappingProxyType(
            {
                "seq": (*LENGTH, "context", "context_length"),
                "global_batch": ("batch", "batch_size", "bs", "gbs", "global_batch_size", "sequences"),
                "tokens_per_batch": ("tokens", "batch_tokens", "tokens_per_step"),
            }
        ),
        "prefill": MappingProxyType(
            {
                "seq": (*LENGTH, *PROMPT, "context", "context_length"),
                "batch": BATCH,
                "cached": ("prefix", "prefix_len", "cached_tokens", "kv", "kv_len", "past", "past_len"),
                "chunk": ("chunk_size", "chunked_prefill_size", "max_num_batched_tokens"),
            }
        ),
        "decode": MappingProxyType(
            {
                "context": (*LENGTH, *PROMPT, "seq", "cached", "cached_tokens", "context_length", "context_len", "kv",
                            "kv_len", "cache", "past", "past_len"),
                "batch": BATCH,
            }
        ),
        "serve": MappingProxyType(
            {
                "isl": ("seq", *PROMPT[1:], *LENGTH, "context"),
                "osl": ("output", "output_len", "output_tokens", "completion_tokens"),
                "arrivals.rate": ("rate", "qps", "request_rate"),
                "requests": ("num_prompts", "num_requests"),
            }
        ),
    }
)  # fmt: skip
"""By kind of workload: its own key, and what others call that number."""
MEANINGS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("decode", "context"): "tokens that the cache of a sequence holds already",
        ("prefill", "seq"): "tokens of a whole prompt",
        ("prefill", "cached"): "tokens of a prompt that the prefix cache holds already",
    }
)


def name_keys(kind: object, problems: Iterable[Problem]) -> list[Problem]:
    """The problems, each unknown key of the workload with the one that was probably meant.

    >>> [problem] = name_keys("decode", [Problem(path="workload.cached", given="'cached'", expected="one of context")])
    >>> problem.todo
    "did you mean 'context'? It is the tokens that the cache of a sequence holds already"
    """
    own_words = WORDS.get(kind, {}) if isinstance(kind, str) else {}
    keys = {word: key for key, words in own_words.items() for word in words}
    return [_name_key(problem, str(kind), keys) for problem in problems]


def _name_key(problem: Problem, kind: str, keys: Mapping[str, str]) -> Problem:
    word = problem.path.removeprefix("workload.")
    if word not in keys or problem.given != repr(word):  # the key itself is what is wrong
        return problem
    meaning = MEANINGS.get((kind, keys[word]), "")
    about = f" It is the {meaning}" if meaning else ""
    return replace(problem, todo=f"did you mean {keys[word]!r}?{about}")
