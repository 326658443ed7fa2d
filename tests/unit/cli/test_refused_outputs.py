"""A file that an answer cannot fill is refused with exit code 2; nothing is silently left unwritten."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ridgeline.cli.main import main

SERVE = ("examples/serve-llama3.1-8b-1xh100.toml", "--set", "workload.requests=20")


@pytest.mark.parametrize(
    ("words", "option", "given"),
    [
        (("diff", "docs/bringup/cpu.json", "docs/bringup/h200-eager.json", "--html"), "--html", "reports of bring-up"),
        (("analyze", "tests/data/h200/ncu-raw.csv.gz", "--html"), "--html", "counters of kernels"),
        (("validate", "--next", "examples/llama3.2-1b-1xh200.toml", "--html"), "--html", "what would make it surer"),
        (("explain", *SERVE, "-o"), "--output", "drop -o"),
        (("collective", "list", "-o"), "--output", "drop it from list"),
        (("collective", "list", "--picture"), "--picture", "drop it from list"),
        (("run", "examples/tiny-2xcpu.toml", "--dry", "-o"), "--output", "--dry starts none"),
        (("timeline", *SERVE, "-o"), "-o", "--html FILE: requests over time"),
        (("fit", "-o"), "-o", "--with RUN"),
    ],
)
def test_an_output_without_a_use_is_refused(
    words: tuple[str, ...], option: str, given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    target = tmp_path / "out.svg"
    monkeypatch.setattr(sys, "argv", ["ridgeline", *words, str(target)])
    with pytest.raises(SystemExit) as ended:
        main()
    message = capsys.readouterr().err
    assert ended.value.code == 2, message
    assert option in message
    assert given in message
    assert not target.exists()
