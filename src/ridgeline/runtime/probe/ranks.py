"""Which rank of how many this process is, as torchrun or Slurm told it through the environment."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

FIRST_PORT, PORTS = 29500, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among its peers; `environment` is what a child needs to find them."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def nodes(self) -> int:
        """Hosts that take part, if each has as many ranks as this one."""
        return max(1, -(-self.ranks // max(self.local_ranks, 1)))

    def device(self, name: str) -> str:
        """A device string with this rank's own index, where it names none and the host has several ranks."""
        return name if ":" in name or name == "cpu" or self.ranks == 1 else f"{name}:{self.local_rank}"


def find_world(environment: Mapping[str, str] | None = None) -> World:
    """The world this process was started in: torchrun's, Slurm's, or one rank.

    >>> find_world({"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}).nodes
    2
    """
    variables = dict(os.environ if environment is None else environment)
    if "RANK" in variables and "WORLD_SIZE" in variables:
        local = variables.get("LOCAL_RANK", "0"), variables.get("LOCAL_WORLD_SIZE", "1")
        return _of(variables["RANK"], variables["WORLD_SIZE"], *local, {})
    return _of_slurm(variables) or World()


def _of_slurm(step: Mapping[str, str]) -> World | None:
    """The task of a Slurm step that this process is; None outside one, as in a batch script before its `srun`.

    Tasks meet on the first host of the step, at a port made of job and step, unless MASTER_ADDR and MASTER_PORT say
    otherwise.

    >>> step = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_ID": "71",
    ...     "SLURM_STEP_ID": "2", "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_STEP_NODELIST": "127.0.0.1"}
    >>> world = _of_slurm(step)
    >>> world.rank, world.ranks, world.nodes, dict(world.environment)["MASTER_PORT"]
    (5, 8, 2, '29573')
    >>> _of_slurm({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "71"}) is None
    True
    """
    ranks = step.get("SLURM_STEP_NUM_TASKS", "1")
    if int(ranks) < 2 or "SLURM_PROCID" not in step:
        return None
    tasks = re.match(r"\d+", step.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    port = FIRST_PORT + (int(step.get("SLURM_JOB_ID", "0")) + int(step.get("SLURM_STEP_ID", "0"))) % PORTS
    meet = {"MASTER_ADDR": step.get("MASTER_ADDR") or _first_host(step.get("SLURM_STEP_NODELIST", ""))}
    meet["MASTER_PORT"] = step.get("MASTER_PORT") or str(port)
    return _of(step["SLURM_PROCID"], ranks, step.get("SLURM_LOCALID", "0"), tasks[0] if tasks else "1", meet)


def _of(rank: str, ranks: str, local_rank: str, local_ranks: str, more: Mapping[str, str]) -> World:
    variables = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_ranks, **more}
    local = {"local_rank": int(local_rank), "local_ranks": int(local_ranks)}
    return World(rank=int(rank), ranks=int(ranks), **local, environment=tuple(variables.items()))


def _first_host(nodes: str) -> str:
    """The first host of a Slurm list, by scontrol where it is there, else of the text itself.

    >>> _first_host("gpu[012-015,020]")
    'gpu012'
    """
    try:
        answer = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=10)
        if answer.returncode == 0 and answer.stdout.split():
            return answer.stdout.split()[0]
    except (OSError, subprocess.TimeoutExpired):
        pass
    first = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    return f"{first[1]}{first[2] or ''}" if first else "127.0.0.1"
