"""The shared-memory backend on real processes: `make test-shm`, which builds it first (about a minute, once)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ridgeline.core.errors import InputError
from ridgeline.runtime.shm.build import load_extension

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.shm, pytest.mark.skipif(sys.platform != "linux", reason="futexes are Linux's")]


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    from ridgeline.runtime.shm import register

    register()


def run(scenario: str, ranks: int, folder: Path, *, timeout_s: float = 60, wait_for: tuple[int, ...] = (), **more: str):
    """Every rank's exit code; ranks that are not waited for are ended afterwards."""
    own = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **more}
    own["SHM_TIMEOUT"] = str(timeout_s)
    command = [sys.executable, str(Path(__file__).parent / "shm_ranks.py"), scenario]
    processes = []
    for rank in range(ranks):
        with open(folder / f"said{rank}", "wb") as said:
            processes.append(
                subprocess.Popen([*command, str(rank), str(ranks), str(folder)], env=own, stderr=said, stdout=said)
            )
    try:
        return [processes[rank].wait(timeout=300) for rank in wait_for or range(ranks)]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def said(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted(folder.glob("said*")))


@pytest.mark.parametrize(
    ("scenario", "ranks", "more"),
    [
        ("fuzz", 2, {}),
        ("fuzz", 3, {"SHM_SEED": "8", "SHM_CASES": "150"}),
        ("fuzz", 6, {"SHM_SEED": "9", "SHM_CASES": "40"}),  # more ranks than cores, mostly
        ("fuzz", 3, {"SHM_SEED": "10", "SHM_CASES": "60", "RIDGE_SHM_SLOT_BYTES": "4096"}),  # many rounds
        ("fuzz", 2, {"SHM_SEED": "12", "SHM_CASES": "60", "RIDGE_SHM_DIRECT": "0"}),  # slots alone
        ("gloo", 2, {}),
        ("works", 3, {}),
        ("refused", 2, {}),
        ("fsdp", 2, {}),
        ("large", 2, {}),
        ("released", 2, {}),
        ("coalesced", 3, {}),
        ("reads_peers", 2, {}),
        ("reads_peers", 3, {"RIDGE_SHM_SLOT_BYTES": "65536"}),
    ],
)
def test_ranks_agree(scenario: str, ranks: int, more: dict[str, str], tmp_path: Path) -> None:
    assert run(scenario, ranks, tmp_path, **more) == [0] * ranks, said(tmp_path)


@pytest.mark.parametrize(
    ("scenario", "survivors", "words", "within_s"),
    [
        ("killed", (0, 2), ("rank 1, pid", "died", "all_reduce #4"), 3.0),
        ("deaf", (0,), ("rank 1, pid", "died", "recv #1"), 4.0),
        ("stopped", (0, 2), ("rank 1, pid", "within 5 s", "stopped by a signal", "barrier #2"), 9.0),
        ("round_robin", (1, 2), ("rank 0, pid", "within 5 s", "stopped by a signal"), 9.0),
        ("different", (0, 1), ("all_reduce", "barrier", "while"), 3.0),
    ],
)
def test_the_rank_that_fails_is_named(
    scenario: str, survivors: tuple[int, ...], words: tuple[str, ...], within_s: float, tmp_path: Path
) -> None:
    ranks = 2 if scenario == "different" else 3
    codes = run(scenario, ranks, tmp_path, timeout_s=5, wait_for=survivors)
    assert codes == [0] * len(survivors), said(tmp_path)
    for rank in survivors:
        seconds, _, text = (tmp_path / f"told{rank}").read_text().partition("\n")
        assert all(word in text for word in words), text
        assert float(seconds) < within_s


def test_nothing_is_left_in_shared_memory(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    run("killed", 3, tmp_path, timeout_s=5, wait_for=(0, 2))
    time.sleep(0.1)
    assert set(os.listdir("/dev/shm")) <= before


def test_a_broken_compiler_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    path = os.environ["PATH"]
    with pytest.raises(InputError, match="the build failed"):
        load_extension()
    assert [one.suffix for one in (tmp_path / "cache").iterdir()] == [".lock"]
    assert os.environ["PATH"] == path
