"""CPU seconds and peak memory of reading a large trace and breaking it down, beside other tools on the same file.

    python benchmarks/trace.py                                  Ridgeline alone, 2.2 M events (about 430 MB, made here)
    python benchmarks/trace.py --hta VENV/bin/python            beside Holistic Trace Analysis, installed in that Python
    python benchmarks/trace.py --tracelens VENV/bin/python      beside TraceLens, likewise
    python benchmarks/trace.py --trace FILE                     on a trace of your own
    python benchmarks/trace.py --gigabytes 10                   on one of that size; with --packed as a gzip stream
    python benchmarks/trace.py --ranks 64                       on a folder of so many ranks that share the events

Every tool runs in a fresh process; CPU seconds are user and system time of it and its children, memory is the largest
resident set. All do the same: load, then time busy and idle, compute and communication, and their overlap.

HTA comes from the package index (HolisticTraceAnalysis). TraceLens is published as source only; its name on the index
belongs to another project: where its repository cannot be reached, as on the machine these figures were taken on, it is
left out, and no figure of it is quoted.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TextIO

EVENTS = 2_200_000
EVENTS_A_GIGABYTE = 4_050_000
LIMIT_MB, TIMES = 600, 5  # the targets: megabytes at most, times less CPU than HTA at least
KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
    "at::native::binary_internal::MulFunctor<float> >, at::detail::Array<char*, 3> >(int, "
    "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, "
    "at::detail::Array<char*, 3>)",
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float, float const*)",
)
UNIT = """  {{
    "ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 4242, "tid": 4242,
    "ts": {at}, "dur": 9,
    "args": {{
      "External id": {id}, "Ev Idx": {id}, "Input Dims": [[4096, 1024], [1024, 1024]], "Input type": ["float", "float"]
    }}
  }},
  {{
    "ph": "X", "cat": "cpu_op", "name": "aten::t", "pid": 4242, "tid": 4242,
    "ts": {at}, "dur": 1,
    "args": {{
      "External id": {id}, "Ev Idx": {id}
    }}
  }},
  {{
    "ph": "X", "cat": "cpu_op", "name": "aten::{op}", "pid": 4242, "tid": 4242,
    "ts": {in1}, "dur": 7,
    "args": {{
      "External id": {id}, "Ev Idx": {id}, "Fwd thread id": 0, "Sequence number": {id}
    }}
  }},
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaStreamIsCapturing", "pid": 4242, "tid": 4242,
    "ts": {in2}, "dur": 0,
    "args": {{
      "External id": {idle}, "cbid": 317, "correlation": {idle}
    }}
  }},
  {{
    "ph": "f", "id": {idle}, "pid": 4242, "tid": 4242, "ts": {in2},
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }},
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4242, "tid": 4242,
    "ts": {in3}, "dur": 5,
    "args": {{
      "External id": {id}, "cbid": 211, "correlation": {id}
    }}
  }},
  {{
    "ph": "s", "id": {id}, "pid": 4242, "tid": 4242, "ts": {in3},
    "cat": "ac2g", "name": "ac2g"
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": {stream},
    "ts": {run}, "dur": {length},
    "args": {{
      "External id": {id},
      "queued": 0, "device": 0, "context": 1,
      "stream": {stream}, "correlation": {id},
      "registers per thread": 32, "shared memory": 0, "blocks per SM": 25.6, "warps per SM": 102.4,
      "grid": [2048, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 100
    }}
  }},
  {{
    "ph": "f", "id": {id}, "pid": 0, "tid": {stream}, "ts": {run},
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }},
  {{
    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",
    "pid": 4242, "tid": 4242, "ts": {in1},
    "args": {{
      "Ev Idx": {id}, "Device Type": 1, "Device Id": 0, "Addr": 139927115268096, "Bytes": 4194304,
      "Total Allocated": 5439833088, "Total Reserved": 12782141440
    }}
  }},
"""
STEP = """  {{
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step}", "pid": 4242, "tid": 4242,
    "ts": {start}, "dur": {length},
    "args": {{
      "External id": 1, "Ev Idx": 1
    }}
  }}"""
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 84990623744}],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
  "traceEvents": [
"""
RIDGELINE = """
import sys
from ridgeline.trace.analysis.breakdown import breakdown
from ridgeline.trace.read.readers import read_timeline
found = breakdown(read_timeline(sys.argv[1])).total
print(f"idle {found.idle_ns / 1000:,.0f} us, communication {found.communication_ns / 1000:,.0f} us")
"""
WHOLE = """
import json, sys
from ridgeline.core.encode import to_json
from ridgeline.trace.analyze_traces import analyze
found = to_json(analyze(sys.argv[1]))
print(f"idle {found['idle_us']:,.0f} us, {len(found['findings'])} findings")
"""
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
times = found.get_temporal_breakdown(visualize=False)
found.get_comm_comp_overlap(visualize=False)
print(f"idle {float(times['idle_time(us)'].iloc[0]):,.0f} us")
"""
TRACELENS = """
import sys
from TraceLens import TreePerfAnalyzer
found = TreePerfAnalyzer.from_file(profile_filepath=sys.argv[1])
found.get_df_gpu_timeline()
print("done")
"""
Cost = tuple[float, float, str]


def generate(stream: TextIO, events: int, rank: int = 0) -> None:
    """A trace in the words of the profiler: ten events a kernel, steps of a thousand kernels; never held whole."""
    stream.write(HEAD.replace('"rank": 0', f'"rank": {rank}'))
    at, kernels, first = 1_683_564_901_000_000, events // 10, 1_683_564_901_000_000
    for place in range(kernels):
        kind = 2 if place % 25 == 24 else place % 2 if place % 7 else 3
        stream.write(
            UNIT.format(
                at=at, in1=at + 1, in2=at + 2, in3=at + 3, run=at + 9, id=2 * place + 2, idle=2 * place + 3,
                op=("mul", "addmm", "all_reduce", "native_layer_norm")[kind], kernel=KERNELS[kind],
                stream=20 if kind == 2 else 7, length=30 if kind == 2 else 8,
            )
        )  # fmt: skip
        at += 11
        if place % 1000 == 999 or place == kernels - 1:
            last = place == kernels - 1
            stream.write(STEP.format(step=place // 1000, start=first, length=at - first) + ("\n" if last else ",\n"))
            first = at
    stream.write('  ],\n  "traceName": "generated"\n}\n')


def written(folder: Path, given: argparse.Namespace) -> Path:
    """The trace asked for: a file, packed or not, or a folder of ranks."""
    events = int(given.gigabytes * EVENTS_A_GIGABYTE) if given.gigabytes else given.events
    for rank in range(given.ranks):
        path = folder / f"rank{rank}.json{'.gz' if given.packed else ''}"
        with gzip.open(path, "wt", 1) if given.packed else path.open("w", encoding="utf-8") as stream:
            generate(stream, events // given.ranks, rank)
    return folder if given.ranks > 1 else path


def size_of(trace: Path) -> float:
    """Megabytes of a file, or of the files in a folder."""
    return sum(path.stat().st_size for path in (trace.iterdir() if trace.is_dir() else [trace])) / 1e6


def measure(python: str, script: str, trace: Path) -> Cost:
    """CPU seconds and megabytes of a script in a fresh process, and its last line."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen([python, "-c", script, str(trace)], stdout=output, stderr=output, env=environment)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        lines = output.read().strip().splitlines() or [""]
    if child.returncode:
        raise SystemExit(f"{python}: exit code {child.returncode}: {lines[-1]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, lines[-1]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--events", type=int, default=EVENTS)
    asked.add_argument("--gigabytes", type=float)
    asked.add_argument("--packed", action="store_true")
    asked.add_argument("--ranks", type=int, default=1)
    asked.add_argument("--trace", type=Path)
    asked.add_argument("--hta", metavar="PYTHON")
    asked.add_argument("--tracelens", metavar="PYTHON")
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = given.trace or written(Path(folder), given)
        tools = {
            "ridgeline: load, breakdown": (sys.executable, RIDGELINE),
            "ridgeline analyze, all of it": (sys.executable, WHOLE),
        }
        if given.hta:
            tools["HTA: load, breakdown, overlap"] = (given.hta, HTA)
        if given.tracelens:
            tools["TraceLens: load, timeline"] = (given.tracelens, TRACELENS)
        costs = {name: measure(python, script, trace) for name, (python, script) in tools.items()}
        size = size_of(trace)
    if given.json:
        print(json.dumps({"megabytes": size, "costs": {name: cost[:2] for name, cost in costs.items()}}))
        return
    own = next(iter(costs.values()))
    print(f"{size:.0f} MB; targets: at most {LIMIT_MB} MB, {TIMES}x less CPU than HTA")
    for name, (seconds, memory, line) in costs.items():
        ratio = f"{seconds / own[0]:5.1f}x CPU {memory / own[1]:5.1f}x memory"
        print(f"{name:32} {seconds:7.2f} CPU s {memory:8.0f} MB  {ratio}  {line}")


if __name__ == "__main__":
    main()
