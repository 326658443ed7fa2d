"""The pages for users can be followed: their quick command lines end as shown, and what needs more says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command import run

from ridgeline.cli.verbs import VERBS
from tools.docs import commands
from tools.docs.commands import Command, SavedFile
from tools.pages import ROOT

LONG_PAGES = {  # `make test-pages` runs them
    "bring-up-a-device",
    "capture",
    "close-the-loop-on-a-cpu",
    "measure-a-machine",
    "run-a-plan",
    "use-the-shared-memory-backend",
    "validate-and-fit",
}
PAGES = sorted(path for pattern in commands.PAGES for path in ROOT.glob(pattern))
QUICK_PAGES = [path for path in PAGES if path.parent.name == "how-to" and path.stem not in LONG_PAGES]
PAGE = """# A page

It needs a GPU.

<!-- needs: a GPU -->

    ridgeline run mine.toml

```toml
# mine.toml
a = 1
```

    P = 2 x 3
    TP=4 bash run.sh    # exit code 3
    cat > x <<'EOF'
    ridgeline in a file
    EOF

```console
$ ridgeline check mine.toml
ridgeline: no
```
"""


def in_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> Callable[[Command, Path], tuple[int, str]]:
    """Lines of `ridgeline` alone run in this process, which saves the start of Python; others in a shell."""
    shell = commands.shell(environment, limit_s=60)

    def execute(command: Command, folder: Path) -> tuple[int, str]:
        words = commands.plain_words(command)
        if words is None:
            return shell(command, folder)
        code, out, err = run(capsys, monkeypatch, *words)
        return code, out + err

    return execute


@pytest.mark.parametrize("path", QUICK_PAGES, ids=lambda path: path.stem)
def test_a_page_can_be_followed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = commands.make_clone(tmp_path)
    monkeypatch.chdir(tmp_path)
    execute = in_process(capsys, monkeypatch, environment)
    outcomes = list(commands.follow(commands.read_page(path), tmp_path, execute))
    assert [outcome.report() for outcome in outcomes if not outcome.good] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_says_what_its_blocks_need(path: Path) -> None:
    assert commands.unsaid_needs(path) == []


def test_commands_files_and_needs_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    steps = list(commands.read_page(page))
    lines = [step for step in steps if isinstance(step, Command)]
    assert [step.name for step in steps if isinstance(step, SavedFile)] == ["mine.toml"]
    assert [(line.text.splitlines()[0], line.needs, line.exit_code) for line in lines] == [
        ("ridgeline run mine.toml", "a GPU", 0),
        ("TP=4 bash run.sh    # exit code 3", "", 3),
        ("cat > x <<'EOF'", "", 0),
        ("ridgeline check mine.toml", "", None),
    ]
    assert PAGE.splitlines()[lines[1].line - 1].endswith("# exit code 3")
    assert commands.unsaid_needs(page) == []
    page.write_text(PAGE.replace("It needs a GPU.", ""), encoding="utf-8")
    assert commands.unsaid_needs(page) == ["a GPU"]


def test_a_shell_carries_folder_and_variables_and_ends_what_hangs(tmp_path: Path) -> None:
    lines = (
        "mkdir a && cd a",
        "export B=2",
        "C=3",
        "bash -c 'test $B$C = 23' && test $PWD = $OLDPWD/a",
        "bash -c 'sleep 9'",
    )
    text = "".join(f"    {line}\n" for line in lines)
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    shell = commands.shell(commands.make_clone(tmp_path), limit_s=1)
    assert [outcome.code for outcome in commands.follow(commands.read_page(page), tmp_path, shell)] == [0, 0, 0, 0, 124]


def test_only_lines_without_shell_words_run_in_this_process() -> None:
    line = Command(page="p", line=1, text="ridgeline predict a.toml --set 'x=[1, 2]'   # a comment (of the page)")
    assert commands.plain_words(line) == ["predict", "a.toml", "--set", "x=[1, 2]"]
    for text in ("ridgeline validate --json > a.json", "ridgeline explain low-?.json", "python x.py"):
        assert commands.plain_words(Command(page="p", line=1, text=text)) is None


def test_readme_names_every_verb() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in VERBS if f"`ridgeline {name}" not in readme] == []
