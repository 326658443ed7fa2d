"""Each verb in one line and by example, as `ridgeline --help` and `ridgeline VERB --help` print them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import typer

from ridgeline.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """What a verb answers in one line of 80 columns, command lines that show it, and its module in this package."""

    module: str
    summary: str
    examples: tuple[str, ...]


VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "show": Verb(
            module="catalog",
            summary="What is known of chips, systems, models, engines, schedules.",
            examples=(
                "ridgeline show models",
                "ridgeline show llama3-70b deepseek-v3 --seq 32768",
                "ridgeline show h100-sxm b200-sxm --sources",
                "ridgeline show 256xgb200-nvl72",
            ),
        ),
        "check": Verb(
            module="catalog",
            summary="Is a scenario possible? If not, every reason.",
            examples=("ridgeline check run.toml", "ridgeline check run.toml --set plan.tp=4 --json"),
        ),
        "schema": Verb(
            module="catalog",
            summary="The JSON schema of scenario files, for editors.",
            examples=("ridgeline schema -o scenario.schema.json",),
        ),
        "predict": Verb(
            module="predict",
            summary="How long a step takes, trained or served, and whether it fits.",
            examples=(
                "ridgeline predict run.toml",
                "ridgeline predict serve.toml --set workload.arrivals.rate=20",
                "ridgeline predict decode.toml --set workload.batch=64 --set plan.precision.kv=fp8",
                "ridgeline predict run.toml --set plan.recompute=full",
                "ridgeline predict llama3-70b --on 64xh100-sxm --set plan.tp=8 --set plan.pp=2",
            ),
        ),
        "timeline": Verb(
            module="predict",
            summary="The predicted step as a trace or an interactive page.",
            examples=("ridgeline timeline run.toml -o step.json", "ridgeline timeline run.toml --html step.html"),
        ),
        "plan": Verb(
            module="plan",
            summary="The best way to split the work, and why.",
            examples=(
                "ridgeline plan llama3-70b --on 64xh100-sxm -o found.toml",
                "ridgeline plan llama3-70b --on 64xh100-sxm,64xb200-sxm --set plan.tp=2..8",
                "ridgeline plan llama3-70b --on h100-sxm --tokens 2T --days 30",
                "ridgeline plan llama3.1-8b --on 8xh100-sxm --serve --rate 12 --ttft 500ms --tpot 30ms",
            ),
        ),
        "validate": Verb(
            module="calibrate",
            summary="Predictions against measured runs.",
            examples=(
                "ridgeline validate",
                "ridgeline validate --where x_chip=h100-sxm --html page.html",
                "ridgeline validate mine.csv",
                "ridgeline validate kernels",
                "ridgeline validate requests.jsonl.gz",
            ),
        ),
        "fit": Verb(
            module="calibrate",
            summary="Derive the shipped parameters again from measured runs.",
            examples=("ridgeline fit --quick", "ridgeline fit --check"),
        ),
        "export": Verb(
            module="export",
            summary="A scenario as the files of the software that runs it.",
            examples=(
                "ridgeline export run.toml --to megatron -o launch",
                "ridgeline export serve.toml --to vllm -o deploy",
            ),
        ),
        "import": Verb(
            module="export",
            summary="A scenario from the files of a run.",
            examples=("ridgeline import pretrain.sh --on 64xh100-sxm -o run.toml",),
        ),
        "analyze": Verb(
            module="trace",
            summary="What limits a step that was traced.",
            examples=(
                "ridgeline analyze trace.json.gz",
                "ridgeline analyze ranks --html report.html",
                "ridgeline analyze bench-result.json",
                'ridgeline analyze trace.json.gz --what-if "matmul x2"',
            ),
        ),
        "query": Verb(
            module="query",
            summary="The spans of a trace as a table, asked in SQL.",
            examples=(
                'ridgeline query trace.json.gz "SELECT class, sum(duration_us) FROM spans GROUP BY class"',
                'ridgeline query ranks "SELECT rank, max(end_us) FROM spans GROUP BY rank" --json',
            ),
        ),
        "diff": Verb(
            module="diff",
            summary="Why two traces or predictions differ.",
            examples=(
                "ridgeline diff before.json.gz after.json.gz",
                "ridgeline diff run.toml trace.json.gz",
                "ridgeline diff bringup-before.json bringup-after.json",
            ),
        ),
        "explain": Verb(
            module="explain",
            summary="The gap between predicted and measured; why p99 is high.",
            examples=(
                "ridgeline explain run.toml trace.json.gz -o residuals.csv",
                "ridgeline explain serve.toml",
                "ridgeline explain serve.toml run1.json",
            ),
        ),
        "profile": Verb(
            module="profile",
            summary="What was measured of a machine: ceilings, slow chips.",
            examples=(
                "ridgeline profile h200.json",
                "ridgeline profile node0.json node1.json node2.json -o system.json",
                "ridgeline profile aiconfigurator:h100-sxm -o h100.json",
            ),
        ),
        "roofline": Verb(
            module="roofline",
            summary="Every op of a model on a chip's roofline.",
            examples=(
                "ridgeline roofline llama3-8b --on h200-sxm",
                "ridgeline roofline llama3-8b --on h200-sxm --phase decode --batch 32 --seq 8k -o roof.svg",
            ),
        ),
        "collective": Verb(
            module="collective",
            summary="How long a collective takes, and how near the bound.",
            examples=(
                "ridgeline collective allreduce --on 64xh100-sxm --size 1GB",
                'ridgeline collective allgather --topology mesh:32x32 --link "50 GB/s" --latency 0.5us --synthesize',
                "ridgeline collective allreduce --topology torus:8x8 --without link:3-4 --synthesize -o found.json",
                "ridgeline collective alltoall --on 64xh100-sxm --size 256MB --simulate --straggler 5:1.5",
                "ridgeline collective verify found.json",
                "ridgeline collective run allreduce --ranks 4 --backend ridge_shm --sizes 1KB:64MB",
            ),
        ),
        "characterize": Verb(
            module="runtime",
            summary="Measure a device into a profile that prices are read from.",
            examples=(
                "ridgeline characterize --device cuda --minutes 8 -o mine.json",
                "ridgeline characterize --device npu --import torch_npu",
                "torchrun --nproc-per-node 8 -m ridgeline characterize -o node.json",
                "ridgeline characterize --standalone characterize.pyz",
            ),
        ),
        "preflight": Verb(
            module="runtime",
            summary="The slow chip, slow link, wrong setting, before a run.",
            examples=(
                "torchrun --nproc-per-node 8 -m ridgeline preflight",
                "srun ridgeline preflight --reference node.json --json",
                "torchrun --nproc-per-node 4 -m ridgeline preflight --device cpu --drill 2",
            ),
        ),
        "pack": Verb(
            module="run",
            summary="Documents as one file of tokens, for `run --data`.",
            examples=("ridgeline pack corpus.jsonl notes.txt --end 256 -o corpus.u16",),
        ),
        "run": Verb(
            module="run",
            summary="Train a scenario here, by its plan; or verify the plan.",
            examples=(
                "ridgeline run examples/tiny-2xcpu.toml --data text --steps 200 -o run",
                "ridgeline run examples/tiny-2xcpu.toml --set plan.shard=none --set plan.tp=2 --set plan.dp=1 --verify",
                "torchrun --nproc-per-node 8 -m ridgeline run mine.toml --steps 1000 -o run --every 100",
                "ridgeline run mine.toml --launcher ray --steps 1000 -o run --every 100 --elastic",
                "ridgeline run mine.toml --steps 1000 -o run --every 100 --sbatch run.sbatch",
            ),
        ),
        "capture": Verb(
            module="capture",
            summary="Any torch model as a model file: one forward, recorded.",
            examples=(
                "ridgeline capture downloaded/config.json -o mine.toml",
                "ridgeline capture mine.py:build -o mine.toml",
                "ridgeline capture mine.py:build --json",
            ),
        ),
        "bringup": Verb(
            module="bringup",
            summary="Whether a device computes a model right, op by op.",
            examples=(
                "ridgeline bringup llama3.2-1b --device cuda",
                "ridgeline bringup llama3.2-1b --device cuda --html report.html -o report.json",
                "ridgeline bringup qwen3-0.6b --device ridge --faults mine.py --fault tf32 --json",
                "ridgeline bringup --msprobe dump_path",
            ),
        ),
    }
)


def describe(app: typer.Typer) -> None:
    """Give every command its line and its examples."""
    for command in app.registered_commands:
        name = command.name or (command.callback.__name__ if command.callback else "")
        verb = VERBS[name]
        command.short_help = verb.summary
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in verb.examples)
