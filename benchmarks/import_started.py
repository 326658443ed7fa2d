"""Whether a script's commands are read as a shell runs them: every launcher script of a checkout is started with stubs.

    sudo python benchmarks/import_started.py CHECKOUT... [--show 20]

Scripts run as an unprivileged user in namespaces of their own (`unshare`, root needed): no network, the file system
read only but for a copy of the checkout in memory, and on PATH text tools and programs that do nothing. `bash -x` tells
every command with its words. The first that passes a model's dimensions or degrees is compared, option by option, with
what `ridgeline.targets.imports.shell_eval` makes of the same script called the same way; a value that the reader leaves
open, a path or a port is no difference. What options mean is not judged here. A script that stops by itself (data that
is not there) is counted as not started.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SUFFIXES = (".sh", ".slurm", ".sbatch")
SIGN = re.compile(r"--(num[-_]layers|hidden[-_]size|micro[-_]batch[-_]size|tensor[-_]model[-_]parallel[-_]size)$")
TOOLS = (
    "bash sh cat sed dirname basename date expr seq tr cut head tail awk grep wc bc realpath readlink mktemp sort uniq"
)
TOOLS += " env envsubst printf test find xargs jq paste true false mkdir touch cp tee ls pwd"
IDLE = (
    "torchrun python python3 deepspeed accelerate pip nvidia-smi npu-smi hostname scontrol sleep ray git module conda"
)
IDLE += " nsys rm mv chmod kill pkill killall ip wget curl wandb ps nproc ln"
CARRIERS = "srun sbatch mpirun mpiexec nohup sudo timeout numactl singularity apptainer docker pdsh"
PRINTS = ("echo", "printf", "cat", "[", "[[", "test", "export", "local", "declare", "sed", "tee", "for", "case")
CARRY = """#!/bin/bash
set +x
at=0
for word in "$@"; do
  at=$((at + 1))
  case "$word" in
    bash | sh | /bin/bash | /bin/sh) exec bash "${@:$((at + 1))}" ;;
    *.sh | *.slurm | *.sbatch) [ "${0##*/}" = sbatch ] && exec bash "${@:$at}" ;;
  esac
done
[ "${0##*/}" = sbatch ] && exec bash -s
exit 0
"""
START = 'cd() { builtin cd "$@" 2>/dev/null || true; }\ncommand_not_found_handle() { return 0; }\nset -x\n'
STOPS = re.compile(r"^([ \t]*)set (-[a-z]*[eu][a-z]*( -[a-z]+)*( -o pipefail| pipefail)?|-x -e)[ \t]*(?=$|#|;)", re.M)
GAP = re.compile(r"(?<!<)<(?=[A-Za-z])[^<>\n]{0,80}>(?!\()")
SECONDS = 4
ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def main() -> int:
    """Compare every script of the named checkouts and print the tally."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--show", type=int, default=20, help="differences to print")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # in the sandbox: where jobs and answers stand
    given = parser.parse_args()
    if given.inside is not None:
        started_inside(given.checkouts[0], given.inside)
        return 0
    if os.geteuid():
        sys.exit("got an ordinary user, expected root: namespaces keep what is started apart")
    return max(compared(checkout.resolve(), given.show) for checkout in given.checkouts)


def compared(checkout: Path, show: int) -> int:
    """Read and start the scripts of one checkout."""
    read = dict(readings(checkout))
    with tempfile.TemporaryDirectory() as place:
        jobs = [{"file": name, "arguments": call} for name, (call, _) in read.items()]
        (Path(place) / "jobs.json").write_text(json.dumps(jobs))
        inside = f"mount --make-rprivate / && mount -t tmpfs -o size=4g tmpfs /mnt && mount --bind {place} {place}"
        me = f"{sys.executable} {Path(__file__).resolve()} {checkout} --inside {place}"
        subprocess.run(
            [
                "unshare",
                "-m",
                "-n",
                "-p",
                "--fork",
                "bash",
                "-c",
                f"{inside} && mount -o remount,ro,bind / && exec {me}",
            ],
            check=True,
        )
        started = json.loads((Path(place) / "started.json").read_text())
    found: dict[str, dict[str, Any]] = {}
    tally = {"same": 0, "differ": 0, "not started": 0}
    for name, (_, options) in read.items():
        runs = [differences(options, words) for words in started.get(name, [])]
        if not runs:
            tally["not started"] += 1
            continue
        best = min(runs, key=len)
        tally["differ" if best else "same"] += 1
        if best:
            found[name] = best
    print(f"{checkout.name}: {len(read)} scripts read, " + ", ".join(f"{count} {how}" for how, count in tally.items()))
    for name, wrong in list(found.items())[:show]:
        print(f"    {name}: " + "; ".join(f"--{key} {a!r} started, {b!r} read" for key, (a, b) in wrong.items())[:300])
    return int(bool(found))


def readings(checkout: Path) -> Iterator[tuple[str, tuple[list[str], dict[str, Any]]]]:
    """Scripts that pass such options, the words that each is called with, and the options that are read."""
    from ridgeline.core.errors import InputError
    from ridgeline.targets.api import read_files
    from ridgeline.targets.dialects.megatron.collect import from_script
    from ridgeline.targets.imports.shell_arguments import lacking, shown_call, with_call

    for path in sorted(checkout.rglob("*")):
        if path.suffix not in SUFFIXES or not path.is_file() or path.is_symlink() or path.stat().st_size > 400_000:
            continue
        try:
            files = read_files(path)
            call = shown_call(files) if lacking(files) else None
            files = with_call(files, call) if call else files
            options = from_script(path.name, files[path.name], files)
        except InputError:
            continue
        if options is not None and options.program:
            yield str(path.relative_to(checkout)), (list(call.arguments) if call else [], dict(options.options))


def differences(options: dict[str, Any], words: list[str]) -> dict[str, tuple[Any, Any]]:
    """Options with another value than was started; what is a path, a port or left open is none."""
    from ridgeline.targets.dialects.megatron.collect import parse_options

    begins = next((at for at, word in enumerate(words) if word.endswith(".py")), -1)
    truth = parse_options(words[begins + 1 :])
    found: dict[str, tuple[Any, Any]] = {}
    for key, value in truth.items():
        other = options.get(key)
        loose = (
            "$" in str(other)
            or "/" in str(value)
            or "GAP" in str(value)
            or re.search(r"port|addr|path|dir|name|seed|rank|json", key)
        )
        if other != value and not loose:
            found[key] = (value, other)
    return found


# inside the sandbox


def started_inside(checkout: Path, place: Path) -> None:
    """Run every job on a copy of the checkout and write the commands that it starts."""
    box = Path("/mnt/box")
    top, stubs = box / checkout.name, box / "stubs"
    shutil.copytree(checkout, top, ignore=shutil.ignore_patterns(".git"), symlinks=True)
    stubs.mkdir()
    for tool in TOOLS.split():
        real = shutil.which(tool)
        if real:
            (stubs / tool).symlink_to(real)
    for names, text in ((IDLE, "#!/bin/bash\nexit 0\n"), (CARRIERS, CARRY)):
        for name in names.split():
            (stubs / name).write_text(text)
            (stubs / name).chmod(0o755)
    (box / "start").write_text(START)
    for script in top.rglob("*"):
        if script.suffix in SUFFIXES and script.is_file() and not script.is_symlink():
            text = script.read_text(errors="surrogateescape")
            script.write_text(GAP.sub("GAP", STOPS.sub(r"\1:", text)), errors="surrogateescape")
    subprocess.run(["chown", "-R", "65534:65534", str(box)], check=True)
    found = {job["file"]: run(box, top, job) for job in json.loads((place / "jobs.json").read_text())}
    (place / "started.json").write_text(json.dumps(found))


def run(box: Path, top: Path, job: dict[str, Any]) -> list[list[str]]:
    """The commands of one script, from its folder and from the top of the checkout."""
    script, log = top / job["file"], box / "log"
    environment = {"PATH": str(box / "stubs"), "HOME": str(box), "BASH_ENV": str(box / "start"), "PS4": ":::XT "}
    environment |= {"BASH_XTRACEFD": "9", "LC_ALL": "C.UTF-8", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}
    environment |= asked(script.read_text(errors="replace"))
    begin = f"set +x; exec 9>>{log}; ulimit -f 20000; "
    begin += f'exec /usr/bin/timeout -k 1 {SECONDS} bash {json.dumps(str(script))} "$@"'
    found: list[list[str]] = []
    for folder in (script.parent, top):
        log.write_text("")
        log.chmod(0o666)
        command = [
            "/usr/bin/setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "/bin/bash",
            "-c",
            begin,
            "x",
        ]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            subprocess.run([*command, *job["arguments"]], env=environment, cwd=folder, timeout=SECONDS + 3, **quiet)
        except subprocess.TimeoutExpired:
            continue
        for line in re.split(r"^:+::XT ", log.read_text(errors="replace"), flags=re.M):
            words = unquoted(line.rstrip("\n")) if len(line) < 60_000 else []
            starts = words and words[0] not in PRINTS and not re.match(r"\w+\+?=", words[0])
            if starts and any(SIGN.match(word.split("=")[0]) for word in words) and words not in found:
                found.append(words)
    return found


def asked(text: str) -> dict[str, str]:
    """What Slurm tells a script that asks it for nodes."""
    found: dict[str, str] = {}
    for line in re.findall(r"^#SBATCH\s+(.{1,200})$", text, re.M):
        nodes = re.match(r"(?:--nodes[= ]|-N ?)(\d+)", line)
        chips = re.match(r"--(?:gres[= ]gpu:(?:[\w.-]+:)?|gpus-per-node[= ](?:[\w.-]+:)?)(\d+)", line)
        tasks = re.match(r"--n?tasks-per-node[= ](\d+)", line)
        found |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes[1]) if nodes else {}
        found |= dict.fromkeys(("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"), chips[1]) if chips else {}
        found |= {"SLURM_NTASKS_PER_NODE": tasks[1]} if tasks else {}
    return found


def unquoted(line: str) -> list[str]:
    """The words of a command as `bash -x` writes it: plain, 'quoted', $'with escapes'."""
    piece = re.compile(r"\$'((?:[^'\\]|\\.)*)'|'([^']*)'|\\(.)|([^\s'\\$]+|\$)|(\s+)", re.S)
    found, word, open_ = [], "", False
    for escaped, single, one, plain, blank in (match.groups() for match in piece.finditer(line)):
        if blank is not None:
            found += [word] if open_ else []
            word, open_ = "", False
            continue
        word += next((part for part in (single, one, plain) if part is not None), "")
        word += re.sub(r"\\(.)", lambda sign: ESCAPES.get(sign[1], sign[1]), escaped, flags=re.S) if escaped else ""
        open_ = True
    return [*found, word] if open_ else found


if __name__ == "__main__":
    sys.exit(main())
