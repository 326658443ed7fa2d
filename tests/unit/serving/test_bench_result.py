"""Detailed results of load generators: read, measured by the generator's own definitions, and taken apart."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run

from ridgeline.core.errors import InputError
from ridgeline.serving.bench_result import analyze_bench, is_bench_result, read_bench_runs

LIVE = Path(__file__).parents[4] / "shared" / "serving" / "golden"


def result(**changes: Any) -> dict[str, Any]:
    """Three requests of a vLLM result, one second apart; the last stands in a queue and stalls once."""
    made = {
        "endpoint_type": "openai", "model_id": "tiny", "request_rate": 1.0, "max_concurrency": None, "duration": 4.0,
        "request_throughput": 0.75, "input_lens": [10, 20, 30], "output_lens": [3, 1, 3], "errors": ["", "", ""],
        "start_times": [100.0, 101.0, 101.1], "ttfts": [0.1, 0.2, 0.5], "latencies": [0.12, 0.2, 0.61],
        "itls": [[0.01, 0.01], [], [0.01, 0.1]],
    }  # fmt: skip
    return {**made, **changes}


def written(folder: Path, *documents: Any) -> Path:
    path = folder / "result.json"
    path.write_text("\n".join(json.dumps(one) for one in documents), encoding="utf-8")
    return path


def test_metrics_and_parts_by_hand(tmp_path: Path) -> None:
    [run] = read_bench_runs(written(tmp_path, result()))
    found = analyze_bench(run)
    assert found.metrics.ttft.median == 0.2
    assert found.metrics.tpot.mean == pytest.approx((0.01 + 0.055) / 2)  # the answer of one token has none
    assert (found.metrics.requests_per_s, run.most_in_flight) == (0.75, 2)
    assert found.pace_s == 0.01
    assert found.time["pace"] == pytest.approx(0.04 / 3)
    assert found.time["slower"] == pytest.approx(0.02 / 3)
    assert found.time["stalled"] == pytest.approx(0.07 / 3)
    assert sum(found.time.values()) == pytest.approx(found.metrics.e2e.mean)


def test_a_lone_prompt_is_told_from_waiting(tmp_path: Path) -> None:
    """TTFT of 5 ms and 1 ms a token, alone; two more requests sent together wait for each other."""
    prompts = [10 * (1 + at % 5) for at in range(12)]
    ttfts = [0.005 + tokens / 1000 for tokens in prompts]
    starts = [float(at) for at in range(12)]
    starts[11], ttfts[11] = starts[10] + 0.001, ttfts[11] + 0.3
    table = result(
        input_lens=prompts, output_lens=[1] * 12, errors=[""] * 12, itls=[[]] * 12, ttfts=ttfts, latencies=ttfts,
        start_times=starts,
    )  # fmt: skip
    found = analyze_bench(read_bench_runs(written(tmp_path, table))[0])
    assert found.alone == 10
    assert found.time["waited"] == pytest.approx(0.3 / 12)


def test_lines_of_sglang_are_runs(tmp_path: Path) -> None:
    line = {key: value for key, value in result().items() if key not in ("start_times", "latencies", "endpoint_type")}
    first, second = read_bench_runs(written(tmp_path, line, line))
    assert (first.tool, first.source, second.source) == ("sglang.bench_serving", "result.json:1", "result.json:2")
    assert first.sent_s is None
    assert first.e2e_s == pytest.approx([0.12, 0.2, 0.61])
    assert "first-token" in analyze_bench(first).time


def test_failed_requests_are_counted_and_left_out(tmp_path: Path) -> None:
    [run] = read_bench_runs(written(tmp_path, result(errors=["", "refused", ""])))
    assert (run.requests, run.failed) == (2, 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ttfts": [0.1]}, "lists of different lengths"),
        ({"ttfts": [0.1, -1, 0.2]}, "ttfts"),
        ({"ttfts": [0.1, 1e300, 0.2]}, "ttfts"),
        ({"itls": [[0.1], "x", []]}, "itls"),
        ({"itls": [[0.1], [None], []]}, "itls"),
        ({"input_lens": [10, 0, 30]}, "input_lens"),
        ({"latencies": [1.0]}, "latencies of another length"),
        ({"errors": ["no"] * 3}, "no request was answered"),
        ({"ttfts": None}, "--save-detailed"),
    ],
)
def test_a_wrong_result_is_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        read_bench_runs(written(tmp_path, result(**change)))
    assert told in str(caught.value)


def test_analyze_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, result())
    assert is_bench_result(path)
    code, out, _ = run(capsys, monkeypatch, "analyze", str(path), "--json")
    sheet = json.loads(out)
    assert (code, sheet["kind"], sheet["medians"]["ttft_s"]) == (0, "bench", 0.2)
    assert "TTFT" in run(capsys, monkeypatch, "analyze", str(path))[1]
    assert run(capsys, monkeypatch, "analyze", str(written(tmp_path, result(ttfts=None))))[0] == 2


@pytest.mark.skipif(not LIVE.exists(), reason="no recorded results here")
def test_the_figures_are_those_that_vllm_printed() -> None:
    path = LIVE / "live" / "pcoff_r8.json.gz"
    [run] = read_bench_runs(path)
    found = analyze_bench(run).metrics
    told = json.loads(gzip.decompress(path.read_bytes()))
    for name, metric in (("ttft", found.ttft), ("tpot", found.tpot), ("itl", found.itl), ("e2el", found.e2e)):
        ours = [metric.mean, metric.median, metric.std, metric.percentiles[99.0]]
        assert np.allclose(ours, [told[f"{what}_{name}_ms"] / 1000 for what in ("mean", "median", "std", "p99")])
