"""Turn a Hugging Face config into a module of transformers on the meta device, with inputs that its forward takes.

Only code that transformers itself ships runs: what a config names of its own (`auto_map`) is not looked at. Attention
is told whole, with its window, where a model asks transformers' interface for it. What an argument of a forward is made
of is one function of `MAKERS`, by the argument's name. Floats are on the meta device.
"""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.runtime.capture.assemble import Seen, Shown
from ridgeline.runtime.capture.recording import PRODUCTS, Recorder, Recording, capture_problem, record_forward

FIRST_ID = 11  # of tokens that the module is called with: small ones are often special
USUAL_SIDE = 224  # pixels of an image whose size a config leaves open
PATCHES = 256  # of an image that comes as patches
ASKED = 8  # tokens of a question to a query transformer
SEES = ("vision_config", "encoder", "vlm_config", "image_config", "vision_model_config")
HEARS = ("audio_config", "audio_encoder_config", "encoder_config", "speech_config")
QUERIES = ("num_query_tokens", "latent_query_num", "image_seq_length", "num_image_tokens")


def _empty(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16, device="meta")


def text_of(module: nn.Module, tokens: int) -> JsonObject:
    """Token ids that a language model is called with; of an encoder and a decoder both."""
    config = getattr(module, "config", None)
    vocab = int(getattr(_text(config), "vocab_size", 0) or 0)
    ids = (torch.arange(tokens) % max(1, vocab - FIRST_ID - 1) + FIRST_ID).clamp(max=max(0, vocab - 1))[None]
    books, rows = (getattr(config, name, None) for name in ("num_codebooks", "codebook_vocab_size"))
    if isinstance(books, int) and isinstance(rows, int):
        ids = ids[..., None].expand(-1, -1, books + 1) % max(1, rows - 1)  # a column of text, one of each codebook
    inputs: JsonObject = {"input_ids": ids, "use_cache": False}
    if getattr(config, "is_encoder_decoder", False):
        books = getattr(getattr(config, "decoder", None), "num_codebooks", None)
        inputs["decoder_input_ids"] = ids.expand(books, -1).clone() if isinstance(books, int) else ids.clone()
    return inputs


def _text(config: Any) -> Any:
    try:
        return config.get_text_config() if hasattr(config, "get_text_config") else config
    except ValueError:
        return config.get_text_config(decoder=True)


def sets_of(module: nn.Module, tokens: int) -> Iterator[JsonObject]:
    """Inputs that a forward may take, the plainest first."""
    text = text_of(module, tokens)
    yield text
    parameters = inspect.signature(module.forward).parameters
    config = getattr(module, "config", None)
    made_inputs = {name: make(config, tokens) for name, make in MAKERS.items() if name in parameters}
    more = {name: value for name, value in made_inputs.items() if value is not None}
    if not more:
        return
    media_inputs: JsonObject = {**text, **_place_tokens(config, text), **more}
    yield media_inputs
    if "pixel_values" in more:
        yield {**media_inputs, "pixel_values": media_inputs["pixel_values"][None]}
    for ids in (None, "decoder_input_ids"):
        if ids is None or ids in parameters:
            embedding_inputs = {
                name: value for name, value in media_inputs.items() if name not in ("input_ids", "inputs_embeds")
            }
            yield embedding_inputs | ({ids: text["input_ids"]} if ids else {})
    if "inputs_embeds" in more:
        states = {name: value for name, value in more.items() if name in ("shared_kv_states", "position_ids")}
        yield {"inputs_embeds": more["inputs_embeds"], "use_cache": False, **states}


def images_of(module: nn.Module, features: Callable[..., object]) -> Iterator[JsonObject]:
    """What features of one image are asked for with: pixels, or patches with their grid."""
    function = features.forward if isinstance(features, nn.Module) else features
    config, parameters = getattr(module, "config", None), inspect.signature(function).parameters
    vision, image = _inner(config, SEES) or config, image_of(config)
    grid = next((name for name in ("image_grid_thw", "grid_thw") if name in parameters), "")
    patch = _patch(vision)
    side = image.shape[-1] if image is not None else USUAL_SIDE
    if grid and patch:
        merge = int(getattr(vision, "spatial_merge_size", 0) or getattr(vision, "merge_size", 0) or 2)
        across = max(merge, side // patch // merge * merge)
        deep = int(getattr(vision, "temporal_patch_size", 0) or 1)
        channels = image.shape[1] if image is not None else 3
        for frames in dict.fromkeys((deep, 1)):
            size = channels * frames * patch**2
            patches = _empty(across**2, size)
            yield {"pixel_values": patches, grid: torch.tensor([[1, across, across]])}
        squares = _empty(across**2, channels, patch, patch)
        yield {"pixel_values": squares, grid: torch.tensor([[1, across, across]])}
    if image is None:
        return
    more: JsonObject = {}
    if "image_sizes" in parameters:
        more["image_sizes"] = torch.tensor([[side, side]])
    if "qformer_input_ids" in parameters:
        more["qformer_input_ids"] = torch.full((1, ASKED), FIRST_ID)
    first = next(
        (name for name in parameters if name in ("pixel_values", "flattened_patches")), next(iter(parameters), "")
    )
    if first == "flattened_patches":
        yield {first: _patches(config, 0)}
        return
    for pixels in (image, image[None], image.expand(2, -1, -1, -1)[None]):
        yield {first: pixels, **more}


def shown_in(module: nn.Module, inputs: JsonMapping) -> Shown | None:
    """The image among inputs: pixels of its side, and of a patch."""
    config = getattr(module, "config", None)
    patch = _patch(_inner(config, SEES) or config)
    pixels = next((x for x in inputs.values() if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 3), None)
    if pixels is not None and not (pixels.shape[-1] == patch and "grid" in "".join(inputs)):
        return Shown(image=int(pixels.shape[-1]), patch=patch)
    rows = inputs.get("flattened_patches", inputs.get("pixel_values"))
    if rows is None:
        return None
    if rows.dim() > 3:
        return Shown(image=round(rows.shape[0] ** 0.5) * patch, patch=patch)
    return Shown(image=round(rows.shape[-2] ** 0.5) * max(1, patch), patch=patch)


def _patch(vision: object) -> int:
    size = getattr(vision, "patch_size", 0)
    size = size[-1] if isinstance(size, (list, tuple)) and size else size
    return size if isinstance(size, int) else 0


def _place_tokens(config: object, text: JsonMapping) -> JsonObject:
    """Token ids with as many places of an image's tokens in front as the config says that an image has."""
    names = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
    token = next((value for value in (getattr(config, name, None) for name in names) if isinstance(value, int)), None)
    many = next((value for value in (_config_value(config, name) for name in QUERIES) if isinstance(value, int)), 0)
    ids = text["input_ids"].clone()
    if token is None or not many or many >= ids.shape[1]:
        return {}
    ids[:, :many] = token
    return {"input_ids": ids}


def _config_value(config: object, name: str) -> Any:
    inner = [getattr(config, part, None) for part in (*SEES, "text_config", "qformer_config")]
    return next((getattr(part, name) for part in (config, *inner) if getattr(part, name, None) is not None), None)


def _inner(config: object, names: tuple[str, ...]) -> object:
    inner = next((getattr(config, name) for name in names if getattr(config, name, None) is not None), None)
    deeper = getattr(inner, names[0], None)
    return deeper if deeper is not None else inner


def image_of(config: object, _tokens: int = 0) -> Tensor | None:
    """One image of the size that the config of a model or of its tower says."""
    vision = _inner(config, SEES) or config
    sizes = (getattr(part, "image_size", None) for part in (vision, config))
    size = next((size for size in sizes if size is not None), USUAL_SIDE)
    sides = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, (list, tuple)) else ()
    channels = next((getattr(vision, name) for name in ("num_channels", "in_channels") if hasattr(vision, name)), 3)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        return None
    return _empty(1, int(channels or 3), *sides)


def _patches(config: object, _tokens: int) -> Tensor:
    vision = _inner(config, SEES) or config
    size = int(getattr(vision, "patch_embed_hidden_size", 0) or 3 * int(getattr(vision, "patch_size", 16)) ** 2)
    return _empty(1, PATCHES, size + 2)


def _sound(config: object, tokens: int) -> Tensor | None:
    """A spectrogram as long as the tokens are, where one stands for so many of its frames."""
    audio = _inner(config, HEARS)
    bins = getattr(audio, "num_mel_bins", None)
    if not isinstance(bins, int):
        return None
    frames = tokens * int(getattr(config, "audio_length_per_tok", 0) or 8)
    return _empty(1, bins, frames)


def _places(config: object, tokens: int) -> Tensor:
    """Which tokens an image's tokens stand in the place of: the first."""
    mask = torch.zeros((1, tokens), dtype=torch.bool)
    mask[:, : int(_config_value(config, "latent_query_num") or 0)] = True
    return mask


def _backbone(config: object, tokens: int) -> Tensor | None:
    """Hidden states of another model, which an assistant drafts from: its last token's and an embedding."""
    width = getattr(config, "backbone_hidden_size", None)
    return _empty(1, tokens, 2 * width) if width else None


def _shared_states(config: object, tokens: int) -> dict[str, tuple[Tensor, Tensor]] | None:
    """Keys and values of another model's last layers, one pair for each kind of attention."""
    if getattr(config, "backbone_hidden_size", None) is None:
        return None
    text = _text(config)
    layers = dict(zip(text.layer_types, getattr(text, "per_layer_config", [text] * len(text.layer_types)), strict=True))
    pairs = {}
    for kind, layer in layers.items():
        names = ("global_head_dim", "num_global_key_value_heads") if kind == "full_attention" else ("", "")
        sizes = [getattr(layer, name, None) for name in names]
        wide, few = sizes[0] or layer.head_dim, sizes[1] or layer.num_key_value_heads
        state = _empty(1, few, tokens, wide)
        pairs[kind] = (state, torch.zeros_like(state))
    return pairs


MAKERS: Mapping[str, Callable[[object, int], object]] = MappingProxyType(
    {
        "pixel_values": image_of,
        "flattened_patches": _patches,
        "input_features": _sound,
        "qformer_input_ids": lambda _config, _tokens: torch.full((1, ASKED), FIRST_ID),
        "image_attention_mask": lambda _config, tokens: torch.ones((1, tokens, 1), dtype=torch.long),
        "image_embeds_position_mask": _places,
        "pixel_attention_mask": lambda config, _: (
            torch.ones((1, 1), dtype=torch.bool) if hasattr(config, "max_state_dim") else None
        ),
        "bbox": lambda _config, tokens: torch.zeros((1, tokens, 4)),
        "state": lambda config, _tokens: _empty(1, int(getattr(config, "max_state_dim", 32))),
        "protein_input_ids": lambda _config, tokens: torch.full((1, tokens), FIRST_ID),
        "protein_attention_mask": lambda _config, tokens: torch.ones((1, tokens), dtype=torch.long),
        "inputs_embeds": _backbone,
        "shared_kv_states": _shared_states,
    }
)
"""What each argument of a forward is made of: the model's config and the tokens of the sequence."""


NAME = "ridgeline"
TOWERS = ("vision_tower", "vision_model", "visual", "image_encoder", "vision_encoder", "vision_embed_tokens")
TASKS = ("CausalLM", "ImageTextToText", "MultimodalLM", "Seq2SeqLM", "SpeechSeq2Seq", "MaskedLM")
AUTOS = (*(f"AutoModelFor{task}" for task in TASKS), "AutoModel")


def config_of(data: JsonMapping) -> Any:
    """The config object of a table; a message where transformers does not know or take it."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        expected_text = f"a type that transformers {transformers.__version__} knows"
        raise InputError(Problem(path="model_type", given=str(kind)[:60], expected=expected_text))
    plain = {
        key: _decode_config(value) for key, value in data.items() if key not in ("auto_map", "quantization_config")
    }
    try:
        return CONFIG_MAPPING[kind].from_dict(plain)
    except Exception as wrong:
        raise _refuse_type("config", wrong) from None


def build_module(config: object, *, told: bool = True) -> nn.Module:
    """The module that a config describes, on the meta device and in bf16; `told`: with attention told whole."""
    import transformers

    classes = [getattr(transformers, str(name), None) for name in getattr(config, "architectures", None) or ()]
    model_classes = [
        kind for kind in classes if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    ]
    last: Exception | None = None
    for make in (
        *(kind._from_config for kind in model_classes),
        *(getattr(transformers, auto).from_config for auto in AUTOS),
    ):
        try:
            with warnings.catch_warnings(), torch.device("meta"), _format(torch.bfloat16):
                warnings.simplefilter("ignore")
                chosen = {"attn_implementation": NAME} if told else {}
                module: nn.Module = make(copy.deepcopy(config), **chosen)
                return module.eval()
        except Exception as wrong:
            last = last if "Unrecognized configuration class" in str(wrong) and last is not None else wrong
    raise _refuse_type("model", last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """A module with a recorded forward over text, and what images went through, if any did."""

    module: nn.Module
    recording: Recording
    seen: Seen | None = None


def forward_of(config: object, tokens: int, *, told: bool) -> Forward:
    holder: list[Recorder] = []
    with whole_attention(holder):
        module = build_module(config, told=told)
        text_module = speaking(module)
        wrongs: list[Exception] = []
        for by_decision in (False, True):
            for inputs in sets_of(text_module, tokens):
                try:
                    recording = _run(module, text_module, inputs, holder, by_decision)
                except InputError:
                    raise
                except Exception as wrong:
                    wrongs.append(wrong)
                    continue
                media = shown_in(text_module, inputs)
                media_seen = Seen(shown=media) if media else _seen_alone(module, text_module, holder)
                return Forward(module=module, recording=recording, seen=media_seen)
        raise InputError(capture_problem(type(module).__name__, wrongs[min(1, len(wrongs) - 1)])) from None


def _run(
    module: nn.Module, called: Callable[..., object], named: JsonMapping, holder: list[Recorder], decided: bool
) -> Recording:  # fmt: skip
    def run(recorder: Recorder) -> None:
        holder.append(recorder)
        called(**named)

    return record_forward(module, run, named, decided=decided)


def _seen_alone(module: nn.Module, called: nn.Module, holder: list[Recorder]) -> Seen | None:
    """A forward of the image encoder: whole, or as far as it ran; None where the module has none."""
    best: Seen | None = None
    for features in _seeing(called):
        for inputs in images_of(called, features):
            media = shown_in(called, inputs)
            if media is None:
                continue
            try:
                return Seen(shown=media, recording=_run(module, features, inputs, holder, False))
            except Exception:
                partial = Seen(shown=media, recording=holder[-1].recording)
            best = partial if best is None or _work(partial) > _work(best) else best
    if best is None or not _work(best) or best.recording is None:
        return None
    best.recording.guessed.add("what stands behind the image encoder did not run, and is counted and not priced")
    return best


def _work(seen: Seen) -> int:
    nodes = seen.recording.nodes if seen.recording else ()
    return sum(node.op in PRODUCTS and bool(node.weights) for node in nodes)


def _seeing(module: nn.Module) -> Iterator[Callable[..., object]]:
    """What makes features of an image: a method of the model, or its tower by its usual name."""
    for part in module.modules():
        if hasattr(part, "get_image_features"):
            yield part.get_image_features
            break
    for path, part in module.named_modules():
        if path.rpartition(".")[2] in TOWERS and next(part.parameters(), None) is not None:
            yield part
            return


def speaking(module: nn.Module) -> nn.Module:
    """The part that is called: the module itself; the largest of its parts where it has no forward of its own."""
    if type(module).forward is not nn.Module.forward:
        return module
    parts = [part for part in module.children() if type(part).forward is not nn.Module.forward]
    return max(parts, key=lambda part: sum(weight.numel() for weight in part.parameters()), default=module)


@contextmanager
def whole_attention(holder: list[Recorder]) -> Iterator[None]:
    """transformers' attention interface hands every attention to the recorder in `holder`."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: object, **named: Any
    ) -> tuple[Tensor, None]:
        window, is_chunked = _attention_window(module, named)
        causal = named.get("is_causal")
        causal = bool(getattr(module, "is_causal", True)) if causal is None else bool(causal)
        out = holder[-1].attend(
            query, key, value, window=window, chunked=is_chunked, causal=causal, sinks=named.get("s_aux")
        )
        return out.transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, lambda *_, **__: None)
    try:
        yield
    finally:
        for table in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
            type(table)._global_mapping.pop(NAME, None)


def _decode_config(value: object) -> object:
    """A value of a config as transformers wrote it: floats that JSON has no word for are tables of one."""
    if isinstance(value, Mapping):
        if set(value) == {"__float__"}:
            return float(str(value["__float__"]))
        return {key: _decode_config(entry) for key, entry in value.items()}
    return [_decode_config(entry) for entry in value] if isinstance(value, list) else value


def _attention_window(module: nn.Module, named: JsonMapping) -> tuple[int, bool]:
    """Tokens a query sees, 0 for all of them, and whether they are a fixed chunk of the sequence."""
    config = getattr(module, "config", None)
    kinds, place = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    kind = kinds[place] if isinstance(kinds, list) and isinstance(place, int) and place < len(kinds) else ""
    if kind == "chunked_attention":
        return int(getattr(config, "attention_chunk_size", 0) or 0), True
    if kind == "full_attention":
        return 0, False
    window = named.get("sliding_window", getattr(module, "sliding_window", None))
    return (window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else 0), False


@contextmanager
def _format(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _refuse_type(what: str, wrong: Exception | None) -> InputError:
    import transformers

    message = " ".join(str(wrong).split())
    missing = re.search(r"requires the (\w+) library", message)
    if missing:
        library = missing[1]
        todo = f"pip install {library}, in a build that fits the installed torch {torch.__version__}"
        return InputError(Problem(path=what, given=f"no module {library}", expected=library, todo=todo))
    expected_text = f"a {what} that transformers {transformers.__version__} can build"
    todo = "compare its keys with those of a published config of the type"
    return InputError(
        Problem(path=what, given=f"{type(wrong).__name__}: {message[:200]}", expected=expected_text, todo=todo)
    )
