"""Install the software that exports are for, apart from the test set-up, and hold the exports against its own parsers.

    python tests/targets.py [FOLDER [GROUP ...]]      13.1 GB of packages, once, and 12 minutes; it says what it took

Each group gets an environment of its own, with what its configuration needs to be read on a machine without an
accelerator. Wheels that ask for a newer Python are unpacked as they are.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parent.parent
COMMON = ("torch==2.13.0", "pytest>=8,<10", "hypothesis>=6.100,<7")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Targets whose software lives together: what is installed with its needs, alone, or unpacked; and the tests."""

    needs: tuple[str, ...]
    alone: tuple[str, ...] = ()
    unpacked: tuple[str, ...] = ()
    tests: tuple[str, ...]


GROUPS = {
    "parsers": Group(
        needs=(
            *("hjson", "py-cpuinfo", "einops", "msgpack", "ninja", "psutil", "triton"),  # of DeepSpeed
            *("tyro", "tomli", "tomli-w", "tokenizers", "datasets", "torchdata", "tensorboard"),  # of torchtitan
            *(
                "ray",
                "hydra-core",
                "tensordict<=0.10",
                "transformers==5.9.*",
                "codetiming",
                "peft",
                "accelerate",
            ),  # of verl
            *("orjson", "pylatexenc"),
        ),
        alone=("deepspeed==0.19.8", "torchtitan==0.2.2", "verl==0.9.1"),
        tests=("parsers", "started"),
    ),
    "titan": Group(
        needs=(
            "triton",
            "tyro",
            "tokenizers",
            "datasets",
            "torchdata",
            "tensorboard",
            "torch-checkpointing",
            "spmd-types",
        ),
        alone=("torchtitan==0.3.0",),
        tests=("parsers", "trainers"),
    ),
    "trainers": Group(
        needs=("accelerate==1.15.0", "trl==1.16.0", "transformers==5.22.2", "peft", "datasets", "omegaconf", "pillow"),
        alone=("llamafactory==0.9.5", "axolotl==0.19.0"),
        tests=("trainers",),
    ),
    "post-training": Group(
        needs=("hydra-core", "omegaconf", "transformers==5.22.2", "accelerate==1.15.0", "datasets"),
        alone=("verl==0.9.1", "trl==1.16.0"),
        tests=("post_training",),
    ),
    "launchers": Group(
        needs=("kubeflow-trainer-api==2.3.0", "skypilot==0.14.1", "azure-ai-ml==1.35.2", "jsonschema"),
        tests=("launchers",),
    ),
    "megatron": Group(
        needs=(
            *("triton", "packaging", "transformers==5.12.*", "hydra-core", "omegaconf", "einops", "tensorboard"),
            *("peft", "diffusers", "accelerate", "datasets"),
        ),
        unpacked=("megatron-core==0.19.2", "megatron-bridge==0.6.2"),
        tests=("megatron", "bridge"),
    ),
    "maxtext": Group(
        needs=(
            *("jax==0.10.2", "flax", "orbax-checkpoint", "omegaconf", "pydantic", "jinja2", "psutil"),
            *("pathwaysutils", "fastapi", "requests"),
        ),
        unpacked=("maxtext==0.2.5",),
        tests=("maxtext",),
    ),
}


def install(folder: Path, group: Group) -> Path:
    """The Python of the group's environment, made where it is not whole yet."""
    python = folder / "bin" / "python"
    if (folder / ".complete").exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", *COMMON, *group.needs, "--editable", ROOT], check=True)
    if group.alone:
        subprocess.run([*pip, "install", "--quiet", "--no-deps", *group.alone], check=True)
    for wheel in group.unpacked:
        _unpack(wheel, pip, folder / "unpacked")
    (folder / ".complete").touch()
    return python


def _unpack(name: str, pip: list[str | Path], place: Path) -> None:
    with tempfile.TemporaryDirectory() as here:
        newer = ["--no-deps", "--python-version", "3.12", "--only-binary=:all:", "--dest", here]
        subprocess.run([*pip, "download", "--quiet", *newer, name], check=True)
        for wheel in Path(here).glob("*.whl"):
            ZipFile(wheel).extractall(place)


def main() -> int:
    """The worst exit code of all tests."""
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".venv" / "targets"
    wanted = sys.argv[2:] or list(GROUPS)
    if strange := [name for name in wanted if name not in GROUPS]:
        print(f"groups: got {', '.join(strange)}; expected some of {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    begun = time.monotonic()
    worst = max(_hold(place / name, GROUPS[name]) for name in wanted)
    print(f"{place}: {taken_bytes(place) / 1e9:.1f} GB, {(time.monotonic() - begun) / 60:.1f} min")
    return worst


def _hold(folder: Path, group: Group) -> int:
    """The worst exit code of a group's tests, each in a process of its own: what they import does not mix."""
    python = install(folder, group)
    path = [str(ROOT / "src"), *([str(folder / "unpacked")] if group.unpacked else [])]
    known = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16", "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(path)}
    quiet = ["-q", "-rs", "--tb=short", "-p", "no:cacheprovider", "-p", "no:warnings"]
    worst = 0
    for tests in group.tests:
        print(f"{folder.name}: test_target_{tests}.py", flush=True)
        command = [python, "-m", "pytest", *quiet, ROOT / "tests" / "real" / f"test_target_{tests}.py"]
        worst = max(worst, subprocess.run(command, cwd=ROOT, env=os.environ | known, check=False).returncode)
    return worst


def taken_bytes(place: Path) -> int:
    """Bytes of all files below a folder; a file with several names counts once."""
    found: dict[tuple[int, int], int] = {}
    for path in place.rglob("*"):
        if path.is_file() and not path.is_symlink():
            known = path.stat()
            found[known.st_dev, known.st_ino] = known.st_size
    return sum(found.values())


if __name__ == "__main__":
    sys.exit(main())
