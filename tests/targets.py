"""Install the software that exports are for, beside the test set-up, and hold the exports against its own parsers.

    python tests/targets.py [FOLDER]      about 2 GB from the package index, and some minutes

torch, pytest and Ridgeline come from the Python that runs this; the folder gets what each target's configuration needs
to be read on a machine without an accelerator, and nothing of it reaches the test set-up. Wheels that ask for a newer
Python are unpacked as they are. What still is missing is told by the tests as their reason to skip.
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parent.parent
PARSERS = (
    *("deepspeed==0.19.8", "hjson", "py-cpuinfo", "einops", "msgpack", "psutil", "protobuf"),
    *("torchtitan==0.2.2", "tyro", "tomli", "docstring-parser", "typeguard"),
    *("verl==0.9.1", "ray", "hydra-core", "omegaconf", "antlr4-python3-runtime==4.9.3", "tensordict", "codetiming"),
    *("triton", "datasets", "tensorboard", "peft", "diffusers", "accelerate"),  # Megatron and Megatron-Bridge
    *("jax", "jaxlib", "flax", "orbax-checkpoint", "jinja2", "pathwaysutils", "fastapi", "requests", "pydantic"),
)
UNPACKED = ("megatron-core==0.19.2", "megatron-bridge==0.6.2", "maxtext==0.2.5")  # wheels for Python 3.12
TESTS = ("parsers", "megatron", "bridge", "maxtext")


def install(folder: Path) -> None:
    """Fill the folder, once."""
    if (folder / ".complete").exists():
        return
    packages = folder / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--upgrade", "--target", packages, *PARSERS], check=True)
    with tempfile.TemporaryDirectory() as place:
        wheels = ["--no-deps", "--python-version", "3.12", "--only-binary=:all:", "--dest", place]
        subprocess.run([*pip, "download", "--quiet", *wheels, *UNPACKED], check=True)
        for wheel in sorted(Path(place).glob("*.whl")):
            ZipFile(wheel).extractall(packages)
    (folder / ".complete").touch()


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".venv" / "targets"
    install(folder)
    path = [str(ROOT / "src"), str(folder / "packages"), *site.getsitepackages()]
    known = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16", "JAX_PLATFORMS": "cpu"}
    worst = 0
    for name in TESTS:  # each in a process of its own: what they import does not mix
        tests = str(ROOT / "tests" / "real" / f"test_target_{name}.py")
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "no:warnings", tests]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | known | {"PYTHONPATH": os.pathsep.join(path)}, check=False
        )
        worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
