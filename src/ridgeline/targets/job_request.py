"""Turn words such as `time=4h` into what a scheduler is asked for beside the chips."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from ridgeline.core.errors import InputError, Problem, UnitError, not_among
from ridgeline.core.units import parse_quantity
from ridgeline.plan.scenario import Scenario

LONGEST = 30 * 86400.0  # seconds
IMAGE = "pytorch/pytorch:latest"  # where none is asked for; the files say that it is to be replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One job.

    time       seconds after which it is stopped
    partition  Slurm's partition, the queue of Kueue or Volcano, the compute of Azure ML
    account    who pays, where the scheduler asks
    image      the container that the software is in
    output     a folder for logs (Slurm), a claim of a volume (Kubernetes), a bucket (SkyPilot): mounted at /output
    """

    time: float | None = None
    partition: str | None = None
    account: str | None = None
    image: str | None = None
    output: str | None = None


def job_request(words: Mapping[str, str]) -> JobRequest:
    """The request that words by name make.

    >>> job_request({"time": "90 min", "partition": "gpu"})
    JobRequest(time=5400.0, partition='gpu', account=None, image=None, output=None)
    """
    known = [field.name for field in fields(JobRequest)]
    for name, value in words.items():
        if name not in known:
            raise InputError(not_among("--job", name, known))
        if not re.fullmatch(r"[\w@%+=:,./ -]{1,200}", value):
            expected = "letters, digits and any of @%+=:,./-"
            raise InputError(Problem(path=f"--job {name}", given=value[:60], expected=expected))
    plain = {name: value for name, value in words.items() if name != "time"}
    return JobRequest(time=_seconds(words["time"]) if "time" in words else None, **plain)


def _seconds(text: str) -> float:
    try:
        found = parse_quantity(text, "s")
    except UnitError:
        found = 0.0
    if not 1 <= found <= LONGEST:
        raise InputError(Problem(path="--job time", given=text[:60], expected="a time such as 4h, 1 s to 30 d"))
    return found


def job_name(scenario: Scenario) -> str:
    """A name that every scheduler takes: lower case, digits and dashes, 40 characters."""
    text = re.sub(r"[^a-z0-9]+", "-", (scenario.name or scenario.model.id).lower()).strip("-")[:40].strip("-")
    return text if re.match(r"[a-z]", text) else f"run-{text}".strip("-")


def clock(seconds: float) -> str:
    """Slurm's hours, minutes and seconds.

    >>> clock(93784.0)
    '26:03:04'
    """
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
