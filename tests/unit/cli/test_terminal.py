"""What every answer of the command line has, whatever verb gives it."""

from __future__ import annotations

import json

import pytest
from command import run

from ridgeline.version import SCHEMA_VERSION


@pytest.mark.parametrize(
    "line",
    [
        "predict examples/llama3.2-1b-1xh200.toml --json",
        "predict nosuch.toml --json",
        "show h100-sxm llama3-8b --json",
        "collective allreduce --on 8xh100-sxm --size 1MB --json",
    ],
)
def test_every_json_answer_begins_with_the_version_of_its_keys(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(*line.split())
    answer = json.loads(capsys.readouterr().out)
    for table in answer if isinstance(answer, list) else [answer]:
        assert next(iter(table.items())) == ("schema_version", SCHEMA_VERSION)


def test_a_json_schema_keeps_its_own_keys(capsys: pytest.CaptureFixture[str]) -> None:
    run("schema")
    assert "schema_version" not in json.loads(capsys.readouterr().out)
