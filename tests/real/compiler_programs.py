"""Write the files of `examples/compilers`: an attention block and a gated MLP, as JAX, PyTorch and TVM have them.

    python tests/real/compiler_programs.py FOLDER [jax torch mlir tvm triton]

Each program is written in the framework's own words. What the compilers print is stored as they print it; folders of
the machine that ran them and weights are left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

BATCH, TOKENS, WIDTH, HEADS, INNER = 2, 64, 128, 4, 352
HEAD = WIDTH // HEADS
LAYERS, SHARDED_TOKENS = 6, 32
ROWS, TILE = 4096, 128


def store(folder: Path, name: str, text: str) -> None:
    """A text without the folders of this machine."""
    clean = re.sub(r'"[^"\n]*/([^"/\n]+\.py)"', r'"\1"', text)
    (folder / name).write_text(re.sub(r"/[\w./-]*/(?=[\w-]+\.py\b)", "", clean).rstrip() + "\n", encoding="utf-8")


def write_jax(folder: Path) -> None:
    """StableHLO before, and HLO after XLA's compilation for a CPU; and a sharded stack of layers on four devices."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    def norm(x, weight):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * weight

    def attention(x, weight, wq, wk, wv, wo):
        hidden = norm(x, weight)
        q, k, v = ((hidden @ w).reshape(BATCH, TOKENS, HEADS, HEAD).transpose(0, 2, 1, 3) for w in (wq, wk, wv))
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * HEAD**-0.5
        visible = jnp.arange(TOKENS)[:, None] >= jnp.arange(TOKENS)[None, :]
        shares = jax.nn.softmax(jnp.where(visible, scores, -1e9), -1)
        mixed = jnp.einsum("bhqk,bhkd->bhqd", shares, v).transpose(0, 2, 1, 3).reshape(BATCH, TOKENS, WIDTH)
        return x + mixed @ wo

    def mlp(x, weight, gate, up, down):
        hidden = norm(x, weight)
        return x + (jax.nn.silu(hidden @ gate) * (hidden @ up)) @ down

    def layers(x, up, down):
        def layer(x, weights):
            return x + jax.nn.silu(x @ weights[0]) @ weights[1], None

        return jax.lax.scan(layer, x, (up, down))[0]

    def of(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype)

    square = of(WIDTH, WIDTH)
    hidden, vector = of(BATCH, TOKENS, WIDTH), of(WIDTH)
    mesh = jax.make_mesh((2, 2), ("data", "model"))

    def spread(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    sharded = jax.jit(
        layers,
        in_shardings=(spread("data", None), spread(None, None, "model"), spread(None, "model", None)),
        out_shardings=spread("data", None),
    )
    half = jnp.bfloat16
    stack = (
        of(SHARDED_TOKENS, WIDTH, dtype=half),
        of(LAYERS, WIDTH, INNER, dtype=half),
        of(LAYERS, INNER, WIDTH, dtype=half),
    )
    programs = {
        "attention": (jax.jit(attention), (hidden, vector, square, square, square, square)),
        "mlp": (jax.jit(mlp), (hidden, vector, of(WIDTH, INNER), of(WIDTH, INNER), of(INNER, WIDTH))),
        "layers": (sharded, stack),
    }
    for name, (program, arguments) in programs.items():
        lowered = program.lower(*arguments)
        store(folder, f"{name}.stablehlo.mlir", lowered.as_text())
        compiled = lowered.compile().as_text()
        cut = re.sub(r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d+ .*\n)+", "\n", compiled)
        store(folder, f"{name}.hlo", re.sub(r"\n{3,}", "\n\n", cut))


def torch_modules() -> dict[str, object]:
    """Both programs as modules of PyTorch."""
    import torch
    from torch import nn

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Norm()
            self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

        def forward(self, x):
            hidden = self.norm(x)
            q, k, v = (m(hidden).view(BATCH, TOKENS, HEADS, HEAD).transpose(1, 2) for m in (self.q, self.k, self.v))
            scores = (q @ k.transpose(-1, -2)) * HEAD**-0.5
            places = torch.arange(TOKENS)
            shares = torch.softmax(torch.where(places[:, None] >= places[None, :], scores, -1e9), -1)
            return x + self.o((shares @ v).transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Norm()
            self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
            self.down = nn.Linear(INNER, WIDTH, bias=False)

        def forward(self, x):
            hidden = self.norm(x)
            return x + self.down(nn.functional.silu(self.gate(hidden)) * self.up(hidden))

    torch.manual_seed(0)
    return {"attention": Attention(), "mlp": Mlp()}


def write_torch(folder: Path) -> None:
    """Exported programs, without their weights, and what inductor writes for a CPU."""
    import torch

    for name, module in torch_modules().items():
        whole = folder / f"{name}.whole.pt2"
        torch.export.save(torch.export.export(module, (torch.zeros(BATCH, TOKENS, WIDTH),), strict=False), whole)
        with (
            zipfile.ZipFile(whole) as source,
            zipfile.ZipFile(folder / f"{name}.pt2", "w", zipfile.ZIP_DEFLATED) as target,
        ):
            for info in source.infolist():
                if info.filename.endswith(("models/model.json", "archive_version", "archive_format")):
                    text = re.sub(r"File \\\\\"[^\"]*/", 'File \\\\"', source.read(info).decode())
                    text = re.sub(r'"stack_trace": "(?:[^"\\]|\\.)*", ', "", text)
                    target.writestr(zipfile.ZipInfo(info.filename, (2026, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
        whole.unlink()


def write_mlir(folder: Path) -> None:
    """linalg, TOSA and the torch dialect by torch-mlir; IREE's dispatches from the StableHLO of `write_jax`."""
    import torch
    from iree.compiler import compile_str
    from torch_mlir import fx

    names = {"linalg-on-tensors": "linalg", "tosa": "tosa", "torch": "torch"}
    for name, module in torch_modules().items():
        for kind, suffix in names.items():
            if name == "attention" or suffix == "linalg":
                built = fx.export_and_import(
                    module, torch.zeros(BATCH, TOKENS, WIDTH), output_type=kind, func_name=name
                )
                text = built.operation.get_asm(large_elements_limit=4)
                store(folder, f"{name}.{suffix}.mlir", text.partition("{-#")[0])
    text = (folder / "attention.stablehlo.mlir").read_text()
    flow = compile_str(text, target_backends=["llvm-cpu"], input_type="stablehlo", extra_args=["--compile-to=flow"])
    lines = re.sub(r"\s*loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", "", flow.decode())
    store(folder, "attention.flow.mlir", re.sub(r"#hal\.executable\.target<.*", '"cpu"', lines))


def write_tvm(folder: Path) -> None:
    """Relax before any pass, and after `FuseTIR`."""
    import tvm
    from tvm import relax
    from tvm.script import relax as script

    op = relax.op

    def variable(name, *shape):
        return relax.Var(name, script.Tensor(shape, "float32"))

    def norm(x, weight):
        scale = op.rsqrt(op.add(op.mean(op.multiply(x, x), -1, keepdims=True), relax.const(1e-5)))
        return op.multiply(op.multiply(x, scale), weight)

    def heads(x):
        return op.permute_dims(op.reshape(x, (BATCH, TOKENS, HEADS, HEAD)), (0, 2, 1, 3))

    def attention(x, weight, wq, wk, wv, wo):
        hidden = norm(x, weight)
        q, k, v = (heads(op.matmul(hidden, w)) for w in (wq, wk, wv))
        scores = op.multiply(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2))), relax.const(HEAD**-0.5))
        places = op.arange(0, TOKENS, 1, "int32")
        visible = op.greater_equal(op.reshape(places, (TOKENS, 1)), op.reshape(places, (1, TOKENS)))
        shares = op.nn.softmax(op.where(visible, scores, relax.const(-1e9)), -1)
        mixed = op.reshape(op.permute_dims(op.matmul(shares, v), (0, 2, 1, 3)), (BATCH, TOKENS, WIDTH))
        return op.add(x, op.matmul(mixed, wo))

    def mlp(x, weight, gate, up, down):
        hidden = norm(x, weight)
        return op.add(x, op.matmul(op.multiply(op.nn.silu(op.matmul(hidden, gate)), op.matmul(hidden, up)), down))

    x, weight = variable("x", BATCH, TOKENS, WIDTH), variable("weight", WIDTH)
    squares = [variable(name, WIDTH, WIDTH) for name in ("wq", "wk", "wv", "wo")]
    wide = [variable("gate", WIDTH, INNER), variable("up", WIDTH, INNER), variable("down", INNER, WIDTH)]
    passes = [
        relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FoldConstant(),
        relax.transform.FuseOps(), relax.transform.FuseTIR(), relax.transform.DeadCodeElimination(),
    ]  # fmt: skip
    for name, function, arguments in (
        ("attention", attention, [x, weight, *squares]),
        ("mlp", mlp, [x, weight, *wide]),
    ):
        builder = relax.BlockBuilder()
        with builder.function("main", arguments):
            with builder.dataflow():
                result = builder.emit_output(builder.normalize(function(*arguments)))
            builder.emit_func_output(result)
        module = builder.finalize()
        store(folder, f"{name}.relax.txt", module.script())
        store(folder, f"{name}.tir.txt", tvm.ir.transform.Sequential(passes)(module).script())


def write_triton(folder: Path) -> None:
    """A norm and a product: TTIR, TTGIR for capability 9.0, and the norm's PTX."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    sys.path.insert(0, str(Path(__file__).parent))
    import compiler_kernels

    half = "*bf16"
    cases = {
        "rmsnorm": (
            compiler_kernels.rmsnorm, {"x": half, "w": half, "y": half, "n": "i32", "eps": "fp32"}, {"B": ROWS},
        ),
        "matmul": (
            compiler_kernels.matmul, {"a": half, "b": half, "c": half, "M": "i32", "N": "i32", "K": "i32"},
            {"BM": TILE, "BN": TILE, "BK": 64},
        ),
    }  # fmt: skip
    for name, (kernel, signature, constants) in cases.items():
        source = ASTSource(kernel, signature=signature | dict.fromkeys(constants, "constexpr"), constexprs=constants)
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
        store(
            folder,
            f"{name}.ttir",
            re.sub(r"^#loc.*\n|\s*loc\((?:[^()]|\([^()]*\))*\)", "", built.asm["ttir"], flags=re.M),
        )
        if name == "matmul":
            text = re.sub(r"^#loc.*\n", "", built.asm["ttgir"], flags=re.M)
            store(folder, "matmul.ttgir", re.sub(r"\s*loc\((?:[^()]|\([^()]*\))*\)", "", text))
        else:
            lines = built.asm["ptx"].splitlines()
            end = next((place for place, line in enumerate(lines) if ".section" in line), len(lines))
            keep = [line for line in lines[:end] if ".loc" not in line and ".file" not in line]
            store(folder, "rmsnorm.ptx", "\n".join(keep))


WRITERS: dict[str, Callable[[Path], None]] = {
    "jax": write_jax, "torch": write_torch, "mlir": write_mlir, "tvm": write_tvm, "triton": write_triton,
}  # fmt: skip


def main() -> None:
    """Write each compiler's files in a process of its own: they bring LLVMs that do not bear each other."""
    folder, chosen = Path(sys.argv[1]), sys.argv[2:] or list(WRITERS)
    folder.mkdir(parents=True, exist_ok=True)
    if len(chosen) == 1:
        WRITERS[chosen[0]](folder)
        return
    for name in chosen:
        subprocess.run([sys.executable, __file__, str(folder), name], check=True)


if __name__ == "__main__":
    main()
