"""No verb ends in a traceback: whatever the terminal, the paths, the tables and the moment of an interrupt are."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from traces import Recipe, make, write

from ridgeline.calibrate.kernels import LIBRARY_FOLDER
from ridgeline.cli.main import main
from ridgeline.cli.streams import NEAREST, nearest
from ridgeline.cli.verbs import VERBS
from ridgeline.core.errors import InputError
from ridgeline.cost.profile import read_profile
from ridgeline.graph import region, write_graph
from ridgeline.plan.scenario_file import assemble, scenario

ROOT = Path(__file__).parents[3]
SCENARIO = """
name = "étude – 1"
model = "llama3.2-1b"
system = "8xh100-sxm"
[workload]
seq = 2048
global_batch = 16
[plan]
tp = 2
"""
KEYS = {"path", "given", "expected", "todo", "where"}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command line ended."""

    code: int
    out: str
    err: str


def ridgeline(monkeypatch: pytest.MonkeyPatch, *arguments: str, encoding: str = "utf-8") -> Ended:
    """Run a command line in this process, on terminals of an encoding."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["ridgeline", *arguments])
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        with pytest.raises(SystemExit) as left:
            main()
    out, err = (stream.buffer.getvalue().decode(encoding) for stream in streams)  # type: ignore[attr-defined]
    return Ended(code=left.value.code, out=out, err=err)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scenario, a trace of one step, and things that are neither."""
    made = tmp_path_factory.mktemp("hostile")
    (made / "run.toml").write_text(SCENARIO, encoding="utf-8")
    write(make(Recipe(steps=1, layers=2)), made / "trace.json.gz")
    (made / "folder.toml").mkdir()
    (made / "folder.json").mkdir()
    (made / "binary.toml").write_bytes(bytes(range(256)))
    (made / "binary.json").write_bytes(bytes(range(256)))
    (made / "empty.toml").touch()
    (made / "empty.json").touch()
    (made / "loop.toml").symlink_to("loop.toml")
    (made / "loop.json").symlink_to("loop.json")
    return made


MEASURE = {
    "bringup",
    "capture",
    "characterize",
    "doctor",
    "preflight",
    "run",
}  # take torch; tests/unit/runtime has them


def _text(folder: Path) -> Path:
    (folder / "notes.txt").write_text("some words", encoding="utf-8")
    return folder / "notes.txt"


def working(folder: Path) -> dict[str, list[list[str]]]:
    """Command lines of every verb that answer, the slow search among them once."""
    run, trace, out = str(folder / "run.toml"), str(folder / "trace.json.gz"), folder / "written"
    out.mkdir(exist_ok=True)
    return {
        "show": [["chips"], ["models"], ["h100-sxm", "--sources"], ["llama3-8b"], ["zbv"], ["64xh100-sxm"]],
        "check": [[run]],
        "schema": [[], ["predict"]],
        "open": [["--seconds", "0.1"], [run, "--seconds", "0.1"]],
        "predict": [[run]],
        "timeline": [[run, "-o", str(out / "t.json")]],
        "plan": [["llama3.2-1b", "--on", "1xh100-sxm", "--global-batch", "4", "--no-refine"]],
        "validate": [["--where", "source=dgxc"], ["collectives"]],
        "fit": [["--check"]],
        "export": [[run, "--to", "megatron"]],
        "pack": [[str(_text(folder)), "--end", "0", "-o", str(out / "tokens.u16")]],
        "import": [[str(folder / "exported"), "--on", "8xh100-sxm", "--model", "llama3.2-1b"]],
        "analyze": [[trace]],
        "query": [[trace, "SELECT name, duration_us FROM spans LIMIT 3"]],
        "diff": [[run, trace]],
        "explain": [[run, trace, "--force"]],
        "profile": [[str(LIBRARY_FOLDER / "a100-80-sxm.json")]],
        "collective": [["allreduce", "--on", "8xh100-sxm", "--size", "1MB"]],
        "roofline": [["llama3.2-1b", "--on", "h100-sxm", "--phase", "decode"]],
        "sense": [[run]],
        "design": [["examples/design-next-chip.toml"]],
        "report": [["examples/design-next-chip.toml"]],
        "graph": [[str(_graph(folder))], [str(_graph(folder)), "--on", "h100-sxm", "--budget", "1 GB"]],
    }


def _graph(folder: Path) -> Path:
    """A file of a small op graph."""
    file = folder / "norm.graph.json"
    write_graph(region("residual+rmsnorm", 256, 1024).graph, file)
    return file


def tables(text: str) -> list[dict[str, object]]:
    """The answer that was printed, or the answers of a list."""
    answer = json.loads(text)
    return answer if isinstance(answer, list) else [answer]


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_every_verb_answers_on_every_terminal(encoding: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ridgeline(monkeypatch, "export", str(folder / "run.toml"), "--to", "megatron", "--force", "-o",
                     str(folder / "exported"))  # fmt: skip
    assert told.code == 0, told.err
    lines = working(folder)
    assert set(lines) == set(VERBS) - MEASURE
    for verb, each in lines.items():
        for words in each:
            for arguments in ([verb, *words], [verb, *words, "--json"]):
                ended = ridgeline(monkeypatch, *arguments, encoding=encoding)
                assert ended.code == 0, (arguments, ended.err)
                if "--json" in arguments:
                    assert {next(iter(table.items())) for table in tables(ended.out)} == {("schema_version", 1)}
                assert not [line for line in ended.out.splitlines() if line != line.rstrip()], arguments


def hostile(folder: Path) -> list[str]:
    """Paths at which nothing that can be read lies."""
    stems = ("absent", "folder", "binary", "empty", "loop", "a" * 300, "\ud800", "deep/" * 2000 + "x")
    named = [str(folder / f"{stem}{suffix}") for stem in stems for suffix in (".toml", ".json")]
    return [
        *named,
        "a\0b.toml",
        "",
        str(folder / "folder.toml"),
        "/dev/null",
        "/proc/self/mem",
        str(folder / "run.toml" / "x.toml"),
    ]


def test_every_verb_refuses_every_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, trace = str(folder / "run.toml"), str(folder / "trace.json.gz")
    asked: list[list[str]] = []
    for path in hostile(folder):
        asked += [
            ["check", path], ["predict", path], ["timeline", path, "-o", str(folder / "t.json")],
            ["export", path, "--to", "megatron"], ["import", path], ["analyze", path], ["query", path],
            ["diff", path, trace],
            ["diff", run, path], ["explain", path, trace], ["explain", run, path], ["validate", path],
            ["fit", "--with", path], ["predict", run, "--calibration", path], ["analyze", trace, "--classes", path],
            ["plan", "llama3-8b", "--on", "8xh100-sxm", "--space", path], ["plan", path, "--on", "8xh100-sxm"],
            ["check", run, "--set", f"model={path}"], ["check", run, "--set", f"system={path}"],
        ]  # fmt: skip
        if not path.endswith(("empty.toml", "empty.json")):
            asked.append(["show", path])
    wrong = unrefused(monkeypatch, *asked)
    assert not wrong, "\n".join(wrong)


def test_every_verb_refuses_what_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, trace = str(folder / "run.toml"), str(folder / "trace.json.gz")
    small = ["plan", "llama3.2-1b", "--on", "1xh100-sxm", "--global-batch", "4", "--no-refine"]
    places = [folder / ("a" * 300), "a\0b", folder / "run.toml" / "x", "/dev/full", "/proc/x/y"]
    asked = [
        [*words, str(path)]
        for path in (*places, folder)
        for words in (
            ["timeline", run, "-o"], ["timeline", run, "--html"], ["schema", "-o"], ["analyze", trace, "--html"],
            ["explain", run, trace, "--force", "-o"], [*small, "-o"], [*small, "--html"],
            ["validate", "--where", "source=dgxc", "--html"],
        )
    ]  # fmt: skip
    asked += [["export", run, "--to", "megatron", "-o", f"{path}/x"] for path in places]
    wrong = unrefused(monkeypatch, *asked)
    assert not wrong, "\n".join(wrong)


def unrefused(monkeypatch: pytest.MonkeyPatch, *asked: list[str]) -> list[str]:
    """The command lines that do not say why they cannot be answered, for people and for programs."""
    lines = [words for arguments in asked for words in (arguments, [*arguments, "--json"])]
    faults = ((words, _fault(ridgeline(monkeypatch, *words), words)) for words in lines)
    return [f"{' '.join(word[-60:] for word in words)}: {fault}" for words, fault in faults if fault]


def _fault(ended: Ended, words: list[str]) -> str:
    """What is wrong with a refusal; nothing where it is as documented.

    `plan` prints its winner when it is found, before it writes: a disk that fills up then is reported after it.
    """
    if ended.code != 2 or "Traceback" in ended.err:
        return f"exit code {ended.code}: {ended.err[-300:]}{ended.out[:300]}"
    if "--json" not in words:
        silent = not ended.out or (words[0] == "plan" and words[-1] == "/dev/full")
        return "" if silent and ended.err.startswith(("ridgeline: ", "Usage: ")) else f"{ended}"
    try:
        answer = json.loads(ended.out)
    except ValueError:
        return f"{ended}"
    told = answer["problems"] and all(set(one) == KEYS and one["given"] for one in answer["problems"])
    told = told and answer["schema_version"] == 1
    return "" if told and answer["possible"] is False and not ended.err else f"{ended}"


WRONG: list[Any] = [
    [], ["x"], [1], [[]], [{"x": 1}], {}, {"x": 1}, {"name": []}, {"kind": ["x"]}, {"base": []}, {"value": []}, "", "x",
    "a\0b", "a" * 5000, "x.toml", "/", "\ud800", 0, -1, 1.5, 10**30, 10**400, float("inf"), float("nan"), True, None,
]  # fmt: skip
WHOLE: dict[str, Any] = {
    "model": {"base": "llama3.2-1b", "layers": 8, "attention": {"heads": 32}, "mlp": {"hidden": 8192}},
    "system": {"base": "16xh100-sxm", "domain": 8, "tier": {"infiniband": {"bandwidth": "400 Gbit/s"}}},
    "chip": {"hbm": {"bandwidth": "3 TB/s"}, "peak": {"bf16": "900 TFLOP/s"}, "tdp": "700 W"},
    "engine": {"base": "megatron-core", "launch": "eager"},
    "workload": {"kind": "train", "seq": 8192, "global_batch": 64, "optimizer": {"name": "adam"}, "lora": {"rank": 8}},
    "plan": {
        "tp": 2, "pp": 2, "dp": 4, "microbatch": 1, "schedule": {"name": "interleaved", "chunks": 2},
        "placement": [2, 2, 2, 2], "shard": "zero1", "recompute": {"kind": "full", "layers": [1, 1, 1, 1]},
        "offload": {"optimizer": 0.5}, "precision": {"name": "fp8", "gradients": "fp32"}, "engine": "megatron-core",
        "overlap": {"grad-reduce": True},
    },
    "name": "x",
}  # fmt: skip


def places(table: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The key of every value, tables included."""
    found = [(*above, key) for key in table]
    for key, value in table.items():
        found += places(value, (*above, key)) if isinstance(value, dict) else []
    return found


@pytest.mark.parametrize("place", places(WHOLE), ids=".".join)
def test_anything_anywhere_in_a_scenario_is_taken_or_refused(place: tuple[str, ...]) -> None:
    for wrong in WRONG:
        table = copy.deepcopy(WHOLE)
        at = table
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = wrong
        for problem in assemble(table)[1]:
            assert str(problem)
        with contextlib.suppress(InputError):
            scenario(table)


def test_lists_where_words_belong_are_refused_from_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "toml": 'model = {}\nsystem = {}\nengine = {}\n[workload]\nseq = 8\nglobal_batch = 8\n[plan]\nschedule = {}\n',
        "yaml": "model: {}\nsystem: {}\nengine: {}\nworkload: [x]\nplan:\n  schedule: {}\n  recompute: [1]\n",
        "json": '{{"model": {}, "system": {}, "engine": {}, "workload": [1], "plan": {{"schedule": {}}}}}',
    }  # fmt: skip
    wrong = []
    for suffix, text in texts.items():
        for word in ('["x"]', "[]", "[[]]", "[1, 2]"):
            path = folder / f"lists.{suffix}"
            path.write_text(text.format(word, word, word, word), encoding="utf-8")
            for verb in ("check", "predict", "show", "plan"):
                wrong += unrefused(monkeypatch, [verb, str(path)])
    assert not wrong, "\n".join(wrong)


def test_arguments_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (["--no-such-option"], ["x", "y", "z", "--no-such-option", "1"])
    wrong = unrefused(monkeypatch, *([verb, *rest] for verb in VERBS for rest in words))
    assert not wrong, "\n".join(wrong)


def test_nearest_keeps_every_width() -> None:
    assert all(len(nearest(char)) == 1 and nearest(char).isascii() for char in NEAREST)
    assert nearest("naïve 中 −1") == "naive ? -1"


# -- real processes ---------------------------------------------------------------------------------------------------

ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHONIO"))}
START = "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.entry import main; main()"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A shell's command line; `$R` is Ridgeline."""
    own = {**ENVIRONMENT, "R": f"{sys.executable} -m ridgeline", **environment}
    return subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], env=own, capture_output=True, timeout=120)


@pytest.mark.parametrize(
    ("command", "environment", "code"),
    [
        ("$R show models", {"PYTHONIOENCODING": "ascii"}, 0),
        ("$R show zbv", {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, 0),
        ("$R show h100-sxm", {"LANG": "C"}, 0),
        ("$R show models | head -1", {}, 0),
        ("$R show models --json | head -1", {}, 0),
        ("$R --help | true", {}, 0),
        ("$R show models >&-", {}, 0),
        ("$R show models --json >&- 2>&- <&-", {}, 0),
        ("$R show nothing-like-it 2>&-", {}, 2),
        ("$R show models > /dev/full", {}, 2),
        ("$R show nothing-like-it 2> /dev/full", {}, 2),
        ("$R show h100-sxm > /dev/full 2> /dev/full", {}, 2),
    ],
)
def test_streams(command: str, environment: dict[str, str], code: int) -> None:
    done = shell(command, **environment)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert b"Aborted" not in done.stderr


# modules whose loading the verbs begin with, and the verb that loads them
AT = [("typer", "show"), ("ridgeline.cli.catalog", "show"), ("rich.console", "show"), ("numpy", "predict"),
      ("ridgeline.plan.scenario_file", "predict"), ("ridgeline.search.training.request", "plan")]  # fmt: skip


@pytest.mark.parametrize(("module", "verb"), AT)
def test_an_interrupt_while_modules_load_is_quiet(module: str, verb: str, folder: Path) -> None:
    spy = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background ignores it
        "class Spy:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Spy())\n"
    )
    words = {"show": ["show", "chips"], "predict": ["predict", str(folder / "run.toml")],
             "plan": ["plan", "llama3.2-1b", "--on", "1xh100-sxm"]}[verb]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", spy + START, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_job_that_ignores_interrupts_goes_on(folder: Path) -> None:
    ignoring = (
        "import os, signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "class Spy:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name in ('typer', 'numpy'): os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Spy())\n"
    )
    words = ["predict", str(folder / "run.toml"), "--json"]
    done = subprocess.run([sys.executable, "-c", ignoring + START, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["possible"]


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_of_a_verb_is_130(which: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object, **__: object) -> None:
        signal.raise_signal(which)

    before = signal.signal(which, signal.default_int_handler)
    try:
        monkeypatch.setattr("ridgeline.sim.predict_step.predict", pressed)
        ended = ridgeline(monkeypatch, "predict", str(folder / "run.toml"))
    finally:
        signal.signal(which, before)
    assert (ended.code, ended.out) == (130, "")
    assert "Traceback" not in ended.err


def test_a_mistake_of_ours_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("nobody thought of it")

    monkeypatch.setattr("ridgeline.sim.predict_step.predict", broken)
    ended = ridgeline(monkeypatch, "predict", str(folder / "run.toml"))
    assert (ended.code, ended.out) == (70, "")
    assert "nobody thought of it" in ended.err
    assert "RIDGELINE_TRACEBACK=1" in ended.err
    answer = json.loads(ridgeline(monkeypatch, "predict", str(folder / "run.toml"), "--json").out)
    assert set(answer["problems"][0]) == KEYS


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("collective allreduce --on 8xh100-sxm --size 1e30B", "size"),
        ("collective allreduce --on 8xh100-sxm --size nan", "size"),
        ("collective allgather --topology ring:4 --link 1e30B/s", "link"),
        (f"check {ROOT}/examples/llama3-70b-64xh100.toml --set plan.pp=2147483648", "plan.pp"),
    ],
)
def test_absurd_size_is_refused_by_its_option(command: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = ridgeline(monkeypatch, *command.split())
    assert ended.code == 2
    assert path in ended.err


def test_profile_row_without_a_size_is_refused_by_its_name(tmp_path: Path) -> None:
    whole = json.loads((ROOT / "src/ridgeline/cost/profiles/cpu.json").read_text())
    next(row for row in whole["rows"] if row["op"] == "gemm").pop("k")
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(InputError, match=r"\.k"):
        read_profile(path)


def test_megatron_options_with_absurdly_many_layers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("num_layers: 2147483648\nhidden_size: 2048\nnum_attention_heads: 32\nvocab_size: 32000\n")
    ended = ridgeline(monkeypatch, "import", str(path), "--on", "64xh100-sxm")
    assert ended.code == 2
    assert "--num-layers" in ended.err
