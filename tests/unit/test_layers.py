"""Every floor imports only what is below it, and siblings do not import each other."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "ridgeline"

# lowest first; names on one line are siblings
FLOORS = (
    ("core",),
    ("ir", "hardware"),
    ("models", "trace", "comm", "compilers"),
    ("plan",),
    ("lowering", "cost"),
    ("graph",),
    ("sim",),
    ("serving",),
    ("rl",),
    ("calibrate", "search", "runtime"),
    ("design",),
    ("targets", "report"),
    ("web",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
ONLY_IN_APP = {"typer": {"cli"}, "rich": {"cli", "report"}, "starlette": {"web"}, "uvicorn": {"web"}}
ONLY_WHERE_ARRAYS_ARE = {
    "numpy": {
        *("core.arrays", "ir", "trace", "comm", "lowering", "cost", "graph", "sim", "serving", "rl", "calibrate"),
        *("search", "design", "report"),
        "runtime.token_files",  # memory-mapped, and packed where no torch is
    },
    "scipy": {"calibrate", "comm", "design"},
    "msgspec": {"trace"},
}
INTERIOR = {
    "trace": (
        ("timeline",),
        ("intervals", "chrome_writer"),
        ("classes",),
        ("read",),
        ("graph",),
        ("analysis",),
        ("findings",),
        ("analyze_traces", "diff", "span_query"),
    ),
    "comm": (
        ("contract", "graph"),
        ("topologies", "routes", "libraries", "closed_form"),
        ("algorithm", "bounds"),
        ("verify", "timing", "simulation"),
        ("library", "formats"),
        ("select",),
        ("synthesis",),
        ("comparisons",),
        ("answer",),
    ),
    "lowering": (
        ("context",),
        ("op_builders", "plan_columns", "placements"),
        ("softmax_core", "step_ops", "ffn", "ends"),
        ("latent_core", "scans"),
        ("sections",),
        ("program",),
        ("rank_ops",),
    ),
    "runtime": (
        ("probe", "installation"),
        ("measure", "peers"),
        ("rank_figures",),
        ("rank_check", "shm"),
        ("collective_ranks",),
        ("run_collective", "train"),
        ("bringup", "rl"),
        ("capture",),
    ),
    "cost": (
        ("fingerprint",),
        ("anchored", "profile", "profiles", "step_part"),
        ("calibration", "profile_compare"),
        ("anchoring",),
        ("machine",),
        ("collectives", "kernels"),
        ("library_times",),
        ("op_table",),
        ("profile_prices",),
        ("price", "collective_prices"),
        ("pricing", "fitting"),
    ),
    "sim": (
        ("prediction_interval", "unpriced_fields"),
        ("closed_form",),
        ("memory",),
        ("prediction", "plan_model", "forward_price"),
        ("step_batch", "phase_prediction"),
        ("predict_step", "machine_rows"),
        ("events", "roofline", "network_contention"),
        ("batches", "forward_work"),
    ),
    "serving": (
        ("request", "step_cost", "batch_steps", "trace_model"),
        ("engine", "request_files"),
        ("load", "served"),
        ("replica", "bench_result"),
        ("fleet",),
        ("replay", "deployment"),
        ("serving_prediction",),
        ("slow_requests",),
        ("running_batch",),
        ("measured", "simulation"),
    ),
    "rl": (
        ("lengths",),
        ("parameters",),
        ("mixture", "rollout_batch"),
        ("rollout", "training", "sync_time"),
        ("memory",),
        ("prediction",),
        ("step", "timeline"),
    ),
    "graph": (
        ("graph_file", "tape", "joined_kernels", "implementations", "lowering_check", "save_sets"),
        ("region_table",),
        ("kernel_time", "dot"),
        ("compiled_kernels", "fusible_regions"),
        ("compare_graphs", "graph_report"),
        ("operators",),
        ("program_files", "operator_models"),
    ),
    "search": (
        ("progress", "target", "choices", "interruptions"),
        ("request", "recommendation", "goodput", "stage_layout"),
        ("training", "deployment", "rl"),
    ),
    "web": (
        ("figures", "static"),
        ("blocks",),
        ("state", "guard"),
        ("controls", "scenarios", "uploads"),
        ("explained_step", "frames", "jobs", "studies"),
        ("views",),
        ("tasks",),
        ("routes",),
        ("server",),
    ),
    "calibrate": (
        ("truth",),
        ("gap_verdict",),
        ("profile_sources", "folds", "explain", "explain_rl", "request_log"),
        ("validation", "prediction_diff"),
        ("collectives", "kernels", "fusion", "inference", "serving", "rl", "rl_fit"),
        ("fit", "validate"),
        ("anchor",),
        ("rl_anchor",),
        ("learning_curve",),
        ("cross_validate",),
        ("next_measurement",),
    ),
}
"""Floors inside a room, lowest first: its files and folders by name; `__init__` may import any of them."""
DOORS = {
    "comm": {"cost", "sim", "design", "calibrate", "runtime", "report", "cli"},
    "sim": {"rl", "search", "calibrate", "design"},
    "search": {"report", "design", "cli", "calibrate", "targets"},
    "trace": {"sim", "serving", "rl", "calibrate", "report", "cli"},
    "runtime": {"calibrate", "search", "targets", "report", "cli", "api.py", "run_api.py"},
    "compilers": {"graph", "search", "report", "cli", "api.py", "run_api.py"},
    "graph": {"sim", "calibrate", "search", "report", "cli", "api.py", "run_api.py"},
    "cost": {"sim", "serving", "rl", "search", "design", "targets", "report", "cli", "calibrate"},
    "serving": {"rl", "search", "design", "calibrate", "targets", "report", "cli", "api.py", "run_api.py"},
    "rl": {"search", "design", "calibrate", "targets", "report", "cli", "api.py", "run_api.py"},
    "design": {"report", "web", "cli", "api.py", "run_api.py", "design_api.py"},
    "report": {"web", "cli", "run_api.py"},
    "web": {"cli", "run_api.py"},
}
"""Rooms that others enter through their `__init__` alone, and who does."""
SIDE_DOORS = {
    "comm": ("closed_form", "formats", "libraries", "simulation"),
    "cost": ("pricing", "step_part", "anchoring", "fitting", "library_times"),
    "sim": ("batches", "forward_work"),
    "serving": ("measured", "simulation"),
    "search": ("rl",),
    "report": ("pieces",),
    "runtime": ("rl", "bringup", "capture", "train"),
}
"""What a room offers for one purpose each, beside its door."""
ONLY_IN_RUNTIME = {"torch": {"runtime"}}
ONLY_IN_CAPTURE = {"transformers": "runtime/capture"}  # which builds its models, on the meta device
WITHOUT = {"runtime": {"cost", "sim", "lowering", "plan", "models"}}
"""What a room may not import although it is below: a measurement does not know the prediction."""
EXCEPT = {
    ("runtime", "train"): {"plan", "models"},
    ("runtime", "rl"): {"plan", "models"},
    ("runtime", "bringup"): {"plan", "models"},
    ("runtime", "capture"): {"plan", "models"},
}
"""The folders of such a room that may: `run` executes the values of a plan, and still knows no prediction."""
ALONE = "probe"  # the part of `runtime` that runs where nothing else of Ridgeline is


def imports(path: Path) -> set[str]:
    """Every module a file imports, wherever in it, as dotted names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            if node.module == "ridgeline":  # the floor itself
                found |= {f"ridgeline.{alias.name}" for alias in node.names}
    return found


FILES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE)


def test_every_package_has_a_floor() -> None:
    packages = {path.name for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert packages <= set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0]
    for module in imports(path):
        parts = module.split(".")
        if parts[0] == "ridgeline" and len(parts) > 1 and parts[1] in LEVEL and parts[1] != own:
            assert LEVEL[parts[1]] < LEVEL[own], f"{own} imports {module}, which is not below it"
        folder = ONLY_IN_CAPTURE.get(parts[0], "")
        assert path.relative_to(SOURCE).as_posix().startswith(folder), f"{own} imports {module}"
        if parts[0] == "ridgeline" and len(parts) > 1:
            refused = WITHOUT.get(own, set()) - EXCEPT.get(path.relative_to(SOURCE).parts[:2], set())
            assert parts[1] not in refused, f"{own} imports {module}"
        for allowed in (ONLY_IN_APP, ONLY_WHERE_ARRAYS_ARE, ONLY_IN_RUNTIME):
            if parts[0] in allowed:
                assert {own, f"{own}.{path.stem}"} & allowed[parts[0]], f"{own} imports {module}"


@pytest.mark.parametrize("path", sorted((SOURCE / "runtime" / ALONE).glob("*.py")), ids=lambda path: path.stem)
def test_the_probe_imports_nothing_else_of_ridgeline(path: Path) -> None:
    own = {module for module in imports(path) if module.startswith("ridgeline")} - {
        "ridgeline.core.documents",
        "ridgeline.ir.kernel",
        "ridgeline.hardware.device_names",
    }
    assert all(module.startswith(f"ridgeline.runtime.{ALONE}") for module in own), own


@pytest.mark.parametrize("room", INTERIOR)
def test_everything_in_a_room_with_floors_has_one(room: str) -> None:
    inside = {path.stem for path in (SOURCE / room).iterdir() if path.suffix == ".py" or path.is_dir()}
    assert inside - {"__init__", "__pycache__"} == {name for names in INTERIOR[room] for name in names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down_inside_a_room(path: Path) -> None:
    room, own = path.relative_to(SOURCE).with_suffix("").parts[:2]
    if room not in INTERIOR or own == "__init__":
        return
    level = {name: place for place, names in enumerate(INTERIOR[room]) for name in names}
    for module in imports(path):
        parts = module.split(".")
        if parts[:2] == ["ridgeline", room] and len(parts) > 2 and parts[2] != own:
            assert level[parts[2]] < level[own], f"{room}.{own} imports {module}, which is not below it"


@pytest.mark.parametrize(
    "path",
    [*FILES, *(SOURCE / name for name in ("api.py", "run_api.py", "design_api.py"))],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_rooms_with_a_door_are_entered_through_it(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0]
    for module in imports(path):
        parts = module.split(".")
        inside = parts[0] == "ridgeline" and len(parts) > 2 and own in DOORS.get(parts[1], ())
        if inside and not (len(parts) == 3 and parts[2] in SIDE_DOORS.get(parts[1], ())):
            raise AssertionError(f"{own} imports {module}: ask ridgeline.{parts[1]}")


def test_a_door_opens_to_what_it_names() -> None:
    rooms = ("comm", "compilers", "cost", "design", "graph", "report", "runtime", "serving", "sim", "trace")
    doors = [import_module(f"ridgeline.{room}") for room in rooms]

    sides = [import_module(f"ridgeline.{room}.{side}") for room, names in SIDE_DOORS.items() for side in names]
    assert all(getattr(room, name) is not None for room in (*doors, *sides) for name in room.__all__)
    assert all(len(door.__all__) <= 25 for door in (*doors, *sides))
    assert all(
        len(side.__all__) <= 12
        for side in sides
        if side.__name__.split(".")[:2] == ["ridgeline", "cost"][:2] and not side.__name__.endswith("library_times")
    )


def test_the_door_of_runtime_loads_no_torch() -> None:
    code = (
        "import sys, ridgeline.runtime; print([name for name in sys.modules if 'torch' in name or 'runtime.' in name])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
