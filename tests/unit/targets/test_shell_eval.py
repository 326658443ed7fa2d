"""Scripts are followed without being run."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.core.errors import InputError
from ridgeline.targets.imports.run_files import Checkout
from ridgeline.targets.imports.shell_eval import read_script


def commands(text: str) -> list[list[str]]:
    return read_script(text).commands


def test_variables_defaults_and_arithmetic() -> None:
    text = "A=2\nB=${B:-4}\nC=$((A*$B + 1))\nD='$A'\nrun $A ${B} \"$C\" $D --x=$A"
    assert commands(text) == [["run", "2", "4", "9", "$A", "--x=2"]]


def test_quoted_strings_over_several_lines_are_split_where_unquoted() -> None:
    text = 'ARGS="\n  --a 1 \\\n  --b two\n"\nrun $ARGS "$ARGS"'
    (command,) = commands(text)
    assert command[:5] == ["run", "--a", "1", "--b", "two"]
    assert len(command) == 6


def test_arrays_with_comments_and_elements_of_two_words() -> None:
    text = 'A=(\n --x 1 # one\n "--y 2"\n)\nA+=(--z)\nrun ${A[@]} end\nrun "${A[@]}"'
    assert commands(text) == [["run", "--x", "1", "--y", "2", "--z", "end"], ["run", "--x", "1", "--y 2", "--z"]]


def test_conditions_are_followed_and_unknown_ones_are_noted() -> None:
    text = 'T=fp8\nif [[ "$T" == "fp8" ]]; then X=1; elif [ $T = bf16 ]; then X=2\nelse X=3\nfi\nrun $X'
    assert commands(text) == [["run", "1"]]
    assert commands(text.replace("T=fp8", "T=bf16")) == [["run", "2"]]
    assert commands(text.replace("T=fp8", "T=other")) == [["run", "3"]]
    either = "X=0\nif [ $A = 1 ] || [[ $B == 2 ]] && [ -n $C ]; then X=1; fi\nrun $X"
    for values, taken in (("A=1 B=0 C=1", "1"), ("A=0 B=2 C=1", "1"), ("A=0 B=0 C=1", "0"), ("A=1 B=2 C=", "0")):
        assert commands("\n".join(values.split()) + "\n" + either.replace("-n $C", '-n "$C"')) == [["run", taken]]
    unknown = read_script("X=1\nif grep -q a b; then X=2; fi\nrun --x $X")
    assert unknown.commands == [["run", "--x", "$X()"]]  # nobody knows which
    assert unknown.notes


@pytest.mark.parametrize(
    ("outer", "inner", "said"),
    [("1", "1", "a"), ("1", "2", "b"), ("1", "3", "c"), ("2", "1", "d"), ("2", "2", "d"), ("3", "1", "e")],
)
def test_conditions_inside_conditions(outer: str, inner: str, said: str) -> None:
    """A branch inside one that is not taken is not taken either, whatever it asks."""
    text = f"""O={outer}; I={inner}
if [ $O = 1 ]; then
    if [ $I = 1 ]; then X=a
    elif [ $I = 2 ]; then X=b
    else X=c; fi
elif [ $O = 2 ]; then X=d
else
    X=e
fi
run $X
"""
    assert commands(text) == [["run", said]]


def test_keywords_without_an_open_condition_are_passed_over() -> None:
    assert commands("fi\nelse run 1\nelif run 2\nthen run 3") == [["run", "1"], ["run", "2"], ["run", "3"]]


def test_nothing_runs(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    found = read_script(f"A=$(touch {marker})\ntouch {marker}\n`touch {marker}`\nfor i in 1 2; do touch {marker}; done")
    assert not marker.exists()
    assert any("touch" in note for note in found.notes)


def test_what_published_scripts_do_beside_arguments() -> None:
    text = """
DIR="$( cd "$( dirname "${BASH_SOURCE[0]}" )" && pwd )"
mkdir -p "$(dirname "$OUT")"
if [ ! -f "$DIR/pretrain.py" ]; then
    echo "not found"
    exit 1
fi
usage () {
    echo "$0 [--help]"
}
OPTS="${OPTS:-"--a 1"} --b"
run $OPTS 2>&1 | tee "log-$(date).txt"
"""
    assert ["run", "--a", "1", "--b"] in [command[:4] for command in commands(text)]


def test_many_openings_come_to_an_end() -> None:
    """What is opened and never closed is refused or passed over; work that grew with its square would not end here."""
    for opening in ("$((", "${", "$(", "`", "(", '"$('):
        with contextlib.suppress(InputError):
            read_script("A=1\nrun " + opening * 50_000)


def test_exports_are_the_environment() -> None:
    found = read_script("export A=1\nexport B\nB=2\nC=3")
    assert found.environment == {"A": "1", "B": "2"}


def test_an_open_quote_is_told_with_its_line() -> None:
    with pytest.raises(InputError, match="line 2"):
        read_script("A=1\nB='never")


def test_a_variable_that_doubles_is_refused() -> None:
    with pytest.raises(InputError, match="grows"):
        read_script("A=x\n" + "A=$A$A\n" * 60)


@given(st.text(alphabet="$({})'\"`\\\n;|&[]=+ abA1-@#<>", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        read_script(text)


def test_variables_before_a_command_hold_for_it_alone() -> None:
    script = read_script("TP=1\nTP=8 run $TP a\nrun $TP b\nfor z in {2..3}; do run $z; done")
    assert script.commands[1:] == [["run", "1", "b"], ["run", "2"], ["run", "3"]]
    assert script.variables["TP"] == ["1"]


def test_a_script_handed_to_the_scheduler_is_followed() -> None:
    text = (
        'export CMD="python train.py --layout Et*2|tL"\nsbatch <<EOF\n'
        "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nsrun bash -c \\\\\\${CMD} | tee log\nEOF\n"
    )
    script = read_script(text)
    assert ["python", "train.py", "--layout", "Et*2|tL"] in script.commands  # no pipe: the bar stands in a variable
    assert script.slurm_variables == {
        "SLURM_NNODES": "4",
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_NTASKS_PER_NODE": "8",
    }


def test_a_path_is_found_by_its_end_and_only_inside_the_checkout(tmp_path: Path) -> None:
    top = tmp_path / "checkout"
    (top / "jobs").mkdir(parents=True)
    (top / "configs").mkdir()
    (top / "configs" / "zero2.json").write_text("{}")
    (tmp_path / "outside.json").write_text("{}")
    place = Checkout(folder=top / "jobs", top=top)
    assert place.named("$WORK/someone/configs/zero2.json") == "{}"
    assert place.named("../../outside.json") is None
    assert place.named("/etc/passwd") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("V=2\nif (( V > 1 )); then A=--vpp; fi\nrun $A", "--vpp"),
        ("V=2\n(( V >= 2 && V < 2 )) && A=no\n! ((V>5)) && A=${A:-yes}\nrun $A", "yes"),
        ("i=1\n((i++)); ((i+=2)); let 'j = i * 2'\nrun $i $j", "4 8"),
        ("for ((i=0; i<3; i++)); do A+=$i; done\nrun $A", "012"),
        ("N=$(echo 0,1,2,3 | tr ',' '\\n' | wc -l)\nrun $N $(seq 1 2) $(printf '%02d' 3)", "4 1 2 03"),
        ("f() { if [ $1 = 7B ]; then echo 32; else echo 80; fi; }\nrun $(f 7B) $(f 70B)", "32 80"),
        ("IFS=, read -ra P <<< 4,8\nread A B <<< '1 2 3'\nrun ${P[1]} $B", "8 2 3"),
        ("X=$(cat <<END\n--tp 2\nEND\n)\nrun $X", "--tp 2"),
        ("M=llama_70b_x\n[[ $M =~ _([0-9]+)b ]] && S=${BASH_REMATCH[1]}\nrun $S", "70"),
    ],
)
def test_arithmetic_commands_and_what_plain_tools_print(text: str, words: str) -> None:
    assert read_script(text).commands[-1] == ["run", *words.split()]


def test_what_a_substitution_cannot_tell_stays_open() -> None:
    script = read_script("N=$(nvidia-smi -L | wc -l)\nwhile read a; do run $a; done < f\nrun --gpus $N")
    assert script.commands == [["run", "--gpus", "$(nvidia-smi -L | wc -l)"]]
    assert any("nvidia-smi" in note for note in script.notes)


def test_what_eval_reads_again_keeps_its_quotes_and_what_is_open_in_it() -> None:
    text = "A=(--layout 'Et\\|(tt\\|)*2L' --fp8)\nN=$(($(ds_ssh x | wc -l)-2))\n"
    text += 'cmd="run ${A[@]} \\\n --c f-$N.json\n --bf16"\n'
    words = ["run", "--layout", "Et|(tt|)*2L", "--fp8", "--c", "f-$(($(ds_ssh x | wc -l)-2)).json", "--bf16"]
    script = read_script(text.replace("(tt", "\\(tt").replace("|)", "|\\)") + "eval $cmd")
    assert script.commands[-1] == words


def test_quotes_of_a_substitution_inside_quotes_are_its_own() -> None:
    text = 'A=" --lr 3e-4 --min-lr `bc <<< "scale=3; 1/10"` --mup "\nrun $A --tp 2'
    words = read_script(text).commands[-1]
    assert words[-3:] == ["--mup", "--tp", "2"]
    assert words[:3] == ["run", "--lr", "3e-4"]


def test_what_hangs_on_an_absent_file_is_left_open_and_said() -> None:
    text = "TP=2\nif [ -f /etc/cluster.conf ]; then TP=8; fi\nrun --tp $TP\n"
    script = read_script(text)
    assert script.commands == [["run", "--tp", "$TP()"]]
    assert script.notes == ["whether /etc/cluster.conf is there: taken as absent"]
    named = read_script(text, Checkout(environment={"TP": "4"}))
    assert named.commands == [["run", "--tp", "4"]]
    written = read_script("cat > my.conf <<EOF\na\nEOF\nTP=2\nif [ -f my.conf ]; then TP=8; fi\nrun --tp $TP\n")
    assert written.commands[-1] == ["run", "--tp", "8"]
    untouched = read_script("TP=2\n[ -d out ] || mkdir out\nrun --tp $TP\n")
    assert untouched.commands[-1] == ["run", "--tp", "2"]
