"""Which readers no file of the profiler itself has gone through: what they read carries a warning that says so.

A reader leaves this table when a file that its profiler wrote has been read and agrees with the profiler's own figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

UNPROVEN: Mapping[str, str] = MappingProxyType(
    {
        "msprof database": "msprof's tables as CANN documents them",
        "msprof summary": "the columns CANN documents for op_summary and task_time",
        "MindSpore timeline": "the processes and threads MindSpore names in its timeline",
        "rocpd database": "the schema of rocprofv3's rocpd",
        "rocprofv3 table": "the columns of rocprofv3's kernel_trace.csv",
        "Kineto JSON of MTIA": "the categories Kineto has for MTIA",
        "PyTorch memory snapshot": "the keys of torch.cuda.memory._dump_snapshot",
    }
)
"""By format: what the reader was built from."""


def doubt(format: str) -> tuple[str, ...]:
    """The warning about a format whose reader is unproven; none about others.

    >>> doubt("rocpd database")[0][:40], doubt("Kineto JSON")
    ('unproven reader: rocpd database is read ', ())
    """
    if format not in UNPROVEN:
        return ()
    return (
        f"unproven reader: {format} is read by {UNPROVEN[format]}; no file of the profiler was at hand to check it: "
        "hold the first figures against the profiler's own",
    )
