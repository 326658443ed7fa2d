"""The simulated scheduler makes every recorded decision, and recordings that are not one are refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.core.errors import InputError
from ridgeline.serving.replay import Replay, read_recording

OWN = sorted((Path(__file__).parents[2] / "data" / "serving").glob("*.json.gz"))
SHARED = Path(__file__).parents[4] / "shared" / "serving" / "golden"
GOLDEN = sorted(path for path in SHARED.rglob("*.json*.gz") if "harness" in path.name or path.parent == SHARED)
LIVE = [SHARED / "live" / name for name in ("live9.jsonl.gz", "sched_pcoff.jsonl.gz")]


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_every_decision_is_the_recorded_one(path: Path) -> None:
    found = Replay.of(path)
    assert found.steps > 50
    assert (found.differing_steps, found.first_difference) == (0, None)


@pytest.mark.skipif(not GOLDEN, reason="no ../shared/serving beside the checkout")
@pytest.mark.parametrize("path", [*GOLDEN, *LIVE], ids=lambda path: path.name)
def test_shared_recordings(path: Path) -> None:
    found = Replay.of(path)
    assert (found.differing_steps, found.first_difference) == (0, None)


def altered(tmp_path: Path, change: Any) -> Path:
    document = json.loads(gzip.decompress(OWN[0].read_bytes()))
    change(document)
    path = tmp_path / "altered.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize("field", ["free_blocks", "free_blocks_after"])
def test_a_changed_count_is_found(tmp_path: Path, field: str) -> None:
    def change(document: Any) -> None:
        document["steps"][7][field] += 1

    found = Replay.of(altered(tmp_path, change))
    assert found.differing_steps == 1
    assert found.first_difference is not None
    assert (found.first_difference.step, found.first_difference.field) == (7, field)


def test_order_counts(tmp_path: Path) -> None:
    def change(document: Any) -> None:
        step = next(step for step in document["steps"] if len(step["scheduled"]) > 1)
        step["scheduled"] = dict(reversed(step["scheduled"].items()))

    found = Replay.of(altered(tmp_path, change))
    assert found.differing_steps == 1
    assert found.first_difference is not None
    assert found.first_difference.field == "scheduled"


def test_a_smaller_pool_decides_otherwise(tmp_path: Path) -> None:
    def change(document: Any) -> None:
        document["config"]["num_blocks"] -= 2

    assert Replay.of(altered(tmp_path, change)).differing_steps > 0


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("config", "num_blocks"), 10**15),
        (("config", "block_size"), 0),
        (("config", "block_size"), "16"),
        (("config", "watermark"), float("nan")),
        (("config", "policy"), "random"),
        (("requests",), []),
        (("requests", 0, "prompt"), [[1, -5]]),
        (("requests", 0, "prompt"), [[1, 1e9]]),
        (("requests", 0, "prompt"), [[1, 2**29]] * 64),
        (("requests", 0, "max_tokens"), True),
        (("requests", 1, "id"), "r0"),
        (("steps",), {}),
        (("steps", 0), None),
    ],
)
def test_hostile_values_are_refused(tmp_path: Path, place: tuple[Any, ...], value: object) -> None:
    def change(document: Any) -> None:
        for key in place[:-1]:
            document = document[key]
        document[place[-1]] = value

    with pytest.raises(InputError, match="expected"):
        read_recording(altered(tmp_path, change))


@pytest.mark.parametrize(
    "content", [b"{", b"{}", b'{"a": 1}\n[2]', b'{"config": {}, "requests": [], "steps": 3}', b"{" * 100_000]
)
def test_other_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_recording(path)


def test_a_case_that_never_ends_is_cut_where_the_recording_ends(tmp_path: Path) -> None:
    def change(document: Any) -> None:
        document["requests"][0]["prompt"] = [[1, 200_000]]  # never fits
        document["config"]["max_model_len"] = 400_000

    assert Replay.of(altered(tmp_path, change)).differing_steps > 0


def test_a_log_by_ids_of_its_own_is_the_case_in_the_order_it_came(tmp_path: Path) -> None:
    """An engine that is given no ids makes some up; lines of a log may follow their case."""
    source = next(one for one in OWN if one.name == "sglang_retraction.json.gz")
    document = json.loads(gzip.decompress(source.read_bytes()))
    names = {row["id"]: f"{place:032x}" for place, row in enumerate(document["requests"])}
    steps = json.dumps(document.pop("steps"))
    for name, other in names.items():
        steps = steps.replace(f'"{name}"', f'"{other}"')
    del document["sglang"]
    path = tmp_path / "log.jsonl"
    lines = [json.dumps(document), *(json.dumps(step) for step in json.loads(steps))]
    path.write_text("\n".join(lines), encoding="utf-8")
    found = Replay.of(path)
    assert (found.engine, found.steps > 50, found.first_difference) == ("sglang", True, None)
