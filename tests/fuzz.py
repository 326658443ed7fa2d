"""Damage files and arguments of every kind, hand them to their verbs in this process, and judge how each ends.

    python tests/fuzz.py                          100,000 inputs over all kinds on all cores (`make fuzz`)
    python tests/fuzz.py --kind profile --inputs 5000 --first 0
    python tests/fuzz.py --kind profile --only 4711          one input again, with its traceback

An input is made by its kind and its number alone. It passes where the verb answers or refuses (exit code 0, 1 or 2),
its JSON has no NaN, and it takes at most 10 CPU seconds and 500 MB. What fails is printed with its kind and number; the
number is then added to `KNOWN`, which the test suite runs again for ever.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent))
from damage import FORMATS

ROOT = Path(__file__).parents[1]
CPU_S, BYTES = 10.0, 500 * 2**20
CODES = (0, 1, 2)
NUMBERS = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "4",
        "7",
        "8",
        "64",
        "1e6",
        "1000000",
        "1e18",
        "1e308",
        "1e-320",
        "2147483648",
        "9223372036854775808",
    ),
    *("nan", "inf", "NaN", "-Infinity", "1e400", "0x10", "1_000", "3.5", "-0.0", "9" * 30),
)
WORDS = (
    "",
    "none",
    "null",
    "true",
    "auto",
    "fp8",
    "bf16",
    "x" * 300,
    "é",
    "../..",
    "[1, 2]",
    "{}",
    '"',
    "'",
    "\\",
    "$A",
)
ODD: tuple[object, ...] = (
    *(None, True, False, -1, 0, 1, 7, 2**31, 2**63, 2**80, 1e308, -1e308, 1e-320, 0.5, "", "x", "7", "NaN"),
    *([], {}, [1], [[1]], {"a": 1}, float("nan"), float("inf")),
)
SETTINGS = (
    *("plan.tp", "plan.pp", "plan.dp", "plan.cp", "plan.ep", "plan.microbatch", "plan.recompute", "plan.shard"),
    *("plan.precision", "plan.schedule", "model.layers", "model.hidden", "model.vocab", "model.ffn", "model.attention"),
    *("workload.seq", "workload.global_batch", "workload.batch", "chip.hbm.bandwidth", "chip.hbm.capacity", "system"),
    *("engine", "workload.kind", "workload.arrivals.rate", "chip.name", "plan.offload", "name", "model"),
)
KNOWN: dict[str, tuple[int, ...]] = {
    "recording": (257,), "set": (185, 228, 252), "table": (1134,), "runs": (2023, 5715),
}  # fmt: skip
"""Inputs that once ended badly, by kind."""
LONG_WORK = b"requests = 1e6"
"""In files that are passed over: simulating a million requests takes a minute by right, and shows its progress."""


@dataclass(frozen=True)
class Kind:
    """A kind of input: good files by name, and the command lines that read one of them, at `{}`.

    setting   the words of the command line are damaged and not a file
    """

    sources: Callable[[], Sequence[tuple[str, bytes]]]
    commands: tuple[str, ...]
    setting: bool = False


def _files(*patterns: str) -> Callable[[], Sequence[tuple[str, bytes]]]:
    def read() -> list[tuple[str, bytes]]:
        paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file())
        return [(path.name, path.read_bytes()) for path in paths if path.stat().st_size < 200_000]

    return cache(read)


def _profile() -> list[tuple[str, bytes]]:
    whole = json.loads((ROOT / "src/ridgeline/cost/profiles/cpu.json").read_text())
    return [("profile.json", json.dumps({**whole, "rows": whole["rows"][::40]}).encode())]


def _recordings() -> list[tuple[str, bytes]]:
    import gzip

    def short(path: Path) -> bytes:
        whole = json.loads(gzip.decompress(path.read_bytes()))
        return json.dumps({**whole, "steps": whole["steps"][:12]}).encode()

    return [(path.stem, short(path)) for path in sorted((ROOT / "tests/data/serving").glob("*.json.gz"))[:3]]


def _requests() -> list[tuple[str, bytes]]:
    lines = [f'{{"timestamp": {i * 300}, "input_length": {100 + i}, "output_length": {20 + i}}}' for i in range(12)]
    table = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2023-11-16 18:15:{i:02d}.6805900,{374 + i},{44 + i}\n" for i in range(12)
    )
    return [("requests.jsonl", "\n".join(lines).encode()), ("requests.csv", table.encode())]


def _runs() -> list[tuple[str, bytes]]:
    tables = ("training", "serving", "inference", "kernels", "collectives")
    paths = [ROOT / "src/ridgeline/calibrate/truth" / f"{name}.csv" for name in tables]
    return [(path.name, b"".join(path.read_bytes().splitlines(keepends=True)[:6])) for path in paths]


def _algorithm() -> list[tuple[str, bytes]]:
    from ridgeline.comm import collective
    from ridgeline.comm.formats import write_collective

    with TemporaryDirectory() as folder:
        paths = {Path(folder) / name: target for name, target in ALGORITHM_FILES.items()}
        for path, target in paths.items():
            write_collective(collective("allgather", topology="ring:4", size="1 MB").algorithm, path, target)
        return [(path.name, path.read_bytes()) for path in paths]


def _message(text: str) -> Callable[[], Sequence[tuple[str, bytes]]]:
    return lambda: [("arguments", text.encode())]


ALGORITHM_FILES = {"own.json": "ridgeline", "ring.xml": "msccl", "plan.json": "mscclpp"}
SCRIPTS = ("tests/data/import_corpus/**/*.sh", "tests/data/import_corpus/**/*.py")


def _studies() -> list[tuple[str, bytes]]:
    """A study that stands on its own, of few machines and few models."""
    machines = """objective = "cost"
[[workload]]
name = "answers"
weight = 0.5
scenario = { model = "llama3-8b", system = "2xh100-sxm", workload = { kind = "decode", context = 1024, batch = 8 } }
plans = [{ tp = 2 }, { tp = 1, dp = 2 }]
[space]
compute = { from = "700 TFLOP/s", to = "4 PFLOP/s", points = 3 }
"memory.bandwidth" = ["2.5 TB/s", "8 TB/s"]
"memory.capacity" = ["80 GB", "192 GB"]
"scaleup.domain" = [1, 2]
[budget]
area = 1600
power = "1400 W"
"""
    models = """[architectures]
law = "besiroglu2024"
base = "llama3.2-3b"
target = { params = "3e9", tokens = "1.2e11" }
serve_tokens = "1e11"
train = { system = "8xh100-sxm", seq = 4096, global_batch = 64, plan = { dp = 8, shard = "zero3" } }
serve = { system = "1xh100-sxm", context = 1024, batch = 8 }
[architectures.shape]
layers = [24, 28]
hidden = [2560, 3072]
kv_heads = [4]
"""
    return [("machines.toml", machines.encode()), ("models.toml", models.encode())]


TABLES = (
    "tests/data/import_corpus/**/*.yaml",
    "tests/data/import_corpus/**/*.yml",
    "tests/data/import_corpus/**/*.json",
)
COMPILED = "examples/compilers/attention.hlo"
REQUEST_FILE = "predict examples/serve-llama3.1-8b-1xh100.toml --set workload.arrivals={} --json"
KINDS: dict[str, Kind] = {
    "scenario": Kind(_files("examples/llama3*.toml", "examples/tiny*.toml"), ("check {} --json", "predict {} --json")),
    "phase": Kind(_files("examples/*prefill*.toml", "examples/*decode*.toml"), ("predict {} --json", "predict {}")),
    "deployment": Kind(_files("examples/serve-llama3.1-8b*.toml"), ("predict {} --json", "check {} --json")),
    "config": Kind(_files("examples/llama3-8b/config.json"), ("show {} --json", "predict {} --on 8xh100-sxm --json")),
    "script": Kind(_files(*SCRIPTS), ("import {} --on 64xh100-sxm --json",)),
    "table": Kind(_files(*TABLES), ("import {} --on 64xh100-sxm --json",)),
    "trace": Kind(lambda: list(FORMATS.values()), ("analyze {} --json", "query {} --json", "analyze {}")),
    "profile": Kind(cache(_profile), ("profile {} --json", "profile {}")),
    "recording": Kind(cache(_recordings), ("validate {} --json",)),
    "requests": Kind(_requests, (REQUEST_FILE,)),
    "runs": Kind(_runs, ("validate {} --json", "predict examples/llama3-70b-64xh100.toml --anchor {} --json")),
    "algorithm": Kind(cache(_algorithm), ("collective verify {} --json",)),
    "program": Kind(
        _files("examples/compilers/*"),
        ("graph {} --on h200-sxm --json", f"graph {{}} --compare {COMPILED} --on a100-80-sxm --json"),
    ),
    "operators": Kind(_files("examples/operators/*.toml"), ("graph examples/compilers/mlp.pt2 --operators {} --json",)),
    "report": Kind(_files("docs/bringup/*.json"), ("diff {} docs/bringup/cpu.json --json",)),
    "study": Kind(_studies, ("design {} --json", "report {} --json", "design {} --meet tpot<=5ms --json")),
    "sense": Kind(_files("examples/llama3*.toml", "examples/*decode*.toml"), ("sense {} --json",)),
    "set": Kind(
        _message(""), ("predict examples/llama3-70b-64xh100.toml --json", "check examples/tiny-2xcpu.toml --json")
    ),
    "arguments": Kind(
        _message("collective allreduce --topology torus:3x3 --size 1MB --link 50GB/s --latency 1us --json"), (), True
    ),
    "names": Kind(_message("show llama3-8b 64xh100-sxm --seq 8192 --batch 4 --dtype bf16 --json"), (), True),
    "roofline": Kind(_message("roofline llama3.2-1b --on h100-sxm --phase decode --batch 8 --seq 4k --json"), (), True),
}


def damage_bytes(content: bytes, dice: random.Random) -> bytes:
    """The content cut, flipped, doubled or with pieces of itself elsewhere."""
    damaged = bytearray(content or b" ")
    for _ in range(dice.choice((1, 1, 2, 4))):
        start, length = dice.randrange(len(damaged)), dice.choice((1, 1, 4, 40))
        match dice.randrange(5):
            case 0:
                damaged[start] = dice.randrange(256)
            case 1:
                del damaged[start : start + length]
            case 2:
                damaged[start:start] = damaged[max(0, start - length) : start]
            case 3:
                damaged = damaged[:start]
            case _:
                damaged[start:start] = dice.choice(WORDS).encode()
        damaged = damaged or bytearray(b" ")
    return bytes(damaged)


def damage_text(text: str, dice: random.Random) -> str:
    """The text with numbers, words or lines exchanged, left out or said twice."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        numbers, words = list(re.finditer(r"\d+(?:\.\d+)?", text)), list(re.finditer(r"[A-Za-z_][\w-]*", text))
        lines = text.split("\n")
        place = dice.randrange(len(lines))
        choice = dice.randrange(5)
        if choice == 0 and numbers:
            spot = dice.choice(numbers)
            text = text[: spot.start()] + dice.choice(NUMBERS) + text[spot.end() :]
        elif choice == 1 and words:
            spot = dice.choice(words)
            other = dice.choice((*WORDS, *NUMBERS, dice.choice(words)[0]))
            text = text[: spot.start()] + other + text[spot.end() :]
        elif choice == 2:
            text = "\n".join(lines[:place] + lines[place + 1 :])
        elif choice == 3:
            text = "\n".join([*lines[:place], lines[place], dice.choice(lines), *lines[place:]])
        else:
            text = "\n".join([*lines[:place], dice.choice(lines), *lines[place + 1 :]])
    return text


def damage_value(value: object, dice: random.Random) -> object:
    """The JSON value with one of its parts exchanged for an odd one, left out or said twice."""
    if not isinstance(value, (dict, list)) or not value or dice.random() < 0.1:
        return dice.choice(ODD)
    key = dice.choice(list(value)) if isinstance(value, dict) else dice.randrange(len(value))
    changed = dict(value) if isinstance(value, dict) else list(value)
    if dice.random() < 0.1:
        del changed[key]  # type: ignore[arg-type]
    else:
        changed[key] = damage_value(value[key], dice)  # type: ignore[index, call-overload]
    return changed


def damage_file(content: bytes, dice: random.Random) -> bytes:
    """A file damaged as a value where it is JSON, as a text or as bytes."""
    how = dice.random()
    with contextlib.suppress(ValueError, UnicodeDecodeError):
        if how < 0.5 and content[:1] in (b"{", b"["):
            return json.dumps(damage_value(json.loads(content), dice)).encode()
        if how < 0.85:
            return damage_text(content.decode(), dice).encode("utf-8", "surrogateescape")
    return damage_bytes(content, dice)


def input_of(kind: str, number: int, folder: Path) -> list[str]:
    """The command line of an input; its file is written into the folder."""
    dice = random.Random(f"{kind} {number}")
    entry = KINDS[kind]
    name, content = dice.choice(entry.sources())
    if entry.setting:
        words = content.decode().split()
        for _ in range(dice.choice((1, 1, 2))):
            place = dice.randrange(1, len(words))
            words[place] = dice.choice((damage_text(words[place], dice), dice.choice(NUMBERS), dice.choice(WORDS)))
        return words
    command = dice.choice(entry.commands)
    if "{}" not in command:
        settings = (f"{dice.choice(SETTINGS)}={dice.choice((*NUMBERS, *WORDS))}" for _ in range(dice.choice((1, 1, 2))))
        return [*command.split(), *(word for setting in settings for word in ("--set", setting))]
    path = folder / name
    path.write_bytes(damage_file(content, dice))
    return [str(path) if word == "{}" else word.replace("{}", str(path)) for word in command.split()]


@dataclass(frozen=True)
class Ending:
    """How a command line ended: exit code, what it printed, CPU seconds, bytes that it needed at most."""

    code: object
    out: str
    err: str
    cpu_s: float
    grown_bytes: int

    @property
    def fault(self) -> str:
        """What is wrong with it; empty where nothing is."""
        if self.code not in CODES:
            return f"exit code {self.code}: {(self.err or self.out)[-300:]}"
        if re.search(r"\b(?:NaN|-?Infinity)\b(?=[,\s\]}]*$)", self.out, re.MULTILINE) and self.out.startswith("{"):
            return "NaN in the answer"
        if "Warning:" in self.err:
            return f"a warning: {self.err[-300:]}"
        if self.cpu_s > CPU_S:
            return f"{self.cpu_s:.1f} CPU s"
        return f"{self.grown_bytes >> 20} MB" if self.grown_bytes > BYTES else ""


def run(arguments: list[str]) -> Ending:
    """Run a command line in this process; it is interrupted after its CPU seconds."""
    from ridgeline.cli.main import main

    def interrupt(*_: object) -> None:
        raise TimeoutError(f"{CPU_S:g} CPU s are over")

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    before, resident = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arguments_before, code = sys.argv, None
    sys.argv = ["ridgeline", *arguments]
    signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, CPU_S + 1)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as left:
        code = left.code
    except BaseException as wrong:
        code = repr(wrong)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.argv = arguments_before
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8", "replace"))  # type: ignore[attr-defined]
    return Ending(code, texts[0], texts[1], time.process_time() - before, grown)


def is_long(paths: Iterable[Path]) -> bool:
    """Whether one of the files asks for work that takes its time by right."""
    return any(LONG_WORK in path.read_bytes() for path in paths if path.is_file())


def faults(kind: str, numbers: Sequence[int]) -> Iterator[tuple[int, list[str], str]]:
    """Number, command line and fault of each input that ends badly."""
    os.chdir(ROOT)
    for number in numbers:
        with TemporaryDirectory() as folder:
            arguments = input_of(kind, number, Path(folder))
            if is_long(Path(folder).iterdir()):
                continue
            if fault := run(arguments).fault:
                yield number, arguments, fault


def _share(job: tuple[str, range]) -> tuple[str, int, list[tuple[int, list[str], str]]]:
    return job[0], len(job[1]), list(faults(*job))


def main() -> int:
    """Run the inputs; 1 where one ends badly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--only", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.only is not None:
        os.environ["RIDGELINE_TRACEBACK"] = "1"
        keep = ROOT / "build" / "fuzz"
        keep.mkdir(parents=True, exist_ok=True)
        arguments = input_of(options.kind, options.only, keep)
        print(*arguments)
        if is_long(keep / Path(argument).name for argument in arguments):
            print("passed over: a million requests take a minute by right")
            return 0
        print(ending := run(arguments), ending.fault)
        return 0
    kinds = [options.kind] if options.kind else list(KINDS)
    each = -(-options.inputs // len(kinds))
    jobs = [(kind, range(start, min(start + 100, options.first + each)))
            for start in range(options.first, options.first + each, 100) for kind in kinds]  # fmt: skip
    done, bad = 0, 0
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=20) as pool:
        for kind, count, wrong in pool.imap_unordered(_share, jobs):
            done, bad = done + count, bad + len(wrong)
            for number, arguments, fault in wrong:
                print(f"{kind} {number}: {fault}\n    {' '.join(arguments)[:300]}", flush=True)
            print(f"\r{done:,} inputs, {bad} ended badly", end="", file=sys.stderr, flush=True)
    print(f"{done:,} inputs over {len(kinds)} kinds, {bad} ended badly")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
