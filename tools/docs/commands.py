"""Follow the pages for users: run their command lines in order, each page in a folder of its own.

    python -m tools docs run                every how-to page and every page of docs/for
    python -m tools docs run PAGE...        only these

The folder has what a clone has (`examples` as a copy). `ridgeline` and `python` are those of this environment. A
command is a line `$ …` of a `console` block, or a line of an indented or `sh` block that begins with a program; a
here-document and a line that ends with a backslash go on. A block of a file begins with its name as a comment
(`# mine.toml`) and is saved. A line fails on purpose where its comment says `exit code N`, or where the first line that
is shown below it begins with `ridgeline:`. `<!-- needs: a GPU -->` before a block says why its lines are not run; the
page says the same to its reader ("needs a GPU").
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.pages import ROOT

PAGES = ("docs/how-to/*.md", "docs/for/*.md")
CLONE = ("tests", "tools", "benchmarks", "docs", "src", "Makefile", "pyproject.toml", "README.md")
PROGRAMS = frozenset(
    [
        "ridgeline",
        "python",
        "python3.11",
        "pip",
        "make",
        "bash",
        "torchrun",
        "srun",
        "sbatch",
        "sudo",
        "unshare",
        "setsid",
        "scp",
        "sh",
        "tensorboard",
        "cp",
        "cd",
        "cat",
        "mkdir",
        "echo",
        "printf",
        "export",
        ":",
        "ls",
    ]
)
BLOCK = re.compile(
    r"(?:<!-- needs: (?P<needs>[^>]*?) -->\n+)?(?:<!-- screen:[^>]*-->\n)?"
    r"(?:^```(?P<language>\w*)\n(?P<fenced>.*?)^```|(?P<indented>(?:^ {4}[^\n]*\n|^\n(?= {4}))+))",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"# ([\w./-]+\.(?:toml|py|json|jsonl|csv|yaml|yml|sh))\n")
SHELL = re.compile(r"(?:[;&|<>$`(){}*?~\\\n]|^\w+=)")
HERE_DOCUMENT = re.compile(r"<<-?\s*'?(\w+)'?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line of a page, with the exit code it should have; None is any but 0."""

    page: str
    line: int
    text: str
    exit_code: int | None = 0
    needs: str = ""

    def meets(self, code: int) -> bool:
        """Whether an exit code is the one that the page shows."""
        return code == self.exit_code if self.exit_code is not None else code not in (0, 70)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """A file whose text a page shows."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command line came to: its exit code and its seconds."""

    command: Command
    code: int
    seconds: float
    output: str = ""

    @property
    def good(self) -> bool:
        """Whether the command ended as its page shows."""
        return self.command.meets(self.code)

    def report(self) -> str:
        """A line with code and seconds, and the end of the output where the code is another than shown."""
        command, verdict = self.command, "ok  " if self.good else "FAIL"
        place = f"{command.page}:{command.line}  {command.text.splitlines()[0]}"
        text = f"{verdict} {self.code:3d} {self.seconds:6.1f} s  {place}"
        return text if self.good else "\n          ".join([text, *self.output.splitlines()[-3:]])


Step = Command | SavedFile


def read_page(path: Path) -> Iterator[Step]:
    """The files and command lines of a page, in order."""
    text = path.read_text(encoding="utf-8")
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    for block in BLOCK.finditer(text):
        body, begin = block["fenced"], block.start("fenced")
        language = block["language"]
        if body is None:
            body = re.sub(r"^ {4}", "", block["indented"], flags=re.MULTILINE)
            language, begin = "sh", block.start("indented")
        first = text.count("\n", 0, begin) + 1
        if file := FILE.match(body):
            yield SavedFile(name=file[1], text=body)
        elif language in ("console", "sh"):
            for line, command, first_output in _command_lines(body, console=language == "console"):
                code = _promised_code(command, first_output)
                yield Command(page=name, line=first + line, text=command, exit_code=code, needs=block["needs"] or "")


def _command_lines(body: str, *, console: bool) -> Iterator[tuple[int, str, str]]:
    """Line numbers within a block, commands, and the first line that is shown below each."""
    lines = body.splitlines()
    place = 0
    while place < len(lines):
        begin, line = place, lines[place]
        place += 1
        if console:
            if line.startswith("$ "):
                yield begin, line[2:], lines[place] if place < len(lines) else ""
            continue
        if not _is_command(line):
            continue
        end = HERE_DOCUMENT.search(line)
        while place < len(lines) and (line.endswith("\\") or (end and lines[place - 1] != end[1])):
            line += "\n" + lines[place]
            place += 1
        yield begin, line, ""


def _is_command(line: str) -> bool:
    """Whether a line begins with a program, behind the variables that it is given."""
    words = re.sub(r"^(?:\w+=(?:\$\([^)]*\)|\S*)\s*)+", "", line).split()
    if not words:
        return re.match(r"\w+=\S", line) is not None
    return words[0] in PROGRAMS or re.fullmatch(r"~/\S+/bin/\w+", words[0]) is not None


def _promised_code(command: str, first_output: str) -> int | None:
    """The exit code that a page shows for a command; None is any but 0."""
    comment = re.search(r"\s#.*exit code (\d+)", command.partition("\n")[0])
    if comment:
        return int(comment[1])
    return None if first_output.startswith("ridgeline:") else 0


def unsaid_needs(path: Path) -> list[str]:
    """The needs of a page's blocks that its reader is not told."""
    text = path.read_text(encoding="utf-8")
    visible = " ".join(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).split()).lower()
    needs = {step.needs for step in read_page(path) if isinstance(step, Command) and step.needs}
    return sorted(need for need in needs if not re.search(rf"\bneeds? {re.escape(need.lower())}\b", visible))


def make_clone(folder: Path) -> dict[str, str]:
    """What a user has after `git clone` and `pip install`, in an empty folder; returns the environment."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    for name in CLONE:
        (folder / name).symlink_to(ROOT / name)
    programs = folder / ".bin"
    programs.mkdir()
    for name, words in (("ridgeline", "-m ridgeline"), ("python", ""), ("torchrun", "-m torch.distributed.run")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}


def follow(
    steps: Iterable[Step], folder: Path, execute: Callable[[Command, Path], tuple[int, str]]
) -> Iterator[Outcome]:
    """Save the files of a page and run its commands that need nothing, in order."""
    for step in steps:
        if isinstance(step, SavedFile):
            target = folder / step.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(step.text, encoding="utf-8")
        elif not step.needs:
            began = time.monotonic()
            code, output = execute(step, folder)
            yield Outcome(command=step, code=code, seconds=time.monotonic() - began, output=output)


def shell(environment: dict[str, str], limit_s: float) -> Callable[[Command, Path], tuple[int, str]]:
    """A bash for each line that leaves its folder and variables to the next; code 124 is beyond the limit."""

    def execute(command: Command, folder: Path) -> tuple[int, str]:
        state = folder / ".bin" / "state.sh"
        text = (
            f"[ -e {shlex.quote(str(state))} ] && . {shlex.quote(str(state))}\n{command.text}\ncode=$?\n"
            f'{{ echo "cd $(printf %q "$PWD")"; export -p; }} > {shlex.quote(str(state))}\nexit $code\n'
        )
        process = subprocess.Popen(
            ["bash", "-ac", text],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return 124, process.communicate()[0]
        return process.returncode, output

    return execute


def plain_words(command: Command) -> Sequence[str] | None:
    """The arguments of a `ridgeline` line that needs no shell; None for other lines."""
    text = command.text
    if not text.startswith("ridgeline "):
        return None
    bare = re.sub(r"'[^']*'|\"[^\"]*\"|\s#.*", "", text)
    return None if SHELL.search(bare) else shlex.split(text, comments=True)[1:]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pages", nargs="*")
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help="for one line")


def run(arguments: argparse.Namespace) -> int:
    """Run pages and print a line for each command; exit code 1 where one does not end as its page shows."""
    paths = [ROOT / name for name in arguments.pages] or sorted(path for page in PAGES for path in ROOT.glob(page))
    outcomes: list[Outcome] = []
    unmet_needs = 0
    silent_pages = [path for path in paths if unsaid_needs(path)]
    for path in paths:
        steps = list(read_page(path))
        unmet_needs += sum(isinstance(step, Command) and bool(step.needs) for step in steps)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for outcome in follow(steps, folder, shell(make_clone(folder), arguments.limit)):
                print(outcome.report(), flush=True)
                outcomes.append(outcome)
    for path in silent_pages:
        print(f"FAIL {path.relative_to(ROOT)} does not say that a block needs {', '.join(unsaid_needs(path))}")
    good = sum(outcome.good for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    print(f"{len(outcomes)} lines ran {seconds:.0f} s, {good} end as their page shows")
    print(f"{unmet_needs} lines need more than a clone")
    return int(good < len(outcomes) or bool(silent_pages))
