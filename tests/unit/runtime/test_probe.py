"""Kernels measured on this CPU, a child that dies, a run that is resumed, and the file that runs alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.core.documents import JsonObject
from ridgeline.runtime.measure import PARTS, write_standalone
from ridgeline.runtime.probe.case import GROUPS, cases, link_cases, make_case
from ridgeline.runtime.probe.session import (
    OPS,
    Journal,
    Outcome,
    journal_path,
    measure_device,
    profile_text,
    write_profile,
)
from ridgeline.runtime.probe.supervisor import Settings

torch = pytest.importorskip("torch")

MORTAL = """
import os, signal, sys, time
from ridgeline.runtime.probe import registry
from ridgeline.core.documents import JsonObject
from ridgeline.runtime.probe.case import make_case

def die(case, bench):
    if case["how"] == "sleep":
        time.sleep(60)
    os.kill(os.getpid(), getattr(signal, case["how"]))

def late(case, bench):
    return {"s": 1.0, "spread": 0.0, "runs": 1, "ok": True}

registry.MEASURES |= {"die": die, "late": late}
for how in ("SIGILL", "sleep"):
    impl = how  # another impl each, or the second death would end the family
    registry.EXTRA.append(make_case(op="die", impl=impl, dtype="", dims=(("how", how),), group="host", limit_s=1.0))
registry.EXTRA.append(make_case(op="late", impl="", dtype="", dims=(), group="host"))
"""
KERNELS = (
    make_case(op="gemm", impl="torch", dtype="fp32", dims=(("m", 32), ("n", 48), ("k", 64)), group="gemm"),
    make_case(op="gemm", impl="torch_nt", dtype="fp32", dims=(("m", 32), ("n", 48), ("k", 64)), group="gemm"),
    make_case(op="rmsnorm", impl="torch", dtype="fp32", dims=(("rows", 8), ("columns", 256)), group="rows"),
    make_case(op="copy", impl="torch", dtype="fp32", dims=(("bytes", 1 << 16), ("cold", False)), group="memory"),
    make_case(op="launch", impl="torch", dtype="", dims=(("kind", "view"),), group="host"),
    make_case(op="launch", impl="torch", dtype="", dims=(("kind", "event"),), group="host"),
)

RESULTS = (
    *("s", "spread", "runs", "ok", "error", "why", "burst_s", "timer", "power_w", "energy_j", "clock_mhz"),
    *("left_out", "waited", "slowdown", "beside_slowdown"),
)
"""Keys of a row that are measured; every other key identifies it, `cold` of copies, reads and writes alone."""


def row_key(row: JsonObject) -> str:
    results = RESULTS if row.get("op") in ("copy", "read", "write") else (*RESULTS, "cold")
    return json.dumps({name: row[name] for name in sorted(row) if name not in results})


def settings(minutes: float = 1.0, imports: tuple[str, ...] = ()) -> Settings:
    return Settings(device="cpu", minutes=minutes, imports=imports, seconds=0.005)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Rows of several threads fail where other tests take a core; those of one leave such runs out."""
    patch = pytest.MonkeyPatch()
    patch.setenv("OMP_NUM_THREADS", "1")
    yield
    patch.undo()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """One run of a few kernels in one child."""
    path = tmp_path_factory.mktemp("profile") / "cpu.json"
    return path, measure_device(settings(), path, chosen=KERNELS)


def test_a_profile_has_the_head_and_one_row_a_line(measured: tuple[Path, Outcome]) -> None:
    path, outcome = measured
    text = path.read_text("utf-8")
    table = json.loads(text)
    assert table["ridgeline_profile"] == 1
    assert set(table) >= {"chip", "device", "host", "software", "taken", "minutes", "seed", "rows"}
    assert table["device"]["type"] == "cpu"
    assert table["software"]["torch"] == torch.__version__
    assert sum(line.strip().startswith('{"op":') for line in text.splitlines()) == len(table["rows"]) == len(KERNELS)
    assert not journal_path(path).exists()
    assert outcome.left == 0


def test_kernels_are_timed_and_checked(measured: tuple[Path, Outcome]) -> None:
    rows = {row_key(row): row for row in measured[1].rows}
    for case in KERNELS[:-1]:
        row = rows[row_key(case.identity())]
        assert row["ok"], row
        assert 0 < row["s"] < 1
        assert row["runs"] >= 3
    assert rows[row_key(KERNELS[0].identity())]["error"] < 1e-5
    assert rows[row_key(KERNELS[-1].identity())] == {
        **KERNELS[-1].identity(),
        "ok": False,
        "why": "cpu has no call of kind 'event'",
    }


def test_runs_whose_threads_waited_for_a_core_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other work a run of 2 ms takes 10, in most runs alike: neither its median nor its spread tell."""
    from ridgeline.runtime.probe import timing
    from ridgeline.runtime.probe.backend import open_backend

    class Neighbour:
        """A thread waits 8 ms in three runs of four."""

        reads, waited = 0, 0.0

        def __init__(self, backend: object) -> None: ...
        def close(self) -> None: ...

        def read(self) -> list[float]:
            self.reads += 1
            self.waited += 8e-3 if self.reads % 2 == 0 and self.reads % 8 else 0.0
            return [0.0, self.waited]

    ticks = {"now": 0.0}
    neighbour = Neighbour(None)
    monkeypatch.setattr(timing, "RunDelay", lambda backend: neighbour)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: ticks["now"])

    def call() -> None:  # runs 1, 2, 3, 5, ... are disturbed
        ticks["now"] += 2e-3 + (8e-3 if (neighbour.reads + 1) % 8 else 0.0)

    found = timing._by_host([call], open_backend("cpu"), 0.02, 2e-3).row()
    assert found["s"] == pytest.approx(2e-3)
    assert found["runs"] >= 2
    assert found["left_out"] > found["runs"]
    always = [timing.TimedRun(s=2e-3 + at * 1e-4, waited=0.5 + at / 100) for at in range(12)]
    assert timing.undisturbed_runs(always) == always[:3]  # none had its cores: the least disturbed, the wait taken off


def test_waiting_for_a_core_is_counted() -> None:
    """More threads of this process than cores spin at once: at least one waits."""
    import threading
    import time

    from ridgeline.runtime.probe.backend import open_backend
    from ridgeline.runtime.probe.timing import RunDelay, longest_wait

    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system keeps no account of run delay")
    done = threading.Event()

    def spin() -> None:
        import hashlib

        block = b"x" * (1 << 20)  # large enough for hashlib to release the interpreter's lock
        while not done.is_set():
            hashlib.sha256(block)

    threads = [threading.Thread(target=spin) for _ in range((os.cpu_count() or 1) + 2)]
    for thread in threads:
        thread.start()
    delay = RunDelay(open_backend("cpu"))
    before, until = delay.read(), time.monotonic() + 20
    assert len(before) > len(threads)
    while not (waited := longest_wait(before, delay.read())) and time.monotonic() < until:
        time.sleep(0.02)
    done.set()
    for thread in threads:
        thread.join()
    delay.close()
    assert waited > 0


def test_a_kernel_that_computes_wrongly_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from ridgeline.runtime.probe.backend import open_backend
    from ridgeline.runtime.probe.child import open_bench, run

    bench = open_bench(open_backend("cpu"), 0.005, 0)
    right = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, out: right(a, b, out=out).mul_(1.01))
    row, poisoned = run(KERNELS[0], bench)
    assert (row["ok"], poisoned) == (False, False)
    assert row["why"].startswith("wrong result: relative error 0.01")
    monkeypatch.setattr(torch, "mm", lambda a, b, out: right(a[:-1], b, out=out[:-1]))  # one row is never written
    assert run(KERNELS[0], bench)[0]["why"] == "wrong result: relative error inf"


def test_an_op_that_kills_its_process_is_recorded_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mortal.py").write_text(MORTAL, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = measure_device(settings(imports=("mortal",)), tmp_path / "p.json", chosen=KERNELS[4:5])
    assert [row["op"] for row in outcome.rows] == ["die", "die", "late", "launch"]
    assert outcome.rows[0]["why"].startswith("the process died of SIGILL")
    assert outcome.rows[1]["why"] == "no answer within 1 s; the process was ended"
    assert [row["ok"] for row in outcome.rows] == [False, False, True, True]


def test_a_run_that_broke_off_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    journal = Journal(journal_path(path), resume=False)
    kept = {**KERNELS[0].identity(), "s": 123.0, "spread": 0.0, "runs": 5, "ok": True, "cold": True}
    journal.append(KERNELS[0].key(), kept)
    with journal.path.open("a") as file:
        file.write('{"case": "x", "row": {"op": "gemm", "impl": "tor')  # the crash cut a line short
    outcome = measure_device(settings(), path, chosen=(KERNELS[0], KERNELS[4]), resume=True)
    assert [row["op"] for row in outcome.rows] == ["gemm", "launch"]
    assert json.loads(path.read_text())["rows"][0]["s"] == 123.0
    assert not journal.path.exists()
    Journal(journal_path(path), resume=False).append(KERNELS[0].key(), kept)
    assert Journal(journal_path(path), resume=False).rows == []  # a fresh run begins a fresh journal


def test_the_grid_takes_every_group_first_and_every_case_once() -> None:
    made = cases(60 << 20)
    assert len({case.key() for case in made}) == len(made)
    assert [case.tier for case in made] == sorted(case.tier for case in made)
    assert {case.group for case in made} == set(GROUPS) - {"interconnect"}
    assert {case.group for case in made if case.tier == 0} >= {
        "gemm",
        "attention",
        "rows",
        "memory",
        "host",
        "optimizer",
    }
    assert {case.kernel.op for case in made} | {case.kernel.op for case in link_cases(8, 2, "nccl")} == set(OPS)
    dtypes = {case.kernel.dtype for case in made if case.kernel.op == "gemm"}
    assert dtypes == {"fp32", "tf32", "bf16", "fp16", "fp8", "int8"}
    assert {case["m"] for case in made if case.kernel.op == "gemm"} >= {1, 8, 64, 4096, 16384}
    assert any(case["n"] % 8 for case in made if case.kernel.op == "gemm")
    assert all(case.group == "host" for case in cases(60 << 20, only=("host",)))


def test_groups_of_a_tier_end_together() -> None:
    made = [case for case in cases(60 << 20) if case.tier == 1]
    first = made[: len(made) // 2]
    for group in ("gemm", "attention", "rows"):
        share = sum(case.group == group for case in first) / sum(case.group == group for case in made)
        assert 0.4 < share < 0.6


def test_work_of_a_case() -> None:
    product = KERNELS[0]
    assert product.kernel.flops == 2 * 32 * 48 * 64
    assert product.kernel.bytes == 4 * (32 * 64 + 64 * 48 + 32 * 48)
    names = ("batch", "heads", "kv_heads", "query", "key", "head_dim", "causal")
    dims = tuple(zip(names, (2, 8, 2, 128, 128, 64, True), strict=True))
    forward, backward = (
        make_case(op=op, impl="flash", dtype="bf16", dims=dims, group="attention")
        for op in ("attention_forward", "attention_backward")
    )
    assert forward.kernel.flops == 2 * 8 * 128 * 128 * 64 * 4 / 2  # causal: half of the square
    assert backward.kernel.flops == 2.5 * forward.kernel.flops
    assert KERNELS[3].kernel.bytes == 2 << 16


def test_rows_are_written_in_one_order_whenever_they_were_taken(tmp_path: Path) -> None:
    rows = [{"op": "add", "s": 1.0}, {"op": "gemm", "m": 16, "s": 2.0}, {"op": "gemm", "m": 2, "s": 1.0}]
    assert profile_text({}, rows) == profile_text({}, rows[::-1])
    write_profile(tmp_path / "p.json", {"chip": None}, rows)
    assert [row.get("m") for row in json.loads((tmp_path / "p.json").read_text())["rows"]] == [2, 16, None]
    assert list(tmp_path.iterdir()) == [tmp_path / "p.json"]


def test_the_standalone_file_needs_nothing_of_ridgeline(tmp_path: Path) -> None:
    file, output = tmp_path / "characterize.pyz", tmp_path / "p.json"
    assert write_standalone(file).bytes == file.stat().st_size
    assert write_standalone(file).bytes == file.stat().st_size
    with zipfile.ZipFile(file) as packed:
        own = [name for name in packed.namelist() if name.startswith("ridgeline/")]
        parts = {f"ridgeline/{part}" for part in (*PARTS, "hardware/device_names.json")}
        own = [name for name in own if name not in parts and not name.endswith("__init__.py")]
        assert all(name.startswith("ridgeline/runtime/probe/") for name in own)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [
        sys.executable,
        "-I",
        str(file),
        "--device",
        "cpu",
        "--minutes",
        "0.02",
        "--only",
        "host",
        "-o",
        str(output),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=clean)
    assert done.returncode == 0, done.stderr
    assert json.loads(output.read_text())["ridgeline_profile"] == 1
    assert f"{output}: " in done.stdout
    wrong = subprocess.run([*command[:3], "--only", "gem"], capture_output=True, text=True, cwd=tmp_path, env=clean)
    assert wrong.returncode == 2
    assert "--only: got 'gem', expected some of gemm" in wrong.stderr


@pytest.mark.gpu
def test_a_profile_of_this_accelerator(tmp_path: Path) -> None:
    """`make test-gpu` on a machine with one: a minute of every group, its kernels right, its bandwidth plausible."""
    if not torch.cuda.is_available():
        pytest.skip("no accelerator")
    outcome = measure_device(Settings(device="cuda", minutes=1.0), tmp_path / "gpu.json")
    good = [row for row in outcome.rows if row["ok"]]
    assert {"gemm", "attention_forward", "rmsnorm", "copy", "launch"} <= {row["op"] for row in good}
    copies = [2 * row["bytes"] / row["s"] for row in good if row["op"] == "copy" and row["bytes"] == 1 << 30]
    assert copies
    assert 1e11 < copies[0] < 2e13
