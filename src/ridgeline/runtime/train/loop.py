"""The steps of a run on one rank: open the device and the groups, begin or resume, train, tell, leave in order."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._ops import OpOverload
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import InputError, Problem
from ridgeline.models.params import count
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.resolve import resolve
from ridgeline.runtime.probe.ranks import World
from ridgeline.runtime.train.assemble import Assembly, Blueprint, assemble, gathered_weights, narrow_scaling
from ridgeline.runtime.train.checkpoint import Checkpoints
from ridgeline.runtime.train.data import BatchSource, batch_of, further_tokens, open_source
from ridgeline.runtime.train.fused import lacks_narrow
from ridgeline.runtime.train.layout import Layout, make_layout, shard_of
from ridgeline.runtime.train.request import (
    SHARED_MEMORY,
    TRACE_WINDOW,
    Listener,
    RunOptions,
    RunOutcome,
    RunRequest,
    StepRow,
    Verification,
    has_experts,
)
from ridgeline.runtime.train.step import Stepper, WholeStep
from ridgeline.runtime.train.update import Update
from ridgeline.runtime.train.verify import verify

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}


class Tracer:
    """Follows the steps of a run; does nothing where no folder is named."""

    def __init__(self, folder: str, layout: Layout) -> None:
        self.profiler: profile | None = None
        if not folder:
            return
        path = Path(folder) / f"rank-{layout.rank:05d}.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        quiet, warm, recorded = TRACE_WINDOW
        activities = [ProfilerActivity.CPU]
        if layout.device.startswith("cuda"):
            activities.append(ProfilerActivity.CUDA)
        self.profiler = profile(
            activities=activities,
            schedule=schedule(wait=quiet, warmup=warm, active=recorded, repeat=1),
            on_trace_ready=lambda found: found.export_chrome_trace(str(path)),
            record_shapes=True,
        )
        self.profiler.start()

    def step(self) -> None:
        if self.profiler is not None:
            self.profiler.step()

    def end(self) -> None:
        if self.profiler is not None:
            self.profiler.stop()
            self.profiler = None


def train(request: RunRequest, world: World, listener: Listener, stop: Callable[[], bool], began: float) -> RunOutcome:
    """Train on this rank; rank 0 tells every step and may stop all ranks behind one."""
    options, workload = request.options, request.train
    with join_ranks(request, world) as layout:
        source = open_source(options.data, request.scenario.model.vocab, options.seed)
        assembly = assemble(blueprint_of(request), layout)
        update = Update(assembly, workload.optimizer, options.rate)
        _begin_from(request, assembly, update)
        checkpoint_parts = Path(options.folder), assembly, update, listener.note
        checkpoints = Checkpoints(*checkpoint_parts) if options.folder else None
        facts = {"seed": options.seed, "data": options.data, "sequences": workload.sequences, "seq": workload.seq}
        facts["model"] = describe_model(request.scenario.model)
        done, notes = checkpoints.load(facts) if checkpoints and options.resume else (0, [])
        first = done
        stepper = Stepper(assembly=assembly, microbatches=request.scenario.microbatches)
        step = WholeStep(stepper, update, graph=resolve(request.scenario).graph == "full")
        rows: list[StepRow] = []
        startup = time.monotonic() - began
        is_stopped = False
        tracer = Tracer(options.trace, layout)
        while done < options.steps and not is_stopped:
            row, is_stopped = _step(step, (source, done), request, stop, first=done == first)
            tracer.step()
            done += 1
            rows.append(row)
            if layout.rank == 0:
                listener.step(row)
            if checkpoints:
                checkpoints.look()
            if checkpoints and ((options.every and done % options.every == 0) or is_stopped or done == options.steps):
                checkpoints.save(done, facts)
        tracer.end()
        _end_as(request, assembly)
        if checkpoints:
            checkpoints.finish()
        return RunOutcome(
            rows=tuple(rows), ranks=layout.ranks, device=layout.device, stopped=is_stopped, resumed=first,
            checkpoint=checkpoints.last if checkpoints else "", startup=startup, notes=tuple(notes),
            unsaved=bool(checkpoints and checkpoints.unsaved),
        )  # fmt: skip


def describe_model(model: ModelSpec) -> str:
    """The sizes that tensors of a checkpoint follow from.

    >>> import ridgeline
    >>> describe_model(ridgeline.model("llama3-8b"))
    '32 layers, hidden 4096, vocabulary 128256, 8.03e+09 parameters'
    """
    parameters = count(model).total
    return f"{model.layers} layers, hidden {model.hidden}, vocabulary {model.vocab}, {parameters:.3g} parameters"


def compare(request: RunRequest, world: World) -> Verification | None:
    workload, options = request.train, request.options
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # gathers in several steps
    with join_ranks(request, world) as layout:
        source = open_source(options.data, request.scenario.model.vocab, options.seed)
        return verify(blueprint_of(request), layout, source, workload.sequences, workload.seq)


def blueprint_of(request: RunRequest) -> Blueprint:
    scenario, decisions = request.scenario, resolve(request.scenario)
    return Blueprint(
        model=scenario.model,
        constants=request.constants,
        plan=scenario.plan,
        placement=scenario.placement,
        gradients=decisions.gradients,
        compiled=decisions.compiled,
        fuses=decisions.fuses,
        seed=request.options.seed,
    )


@contextmanager
def join_ranks(request: RunRequest, world: World) -> Iterator[Layout]:
    """The layout of this rank, with its process groups open."""
    device, options = world.device(request.options.device), request.options
    kind = device.partition(":")[0]
    _refuse_absent(device, kind)
    _refuse_narrow(request, device)
    plan, experts, many = request.scenario.plan, has_experts(request.scenario.model), world.ranks > 1
    begins = many and not dist.is_initialized()  # Ray Train has begun, and will end it
    if begins:
        if backend_of(options) == SHARED_MEMORY:
            from ridgeline.runtime.shm import register

            register()
        dist.init_process_group(backend_of(options), timeout=timedelta(seconds=options.timeout))
    try:
        if many:
            _agree(request, device)
        yield make_layout(plan, experts=experts, device=device)
        if many:
            dist.barrier()
    finally:
        if begins:
            dist.destroy_process_group()


def _agree(request: RunRequest, device: str) -> None:
    """Refuse ranks that were given different scenarios, or the same to train differently: files of nodes may differ."""
    options = request.options
    run_text = repr((request.scenario, options.steps, options.every, options.seed, options.rate, options.data))
    digest = int.from_bytes(hashlib.sha256(run_text.encode()).digest()[:7], "big")
    ends = torch.tensor([digest, -digest], dtype=torch.int64, device=device)
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    if int(ends[0]) != -int(ends[1]):
        todo = "give every rank the same scenario file, settings and options"
        raise InputError(Problem(path="SCENARIO", given="ranks that differ in it", expected="one for all", todo=todo))


def backend_of(options: RunOptions) -> str:
    """The backend of torch.distributed: as named, or the one that a device's maker wrote."""
    return options.backend or BACKENDS.get(options.device.partition(":")[0], "gloo")


def _refuse_absent(device: str, kind: str) -> None:
    if kind == "cpu":
        return
    if kind == "npu" and importlib.util.find_spec("torch_npu") is not None:
        importlib.import_module("torch_npu")  # brings torch.npu and the backend hccl; not tested: no NPU at hand
    module = getattr(torch, kind, None)
    if module is None or not module.is_available() or int(device.partition(":")[2] or 0) >= module.device_count():
        there = f"{module.device_count()} here" if module is not None and module.is_available() else "none here"
        todo = 'name another with --device, or run on the CPU with --set system="2xcpu" --device cpu'
        todo = f"install torch_npu, or {todo}" if kind == "npu" and module is None else todo
        raise InputError(
            Problem(path="--device", given=f"{device} ({there})", expected="a device torch finds", todo=todo)
        )
    module.set_device(int(device.partition(":")[2] or 0))


def _refuse_narrow(request: RunRequest, device: str) -> None:
    """Products in 8 bits where the device has none."""
    why = lacks_narrow(device) if narrow_scaling(request.scenario.plan.precision) else ""
    if why:
        todo = 'set plan.precision = "bf16"'
        raise InputError(Problem(path="plan.precision.compute", given=f"fp8 on {device}", expected=why, todo=todo))


def _begin_from(request: RunRequest, assembly: Assembly, update: Update) -> None:
    """Weights of a Hugging Face folder, where one is named."""
    if not request.options.weights:
        return
    from ridgeline.runtime.train.hf_weights import load_weights

    load_weights(assembly, Path(request.options.weights))
    update.refresh_masters()


def _end_as(request: RunRequest, assembly: Assembly) -> None:
    """Weights into a Hugging Face folder, where one is named; the config of the one they came from beside them."""
    if not request.options.save_weights:
        return
    from ridgeline.runtime.train.hf_weights import save_weights

    source = Path(request.options.weights) / "config.json" if request.options.weights else None
    save_weights(assembly, Path(request.options.save_weights), source)


KINDS = ("weights", "gradients", "optimizer", "activations", "temporary")
NEXT = 1.002  # a peak this much above the last one is looked at by kind


class _Live(TorchDispatchMode):  # type: ignore[misc]
    """Storages as ops make them, and the largest sum there was."""

    def __init__(self, assembly: Assembly, update: Update) -> None:
        super().__init__()
        self.assembly, self.update = assembly, update
        self.live = WeakIdKeyDictionary()
        self.peak, self.by_kind = 0, dict.fromkeys(KINDS, 0)
        for state in (*update.shards.values(), *_states(update)):
            self.live[shard_of(state).untyped_storage()] = "temporary"
        self._look()

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: JsonMapping | None = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        fresh = False
        phase = "temporary" if torch._C._current_autograd_node() is not None else "activations"
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and type(leaf) is Tensor:
                storage = leaf.untyped_storage()
                if storage not in self.live:
                    self.live[storage] = phase
                    fresh = True
        if fresh:
            self._look()
        return out

    def _look(self) -> None:
        sizes = [(storage, storage.nbytes(), phase) for storage, phase in self.live.items()]
        total = sum(size for _, size, _ in sizes)
        if total > self.peak * NEXT:
            kinds = self._known_kinds()
            self.peak, self.by_kind = total, dict.fromkeys(KINDS, 0)
            for storage, size, phase in sizes:
                self.by_kind[kinds.get(storage._cdata, phase)] += size

    def _known_kinds(self) -> dict[int, str]:
        """Storages that have an owner, by kind; a weight that is its own master is a weight."""
        kinds: dict[int, str] = {}
        weight_kind = "temporary" if self.assembly.blueprint.plan.sharding.shard == "zero3" else "weights"
        for stage in self.assembly.stages.values():
            kinds |= {_key(weight): weight_kind for weight in gathered_weights(stage)}
        kinds |= {_key(state): "optimizer" for state in _states(self.update)}
        for name, parameter in self.update.named.items():
            kinds[_key(self.update.shards[name])] = "weights"
            if parameter.grad is not None:
                kinds[_key(parameter.grad)] = "gradients"
        return kinds


def _states(update: Update) -> Iterator[Tensor]:
    yield from update.masters.values()
    for pair in update.states.values():
        yield from pair


def _key(tensor: Tensor) -> int:
    return int(shard_of(tensor).untyped_storage()._cdata)


@contextmanager
def count_resident(assembly: Assembly, update: Update, *, wanted: bool) -> Iterator[dict[str, int]]:
    """Fill a table with bytes by kind when the block ends; empty where nobody wants them.

    weights        the rank's shards, and whole weights that stay gathered through a step
    gradients      of its parameters, as they are held
    optimizer      states and master copies
    activations    what the forward made and is still there
    temporary      what the backward and the update made, and weights that zero3 gathers for a layer

    Every op's outputs are counted as long as their memory lives. That takes time, so that one step is counted, the
    first, which no median includes. On an accelerator its allocator knows the peak: activations and temporary are what
    it has beside the rest, and stand under activations.
    """
    bytes_by_kind: dict[str, int] = {}
    if not wanted:
        yield bytes_by_kind
    elif assembly.layout.device.startswith("cpu"):
        with _Live(assembly, update) as live:
            yield bytes_by_kind
        bytes_by_kind |= live.by_kind
    else:
        module = getattr(torch, assembly.layout.device.partition(":")[0])
        grads = {name: shard_of(shard).nbytes for name, shard in update.shards.items()}
        yield bytes_by_kind
        bytes_by_kind |= {"weights": sum(grads.values()), "gradients": sum(grads.values())}
        shard_keys = {_key(shard) for shard in update.shards.values()}
        bytes_by_kind["optimizer"] = sum(state.nbytes for state in _states(update) if _key(state) not in shard_keys)
        bytes_by_kind["activations"] = max(0, int(module.max_memory_allocated()) - sum(bytes_by_kind.values()))


def _step(
    step: WholeStep, place: tuple[BatchSource, int], request: RunRequest, stop: Callable[[], bool], *, first: bool
) -> tuple[StepRow, bool]:
    """One optimizer step, timed from its batch to its update; and whether any rank was asked to stop.

    first   of this run: its memory is counted by kind
    """
    workload, layout = request.train, step.stepper.assembly.layout
    source, index = place
    began = time.perf_counter()
    scale = step.stepper.scale
    with count_resident(step.stepper.assembly, step.update, wanted=first) as resident_bytes:
        further = further_tokens(request.scenario.model)
        loss, norm = step(batch_of(source, index, workload.sequences, workload.seq, layout, further))
    if not layout.device.startswith("cpu"):
        getattr(torch, layout.device.partition(":")[0]).synchronize()
    figures = torch.tensor(
        [time.perf_counter() - began, float(resident_memory(layout.device)), float(stop())], dtype=torch.float64
    )
    if layout.ranks > 1:
        figures = figures.to(layout.device)
        dist.all_reduce(figures, op=dist.ReduceOp.MAX)
    seconds, memory, stop_flag = figures.tolist()
    if resident_bytes:
        resident_bytes = max(layout.gather_objects(resident_bytes), key=lambda sizes: sum(sizes.values()))
    row = StepRow(step=index + 1, loss=float(loss), gradient_norm=float(norm), seconds=seconds,
                  tokens=workload.tokens, memory=int(memory), loss_scale=scale, held=resident_bytes)  # fmt: skip
    return row, bool(stop_flag)


def resident_memory(device: str) -> int:
    if device.startswith("cpu"):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(getattr(torch, device.partition(":")[0]).max_memory_allocated())
