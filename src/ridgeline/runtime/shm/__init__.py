"""The backend "ridge_shm" of torch.distributed: collectives between ranks of one host, through memory they share.

    from ridgeline.runtime.shm import register

    register()                                           # builds the backend on its first use: about a minute, once
    torch.distributed.init_process_group("ridge_shm")    # or "cpu:ridge_shm,cuda:nccl"

`segment` shares the memory, `rounds` are collectives in it, `messages` sends and receives, `reduce` the arithmetic;
`process_group`, `work` and `rendezvous` are what torch calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.runtime.measure import need_torch
from ridgeline.runtime.shm.build import load_extension

if TYPE_CHECKING:
    from collections.abc import Callable

BACKEND = "ridge_shm"


def register() -> None:
    """Make `backend="ridge_shm"` known to torch.distributed in this process; call it before `init_process_group`."""
    need_torch(BACKEND)
    import torch.distributed as dist

    if BACKEND in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(BACKEND, _creator(load_extension().create), extended_api=True, devices=["cpu"])


def _creator(create: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def make_group(asked: Any, _options: Any) -> Any:
        seconds = asked.timeout.total_seconds()
        ranks = list(asked.global_ranks_in_group)
        rank = ranks[asked.group_rank] if ranks else asked.group_rank
        return create(asked.store, asked.group_rank, asked.group_size, seconds, rank)

    return make_group
