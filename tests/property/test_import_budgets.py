"""Nothing that a run's files say makes `import` hang or eat memory: one budget of work and bytes refuses it first."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

import ridgeline
from ridgeline.core.errors import InputError

MOST_SECONDS = 6.0  # of CPU; about 1 on a machine of 2024
MOST_KILOBYTES = 350_000  # that the process may grow by

LONG = "A=aaaaaaaaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A\n" * 4  # 64 kB
WORDS = 'A="aa aa aa aa aa aa "\n' + 'A="$A$A$A$A$A$A$A$A"\n' * 4
TURNS = "for i in {1..200}; do for j in {1..200}; do %s; done; done\n"
SCRIPTS = {
    "failing substitutions": "f() { x=$(f)$(f)$(f)$(f)$(f)$(f); nosuch; }\nf\n",
    "names in sums": "A=A+A+A+A\n" + "A=$A+$A+$A+$A+$A+$A+$A+$A\n" * 2 + "A=$A+$A+$A+$A\nB=$((A))\n",
    "a replacement": LONG + "B=${A//a/$A}\n",
    "many variables": LONG + "A=$A$A$A$A$A$A$A$A\n" + TURNS % "V[$i.$j]=$A",
    "many commands": LONG + "A=$A$A$A$A$A$A$A$A\n" + TURNS % 'run "$A$i"',
    "words split again": WORDS + TURNS % ": $A",
    "every cut": LONG + TURNS % "B=${A##*a*a*a*b}",
    "every cut at the end": LONG + TURNS % "B=${A%%b*a*a*a*}",
    "a case": LONG + TURNS % "case $A in *a*a*a*a*b) run;; esac",
    "a condition": LONG + TURNS % "if [[ $A == *a*a*a*b ]]; then run; fi",
    "short commands": TURNS % "run",
    "parentheses": "(" * 400_000,
    "one-letter lines": "a\n" * 500_000,
    "a text evaluated": WORDS + TURNS % 'eval "x=$i; $A"',
    "a text substituted": LONG + "printf=1\n" + TURNS % "B=$(echo $A | tr a b)",
    "a file written on and on": LONG + TURNS % 'echo "$A" >> f.txt',
    "a file filled in": LONG + "cat > t <<E\n" + r"\$A " * 20_000 + "\nE\nenvsubst < t > u\nrun\n",
    "a file edited": LONG + 'echo "$A" > t\n' + 'sed "s/a/$A/g" t > u\nrun\n',
    "a list read": WORDS + TURNS % 'read -ra B <<< "$A"',
    "aliases": "".join(f"v{i}=1\n" for i in range(20_000)) + TURNS % "local -n B=v1",
    "branches nobody can tell": TURNS % ("if nosuch; then " + "x=1; " * 3_000 + "fi"),
    "loops without end": "while true; do while true; do while true; do x=1; done; done; done\n",
    "an array that doubles": "A=(a a a a a a a a)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 11 + TURNS % 'B=("${A[@]}")',
    "counting": TURNS % ("(( " + "a," * 490 + " ))"),
    "functions that call twice": "f() { g; g; g; g; g; g; }\ng() { h; h; h; h; h; h; }\nh() { k; k; k; k; k; k; }\n"
    "k() { l; l; l; l; l; l; }\nl() { for i in {1..200}; do x=1; done; }\n" + "f\n" * 3,
}
HEAD = """from megatron.bridge.training.config import ConfigContainer
from copy import deepcopy
from dataclasses import replace
import os
unknown = os.environ["NOPE"]

def pretrain_config() -> ConfigContainer:
"""
SHARED = "x = [1]; z = [1]\nfor i in range(60):\n    x = [x, x]; z = [z, z]\n"
RECIPES = {
    "a deep copy": SHARED + "y = deepcopy(x)\ny == x",
    "a text of a list": SHARED + "y = str(x)",
    "a comparison": SHARED + "y = x == z",
    "a replaced object": SHARED + "y = replace(ConfigContainer(), model=x)",
    "an argument": SHARED + "y = ConfigContainer(num_layers=x)",
    "an attribute": SHARED + "y = ConfigContainer()\ny.model.num_layers = x",
    "a key": SHARED + "y = {}\ny[x] = 1",
    "a membership": SHARED + "y = 1 in x",
    "a sorted list": SHARED + "y = sorted([x, z])",
    "a list in itself": "x = [1]\nx.append(x)\ny = x == x",
    "lists of ranges": "y = [list(range(20000)) for i in range(20000)]",
    "joined texts": 'y = [("a" * 9000).join(["b"] * 9999) for i in range(20000)]',
    "a replaced text": 'y = [("a" * 9999).replace("a", "b" * 9000) for i in range(20000)]',
    "an undecided body": "for i in range(20000):\n    if unknown:\n"
    + "".join(f"        a{i} = {i}\n" for i in range(2000)),
    "an undecided test": "for i in range(20000):\n    if unknown or "
    + "+".join(["unknown"] * 3000)
    + ":\n        a = 1",
    "tables": "y = {}\nfor i in range(20000):\n    y = {**y, i: dict(y)}",
    "sums of lists": "y = []\nfor i in range(20000):\n    y = y + [i]",
    "slices": "x = list(range(20000))\ny = [x[1:] for i in range(20000)]",
    "texts in texts": 'x = "a"\ny = []\nfor i in range(20000):\n    x = f"{x}{x}"[:9999]\n    y.append(f"{x}{i}")',
    "split texts": 'x = "a," * 6000\ny = [x.split(",") for i in range(20000)]',
    "a function of a large function": "def f():\n" + "    a = 1\n" * 2000 + "for i in range(20000):\n    f()",
    "pairs": "x = list(range(20000))\ny = [list(zip(x, x)) for i in range(20000)]",
    "sums written in place": "x = ConfigContainer()\nfor i in range(20000):\n    x" + ".a" * 40 + " += 1",
}


def _bounded(source: Path) -> InputError | None:
    """What an import is refused with; the CPU time and the memory that it takes are bounded."""
    started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refusal = None
    try:
        ridgeline.import_run(source, system="8xh100-sxm")
    except InputError as problem:
        refusal = problem
    assert time.process_time() - started < MOST_SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KILOBYTES
    return refusal


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_refused_before_it_costs_too_much(name: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPTS[name])
    refusal = _bounded(tmp_path / "run.sh")
    assert "run.sh" in str(refusal)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_refused_before_it_costs_too_much(name: str, tmp_path: Path) -> None:
    body = "".join(f"    {line}\n" for line in RECIPES[name].splitlines())
    (tmp_path / "recipe.py").write_text(f"{HEAD}{body}    return ConfigContainer(model=y)\n")
    refusal = _bounded(tmp_path / "recipe.py")
    assert "recipe.py" in str(refusal)


def test_texts_of_a_million_characters_are_refused_in_time(tmp_path: Path) -> None:
    fields = 'x = """"""' + "\\\n+f'{a}{a}'" * 65_000
    for text in ("a\n" * 490_000, "a()\n" * 245_000, "x = [" + "a," * 490_000 + "]", fields):
        (tmp_path / "recipe.py").write_text(HEAD + "    pass\n" + text)
        assert "recipe.py" in str(_bounded(tmp_path / "recipe.py"))


def test_files_that_refer_to_each_other_share_the_budget(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("")
    for at in range(40):  # each module has the next one's names twice
        (tmp_path / f"m{at}.py").write_text(f"from m{at + 1} import *\nfrom n{at + 1} import *\n")
        (tmp_path / f"n{at}.py").write_text(f"from m{at + 1} import *\nfrom n{at + 1} import *\n")
    (tmp_path / "recipe.py").write_text(f"from m0 import *\n{HEAD}    return ConfigContainer(model=nosuch)\n")
    assert _bounded(tmp_path / "recipe.py") is not None
    (tmp_path / "run.sh").write_text("source ./run.sh; source ./run.sh; source ./run.sh; x=$(bash run.sh)\n" * 40)
    _bounded(tmp_path / "run.sh")


def test_a_pattern_that_tries_every_split_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("A=" + "a" * 300 + "\nif [[ $A =~ ^(a|a)*b ]]; then B=1; fi\npython x.py --a $B\n")
    _bounded(tmp_path / "run.sh")
    (tmp_path / "run.sh").write_text("A=" + "a" * 290 + "\n" + TURNS % "[[ $A =~ a*a*a*a*a*b ]]")
    assert _bounded(tmp_path / "run.sh") is not None


def test_a_number_beyond_the_shell_is_left_open(tmp_path: Path) -> None:
    lines = "A=999999999999999\n" + "A=$A*$A*$A*$A*$A*$A*$A*$A\n" * 3
    (tmp_path / "run.sh").write_text(lines + "python x.py --a $((A))\n")
    _bounded(tmp_path / "run.sh")
