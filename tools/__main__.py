"""Write or check generated documentation, record what other software accepts, and count the size of the repository.

    python -m tools docs    [--check] [NAME ...]    pages and tables that `make docs` checks; all of them without a NAME
    python -m tools docs run [PAGE ...]             the command lines of the pages for users, in an empty clone
    python -m tools figures [--check] NAME ...      figures that need a long run, other data or a browser
    python -m tools record  NAME ...                options of other software, and the longest paths of schedules
    python -m tools house   ...                     lines, words and names of the repository

`python -m tools docs NAME --help` lists the options of one program. Programs are imported when they are named, so that
`record vllm` runs in an environment that has the engine and nothing of Ridgeline.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

DOCS = {
    "links": "tools.docs.links",
    "screens": "tools.docs.screens",
    "run": "tools.docs.commands",
    "targets": "tools.docs.targets",
    "tour": "tools.docs.tour",
    "json": "tools.docs.json_page",
    "bringup": "tools.docs.bringup",
    "ceilings": "tools.docs.ceilings",
    "reachable": "tools.docs.reachable",
    "judgement": "tools.docs.judgement",
    "published": "tools.docs.published",
    "architectures": "tools.docs.architectures",
}
FIGURES = {
    "serving": "tools.figures.serving",
    "rl": "tools.figures.rl",
    "run": "tools.figures.run",
    "gap": "tools.figures.gap",
    "prices": "tools.figures.prices",
    "anchors": "tools.figures.anchors",
    "picture": "tools.figures.picture",
    "workbench": "tools.figures.workbench",
}
OPTIONS = ("megatron", "megatron-bridge", "mindspeed")
TRAINERS = ("accelerate", "llamafactory", "axolotl", "torchtitan-preset", "primus", "nxd-training")
ENGINES = ("vllm", "sglang", "dynamo")
POST_TRAINING = ("openrlhf", "slime", "nemo-rl", "areal", "trl", "mindspeed-rl", "verl-rl")
RECORD = {
    **dict.fromkeys(OPTIONS, "tools.record.options"),
    **dict.fromkeys(TRAINERS, "tools.record.trainers"),
    **dict.fromkeys(ENGINES, "tools.record.engines"),
    **dict.fromkeys(POST_TRAINING, "tools.record.post_training"),
    "maxtext": "tools.record.maxtext",
    "maxtext-benchmarks": "tools.record.maxtext_benchmarks",
    "paths": "tools.record.paths",
}
GROUPS: Mapping[str, Mapping[str, str]] = {"docs": DOCS, "figures": FIGURES, "record": RECORD}


def main(words: Sequence[str]) -> int:
    """Run one program, or all of `docs`; the exit code is 1 where a check fails."""
    group, *words_left = words or ["--help"]
    if group == "house":
        return int(importlib.import_module("tools.house").main(words_left))
    if group not in GROUPS:
        print((__doc__ or "").strip())
        return 0 if group in ("-h", "--help") else 2
    programs = GROUPS[group]
    names = [word for word in words_left if word in programs][:1]
    if not names and (group != "docs" or set(words_left) - {"--check"}):
        print(f"python -m tools {group} NAME: one of {', '.join(programs)}")
        return 2
    options = [word for place, word in enumerate(words_left) if not names or place != words_left.index(names[0])]
    return max(run(group, name, options) for name in names or sorted(programs.keys() - {"run"}))  # it takes minutes


def run(group: str, name: str, options: Sequence[str]) -> int:
    """The exit code of one program with its options."""
    module: ModuleType = importlib.import_module(GROUPS[group][name])
    parser = argparse.ArgumentParser(
        prog=f"python -m tools {group} {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if group != "record":
        parser.add_argument("--check", action="store_true", help="report what is out of date and write nothing")
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    parser.set_defaults(name=name)
    return int(module.run(parser.parse_args(options)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
