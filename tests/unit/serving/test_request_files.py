"""Traces of requests: what is read from each form, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ridgeline.core.errors import InputError
from ridgeline.serving.engine.block_pool import ContentIndex
from ridgeline.serving.request_files import read_request_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
)
SHARED = Path(__file__).parents[4] / "shared" / "serving"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    return path


def mooncake(at: int, tokens: int, hashes: list[int]) -> str:
    return json.dumps({"timestamp": at, "input_length": tokens, "output_length": 5, "hash_ids": hashes})


def test_azure(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv.gz"
    path.write_bytes(gzip.compress(AZURE.encode()))
    found = read_request_trace(path)
    assert found.timed
    assert found.lengths == [(4808, 10), (3180, 8)]
    assert found.requests[1].arrival_s == pytest.approx(0.052)


def test_lengths_alone(tmp_path: Path) -> None:
    found = read_request_trace(written(tmp_path, "prompt_len,output_len\n7,3\n5,2\n"))
    assert not found.timed
    assert found.lengths == [(7, 3), (5, 2)]


def test_mooncake_prefixes_are_shared(tmp_path: Path) -> None:
    lines = [mooncake(0, 1200, [1, 2, 3]), mooncake(500, 1100, [1, 2, 9]), mooncake(900, 600, [2, 3])]
    one, two, three = read_request_trace(written(tmp_path, "\n".join(lines))).requests
    assert (one.arrival_s, two.arrival_s, three.arrival_s) == (0.0, 0.5, 0.9)
    assert (one.prompt_tokens, two.prompt_tokens, three.prompt_tokens) == (1200, 1100, 600)
    index = ContentIndex(16)
    chains = [[chain.number for chain, _ in index.spans(request.prompt)] for request in (one, two, three)]
    assert chains[0][:2] == chains[1][:2]
    assert chains[0][2] != chains[1][2]
    assert set(chains[2]).isdisjoint(chains[0])  # block 2 after nothing is not block 2 after block 1


def test_a_bench_result(tmp_path: Path) -> None:
    result = {"input_lens": [9, 8, 7], "output_lens": [4, 0, 2], "start_times": [101.5, 101.0, 100.0], "ttfts": []}
    found = read_request_trace(written(tmp_path, json.dumps(result)))
    assert [(request.arrival_s, request.prompt_tokens) for request in found.requests] == [(0.0, 7), (1.5, 9)]


def test_spaced_columns_and_priorities(tmp_path: Path) -> None:
    text = "timestamp, input_length, output_length, priority\n1.5, 7, 3, 2\n2, 5, 2,\n"
    found = read_request_trace(written(tmp_path, text)).requests
    assert [(one.arrival_s, one.prompt_tokens, one.priority) for one in found] == [(0.0, 7, 2), (0.5, 5, 0)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"input_lens": [1, 2], "output_lens": [1, 1], "start_times": [null, 1.0]}', "request 1 with the time"),
        ('{"input_lens": [1, 2], "output_lens": [1, 1], "start_times": ["a", 1.0]}', "request 1 with the time"),
        ('{"timestamp": 1' + "0" * 400 + ', "input_length": 5, "output_length": 5}\n', "request 1 with the time"),
        ('{"timestamp": true, "input_length": 5, "output_length": 5}\n', "request 1 with the time"),
        ("arrival_s,isl,osl,priority\n0,5,5,high\n", "priority 'high'"),
        ("", "empty"),
        ("ContextTokens,GeneratedTokens\n", "without requests"),
        ("a,b\n1,2\n", "columns"),
        (AZURE + "2023-11-16 18:17:03.0,5,5\n", "never go back"),
        ("arrival_s,isl,osl\n-1,5,5\n", "the time '-1'"),
        ("arrival_s,isl,osl\nnan,5,5\n", "the time 'nan'"),
        ("arrival_s,isl,osl\n1e999,5,5\n", "the time"),
        ("arrival_s,isl,osl\n0,-5,5\n", "isl '-5'"),
        ("arrival_s,isl,osl\n0,5,0\n", "osl '0'"),
        ("arrival_s,isl,osl\n0,99999999999999999999,5\n", "isl"),
        ("arrival_s,isl,osl\n0,5\n", "osl"),
        ('{"timestamp": 0}\n', "without timestamp"),
        (mooncake(5, 9, [1]) + "\n" + mooncake(4, 9, [1]), "never go back"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": ["x"]}', "hash_ids"),
        ('{"input_lens": [1], "output_lens": [1, 2]}', "input_lens"),
        ("{" * 3000, "not JSON"),
    ],
)
def test_bad_traces_are_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_request_trace(written(tmp_path, text))


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/serving beside the checkout")
@pytest.mark.parametrize(
    ("name", "count", "prompt", "output"),
    [("azure2023_code.csv.gz", 8819, 2048, 28), ("mooncake_synthetic.jsonl.gz", 3993, 15325, 149)],
)
def test_published_traces(name: str, count: int, prompt: int, output: int) -> None:
    lengths = read_request_trace(SHARED / name).lengths
    assert len(lengths) == count
    assert round(sum(one for one, _ in lengths) / count) == prompt
    assert round(sum(one for _, one in lengths) / count) == output
