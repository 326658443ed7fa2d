"""Turn the beginning and the name of a file that no reader knows into what it is, and how to get one that is read."""

from __future__ import annotations

import re
from pathlib import Path

ENDINGS = {
    ".nsys-rep": ("a report of Nsight Systems", "nsys export --type sqlite FILE"),
    ".qdrep": ("a report of Nsight Systems", "nsys export --type sqlite FILE"),
    ".ncu-rep": ("a report of Nsight Compute", "ncu --import FILE --csv --page raw > FILE.csv, as --counters"),
    ".pftrace": ("a Perfetto trace", "write the profiler's own format: rocprofv3 --output-format rocpd, or JSON"),
    ".perfetto-trace": ("a Perfetto trace", "write the profiler's own format, or JSON"),
    ".tar": ("a tar archive", "unpack it and name the folder"),
    ".tgz": ("a tar archive", "unpack it and name the folder"),
    ".rpd": ("an RPD database", "rpd2tracing.py FILE OUT.json"),
}  # fmt: skip
BEGINNINGS: tuple[tuple[re.Pattern[bytes], str, str], ...] = (
    (re.compile(rb"^\x28\xb5\x2f\xfd"), "a file packed with Zstandard", "unzstd it first"),
    (re.compile(rb"^\xfd7zXZ"), "a file packed with xz", "unxz it first"),
    (re.compile(rb"^BZh"), "a file packed with bzip2", "bunzip2 it first"),
    (re.compile(rb"^(\xff\xfe|\xfe\xff)"), "text in UTF-16", "save it as UTF-8"),
    (re.compile(rb"^PAR1"), "a Parquet table", "export JSON or SQLite"),
    (re.compile(rb"^\x93NUMPY"), "an array of NumPy", "this is no trace"),
    (re.compile(rb"^\x7fELF"), "a program", "this is no trace"),
    (re.compile(rb"^\s*<(!DOCTYPE|html)", re.IGNORECASE), "a page of HTML", "name the trace it was made from"),
    (re.compile(rb"^.{257}ustar", re.DOTALL), "a tar archive", "unpack it and name the folder"),
    (re.compile(rb"^version https://git-lfs"), "a pointer of Git LFS, not the file", "git lfs pull"),
    (re.compile(rb'^\s*\{\s*"rocprofiler-sdk-tool"'), "JSON of rocprofv3", "rocprofv3 --output-format rocpd"),
    (re.compile(rb"^\x80[\x02-\x05]"), "a pickle", "a memory snapshot is read alone: ridgeline analyze FILE.pickle"),
    (re.compile(rb"^\x0a"), "a protobuf, perhaps of Perfetto", "write the profiler's own format, or JSON"),
)


def what_it_is(path: Path, head: bytes) -> tuple[str, str]:
    """What a file is, and what to do; empty where nobody knows.

    >>> what_it_is(Path("run.nsys-rep"), b"...")
    ('a report of Nsight Systems', 'nsys export --type sqlite FILE')
    """
    for ending, description in ENDINGS.items():
        if path.name.lower().endswith(ending):
            return description
    return next(((what, todo) for pattern, what, todo in BEGINNINGS if pattern.match(head)), ("", ""))
