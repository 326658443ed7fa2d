"""Steps as what ranks send and receive; sizes and refusals of `ridgeline collective run`; one run on gloo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.answer import collective
from ridgeline.comm.formats.files import write_algorithm, write_collective
from ridgeline.core.errors import InputError
from ridgeline.runtime import run_collective
from ridgeline.runtime.collective_ranks import (
    _library_call,
    _seconds,
    elements_of,
    first_buffer,
    size_of,
    transfers_of,
    wrong_chunks,
)
from ridgeline.runtime.run_collective import _from_file, _sizes, collective_run

pytest.importorskip("torch")
ROOT = Path(__file__).parents[3]
NAMES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")


def carried_out(algorithm: Algorithm, elements: int, lost: int = -1) -> list[Any]:
    """All ranks' buffers after all rounds, messages handed over by hand, first in first out; one may be lost."""
    ranks = range(algorithm.ranks)
    buffers = [first_buffer(algorithm, rank, elements, "cpu") for rank in ranks]
    plans = [list(transfers_of(algorithm, rank)) for rank in ranks]
    sent: dict[tuple[int, int, bool], list[Any]] = defaultdict(list)
    begun = [False] * algorithm.ranks
    count = 0
    while any(plans):
        moved = False
        for rank in ranks:
            if not plans[rank]:
                continue
            if not begun[rank]:
                for one in plans[rank][0]:
                    if one.sends:
                        data = buffers[rank][list(one.chunks)].clone()
                        sent[rank, one.peer, one.adds].append(data * 0 if count == lost else data)
                        count += 1
                begun[rank] = moved = True
            asked = [one for one in plans[rank][0] if not one.sends]
            if all(sent[one.peer, rank, one.adds] for one in asked):
                for one in asked:
                    data, where = sent[one.peer, rank, one.adds].pop(0), list(one.chunks)
                    buffers[rank][where] = buffers[rank][where] + data if one.adds else data
                plans[rank].pop(0)
                begun[rank], moved = False, True
        assert moved, "the ranks wait for each other"
    return buffers


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_output_is_right_and_a_lost_message_is_seen(name: str, ranks: int) -> None:
    made = collective(name, topology=f"switch:{ranks}", size="1 MB").algorithm
    right = carried_out(made, 5)
    assert all(wrong_chunks(made, rank, right[rank], 5) == [] for rank in range(ranks))
    wrong = carried_out(made, 5, lost=0)
    assert any(wrong_chunks(made, rank, wrong[rank], 5) for rank in range(ranks))


def test_a_synthesized_algorithm_on_a_broken_torus_runs_alike() -> None:
    made = collective("allreduce", topology="torus:3x3", without=["link:0-1"], synthesize=True).algorithm
    right = carried_out(made, 2)
    assert all(wrong_chunks(made, rank, right[rank], 2) == [] for rank in range(9))


def test_sizes_that_do_not_divide_are_brought_to_whole_elements() -> None:
    made = collective("allreduce", topology="switch:3", size="1 MB", algorithm="ring").algorithm
    assert elements_of(made, 1000) == 83
    assert size_of(made, 83) == 83 * 4 * 3
    assert elements_of(made, 1) == 1


def test_sizes() -> None:
    assert _sizes("1KB:20KB") == [1000, 4000, 16000]
    assert _sizes("1 MB,2 MiB") == [1e6, 2**21]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"name": "allreduces"}, "allreduce"),
        ({"backend": "glo"}, "gloo"),
        ({"ranks": 1}, "2 to 64"),
        ({"backend": "nccl", "ranks": 63}, "a GPU for each rank"),
        ({"sizes": "4MB:1KB"}, "1KB:64MB"),
        ({"sizes": "-1 kB"}, "kB"),
        ({"algorithm": "rings"}, "ring"),
        ({"algorithm": "no/such.json"}, "no/such.json"),
        ({"topology": "switch:3"}, "allreduce of 2 ranks"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(asked: dict[str, Any], words: str) -> None:
    given = {"name": "allreduce", "ranks": 2, **asked}
    with pytest.raises(InputError, match=words.replace("/", ".")):
        collective_run(given.pop("name"), **given)


def test_a_file_of_another_collective_is_refused(tmp_path: Path) -> None:
    write_algorithm(collective("allgather", topology="switch:2").algorithm, tmp_path / "one.json")
    with pytest.raises(InputError, match="allgather of 2 ranks"):
        collective_run("allreduce", algorithm=str(tmp_path / "one.json"))


@pytest.mark.parametrize(("target", "name"), [("msccl", "one.xml"), ("mscclpp", "one.json")])
def test_files_of_libraries_run_alike(target: str, name: str, tmp_path: Path) -> None:
    made = collective("allreduce", topology="switch:3", size="1 MB", algorithm="ring").algorithm
    write_collective(made, tmp_path / name, target)
    read = _from_file(tmp_path / name)
    right = carried_out(read, 5)
    assert all(wrong_chunks(read, rank, right[rank], 5) == [] for rank in range(3))
    wrong = carried_out(read, 5, lost=0)
    assert any(wrong_chunks(read, rank, wrong[rank], 5) for rank in range(3))
    with pytest.raises(InputError, match="--ranks 3"):
        collective_run("allreduce", ranks=2, algorithm=str(tmp_path / name))


def test_a_file_of_settings_is_no_algorithm(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text("HCCL_ALGO=level0:NA;level1:ring\n")
    with pytest.raises(InputError, match="hccl settings"):
        collective_run("allreduce", algorithm=str(tmp_path / "one.json"))


@pytest.mark.slow
def test_three_ranks_on_gloo(tmp_path: Path) -> None:
    own = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ridgeline", "collective", "run", "reducescatter"]
    command += ["--ranks", "3", "--sizes", "1KB,100KB", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=own, cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["correct"]
    assert [len(row["wrong"]) for row in found["rows"]] == [0, 0]
    assert all(row["seconds"] > 0 and row["own_seconds"] > 0 and row["bound_seconds"] > 0 for row in found["rows"])


@pytest.mark.parametrize(
    "backend", [pytest.param("gloo", marks=pytest.mark.slow), pytest.param("ridge_shm", marks=pytest.mark.shm)]
)
def test_ranks_of_torchrun(backend: str, torchrun: Callable[..., str]) -> None:
    """torchrun starts the ranks; rank 0 alone answers, and no rank starts others."""
    asked = ("--backend", backend, "--sizes", "1KB,1MB", "--ranks", "7", "--json")
    found = json.loads(torchrun("collective", "run", "allgather", *asked))
    assert found["correct"]
    assert found["ranks"] == 2


@pytest.mark.gpu
def test_nccl(tmp_path: Path) -> None:
    """On several GPUs the whole run; on one, what a rank does with nccl: its own collective, clock and buffers."""
    import torch
    import torch.distributed as dist

    chips = torch.cuda.device_count()
    if chips > 1:
        found = collective_run("allreduce", ranks=min(chips, 8), backend="nccl", sizes="1KB,16MB")
        assert found is not None
        assert found.correct
        assert all(row.seconds > 0 and row.own_seconds > 0 for row in found.rows)
        return
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        two = collective("allreduce", topology="switch:2").algorithm
        buffer = first_buffer(two, 0, 4, "cuda:0")
        assert wrong_chunks(two, 0, buffer, 4)  # nothing was exchanged
        buffer += first_buffer(two, 1, 4, "cuda:0")
        assert not wrong_chunks(two, 0, buffer, 4)
        for name in ("allreduce", "broadcast", "reduce"):
            alone = replace(two, contract=replace(two.contract, collective=name))
            assert 0 < _seconds(_library_call(alone, 1024, "cuda:0", 0), "cuda:0") < 1
    finally:
        dist.destroy_process_group()


def test_a_signal_that_ends_the_run_ends_its_ranks_and_removes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that never ends stands in for the real one; the signal comes from outside while it is waited for."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    ranks = []

    def start(_place: Path, _rank: int, _ranks: int) -> subprocess.Popen[bytes]:
        ranks.append(subprocess.Popen(command))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert any(place.iterdir())
        return ranks[-1]

    monkeypatch.setattr(run_collective, "_rank", start)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        run_collective._start({"sizes": [1024]}, collective("allreduce", topology="ring:1", size=1024).algorithm, 60.0)
    assert ended.value.code == 128 + signal.SIGTERM
    assert not any(place.iterdir())
    assert all(rank.poll() is not None for rank in ranks)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_a_rank_that_dies_is_named_and_the_others_are_ended(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nif os.environ.get('RANK') == '1': os._exit(9)\n")
    own = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}"}
    command = [sys.executable, "-m", "ridgeline", "collective", "run", "allreduce", "--sizes", "1KB", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=own, cwd=tmp_path, timeout=100)
    assert done.returncode == 2
    assert "rank 1 ended with code 9" in done.stdout + done.stderr
