"""The command line: what it prints, its exit codes, and that bad input never shows a traceback."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command import run
from rich.console import Console
from typer.main import get_command

from ridgeline.cli import verbs
from ridgeline.cli.main import command_line
from ridgeline.cli.verbs import VERBS
from ridgeline.report.catalog_tables import draw_entries
from ridgeline.report.show import entries
from ridgeline.targets.registry import IDS
from ridgeline.version import __version__

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "llama3-70b-64xh100.toml")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['ridgeline', '--help']\n"
        "from ridgeline.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'torch', 'yaml', 'pydantic', 'rich', 'scipy', 'pandas'} & set(sys.modules)\n"
        "floors = ('ridgeline.models', 'ridgeline.hardware', 'ridgeline.plan')\n"
        "own = [name for name in sys.modules if name.startswith(floors)]\n"
        "assert not heavy and not own, (heavy, own)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "show" in done.stdout


def test_a_training_prediction_imports_no_other_room() -> None:
    code = (
        f"import sys; sys.argv = ['ridgeline', 'predict', {EXAMPLE!r}]\n"
        "from ridgeline.cli.entry import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "rooms = ('serving', 'search', 'trace', 'calibrate', 'runtime', 'targets')\n"
        "print([name for name in sys.modules if name.startswith(tuple(f'ridgeline.{room}' for room in rooms))])\n"
        "print(sum(name.startswith('ridgeline') for name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, others, modules = done.stdout.splitlines()
    assert others == "[]"
    assert int(modules) <= 165


def test_every_verb_has_a_whole_line_and_examples_that_parse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = get_command(command_line()).commands  # type: ignore[attr-defined]
    assert set(commands) == set(VERBS)
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(capsys, monkeypatch, "--help")[1].splitlines()
    for name, verb in VERBS.items():
        assert any(line.split() == [name, *verb.summary.split()] for line in lines)
        for example in verb.examples:
            words = shlex.split(example)
            assert words[0] in ("ridgeline", "torchrun", "srun")  # what starts one process, or all ranks
            program, called, *arguments = words[words.index("ridgeline") :]
            assert (program, called) == ("ridgeline", name)
            commands[name].make_context(name, arguments)


def test_every_described_option_is_a_parameter() -> None:
    commands = get_command(command_line()).commands  # type: ignore[attr-defined]
    parameters = {name: {part.name for part in command.params} for name, command in commands.items()}
    of_module: dict[str, set[str]] = {}
    for name, verb in VERBS.items():
        of_module.setdefault(verb.module, set()).update(parameters[name])
    for file in (Path(verbs.__file__).parent / "options").iterdir():
        tables = tomllib.loads(file.read_text())
        if file.stem == "shared":
            assert tables.keys() <= set().union(*of_module.values())
            continue
        for name, table in tables.items():
            assert table.keys() <= (of_module[file.stem] if name == "all" else parameters[name]), (file.name, name)


def test_the_reference_lists_every_option() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference.md").read_text()
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    for name, command in get_command(command_line()).commands.items():  # type: ignore[attr-defined]
        options = {option for part in command.params for option in part.opts if option.startswith("-")}
        shown = set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", sections[name]))
        assert options <= shown, "run `python -m tools docs screens`"
        own = set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z0-9-]*)", sections[name], re.MULTILINE))  # not those in a text
        assert own - {"--help"} <= options


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "ridgeline", "--version"], capture_output=True, text=True)
    assert done.stdout == f"ridgeline {__version__}\n"


def test_help_names_every_target(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = re.sub(r"-\n\s+", "-", run(capsys, monkeypatch, "export", "--help")[1])  # a name broken at its hyphen
    words = re.split(r"[\s,.]+", text)
    assert set(IDS) <= set(words)


def test_the_shell_completes_names() -> None:
    line = {"_RIDGELINE_COMPLETE": "complete_bash", "COMP_WORDS": "ridgeline show h100-", "COMP_CWORD": "2"}
    code = "import sys; sys.argv = ['ridgeline']; from ridgeline.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **line})
    assert {"h100-sxm", "h100-pcie"} <= set(done.stdout.split())


@pytest.mark.parametrize("what", ["chips", "systems", "models", "engines", "schedules", "dtypes"])
def test_lists(what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(capsys, monkeypatch, "show", what, "--json")
    rows = json.loads(out)[0]["rows"]
    assert code == 0
    assert len(rows) >= {"chips": 49, "systems": 30, "models": 60, "engines": 9, "schedules": 6, "dtypes": 12}[what]
    code, out, _ = run(capsys, monkeypatch, "show", what)
    assert code == 0
    assert rows[0]["id"] in out


def test_sheets_of_every_kind(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "h100-sxm",
        "b200-sxm",
        "llama3-8b",
        "mixtral-8x7b",
        "64xh100-sxm",
        "dgx-h100",
        "torchtitan",
        "zbv",
        EXAMPLE,
    ]
    code, out, _ = run(capsys, monkeypatch, "show", *names, "--json")
    sheets = json.loads(out)
    assert code == 0
    assert [sheet["kind"] for sheet in sheets] == [
        "chip", "chip", "model", "model", "system", "system", "engine", "schedule", "scenario",
    ]  # fmt: skip
    assert sheets[2]["params"]["total"] == 8_030_261_248
    code, out, _ = run(capsys, monkeypatch, "show", *names)
    assert code == 0
    for text in ("8,030,261,248", "ridge bf16", "295 FLOP/B", "fat tree", "rank 3", "interleaved"):
        assert text in out


def test_detail_options(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def sheet(*arguments: str) -> dict[str, object]:
        found = json.loads(run(capsys, monkeypatch, "show", *arguments, "--json")[1])[0]
        assert isinstance(found, dict)
        return found

    short, long = sheet("llama3-8b", "--seq", "1024"), sheet("llama3-8b", "--seq", "131072")
    assert short["flops_per_token"]["forward"] < long["flops_per_token"]["forward"]  # type: ignore[index]
    assert sheet("llama3-8b", "--dtype", "fp8")["weight_bytes"] == 8_030_261_248
    drawn = sheet("interleaved", "--stages", "2", "--microbatches", "4", "--chunks", "3")
    assert (drawn["stages"], drawn["chunks"]) == (2, 3)


def test_a_schedule_wider_than_the_terminal_is_cut_into_bands() -> None:
    def drawn(width: int) -> list[str]:
        screen = Console(width=width, file=io.StringIO(), highlight=False)
        draw_entries(entries("zbv"), screen)
        return [line for line in screen.file.getvalue().splitlines() if line.startswith("rank ")]  # type: ignore[attr-defined]

    whole, cut = drawn(400), drawn(60)
    assert len(whole) == 4
    assert max(map(len, cut)) <= 60
    for rank in range(4):
        pieces = [line.removeprefix(f"rank {rank}  ") for line in cut if line.startswith(f"rank {rank}")]
        assert len(pieces) > 1
        assert (
            "".join(piece.ljust(52) for piece in pieces).rstrip() == whole[rank].removeprefix(f"rank {rank}  ").rstrip()
        )


def test_sources(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(capsys, monkeypatch, "show", "gb200-nvl72", "--sources")
    assert code == 0
    assert "differs" in out
    assert "ml-engineering" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "h100-smx"], "h100-sxm"),
        (["show", "lama3-8b"], "llama3-8b"),
        (["show", "13xh100-sxm"], "8 or 16"),
        (["show", "absent.toml"], "no such file"),
        (["show", "interleaved", "--microbatches", "7"], "multiple of stages"),
        (["show", "llama3-8b", "--dtype", "fp9"], "dtype"),
        (["show", "llama3-8b", "--seq", "0"], "--seq: got 0, expected a number from 1"),
        (["show", "gpipe", "--microbatches", "100000"], "4,096"),
        (["show", "llama3-8b", "--seq", "x"], "--seq"),
        (["check", "absent.toml"], "no such file"),
        (["check", EXAMPLE, "--set", "plan.tp=3"], "attention heads"),
        (["check", EXAMPLE, "--set", "plan.tpp=3"], "did you mean 'tp'"),
        (["schema", "-o", "no/such/folder/x.json"], "folder"),
        (["show", "h100-sxm", "--set", "plan.tp=4"], "a key of h100-sxm"),
        (["show", "chips", "--set", "chip.tdp=4 W"], "a key of chips"),
        (["show", "h100-sxm", "--set", "chip.hbm.bandwidth=8"], '"3.35 TB/s"'),
        (["shwo"], "show"),
        (["check", EXAMPLE, "--set", "a.b=1"], "--set a: got 'a', expected one of model"),
        (["check", EXAMPLE, "--set", "plan.tp"], "ridgeline: --set: got 'plan.tp'"),
        (["check", EXAMPLE, "--set", "chip.tdp=0 W"], "chip.tdp: got 0, expected more than 0"),
        (["check", EXAMPLE, "--set", "workload=3"], "workload: got 3, expected a table\n"),
        (["schema", "-o", "."], "a folder, expected a file"),
        (["show", "a" * 5000], "known names"),
        (["timeline", EXAMPLE, "-o", "no/such/folder/x.json"], "no/such/folder, which is no folder"),
        (["validate", "--where", "source=dgcx"], "dgxc"),
        (["export", EXAMPLE, "--to", "megatron", "-o", "a" * 300], "expected a folder"),
        (["import", "a" * 5000], "ridgeline: aaa"),
        (["show"], "WHAT"),
    ],
)
def test_bad_input_is_told_and_exits_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capsys, monkeypatch, *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_check_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(capsys, monkeypatch, "check", EXAMPLE, "--json")
    assert code == 0
    assert json.loads(out)["possible"] is True
    code, out, _ = run(capsys, monkeypatch, "check", EXAMPLE, "--json", "--set", "plan.tp=3")
    answer = json.loads(out)
    assert (code, answer["possible"]) == (2, False)
    assert {"plan.tp", "plan.dp"} <= {problem["path"] for problem in answer["problems"]}


def test_schema_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, _ = run(capsys, monkeypatch, "schema", "-o", str(tmp_path / "scenario.json"))
    assert code == 0
    assert json.loads((tmp_path / "scenario.json").read_text())["title"] == "Ridgeline scenario"


def test_text_from_a_file_cannot_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.toml").write_text(
        'name = "a\\u001b[31m[bold]x"\nhidden = 64\nlayers = 2\nvocab = 100\n'
        "[attention]\nheads = 4\n[mlp]\nhidden = 128\n"
    )
    code, out, _ = run(capsys, monkeypatch, "show", str(tmp_path / "evil.toml"))
    assert code == 0
    assert "\x1b" not in out
    assert "[bold]x" in out


def test_files_of_every_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {
        "chip": 'name = "X"\nvendor = "me"\nsystem = ""\n[peak]\nbf16 = "1 PFLOP/s"\n',
        "chip2": 'base = "h100-sxm"\n[hbm]\nbandwidth = "8 TB/s"\n',
        "system": 'base = "144xgb200-nvl72"\ndomain = 72\n',
        "system2": 'base = "64xh100-sxm"\n[tier.infiniband]\nbandwidth = "800 Gbit/s"\n',
        "model": 'base = "llama3-8b"\nlayers = 4\n',
    }
    for name, text in own.items():
        (tmp_path / f"{name}.toml").write_text(text)
        code, out, err = run(capsys, monkeypatch, "show", str(tmp_path / f"{name}.toml"), "--json")
        assert code == 0, err
        assert json.loads(out)[0]["kind"] == name.rstrip("2")


def test_what_if_on_a_shown_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(capsys, monkeypatch, "show", "64xh100-sxm", "--json", "--set", "chip.scaleup.bandwidth=900 GB/s")
    assert code == 0
    assert json.loads(out)[0]["tiers"][0]["bandwidth"]["value"] == 900e9


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("serve", "ridgeline plan llama3.1-8b --on 8xh100-sxm --serve"),
        ("train", "ridgeline run examples/tiny-2xcpu.toml"),
        ("Compare", "64xh100-sxm,64xb200-sxm"),
        ("simulate", "ridgeline predict"),
        ("bench", "ridgeline characterize"),
        ("plna", "ridgeline plan --help"),
        ("xyzzy", "ridgeline --help"),
    ],
)
def test_a_word_that_is_no_verb_names_the_verb_that_does_it(
    word: str, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capsys, monkeypatch, word, "llama3-70b")
    assert (code, command in err) == (2, True)


def test_what_people_want_is_in_the_help_and_parses(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run(capsys, monkeypatch, "--help")[1]
    commands = get_command(command_line()).commands  # type: ignore[attr-defined]
    for question in verbs.questions():
        assert question.want in text
        assert question.command in text
        name, *arguments = shlex.split(question.command)[1:]
        commands[name].make_context(name, arguments)
        assert not set(question.words) & set(VERBS), question
