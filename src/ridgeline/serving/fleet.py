"""What a fleet is (pools of replicas, who deals requests to them, what happens to them) and what a run of it leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ridgeline.core.records import dataclass
from ridgeline.plan.serving_plan import Autoscale, Failure
from ridgeline.serving.replica import Replica, Sample
from ridgeline.serving.router import Router
from ridgeline.serving.served import Served

Role = Literal["both", "prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """How the cache of a prompt moves: bytes of a token, and the links of one replica.

        seconds = latency + tokens x bytes_per_token / bytes_per_s

    A replica sends one cache after the other.
    """

    bytes_per_token: float
    bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPool:
    """So many engines of one kind; `make` starts a fresh one."""

    make: Callable[[], Replica]
    count: int
    chips: int
    role: Role = "both"
    transfer: Transfer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Pools, who deals requests to them, and what happens to them."""

    pools: Sequence[ReplicaPool]
    router: Callable[[], Router]
    autoscale: Autoscale | None = None
    failures: Sequence[Failure] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """What became of requests, and what the fleet did.

    chip_seconds     chips times the time they were there
    transfer_bytes   cache moved between replicas
    retried          requests sent again after a failure
    replicas         (seconds, replicas that take requests) whenever that changed
    samples          by replica: seconds, waiting, running, share of its cache held
    """

    served: Served
    chips: int
    chip_seconds: float
    transfer_bytes: float
    retried: int
    replicas: tuple[tuple[float, int], ...]
    samples: tuple[tuple[Sample, ...], ...]
