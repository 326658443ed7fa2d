"""What each rank does in the tests of the shared-memory backend: `python shm_ranks.py SCENARIO RANK RANKS FOLDER`.

Every rank draws every rank's inputs from one seed, so that it knows the right answer without asking anyone.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import shm_lifetime
import torch
import torch.distributed as dist

from ridgeline.runtime.shm import register

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*INTEGERS, *FLOATS, *EIGHT_BITS, *COMPLEX, torch.bool)
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
SIZES = (0, 1, 2, 3, 7, 64, 1000, 4097, 70_001, 300_000)
CASES = int(os.environ.get("SHM_CASES", "250"))

Tensor = torch.Tensor


def drawn(draw: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Small whole numbers, so that sums are exact in every format that can hold them."""
    made = torch.Generator().manual_seed(draw.randrange(2**60))
    whole = torch.randint(0 if dtype in (torch.uint8, torch.bool) else -3, 4, shape, generator=made)
    return (whole > 0) if dtype == torch.bool else whole.to(torch.float32).to(dtype)


def laid_out(draw: random.Random, tensor: Tensor) -> Tensor:
    """The same numbers, sometimes with strides that are not row-major."""
    tensor = tensor.clone()
    style = draw.randrange(4) if tensor.dtype not in EIGHT_BITS else 0
    if style == 1 and tensor.dim() == 2:
        return tensor.t().contiguous().t()
    if style == 2 and tensor.dim() == 1:
        return torch.stack([tensor, tensor], dim=1)[:, 0]
    if style == 3:
        return torch.cat([tensor.flatten()[:0], torch.zeros(1, dtype=tensor.dtype), tensor.flatten()])[1:].view(
            tensor.shape
        )
    return tensor.clone()


def joined(inputs: list[Tensor], op: str) -> Tensor:
    """What the reduce op makes of all ranks' inputs, summed in a wider format and rounded once."""
    dtype = inputs[0].dtype
    if dtype == torch.bool:
        stacked = torch.stack(inputs)
        if op == "BXOR":
            return stacked.sum(0) % 2 == 1
        return stacked.all(0) if op in ("PRODUCT", "MIN", "BAND") else stacked.any(0)
    wide = torch.complex128 if dtype in COMPLEX else torch.float64 if dtype not in INTEGERS else torch.int64
    values = [one.to(torch.float32).to(wide) if dtype in EIGHT_BITS else one.to(wide) for one in inputs]
    total = values[0]
    for one in values[1:]:
        match op:
            case "SUM" | "AVG":
                total = total + one
            case "PRODUCT":
                total = total * one
            case "MIN":
                total = torch.minimum(total, one)
            case "MAX":
                total = torch.maximum(total, one)
            case "BAND":
                total = total & one
            case "BOR":
                total = total | one
            case _:
                total = total ^ one
    if op == "AVG":
        total = torch.div(total, len(inputs), rounding_mode="trunc" if dtype in INTEGERS else None)
    return total.to(torch.float32).to(dtype) if dtype in EIGHT_BITS else total.to(dtype)


def meaningful(dtype: torch.dtype, op: str) -> bool:
    if dtype == torch.bool:
        return op != "AVG"
    if dtype in COMPLEX:
        return op in ("SUM", "AVG")
    return dtype in INTEGERS or op not in ("BAND", "BOR", "BXOR")


def equal(found: Tensor, wanted: Tensor, what: str) -> None:
    assert found.dtype == wanted.dtype, what
    if found.dtype in EIGHT_BITS:
        found, wanted = found.to(torch.float32), wanted.to(torch.float32)
    if torch.equal(found, wanted):
        return
    bits = {torch.float64: 1e-15, torch.complex128: 1e-15, torch.float32: 3e-7, torch.complex64: 3e-7}
    gap = bits.get(found.dtype, 1e-2 if found.is_floating_point() else 0.0)  # an average is rounded once more
    wrong = (~torch.isclose(found, wanted, rtol=gap, atol=0, equal_nan=True)).flatten().nonzero().flatten()
    assert not len(wrong), f"{what}: at {wrong[:8]} {found.flatten()[wrong][:8]} but {wanted.flatten()[wrong][:8]}"


def fuzz(rank: int, ranks: int, _folder: Path) -> None:
    """Random collectives, dtypes, shapes, strides and reduce ops against what they must give."""
    draw = random.Random(int(os.environ.get("SHM_SEED", "7")))
    names = tuple(COLLECTIVES)
    for case in range(CASES):
        dtype, op, name = draw.choice(DTYPES), draw.choice(OPS), draw.choice(names)
        if not meaningful(dtype, op):
            op = "SUM"
        size = draw.choice(SIZES)
        shape = (size,) if draw.random() < 0.6 else (draw.choice((1, 2, 5)), max(size // 5, 1))
        asynchronous, root = draw.random() < 0.3, draw.randrange(ranks)
        what = f"case {case}: {name} {op} {dtype} {shape} root {root} async {asynchronous} on rank {rank}"
        try:
            COLLECTIVES[name](draw, rank, ranks, shape, dtype, op, root, asynchronous, what)
        except Exception as wrong:
            raise AssertionError(what) from wrong


def done(work: Any) -> None:
    if work is not None:
        work.wait()


def _all_reduce(draw, rank, ranks, shape, dtype, op, _root, asynchronous, what) -> None:
    inputs = [drawn(draw, shape, dtype) for _ in range(ranks)]
    own = laid_out(draw, inputs[rank])
    done(dist.all_reduce(own, getattr(dist.ReduceOp, op), async_op=asynchronous))
    equal(own, joined(inputs, op), what)


def _reduce(draw, rank, ranks, shape, dtype, op, root, asynchronous, what) -> None:
    inputs = [drawn(draw, shape, dtype) for _ in range(ranks)]
    own = laid_out(draw, inputs[rank])
    done(dist.reduce(own, root, getattr(dist.ReduceOp, op), async_op=asynchronous))
    equal(own, joined(inputs, op) if rank == root else inputs[rank], what)


def _broadcast(draw, rank, ranks, shape, dtype, _op, root, asynchronous, what) -> None:
    inputs = [drawn(draw, shape, dtype) for _ in range(ranks)]
    own = laid_out(draw, inputs[rank])
    done(dist.broadcast(own, root, async_op=asynchronous))
    equal(own, inputs[root], what)


def _all_gather(draw, rank, ranks, shape, dtype, _op, _root, asynchronous, what) -> None:
    inputs = [drawn(draw, (*shape[:-1], shape[-1] + extra), dtype) for extra in range(ranks)]  # of unequal sizes
    into = [laid_out(draw, torch.empty_like(one)) for one in inputs]
    done(dist.all_gather(into, laid_out(draw, inputs[rank]), async_op=asynchronous))
    for found, wanted in zip(into, inputs, strict=True):
        equal(found, wanted, what)


def _all_gather_single(draw, rank, ranks, shape, dtype, _op, _root, asynchronous, what) -> None:
    inputs = [drawn(draw, shape, dtype) for _ in range(ranks)]
    into = torch.empty((ranks, *shape), dtype=dtype)
    if draw.random() < 0.3:  # its own part in place
        into[rank] = inputs[rank]
        own = into[rank]
    else:
        own = laid_out(draw, inputs[rank])
    done(dist.all_gather_into_tensor(into, own, async_op=asynchronous))
    for found, wanted in zip(into, inputs, strict=True):
        equal(found, wanted, what)


def _reduce_scatter(draw, rank, ranks, shape, dtype, op, _root, asynchronous, what) -> None:
    inputs = [[drawn(draw, (*shape[:-1], shape[-1] + extra), dtype) for extra in range(ranks)] for _ in range(ranks)]
    own = laid_out(draw, torch.empty_like(inputs[0][rank]))
    done(dist.reduce_scatter(own, [laid_out(draw, one) for one in inputs[rank]], getattr(dist.ReduceOp, op),
                             async_op=asynchronous))  # fmt: skip
    equal(own, joined([one[rank] for one in inputs], op), what)


def _reduce_scatter_single(draw, rank, ranks, shape, dtype, op, _root, asynchronous, what) -> None:
    inputs = [drawn(draw, (ranks, *shape), dtype) for _ in range(ranks)]
    whole = laid_out(draw, inputs[rank])
    own = whole[rank] if draw.random() < 0.3 and whole.is_contiguous() else torch.empty(shape, dtype=dtype)
    done(dist.reduce_scatter_tensor(own, whole, getattr(dist.ReduceOp, op), async_op=asynchronous))
    equal(own, joined([one[rank] for one in inputs], op), what)


def _gather(draw, rank, ranks, shape, dtype, _op, root, asynchronous, what) -> None:
    inputs = [drawn(draw, shape, dtype) for _ in range(ranks)]
    into = [laid_out(draw, torch.empty(shape, dtype=dtype)) for _ in range(ranks)]
    done(dist.gather(laid_out(draw, inputs[rank]), into if rank == root else None, root, async_op=asynchronous))
    if rank == root:
        for found, wanted in zip(into, inputs, strict=True):
            equal(found, wanted, what)


def _scatter(draw, rank, ranks, shape, dtype, _op, root, asynchronous, what) -> None:
    inputs = [drawn(draw, shape, dtype) for _ in range(ranks)]
    own = laid_out(draw, torch.empty(shape, dtype=dtype))
    parts = [laid_out(draw, one) for one in inputs]
    done(dist.scatter(own, parts if rank == root else None, root, async_op=asynchronous))
    equal(own, inputs[rank], what)


def _all_to_all(draw, rank, ranks, shape, dtype, _op, _root, asynchronous, what) -> None:
    sizes = [[draw.choice((0, 1, shape[-1])) for _ in range(ranks)] for _ in range(ranks)]
    inputs = [[drawn(draw, (size,), dtype) for size in row] for row in sizes]
    into = [torch.empty(sizes[other][rank], dtype=dtype) for other in range(ranks)]
    done(dist.all_to_all(into, [laid_out(draw, one) for one in inputs[rank]], async_op=asynchronous))
    for other in range(ranks):
        equal(into[other], inputs[other][rank], what)


def _all_to_all_single(draw, rank, ranks, shape, dtype, _op, _root, asynchronous, what) -> None:
    sizes = [[draw.choice((0, 1, 3, min(shape[-1], 20_000))) for _ in range(ranks)] for _ in range(ranks)]
    inputs = [[drawn(draw, (size, 2), dtype) for size in row] for row in sizes]
    own, received = sizes[rank], [sizes[other][rank] for other in range(ranks)]
    into = torch.empty((sum(received), 2), dtype=dtype)
    whole = laid_out(draw, torch.cat(inputs[rank]))
    done(dist.all_to_all_single(into, whole, received, own, async_op=asynchronous))
    equal(into, torch.cat([inputs[other][rank] for other in range(ranks)]), what)


def _messages(draw, rank, ranks, shape, dtype, _op, _root, _asynchronous, what) -> None:
    """Everyone sends to everyone with tags, first the sends and then the receives in another order."""
    inputs = [[[drawn(draw, shape, dtype) for _ in range(2)] for _ in range(ranks)] for _ in range(ranks)]
    others = [other for other in range(ranks) if other != rank]
    sends = [dist.isend(inputs[rank][other][tag], other, tag=tag) for other in others for tag in (0, 1)]
    for tag in (1, 0):
        for other in reversed(others):
            into = laid_out(draw, torch.empty(shape, dtype=dtype))
            dist.recv(into, other, tag=tag)
            equal(into, inputs[other][rank][tag], what)
    for send in sends:
        send.wait()


def _barrier(_draw, *_rest: Any) -> None:
    dist.barrier()


COLLECTIVES: dict[str, Callable[..., None]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_single,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_single,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "messages": _messages,
    "barrier": _barrier,
}


def gloo(rank: int, ranks: int, _folder: Path) -> None:
    """The same bits as gloo gives, where rounding cannot differ."""
    other = dist.new_group(backend="gloo")
    draw = random.Random(11)
    for size in (1, 1000, 100_003):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            for dtype in (torch.float32, torch.int32, torch.float64):
                inputs = [drawn(draw, (size,), dtype) for _ in range(ranks)]
                mine, theirs = inputs[rank].clone(), inputs[rank].clone()
                dist.all_reduce(mine, op)
                dist.all_reduce(theirs, op, group=other)
                assert torch.equal(mine, theirs)


def works(rank: int, ranks: int, _folder: Path) -> None:
    """Works, futures, several groups, coalesced calls, objects, any source, DTensor, order of waits."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    tensors = [torch.full((50_000,), float(rank + index)) for index in range(6)]
    pending = [dist.all_reduce(one, async_op=True) for one in tensors]
    futures = [one.get_future().then(lambda found: found.value()[0][0].item()) for one in pending]
    for work in reversed(pending):
        work.wait()
        assert work.is_completed()
    total = sum(range(ranks))
    assert [one.wait() for one in futures] == [total + ranks * index for index in range(6)]

    groups = [dist.new_group(list(range(ranks))) for _ in range(2)] + [dist.new_group([0, ranks - 1])]
    for group in groups[:2]:
        one = torch.ones(3)
        dist.all_reduce(one, group=group)
        assert one.tolist() == [ranks] * 3
    if rank in (0, ranks - 1):
        one = torch.tensor([float(rank)])
        dist.broadcast(one, ranks - 1, group=groups[2])
        assert one.item() == ranks - 1

    with dist._coalescing_manager(async_ops=True) as manager:
        parts = [torch.full((index + 1,), 1.0) for index in range(3)]
        for part in parts:
            dist.all_reduce(part)
    manager.wait()
    assert all(part.eq(ranks).all() for part in parts)

    found: list[Any] = [None] * ranks
    dist.all_gather_object(found, {"rank": rank})
    assert [one["rank"] for one in found] == list(range(ranks))

    if rank == 0:
        seen = set()
        for _ in range(ranks - 1):
            one = torch.empty(100_000)
            seen.add((dist.recv(one, tag=5), int(one[0].item())))
        assert seen == {(other, other) for other in range(1, ranks)}
    else:
        dist.send(torch.full((100_000,), float(rank)), 0, tag=5)

    ring = [dist.P2POp(dist.isend, torch.full((700_000,), float(rank)), (rank + 1) % ranks)]
    got = torch.empty(700_000)
    ring.append(dist.P2POp(dist.irecv, got, (rank - 1) % ranks))
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    assert got.eq((rank - 1) % ranks).all()

    mesh = init_device_mesh("cpu", (ranks,))
    whole = torch.arange(4 * ranks + 1, dtype=torch.float32)
    assert torch.equal(distribute_tensor(whole, mesh, [Shard(0)]).full_tensor(), whole)
    factor = dist.ReduceOp.PREMUL_SUM(0.5) if hasattr(dist.ReduceOp, "PREMUL_SUM") else None
    if callable(factor):
        one = torch.ones(5)
        dist.all_reduce(one, factor)
        assert one.tolist() == [ranks / 2] * 5


def refused(rank: int, _ranks: int, _folder: Path) -> None:
    """A call that means nothing is refused alike on every rank, and the group goes on."""
    for call in (
        lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND),
        lambda: dist.all_to_all_single(torch.empty(7), torch.ones(7)),
        lambda: dist.all_reduce(torch.ones(3).to_sparse()),
    ):
        try:
            call()
        except (RuntimeError, ValueError) as wrong:
            if "ridge_shm" not in str(wrong):
                raise
        else:
            raise AssertionError("not refused")
    one = torch.ones(2)
    dist.all_reduce(one)
    assert one[0].item() == dist.get_world_size()


def different(rank: int, _ranks: int, folder: Path) -> None:
    """Ranks that call different collectives are told which."""
    told(folder, rank, lambda: dist.all_reduce(torch.ones(4)) if rank else dist.barrier())


def killed(rank: int, _ranks: int, folder: Path) -> None:
    """Rank 1 dies between two collectives; the others learn who, in what."""
    one = torch.ones(1 << 20)
    for _ in range(3):
        dist.all_reduce(one)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    told(folder, rank, lambda: dist.all_reduce(one))


def stopped(rank: int, _ranks: int, folder: Path) -> None:
    """Rank 1 stops; the others learn who, after the time-out."""
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    told(folder, rank, dist.barrier)


def deaf(rank: int, _ranks: int, folder: Path) -> None:
    """A message that is never received, and a sender that dies."""
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        told(folder, rank, lambda: dist.recv(torch.empty(10), 1))


def told(folder: Path, rank: int, call: Callable[[], Any]) -> None:
    """Write what a call that must fail says, and how long it took."""
    began = time.monotonic()
    try:
        call()
    except RuntimeError as wrong:
        (folder / f"told{rank}").write_text(f"{time.monotonic() - began:.1f}\n{wrong}", encoding="utf-8")
        os._exit(0)
    raise AssertionError("nothing was wrong")


def large(rank: int, ranks: int, _folder: Path) -> None:
    """More than 2^31 bytes in one call."""
    one = torch.zeros(2**31 + 5, dtype=torch.uint8)
    one[0], one[2**30], one[-1] = rank + 1, 3, rank + 2
    dist.all_reduce(one)
    assert (one[0].item(), one[2**30].item(), one[-1].item()) == (3, 6, 5)
    assert one[1:1000].sum().item() == 0
    dist.send(one, 1) if rank == 0 else dist.recv(one, 0)
    assert one[-1].item() == 5


def fsdp(rank: int, ranks: int, folder: Path) -> None:
    """FSDP2 trains on it as on gloo, with equal losses and gradients; a pipeline's gradients are those of one rank."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    def train(group: Any) -> list[float]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(*(torch.nn.Linear(33, 33) for _ in range(3)))
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        stepper = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        for step in range(3):
            inputs = torch.randn(8, 33, generator=torch.Generator().manual_seed(10 * step + rank))
            loss = model(inputs).square().mean()
            loss.backward()
            seen += [loss.item(), *(p.grad.full_tensor().norm().item() for p in model.parameters())]
            stepper.step()
            stepper.zero_grad()
        return seen

    mine, theirs = train(dist.group.WORLD), train(dist.new_group(backend="gloo"))
    assert len(mine) == 3 * 7
    for a, b in zip(mine, theirs, strict=True):
        assert abs(a - b) <= 1e-5 * abs(b), (mine, theirs)
    _pipeline(rank, ranks)


def _pipeline(rank: int, ranks: int) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(5)
    layers = [torch.nn.Linear(16, 16) for _ in range(ranks)]
    inputs = torch.randn(8, 16)
    wanted = torch.nn.Sequential(*layers)(inputs).square().mean()
    wanted.backward()
    gradient = layers[rank].weight.grad.clone()
    layers[rank].weight.grad = None
    stage = PipelineStage(layers[rank], rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, _target: out.square().mean())
    if rank == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=torch.zeros(8, 16))
    assert torch.allclose(layers[rank].weight.grad, gradient, rtol=1e-4, atol=1e-6)


def main() -> None:
    scenario, rank, ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    register()
    limit = timedelta(seconds=float(os.environ.get("SHM_TIMEOUT", "60")))
    store = f"file://{folder}/store"
    dist.init_process_group("ridge_shm", init_method=store, rank=rank, world_size=ranks, timeout=limit)
    run = globals().get(scenario) or getattr(shm_lifetime, scenario)
    run(rank, ranks, folder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
