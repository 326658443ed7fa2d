"""Damaged and hostile programs are read or refused: no other exception, no recursion, no endless work."""

from __future__ import annotations

import random
import time
import zipfile
from pathlib import Path

import pytest

from ridgeline.compilers import normal_form, read_cubin, read_program
from ridgeline.core.errors import InputError

EXAMPLES = Path(__file__).parents[3] / "examples" / "compilers"
LONGEST_S = 10.0
DEEP = 5000
CALLS = 40
DOUBLED_CALLS = "\n".join(
    f"func.func private @f{place}(%a: tensor<4xf32>) -> tensor<4xf32> {{\n"
    f"  %0 = call @f{place + 1}(%a) : (tensor<4xf32>) -> tensor<4xf32>\n"
    f"  %1 = call @f{place + 1}(%0) : (tensor<4xf32>) -> tensor<4xf32>\n  return %1 : tensor<4xf32>\n}}"
    for place in range(CALLS)
)
RELAX = "@R.function\ndef main(x: R.Tensor((4,), dtype='float32')):\n    "
PTX = ".version 8.0\n.target sm_90\n.visible .entry k(\n.param .u64 p\n)\n{\n"
JUMPS = "".join(
    f"$L{place}:\n@%p1 bra $L{(place * 7919) % 3000};\nadd.s32 %r{place}, %r{place + 1}, %r{place + 2};\n"
    for place in range(3000)
)
HOSTILE = {
    "nested regions": "module {\n" + "stablehlo.x {\n" * DEEP,
    "calls itself": "module {\nfunc.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
    "%0 = call @main(%a) : (tensor<4xf32>) -> tensor<4xf32>\n%1 = stablehlo.abs %0 : tensor<4xf32>\n"
    "return %1 : tensor<4xf32>\n}\n}",
    "calls that double": "module {\n"
    + DOUBLED_CALLS.replace("private @f0", "public @main")
    + f"\nfunc.func private @f{CALLS}(%a: tensor<4xf32>) -> tensor<4xf32> {{\n"
    + "%0 = stablehlo.abs %a : tensor<4xf32>\nreturn %0 : tensor<4xf32>\n}\n}",
    "huge tensor": "module {\nfunc.func public @main(%a: tensor<99999999999999999x99999999999xf32>) {\n"
    "%0 = stablehlo.abs %a : tensor<99999999999999999x99999999999xf32>\nreturn\n}\n}",
    "open dims": "module {\nfunc.func public @main(%a: tensor<?x4xf32>) {\n"
    "%0 = stablehlo.abs %a : tensor<?x4xf32>\nreturn\n}\n}",
    "hlo tuples": "HloModule a\nENTRY %m () -> f32[] {\n  %x = "
    + "(" * DEEP + "f32[]" + ")" * DEEP + " parameter(0)\n}",
    "hlo calls itself": "HloModule a\nENTRY %m (p: f32[4]) -> f32[4] {\n  %p = f32[4] parameter(0)\n"
    "  ROOT %c = f32[4] call(%p), to_apply=%m\n}",
    "hlo without operands": "HloModule a\nENTRY %m () -> f32[] {\n  %a = f32[4] get-tuple-element(), index=7\n"
    "  %b = f32[4] while(), body=%m\n  ROOT %c = f32[4] dot(), lhs_contracting_dims={9}\n}",
    "script nesting": "from tvm.script import relax as R\nx = " + "(" * DEEP + ")" * DEEP,
    "script chain": "from tvm.script import relax as R\nx = " + "-" * 50_000 + "1",
    "script attributes": f"{RELAX}y = x" + ".a" * 50_000 + "()\n    return y",
    "script calls itself": f"{RELAX}y = cls.main(x)\n    return y",
    "script blocks": "@T.prim_func\ndef f(A: T.Buffer((4,), 'float32')):\n"
    + "".join("    " * (depth + 1) + "for i in T.serial(4):\n" for depth in range(90)) + "    " * 91 + "A[i] = 1.0\n",
    "ptx without an end": PTX + "add.s32 %r1, %r2, %r3\n" * DEEP,
    "ptx branches": PTX + JUMPS + "}",
    "json nesting": '{"schema_version": 1, "graph_module": ' + '{"graph":' * DEEP + "1" + "}" * DEEP + "}",
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_programs_end_soon(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text(HOSTILE[kind])
    begun = time.process_time()
    try:
        normal_form(read_program(path))
    except InputError as refusal:
        reasons = refusal.problems
    else:
        reasons = ()
    assert all(problem.expected for problem in reasons)
    assert time.process_time() - begun < LONGEST_S


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    for name, content in {"a.txt": b"hello", "b.mlir": b"\xff\xfe\x00", "c.pt2": b"PK\x03\x04broken", "d": b""}.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError):
            read_program(path)
    with pytest.raises(InputError, match="no such file"):
        read_program(tmp_path / "absent.hlo")


def test_an_archive_that_grows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/models/model.json", b"[" + b" " * 50_000_000)
    with pytest.raises(InputError, match="expected at most"):
        read_program(path)


def test_bytecode_and_cubins_say_what_to_do(tmp_path: Path) -> None:
    for name, content in {"a.mlirbc": b"ML\xefR\x01garbage", "b.cubin": b"\x7fELF" + bytes(100)}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError):
            read_program(tmp_path / name)
    with pytest.raises(InputError):
        read_cubin(tmp_path / "b.cubin")


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_damaged_examples_are_read_or_refused(name: str, tmp_path: Path) -> None:
    content, dice = (EXAMPLES / name).read_bytes(), random.Random(name)
    lines = content.split(b"\n")
    for number in range(12):
        match number % 4:
            case 0:
                damaged_content = content[: dice.randrange(len(content))]
            case 1:
                places = [dice.randrange(len(content)) for _ in range(8)]
                damaged_content = bytes(
                    dice.choice(b"()[]{}<>,:=%\"'x0-9 ") if place in places else byte
                    for place, byte in enumerate(content)
                )
            case 2:
                damaged_content = b"\n".join(line for line in lines if dice.random() > 0.1)
            case _:
                damaged_content = b"\n".join(dice.sample(lines, len(lines)))
        path = tmp_path / f"{number}-{name}"
        path.write_bytes(damaged_content)
        try:
            normal_form(read_program(path))
        except InputError:
            continue
