"""Start the processes of a run as actors of a Ray cluster, on the chips of placement groups.

    train      one group, packed on as few nodes as hold it: its ranks exchange gradients in every step
    rollout    one group, spread as the nodes come: replicas meet nobody

Each bundle of a group is a chip and has one actor. A process that is lost is started again on its own bundle, wherever
Ray finds room for that when its node is gone. Ranks meet on the node of rank 0.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.runtime.rl.crew import Answer, Worker
from ridgeline.runtime.rl.member import SeatMember
from ridgeline.runtime.rl.request import RlRunRequest, Seat
from ridgeline.runtime.train.launch import enter_rank, free_port, problems_of, reason
from ridgeline.runtime.train.ray_cluster import PATHS, RESOURCES
from ridgeline.runtime.train.request import WorkerLost

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.util.placement_group import PlacementGroup

GROUP_S = 60.0  # in which a placement group has to find its chips


class SeatActor:
    """A process of the cluster: where it is, and what its member answers."""

    def __init__(self, request: RlRunRequest, seat: Seat) -> None:
        self.request, self.seat = request, seat
        self.member: SeatMember | None = None

    def place(self) -> tuple[str, int]:
        """The address of its node, and a port there that nobody listens on."""
        import ray

        return str(ray.util.get_node_ip_address()), free_port()

    def enter(self, ranks: int, meeting: tuple[str, int]) -> None:
        """Become a rank among those that train; they meet at an address."""
        own_chip = int(os.environ.get("LOCAL_RANK", "0"))
        enter_rank(self.seat.rank or 0, ranks, own_chip, meeting[1])
        os.environ["MASTER_ADDR"] = meeting[0]
        self.member = SeatMember(self.request, replace(self.seat, chip=own_chip))

    def answer(self, method: str, arguments: Sequence[object]) -> tuple[str, object]:
        """What a process of one host would send through its pipe."""
        try:
            return "done", getattr(self.member, method)(*arguments)
        except InputError as wrong:
            return "refused", problems_of(wrong)
        except Exception as wrong:
            return "failed", reason(wrong)


class RayProcess:
    """An actor as the conductor calls it."""

    def __init__(self, seat: Seat, actor: ActorHandle) -> None:
        self.seat, self.actor = seat, actor

    def call(self, method: str, *arguments: object) -> Answer:
        answer: Answer = Future()

        def hear(found: Answer) -> None:
            wrong = found.exception()
            if wrong is not None:
                answer.set_exception(self._lost(_cause(wrong), is_gone=True))
                return
            kind, value = found.result()
            if kind == "done":
                answer.set_result(value)
            elif kind == "refused":
                answer.set_exception(InputError(value))
            else:
                answer.set_exception(self._lost(str(value), is_gone=False))

        try:
            self.actor.answer.remote(method, arguments).future().add_done_callback(hear)
        except Exception as wrong:  # whatever Ray says of an actor that is gone
            answer.set_exception(self._lost(_cause(wrong), is_gone=True))
        return answer

    def end(self) -> None:
        import ray

        ray.kill(self.actor)

    def _lost(self, why: str, *, is_gone: bool) -> WorkerLost:
        rank = self.seat.rank if self.seat.rank is not None else self.seat.replica or 0
        return WorkerLost(rank, f"{self.seat.name}: {why}", gone=(rank,) if is_gone else ())


class RayCrew:
    """Actors of the cluster that this host belongs to, or that RAY_ADDRESS names."""

    def __init__(self, request: RlRunRequest) -> None:
        if importlib.util.find_spec("ray") is None:
            todo = "`pip install ridgeline[ray]` on every node, or leave --launcher out"
            raise InputError(Problem(path="--launcher", given="no module ray", expected="Ray", todo=todo))
        import ray

        try:
            if not ray.is_initialized():
                ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        except ConnectionError as wrong:
            todo = "`ray start --head` here and `ray start --address` on the other nodes, or set RAY_ADDRESS"
            problem = Problem(path="--launcher", given="no Ray cluster that answers", expected="one", todo=todo)
            raise InputError(problem) from wrong
        self.resource = RESOURCES.get(request.options.device.partition(":")[0], "GPU")
        self.groups: dict[str, PlacementGroup] = {}
        self.bundles: dict[str, int] = {}

    def start(self, request: RlRunRequest, seats: tuple[Seat, ...]) -> list[Worker]:
        """An actor on the bundle of every seat; the ranks among them know where they meet."""
        import ray

        request = _absolute(request)
        self._reserve(seats)
        actors = {seat: self._actor(request, seat) for seat in seats}
        training = [seat for seat in seats if seat.rank is not None]
        try:
            meeting = ray.get(actors[training[0]].place.remote()) if training else ("127.0.0.1", 0)
            ranks = {seat: len(training) if seat in training else 1 for seat in seats}
            ray.get([actor.enter.remote(ranks[seat], meeting) for seat, actor in actors.items()])
        except ray.exceptions.RayActorError as wrong:
            raise WorkerLost(0, f"an actor did not start: {_cause(wrong)}", gone=(0,)) from wrong
        return [RayProcess(seat, actor) for seat, actor in actors.items()]

    def close(self) -> None:
        """Give the chips back."""
        from ray.util import remove_placement_group

        for group in self.groups.values():
            remove_placement_group(group)

    def _reserve(self, seats: Sequence[Seat]) -> None:
        """The placement groups of these seats, unless they are there from before."""
        from ray.util.placement_group import placement_group

        for pool, strategy in (("train", "PACK"), ("rollout", "SPREAD")):
            members = [seat for seat in seats if _pool(seat) == pool]
            if not members or pool in self.groups:
                continue
            self.bundles |= {seat.name: index for index, seat in enumerate(members)}
            group = placement_group([{self.resource: 1, **self._host()} for _ in members], strategy=strategy)
            self.groups[pool] = group
            if not group.wait(GROUP_S):
                self._refuse_room(len(members), pool)

    def _host(self) -> JsonObject:
        """Beside an accelerator an actor takes a core of its host."""
        return {} if self.resource == "CPU" else {"CPU": 1}

    def _refuse_room(self, chips: int, pool: str) -> None:
        import ray

        room = int(ray.available_resources().get(self.resource, 0))
        self.close()
        given_text = f"{room} {self.resource} free in the Ray cluster"
        expected_text = f"{chips} for {pool}"
        todo = "start more nodes, or give the plan fewer chips"
        raise InputError(Problem(path="--launcher", given=given_text, expected=expected_text, todo=todo))

    def _actor(self, request: RlRunRequest, seat: Seat) -> ActorHandle:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self.groups[_pool(seat)], placement_group_bundle_index=self.bundles[seat.name]
        )
        chip: JsonObject = {"num_gpus": 1} if self.resource == "GPU" else {}
        if self.resource not in ("CPU", "GPU"):
            chip = {"resources": {self.resource: 1}}
        environment = {"env_vars": {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}}
        made = ray.remote(num_cpus=1, scheduling_strategy=strategy, runtime_env=environment, max_restarts=0, **chip)
        return made(SeatActor).remote(request, seat)


def _pool(seat: Seat) -> str:
    return "rollout" if seat.rank is None else "train"


def _absolute(request: RlRunRequest) -> RlRunRequest:
    """Paths that mean the same in the folder where Ray starts a process."""
    options = request.options
    paths: JsonObject = {name: os.path.abspath(path) for name in PATHS if (path := getattr(options, name))}
    return replace(request, options=replace(options, **paths))


def _cause(wrong: BaseException) -> str:
    """The first line of what Ray says."""
    first = (str(wrong).strip().splitlines() or [type(wrong).__name__])[0][:200]
    return f"{type(wrong).__name__}: {first}"
