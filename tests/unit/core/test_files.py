"""Files are read with their lines, hostile ones are refused, and writing is atomic."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import BIGGEST_FILE, DEEPEST, read_table, write_text

TOML = """\
model = "x"
[plan]
tp = 8   # comment = 3
schedule = { name = "1f1b", parts = [1,
  2] }
[[tier]]
name = "a"
[[tier]]
name = "b"
"""
JSON = '{\n  "model": "x",\n  "plan": {\n    "tp": 8\n  }\n}\n'
YAML = "model: x\nplan:\n  tp: 8\n"


def problem(path: str) -> Problem:
    return Problem(path=path, given="", expected="")


@pytest.mark.parametrize(("name", "text", "line"), [("s.toml", TOML, 3), ("s.json", JSON, 4), ("s.yaml", YAML, 3)])
def test_lines(tmp_path: Path, name: str, text: str, line: int) -> None:
    (tmp_path / name).write_text(text)
    table = read_table(tmp_path / name)
    assert table.data["plan"]["tp"] == 8
    assert table.locate(problem("plan.tp")).where == f"{name}:{line}"
    assert table.locate(problem("plan.tp.deeper.still")).where == f"{name}:{line}"
    assert table.locate(problem("nothing")).where == name


def test_array_tables_and_inline_tables(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(TOML)
    table = read_table(tmp_path / "s.toml")
    assert table.locate(problem("tier[1].name")).where == "s.toml:9"
    assert table.locate(problem("plan.schedule.name")).where == "s.toml:4"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s.toml", "a = 1\nb = = 2\n", "s.toml:2"),
        ("s.json", '{"a": 1,\n"b": }', "s.json:2"),
        ("s.json", '{"a": NaN}', "not a number"),
        ("s.json", "[1, 2]", "table of keys"),
        ("s.json", "[" * 100_000, "nest"),
        ("s.yaml", "a: &x [*x]\n", "nested"),
        ("s.yaml", "a: &x {b: *x}\nc: {<<: *x}\n", "nested"),
        ("s.yaml", "a: !!python/object:os.system 1\n", "tag"),
        ("s.yaml", "a: [1\n", "s.yaml:"),
        ("s.txt", "a = 1", ".toml"),
        ("s.toml", "a = " + "[" * 50 + "]" * 50, "deep"),
        ("s.yaml", "a: " + "[" * 200_000, "too deeply nested"),
        ("s.yaml", "".join(" " * depth + f"k{depth}:\n" for depth in range(40)), "too deeply nested"),
        ("s.toml", "a = " + "9" * 5000, "digits"),
        ("s.json", '{"a": ' + "9" * 5000 + "}", "digits"),
        ("s.yaml", "a: " + "9" * 5000, "digits"),
        ("s.yaml", "a: 2024-13-45", "month"),
    ],
)
def test_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        read_table(tmp_path / name)


def test_yaml_aliases_are_written_out(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("a: &x {b: [1]}\nc: *x\nd: {<<: *x, e: 2}\n")
    data = read_table(tmp_path / "s.yaml").data
    assert data == {"a": {"b": [1]}, "c": {"b": [1]}, "d": {"b": [1], "e": 2}}
    data["a"]["b"].append(2)
    assert data["c"] == {"b": [1]}


@pytest.mark.parametrize("merge", ["[{}]", "{{<<: [{}]}}"])
def test_yaml_alias_chain(tmp_path: Path, merge: str) -> None:
    first = "a0: &a0 [1]" if merge.startswith("[") else "a0: &a0 {x: 1}"
    lines = [first, *(f"a{n}: &a{n} {merge.format(f'*a{n - 1}')}" for n in range(1, 5000))]
    (tmp_path / "s.yaml").write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"alias|nested"):
        read_table(tmp_path / "s.yaml")


def test_yaml_alias_bomb(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    (tmp_path / "s.yaml").write_text("\n".join(lines))
    with pytest.raises(InputError, match="alias"):
        read_table(tmp_path / "s.yaml")


def test_absent_folder_large_and_binary(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_table(tmp_path / "absent.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InputError, match="plain file"):
        read_table(tmp_path / "folder.toml")
    (tmp_path / "big.toml").write_bytes(b"#" * (BIGGEST_FILE + 1))
    with pytest.raises(InputError, match="bytes"):
        read_table(tmp_path / "big.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_table(tmp_path / "binary.toml")


def test_write_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.txt"
    write_text(target, "old")

    def fails(source: str, destination: str) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(InputError, match="disk full"):
        write_text(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
    with pytest.raises(InputError, match="a place that can be written"):
        write_text(tmp_path / "no" / "such" / "out.txt", "x")
    with pytest.raises(InputError, match="a folder, expected a file"):
        write_text(tmp_path, "x")


def test_a_killed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")
    code = (
        "import os, pathlib, signal, sys\n"
        "from ridgeline.core import files\n"
        "files.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.write_text(pathlib.Path(sys.argv[1]), 'new')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(target)])
    assert done.returncode == -signal.SIGKILL
    assert target.read_text() == "old"


def test_permissions_are_the_old_ones_or_the_users(tmp_path: Path) -> None:
    secret, fresh = tmp_path / "secret.txt", tmp_path / "fresh.txt"
    secret.write_text("old")
    secret.chmod(0o600)
    before = os.umask(0o027)
    try:
        write_text(secret, "new")
        write_text(fresh, "new")
    finally:
        os.umask(before)
    assert (secret.stat().st_mode & 0o777, fresh.stat().st_mode & 0o777) == (0o600, 0o640)


def test_a_pipe_is_written_to_and_a_link_kept(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    write_text(pipe, "through")
    assert reader.communicate(timeout=10)[0] == "through"
    assert pipe.is_fifo()
    (tmp_path / "real.txt").write_text("old")
    link.symlink_to(tmp_path / "real.txt")
    write_text(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_as_deep_as_allowed(tmp_path: Path) -> None:
    text = "a: " + "[" * DEEPEST + "]" * DEEPEST
    for name, content in (("s.yaml", text), ("s.toml", text.replace(":", " =")), ("s.json", f'{{"a": {text[3:]}}}')):
        (tmp_path / name).write_text(content)
        assert "a" in read_table(tmp_path / name).data


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(TOML, encoding="utf-8-sig")
    assert read_table(tmp_path / "s.toml").data["model"] == "x"
