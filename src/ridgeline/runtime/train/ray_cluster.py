"""Run a request on the nodes of a Ray cluster with Ray Train: it places the ranks, and tells them where they meet.

Ranks talk to whoever asked through an actor, the mailbox: steps, notes and the outcome come out of it, a wish to stop
goes in. Ray Train itself retries nothing: attempts are counted, resumed and made smaller as on one host.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import threading
import time
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.runtime.probe.ranks import find_world
from ridgeline.runtime.train.launch import problems_of, reason, work
from ridgeline.runtime.train.request import Listener, RunRequest, RunResult, WorkerLost

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

POLL_S = 0.1
RESOURCES = {"cpu": "CPU", "cuda": "GPU", "npu": "NPU"}  # what Ray calls a chip of a torch device
PATHS = ("folder", "trace", "weights", "save_weights")  # options that name folders
FORGET_S = 30.0  # in which Ray notices that a node is gone


class Mailbox:
    """What ranks said and nobody has read yet, and whether they should stop."""

    def __init__(self) -> None:
        self.said: list[tuple[str, object]] = []
        self.stopped = False

    def say(self, kind: str, value: object) -> bool:
        self.said.append((kind, value))
        return self.stopped

    def take(self) -> list[tuple[str, object]]:
        messages, self.said = self.said, []
        return messages

    def stop(self) -> None:
        self.stopped = True


class Cluster:
    """The Ray cluster that this host belongs to, or that RAY_ADDRESS names."""

    def __init__(self, began: float) -> None:
        self.asked = time.time() - (time.monotonic() - began)
        self.resource, self._room_before = "CPU", 0
        if importlib.util.find_spec("ray") is None:
            todo = "`pip install ridgeline[ray]` on every node"
            raise InputError(Problem(path="--launcher", given="no module ray", expected="Ray Train", todo=todo))
        import ray

        try:
            if not ray.is_initialized():
                ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        except ConnectionError as wrong:
            todo = "`ray start --head` here and `ray start --address` on the other nodes, or set RAY_ADDRESS"
            given_text = "no Ray cluster that answers"
            raise InputError(Problem(path="--launcher", given=given_text, expected="one", todo=todo)) from wrong

    def attempt(self, request: RunRequest, listener: Listener) -> RunResult:
        import ray

        self.resource = RESOURCES.get(request.options.device.partition(":")[0], "GPU")
        room = self._room_before = self._room()
        if room < request.ranks:
            todo = "start more nodes, or run with --elastic"
            given_text = f"{room} {self.resource} in the Ray cluster"
            expected_text = f"one for each of the plan's {request.ranks} ranks"
            raise InputError(Problem(path="--launcher", given=given_text, expected=expected_text, todo=todo))
        mailbox = ray.remote(num_cpus=0, scheduling_strategy=_here())(Mailbox).remote()
        wrong: list[BaseException] = []
        fit = threading.Thread(target=self._fit, args=(_absolute(request), mailbox, wrong), daemon=True)
        fit.start()
        answer, refusal = None, None
        while True:
            over = not fit.is_alive()
            try:
                for kind, value in ray.get(mailbox.take.remote()):
                    if kind in ("step", "note"):
                        listener.hear(kind, value)
                    elif kind == "refused":
                        refusal = value
                    else:
                        answer = value
                if over:
                    break
                time.sleep(POLL_S)
            except KeyboardInterrupt:
                ray.get(mailbox.stop.remote())
        ray.kill(mailbox)
        if refusal is not None:
            raise InputError(refusal)
        if wrong:
            raise _lost(wrong[0])
        return answer

    def _fit(self, request: RunRequest, mailbox: ActorHandle, wrong: list[BaseException]) -> None:
        """Ray Train's own call, which blocks."""
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        from ridgeline.runtime.train.loop import backend_of

        options, per_worker = request.options, {"resources_per_worker": {self.resource: 1}}
        try:
            TorchTrainer(
                _rank,
                train_loop_config={"request": request, "mailbox": mailbox, "asked": self.asked},
                scaling_config=ScalingConfig(num_workers=request.ranks, use_gpu=self.resource == "GPU", **per_worker),
                torch_config=TorchConfig(backend=backend_of(options), timeout_s=max(1, int(options.timeout))),
                run_config=RunConfig(
                    storage_path=tempfile.mkdtemp(prefix="ridgeline-ray-"), failure_config=FailureConfig(max_failures=0)
                ),
            ).fit()
        except BaseException as caught:
            wrong.append(caught)

    def left_without(self, gone: tuple[int, ...]) -> int:
        """What the nodes that answer have, once Ray has noticed which do not; one less where all answer.

        Which ranks are gone Ray Train does not tell from those that could not be asked: nodes are counted.
        """
        until = time.monotonic() + FORGET_S
        while self._room() >= self._room_before and time.monotonic() < until:
            time.sleep(1.0)
        return min(self._room(), self._room_before - bool(gone))

    def _room(self) -> int:
        import ray

        alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
        return int(sum(resources.get(self.resource, 0) for resources in alive))


def _here() -> NodeAffinitySchedulingStrategy:
    """On this node, whose loss ends the run anyway."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _absolute(request: RunRequest) -> RunRequest:
    """Paths that mean the same in the folder where Ray starts a worker; nodes share them, or have copies."""
    options = request.options
    names = (*PATHS, "data") if os.path.exists(options.data) else PATHS
    paths: JsonObject = {name: os.path.abspath(path) for name in names if (path := getattr(options, name))}
    return replace(request, options=replace(options, **paths))


def _rank(told: JsonMapping) -> None:
    """The main function of a rank, in a process of Ray; its environment is as torchrun would have it."""
    import ray

    request: RunRequest = told["request"]
    mailbox, stop_flag = told["mailbox"], [False]

    def say(kind: str, value: object) -> None:
        stop_flag[0] = ray.get(mailbox.say.remote(kind, value)) or stop_flag[0]

    world = find_world()
    try:
        began = time.monotonic() - (time.time() - told["asked"])  # the clock of this node
        outcome = work(request, world, Listener.sending(say), lambda: stop_flag[0], began)
    except InputError as wrong:
        say("refused", problems_of(wrong))
    except Exception as wrong:
        raise RuntimeError(f"{reason(wrong)}\n{traceback.format_exc()}") from None
    else:
        if world.rank == 0:
            say("done", outcome)


def _lost(wrong: BaseException) -> WorkerLost:
    """Which rank failed and why; gone are those that Ray lost, not those that said why."""
    failures: dict[int, BaseException] = dict(getattr(wrong, "worker_failures", {}))
    gone = tuple(sorted(rank for rank, why in failures.items() if "UserException" not in type(why).__name__))
    rank = gone[0] if gone else min(failures, default=0)
    lines = str(failures.get(rank, wrong)).strip().splitlines() or [type(wrong).__name__]
    return WorkerLost(rank, lines[0][:300], "\n".join(lines[1:]), gone)
