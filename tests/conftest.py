"""Property tests draw the same examples every time; `HYPOTHESIS_PROFILE=explore` draws new and more of them.

After a run the reasons of skipped tests are counted.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("COLUMNS", None)  # the workers' own: screens are as wide as for a pipe
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # traces.py and tools, which tests and documentation share

settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were skipped: a line for each reason with how many it concerns."""
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0])):
        terminalreporter.write_line(f"{count:5} skipped: {reason}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(told.removeprefix("Skipped: ").split())
