"""Run a command line in this process: what it prints and the code it ends with."""

from __future__ import annotations

import sys

import pytest

from ridgeline.cli.main import main


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of `ridgeline ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["ridgeline", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    out, err = capsys.readouterr()
    code = caught.value.code
    return (code if isinstance(code, int) else 0), out, err
