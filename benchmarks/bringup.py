"""How well bring-up judges ops: faults caught and right implementations passed, beside what peers' criteria do.

    python benchmarks/bringup.py                  the corpus, replayed; all criteria
    python benchmarks/bringup.py --located        besides, every fault in a run of its own: exact op, module and phase
    python benchmarks/bringup.py --times          besides, seconds to a verdict and bytes written
    python benchmarks/bringup.py --only-replay    only eight layers replayed, and bytes written by a run with findings

Peers are their published criteria on the same results (driving msprobe needs a dump of two devices):

    assert_close    torch.testing's tolerances for the format, against the exact result rounded once
    cosine, PCC     > 0.999 and > 0.99 against the exact result
    msprobe L0, L2  errors against fp64 over those of a baseline (here the host's kernel, never below half an ulp):
                    RMSE 2 and 1.2, largest relative 10 and 2, mean relative 2 and 1.2
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.models.load import model as read_model
from ridgeline.runtime.bringup import fake_device
from ridgeline.runtime.bringup.arithmetic import UNIT
from ridgeline.runtime.bringup.capture import host_outputs, probe, signature_of, there
from ridgeline.runtime.bringup.contracts import has_contract, outputs_of
from ridgeline.runtime.bringup.fake_device import equal_bits
from ridgeline.runtime.bringup.faults import FAULTS, Fault
from ridgeline.runtime.bringup.findings import BringUp
from ridgeline.runtime.bringup.guard import Guard
from ridgeline.runtime.bringup.judge import NoContractError, judge
from ridgeline.runtime.bringup.op_suite import suite_calls
from ridgeline.runtime.bringup.repro import Session
from ridgeline.runtime.bringup.run_parts import step
from ridgeline.runtime.bringup.subject import stage_subject, subject_of
from ridgeline.runtime.bringup.target import narrow_model

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bringup_corpus.frozen import FROZEN
from bringup_corpus.legitimate import VARIANTS
from bringup_corpus.replay import Answer, Replay, record_calls

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 500,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 4096, "tie_word_embeddings": True,
    "hidden_act": "silu", "attention_bias": False,
}  # fmt: skip
SEEDS = 0, 1, 2
LEVELS = {"msprobe L0": (2.0, 10.0, 2.0), "msprobe L2": (1.2, 2.0, 1.2)}
Criterion = Callable[[Tensor, Tensor, Tensor], bool]


def small_model() -> Any:
    """A small architecture with every op of its family."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(CONFIG), encoding="utf-8")
        return read_model(str(path))


def run(model: Any, seed: int) -> None:
    """Training steps and the standing set on the fake device."""
    steps(model, seed)
    for call in suite_calls(seed, "ridge"):
        args, kwargs = tree_map(lambda x: there(x, "ridge"), (call.args, call.kwargs))
        call.op(*args, **kwargs)


def steps(model: Any, seed: int) -> None:
    """A training step in each format."""
    for form in ("fp32", "bf16"):
        subject = subject_of(model, form, "ridge", seed)
        optimizer = torch.optim.AdamW(subject.module.parameters(), lr=1e-3, foreach=False)
        subject.loss(subject.forward()).backward()
        optimizer.step()


def assert_close(got: Tensor, _: Tensor, exact: Tensor) -> bool:
    """Whether torch.testing raises."""
    try:
        narrow = got.element_size() == 1 and got.is_floating_point()
        right = exact.to(got.dtype)
        torch.testing.assert_close(got.float() if narrow else got, right.float() if narrow else right, equal_nan=True)
    except AssertionError:
        return True
    return False


def similar(got: Tensor, exact: Tensor, least: float, centred: bool) -> bool:
    """Whether a cosine, or a correlation, is too small."""
    a, b = got.double().flatten().nan_to_num(), exact.double().flatten().nan_to_num()
    if centred:
        a, b = a - a.mean(), b - b.mean()
    size = float(a.norm() * b.norm())
    return size > 0 and float(a @ b) / size < least


def msprobe(got: Tensor, host: Tensor, exact: Tensor, level: tuple[float, float, float]) -> bool:
    """Whether an error is too many times the baseline's."""
    if not got.is_floating_point():
        return not torch.equal(got, exact.to(got.dtype))
    right = exact.double()
    sane = right.to(got.dtype).double().isfinite()
    if not torch.equal(got.double().isfinite(), sane):
        return True
    ours, theirs = ((x.double() - right)[sane].abs() for x in (got, host))
    size = right[sane].abs() + torch.finfo(torch.float32).tiny
    if not len(size):
        return False
    floor = UNIT.get(got.dtype, 2.0**-24) / 2
    pairs = (
        (ours.square().mean().sqrt(), theirs.square().mean().sqrt(), floor * float(size.square().mean().sqrt())),
        ((ours / size).max(), (theirs / size).max(), floor),
        ((ours / size).mean(), (theirs / size).mean(), floor / 2),
    )
    return any(float(a) > most * max(float(b), least) for (a, b, least), most in zip(pairs, level, strict=True))


CRITERIA: dict[str, Criterion] = {
    "assert_close": assert_close,
    "cosine > 0.999": lambda got, _, exact: similar(got, exact, 0.999, centred=False),
    "PCC > 0.99": lambda got, _, exact: similar(got, exact, 0.99, centred=True),
    **{name: lambda got, host, exact, level=level: msprobe(got, host, exact, level) for name, level in LEVELS.items()},
}


def alarms(answer: Answer) -> set[str]:
    """Which criteria find an answer wrong."""
    found = set() if answer.verdict.right else {"contract"}
    own = [x for x in tree_leaves(answer.call.result) if isinstance(x, Tensor)]
    for index, (got, host) in enumerate(zip(answer.outputs, own, strict=False)):
        exact = answer.exact[index] if index < len(answer.exact) else host
        if not isinstance(got, Tensor) or not isinstance(exact, Tensor):
            continue
        if got.shape != host.shape or exact.shape != got.shape or got.is_complex():
            continue
        found |= {name for name, criterion in CRITERIA.items() if name not in found and criterion(got, host, exact)}
    return found


def judge_all(replays: list[Replay], group: dict[str, Any], name: str) -> dict[str, int]:
    """For each criterion, in how many of the runs something was wrong."""
    count: dict[str, int] = dict.fromkeys(("contract", *CRITERIA), 0)
    asked = 0
    for key, alter in group.items():
        for seed, replay in zip(SEEDS, replays, strict=False):
            seen: set[str] = set()
            fired = 0
            for answer in replay.answers(alter):
                fired += 1
                seen |= alarms(answer)
            asked += 1
            if not fired:
                print(f"  {key} never answered (seed {seed})", file=sys.stderr)
            if ("contract" in seen) == (name == "right implementations"):
                print(f"  {'alarm on' if 'contract' in seen else 'missed'} {key} (seed {seed})", file=sys.stderr)
            for one in seen:
                count[one] += 1
    count["of"] = asked
    return count


def located(model: Any, name: str, fault: Any, sound: set[Any], own: set[str]) -> tuple[bool, bool, bool]:
    """One fault in a run of its own: caught, only ops that it answered for, known module and phase.

    sound    signatures whose host kernel was judged before; own: ops of the model: a step without any is not run again
    """
    ops: set[str] = set()

    def noted(op: str, args: Any, kwargs: Any, result: Any) -> Any:
        other = fault(op, args, kwargs, result)
        if other is not None:
            ops.add(op)
        return other

    session = Session(
        target=model,
        device="ridge",
        found=BringUp(model="small", device="ridge"),
        fault=Fault(name, noted),
        guard=Guard(sound=sound),
    )
    with fake_device.alter_results(session.fault):
        for form in ("fp32", "bf16") if any(answers_for(fault, op) for op in own) else ():
            step(session, form)
        for call in suite_calls(0, "ridge"):
            if answers_for(fault, str(call.op)):
                session.note(probe(call, "ridge", session.guard).wrong)
    found = session.found.findings
    placed = all(one.phase and (one.module or one.phase == "forward") for one in found)
    return bool(found), {one.op for one in found} <= ops, placed


def answers_for(fault: Any, op: str) -> bool:
    """Whether a fault looks at an op: others need not be probed again."""
    return op.split(".")[1] in getattr(fault, "packets", (op.split(".")[1],))


def locate_all(model: Any) -> None:
    """Every fault in a run of its own."""
    sound: set[Any] = set()
    own = {call.op for call in record_calls(lambda: steps(model, 0))}
    each = {name: located(model, name, fault, sound, own) for name, fault in FAULTS.items()}
    caught = [one for one in each.values() if one[0]]
    print(f"in runs of their own: {len(caught)} of {len(each)} caught, exact op {sum(o[1] for o in caught)}, "
          f"module and phase {sum(o[2] for o in caught)}")  # fmt: skip
    for name, one in each.items():
        if not all(one):
            print(f"  {name}: caught {one[0]}, exact op {one[1]}, placed {one[2]}", file=sys.stderr)


def replay_layers(model: str, form: str) -> None:
    """Forward and backward of eight narrow layers, captured on the fake device, then every op again on the host.

    Timed is the replay: the host computes each captured call, and its results are held against the captured ones bit
    for bit; the first call of each signature is judged by its contract (layers repeat).
    """
    whole = read_model(model)
    subject = stage_subject(replace(narrow_model(whole), order=whole.order[:1] * 8), form, "ridge")
    calls = record_calls(lambda: subject.loss(subject.forward()).backward())
    began, seen, judgements, wrong = time.process_time(), set(), 0, []
    for call in calls:
        own = outputs_of(call.func, call.args, call.kwargs, call.result)
        theirs = host_outputs(call.func, call.args, call.kwargs)
        right = theirs is not None and equal_bits(own, theirs)
        signature = signature_of(call.func, call.args, call.kwargs)
        if has_contract(call.func) and (signature not in seen or not right):
            seen.add(signature)
            try:
                right = judge(call.func, call.args, call.kwargs, own, theirs=theirs).right
                judgements += 1
            except NoContractError:
                pass
        wrong += [] if right else [call.op]
    seconds = time.process_time() - began
    print(f"8 layers of {model}, narrow, in {form}: {len(calls):,} ops of forward and backward replayed in "
          f"{seconds:.2f} CPU s, {judgements} judged by their contract, {len(wrong)} wrong")  # fmt: skip


def times(model: str, device: str = "ridge") -> None:
    """Zero to a verdict, and what is written."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        command = [sys.executable, "-m", "ridgeline", "bringup", model, "--device", device, "--json", "-o", folder]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        told = json.loads(done.stdout) if done.stdout else {"verdict": done.stderr[-300:], "findings": []}
        verdict = f"{told['verdict']}, {len(told['findings'])} findings,"
    print(f"{model} on {device}: {verdict} after {seconds:.1f} s, {written / 1e6:.1f} MB written")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--located", action="store_true")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--only-located", action="store_true")
    parser.add_argument("--only-replay", action="store_true")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    asked = parser.parse_args()
    fake_device.register()
    if asked.only_replay:
        for form in ("fp32", "bf16"):
            replay_layers("llama3.2-1b", form)
        times(asked.model, "ridge:truncation")
        return
    model = small_model()
    if asked.only_located:
        locate_all(model)
        return
    replays = [Replay(record_calls(lambda seed=seed: run(model, seed))) for seed in SEEDS[: asked.seeds]]
    groups = {
        "faults, tuned on": {k: v for k, v in FAULTS.items() if k not in FROZEN},
        "faults, frozen": {k: FAULTS[k] for k in FROZEN},
        "right implementations": dict(VARIANTS),
    }
    rows = {name: judge_all(replays, group, name) for name, group in groups.items()}
    print(f"{'criterion':16}" + "".join(f"{name:>28}" for name in rows))
    for criterion in ("contract", *CRITERIA):
        cells = (f"{row[criterion]} of {row['of']} ({row[criterion] / row['of']:.1%})" for row in rows.values())
        print(f"{criterion:16}" + "".join(f"{cell:>28}" for cell in cells))
    if asked.located:
        locate_all(model)
    if asked.times:
        times(asked.model)


if __name__ == "__main__":
    main()
