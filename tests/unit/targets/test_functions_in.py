"""Functions of a Python file that each configure a run are found for targets that have such files."""

from __future__ import annotations

from ridgeline.targets.imports.run_files import functions_in

PRESETS = (
    "from torchtitan.trainer import Trainer\n\n\ndef llama3_8b() -> Trainer.Config:\n    return Trainer.Config()\n"
)


def test_functions_are_found_in_modules_and_packages() -> None:
    assert functions_in({"config_registry.py": PRESETS}, "torchtitan") == ["llama3_8b"]
    assert functions_in({"config_registry.py": PRESETS}, "torchtitan-preset") == ["llama3_8b"]
    assert functions_in({"job.toml": ""}, "vllm") == []
