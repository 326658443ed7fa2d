"""The shared-memory backend against gloo and OpenMPI on this host, all in one run: collectives and FSDP2 steps.

    python benchmarks/collectives_shm.py [--mpi PYTHON] [--ranks 2] [--rounds 3] [--only all_gather,step] [--bind]

PYTHON is that of an environment with openmpi, mpi4py and numpy. All ranks of all backends run at the priority of this
process, bound to no core or with --bind rank i to core i, and wait as each library does by default (OpenMPI spins for
ever, ridge_shm for 0.1 ms at most, gloo sleeps). All buffers are written before they are sent and lie in pages of one
size. Calls of one backend follow each other, as in a program that has one: what is still in the cache is its own. A
figure is the best of the rounds' medians; rounds of torch's backends and of OpenMPI take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

SIZES = (1024, 16384, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
ELEMENT = 4
STEPS = 12


def repeats(size: int) -> int:
    return max(5, min(60, int(0.1 / (size / 1e9 + 1e-4))))


def torch_rank(rank: int, ranks: int, folder: Path, only: list[str]) -> None:
    """One rank that times ridge_shm and gloo, collective by collective."""
    import warnings

    import torch
    import torch.distributed as dist

    from ridgeline.runtime.shm import register

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    register()
    dist.init_process_group("ridge_shm", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    groups = {"ridge_shm": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    found: dict[str, float] = {}
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the names that torch 2.13 gave them
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    for kind in [kind for kind in KINDS if kind in only]:
        for size in SIZES:
            whole, part = torch.zeros(size // ELEMENT), torch.zeros(size // ELEMENT // ranks)
            spent = defaultdict(list)
            for name, group in groups.items():
                for _ in range(repeats(size) + 2):
                    dist.barrier()
                    dist.barrier()
                    began = time.perf_counter()
                    if kind == "all_reduce":
                        dist.all_reduce(whole, group=group)
                    elif kind == "broadcast":
                        dist.broadcast(whole, 0, group=group)
                    elif kind == "all_gather":
                        gather(whole, part, group=group)
                    else:
                        scatter(part, whole, group=group)
                    spent[name].append(time.perf_counter() - began)
            for name, values in spent.items():
                slowest = torch.tensor(values[2:])
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                found[f"{kind} {size} {name}"] = slowest.median().item()
    if "step" in only:
        found |= fsdp_steps(rank, groups)
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def fsdp_steps(rank: int, groups: dict) -> dict[str, float]:
    """Seconds of a training step under FSDP2: eight linear layers of 1024, one sequence, both backends in turns."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    runs = {}
    for name, group in groups.items():
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        runs[name] = (model, torch.optim.SGD(model.parameters(), lr=1e-3))
    inputs = torch.randn(16, 1024, generator=torch.Generator().manual_seed(rank))
    spent: dict[str, list[float]] = defaultdict(list)
    norms = {}
    for _ in range(STEPS):
        for name, (model, stepper) in runs.items():
            dist.barrier()
            began = time.perf_counter()
            model(inputs).square().mean().backward()
            stepper.step()
            spent[name].append(time.perf_counter() - began)
            norms[name] = [p.grad.to_local().norm().item() for p in model.parameters()]
            stepper.zero_grad()
    worst = max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(norms["ridge_shm"], norms["gloo"], strict=True))
    return {
        "gradient difference": worst,
        **{f"step 0 {name}": statistics.median(one[2:]) for name, one in spent.items()},
    }


MPI = """
import json, sys, time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
found = {}
for kind in json.loads(sys.argv[1]):
    for size, count in json.loads(sys.argv[2]):
        whole, part = np.empty(size // 4, np.float32), np.empty(size // 4 // comm.size, np.float32)
        whole.fill(0.0); part.fill(0.0)  # own pages: what was never written is one page of zeros
        spent = []
        for _ in range(count + 2):
            comm.Barrier(); comm.Barrier()
            began = time.perf_counter()
            if kind == "all_reduce": comm.Allreduce(MPI.IN_PLACE, whole)
            elif kind == "broadcast": comm.Bcast(whole)
            elif kind == "all_gather": comm.Allgather(part, whole)
            else: comm.Reduce_scatter_block(whole, part)
            spent.append(time.perf_counter() - began)
        slowest = np.zeros(count)
        comm.Allreduce(np.array(spent[2:]), slowest, MPI.MAX)
        found[f"{kind} {size} openmpi"] = float(np.median(slowest))
if comm.rank == 0: print(json.dumps(found))
"""


def torch_block(ranks: int, only: str, bind: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        own = [sys.executable, __file__, "--ranks", str(ranks), "--folder", folder, "--only", only]
        own += ["--bind"] if bind else []
        running = [subprocess.Popen([*own, "--rank", str(rank)]) for rank in range(ranks)]
        if sum(process.wait() for process in running):
            sys.exit("a rank failed")
        return json.loads((Path(folder) / "found.json").read_text())


def mpi_block(python: str, ranks: int, only: str, bind: bool) -> dict[str, float]:
    sizes = json.dumps([(size, repeats(size)) for size in SIZES])
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment["NUMPY_MADVISE_HUGEPAGE"] = "0"  # pages as torch's: numpy asks for large ones, torch does not
    where = "core:overload-allowed" if bind else "none"
    command = [str(Path(python).parent / "mpirun"), "-n", str(ranks), "--oversubscribe", "--bind-to", where]
    kinds = json.dumps([kind for kind in KINDS if kind in only.split(",")])
    done = subprocess.run([*command, python, "-c", MPI, kinds, sizes], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--mpi", default="")
    asked.add_argument("--ranks", type=int, default=2)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--rank", type=int)
    asked.add_argument("--folder", type=Path)
    asked.add_argument("--bind", action="store_true")
    asked.add_argument("--only", default=",".join((*KINDS, "step")))
    told = asked.parse_args()
    if told.rank is not None:
        cores = sorted(os.sched_getaffinity(0))
        if told.bind:
            os.sched_setaffinity(0, {cores[told.rank % len(cores)]})
        torch_rank(told.rank, told.ranks, told.folder, told.only.split(","))
        return
    best: dict[str, float] = {}
    for _ in range(told.rounds):
        blocks = torch_block(told.ranks, told.only, told.bind)
        blocks |= mpi_block(told.mpi, told.ranks, told.only, told.bind) if told.mpi else {}
        for key, value in blocks.items():
            best[key] = min(value, best.get(key, value))
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{told.ranks} ranks, {os.cpu_count()} cores, load {load}; best of {told.rounds} medians, us")
    print(f"{'collective':15} {'bytes':>9} {'ridge_shm':>10} {'gloo':>10} {'openmpi':>10}   gloo/shm  mpi/shm")
    rows = [(kind, size) for kind in KINDS for size in SIZES] + [("step", 0)]
    for kind, size in [row for row in rows if row[0] in told.only.split(",")]:
        own, gloo = best[f"{kind} {size} ridge_shm"], best[f"{kind} {size} gloo"]
        mpi = best.get(f"{kind} {size} openmpi")
        cells = f"{own * 1e6:10.1f} {gloo * 1e6:10.1f} {f'{mpi * 1e6:.1f}' if mpi else '-':>10}"
        print(f"{kind:15} {size:9} {cells}   {gloo / own:8.2f} {f'{mpi / own:.2f}' if mpi else '-':>8}")
    if "gradient difference" in best:
        print(f"largest relative difference of a gradient's norm: {best['gradient difference']:.1e}")


if __name__ == "__main__":
    main()
