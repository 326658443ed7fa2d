"""Modules that no language model looks like: captured with every parameter, or refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline import capture, predict, scenario
from ridgeline.core.errors import InputError
from ridgeline.models.dimensions import dimensions_of
from ridgeline.models.params import count, tower_params
from ridgeline.models.spec import Attention, ModelSpec
from ridgeline.sim.prediction import Prediction

torch = pytest.importorskip("torch")
nn = torch.nn
WIDTH, VOCAB, TOKENS = 32, 61, 24


class Part(nn.Module):
    """A feed-forward with its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96), nn.Linear(96, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Token rows, something in the middle, a head."""

    def __init__(self, middle: Any, how: Any = None) -> None:
        super().__init__()
        self.rows, self.middle, self.head = nn.Embedding(VOCAB, WIDTH), middle, nn.Linear(WIDTH, VOCAB)
        self.how = how or (lambda middle, x: middle(x))

    def forward(self, ids: Any) -> Any:
        return {"logits": self.head(self.how(self.middle, self.rows(ids))), "aux": None}


class Bare(nn.Module):
    """Parameters without modules."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(VOCAB, WIDTH))
        self.matrices = nn.ParameterList([nn.Parameter(torch.zeros(WIDTH, WIDTH)) for _ in range(3)])

    def forward(self, ids: Any) -> Any:
        x = self.rows[ids]
        for matrix in self.matrices:
            x = torch.tanh(x @ matrix)
        return x @ self.rows.T


class Seeing(nn.Module):
    """A language model whose first tokens are an image's."""

    def __init__(self) -> None:
        super().__init__()
        layer = {"d_model": 16, "nhead": 2, "dim_feedforward": 32, "batch_first": True}
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.tower = nn.ModuleList(nn.TransformerEncoderLayer(**layer) for _ in range(3))
        self.join, self.rows = nn.Linear(16, WIDTH), nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Part() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: Any, image: Any) -> Any:
        seen = self.patches(image).flatten(2).transpose(1, 2)
        for layer in self.tower:
            seen = layer(seen)
        words = self.rows(ids)
        x = torch.cat((self.join(seen), words[:, seen.shape[1] :]), dim=1)
        for one in self.layers:
            x = one(x)
        return self.head(x)


def _repeated(middle: Any, x: Any) -> Any:
    for _ in range(4):
        x = middle(x)
    return x


def _on_an_accelerator(middle: Any, x: Any) -> Any:
    return middle(x.cuda()) + torch.ones(1, device="cuda:0")


def _by_values(middle: Any, x: Any) -> Any:
    parts = x.reshape(-1, WIDTH).split([*(x.sum(-1) > 0).long().sum(0)[:1].tolist(), x.shape[1]])
    return middle(parts[-1].reshape(x.shape))


def _recurrent(middle: Any, x: Any) -> Any:
    return middle(x)[0]


ODD: dict[str, tuple[Any, int]] = {
    "one layer called again": (lambda: Model(Part(), _repeated), 4),
    "a list that repeats a layer": (lambda: Model(nn.Sequential(*[Part()] * 3)), 3),
    "an LSTM": (lambda: Model(nn.LSTM(WIDTH, WIDTH, batch_first=True), _recurrent), 1),
    "written for an accelerator": (lambda: Model(Part(), _on_an_accelerator), 1),
    "numbers read from activations": (lambda: Model(Part(), _by_values), 1),
    "no layers at all": (lambda: Model(nn.Linear(WIDTH, WIDTH)), 1),
    "parameters without modules": (lambda: Bare(), 1),
    "all frozen": (lambda: Model(Part()).requires_grad_(False), 1),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_modules_are_captured_with_every_parameter_and_predicted(name: str) -> None:
    make, layers = ODD[name]
    module = make()
    spec = capture(module, torch.zeros((1, TOKENS), dtype=torch.long))
    assert count(spec).total == sum(weight.numel() for weight in module.parameters())
    assert spec.layers == layers
    found = predict(_asked(spec, {"dp": 8, "shard": "zero3"}))
    assert isinstance(found, Prediction)
    assert found.step_time_s > 0


def _asked(spec: ModelSpec, plan: dict[str, Any], **work: Any) -> Any:
    table = {"seq": 64, "global_batch": 8, **work}
    return scenario({"model": dimensions_of(spec), "system": "8xh100-sxm", "workload": table, "plan": plan})


def test_what_images_alone_lead_to_is_the_image_encoder() -> None:
    module = Seeing()
    spec = capture(
        module, {"ids": torch.zeros((1, TOKENS), dtype=torch.long), "image": torch.zeros((1, 3, 32, 32))}
    )  # fmt: skip
    assert spec.layers == 2
    assert spec.hidden == WIDTH
    assert spec.vision is not None
    vision = spec.vision
    assert (vision.layers, vision.hidden, vision.image, vision.patches, vision.tokens) == (3, 16, 32, 16, 16)
    assert vision.block.mixer == Attention(
        heads=2, kv_heads=2, head_dim=8, qkv_bias=True, out_bias=True, positions="none", causal=False
    )  # fmt: skip
    towers = (module.patches, module.tower, module.join)
    assert tower_params(vision) == sum(weight.numel() for part in towers for weight in part.parameters())
    assert vision.projector_params == sum(weight.numel() for weight in module.join.parameters())
    assert count(spec).total == sum(weight.numel() for weight in module.parameters())
    without = predict(_asked(spec, {"dp": 8}))
    shown = predict(_asked(spec, {"dp": 8}, images=2))
    assert isinstance(without, Prediction)
    assert isinstance(shown, Prediction)
    assert shown.step_time_s > without.step_time_s


def test_what_cannot_be_captured_is_said() -> None:
    class Reads(nn.Linear):
        def forward(self, x: Any) -> Any:
            return torch.from_numpy(super().forward(x).numpy())

    with pytest.raises(InputError, match="read no numbers out of tensors"):
        capture(Reads(4, 4), torch.zeros((1, 4)))
    with pytest.raises(InputError, match="TorchScript"):
        capture(torch.jit.trace(nn.Linear(4, 4), torch.zeros((1, 4))), torch.zeros((1, 4)))
