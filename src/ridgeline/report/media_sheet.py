"""Turn what stands beside a model's layers into the part of its sheet that says what images, video, sound and text for
an encoder cost: tokens and flops of a few usual sizes."""

from __future__ import annotations

from typing import Any

from ridgeline.models.facts import forward_flops_per_token
from ridgeline.models.flops import audio_flops, encoder_flops, image_flops, latent_flops
from ridgeline.models.media_tokens import audio_input, image_input, video_input
from ridgeline.models.sizing import EncoderInput
from ridgeline.models.spec import ModelSpec

Sheet = dict[str, Any]

IMAGES = (1024, 1024), (1080, 1920)  # pixels: height, width
FRAMES = 16
SECONDS = 10, 30
PICTURES = 512, 1024
FILMS = 480, 832, 81  # height, width, frames


def media_sheet(spec: ModelSpec, seq: int) -> Sheet:
    """Encoders of a model by what they read, each with flops of one forward; None where it has none."""
    return {
        "image": _images(spec),
        "audio": _sounds(spec),
        "source": _source(spec, seq),
        "latents": _latents(spec),
        "companions": [{"name": one.name, "params": one.params} for one in spec.companions],
    }


def _images(spec: ModelSpec) -> Sheet | None:
    vision = spec.vision
    if vision is None:
        return None
    sizes = dict.fromkeys([(vision.image, vision.image), *IMAGES])
    shown = [(high, wide, 1, image_input(vision, high, wide)) for high, wide in sizes]
    shown.append((vision.image, vision.image, FRAMES, video_input(vision, FRAMES, vision.image, vision.image)))
    return {
        "layers": vision.layers,
        "hidden": vision.hidden,
        "rule": vision.sizing.rule,
        "sizes": [
            {"height": high, "width": wide, "frames": frames, **_read(seen), "flops": image_flops(spec, seen)}
            for high, wide, frames, seen in shown
        ],
    }


def _read(seen: EncoderInput) -> Sheet:
    return {"views": seen.views, "positions": seen.total, "tokens": seen.tokens}


def _sounds(spec: ModelSpec) -> Sheet | None:
    audio = spec.audio
    if audio is None:
        return None
    heard = [(seconds, audio_input(audio.clip, seconds)) for seconds in SECONDS]
    return {
        "layers": audio.layers,
        "hidden": audio.hidden,
        "sizes": [{"seconds": seconds, **_read(one), "flops": audio_flops(spec, one)} for seconds, one in heard],
    }


def _source(spec: ModelSpec, seq: int) -> Sheet | None:
    encoder = spec.encoder
    if encoder is None:
        return None
    positions = encoder.context if encoder.reads == "audio" else seq
    flops = encoder_flops(spec, positions)
    own = {"layers": encoder.layers, "hidden": encoder.hidden, "reads": encoder.reads}
    return {**own, "positions": positions, "flops": flops}


def _latents(spec: ModelSpec) -> Sheet | None:
    space = spec.latent_space
    if space is None:
        return None
    sizes = [(side, side, 1) for side in PICTURES] if space.frames == 1 else [FILMS]
    found = []
    for high, wide, frames in sizes:
        latents = space.tokens(high, wide, frames)
        seq = latents + (space.text if space.joint else 0)
        each = forward_flops_per_token(spec, seq, source=0 if space.joint else space.text).total
        flops = seq * each + latent_flops(spec, seq)
        found.append({"height": high, "width": wide, "frames": frames, "tokens": seq, "flops": flops})
    return {"text": space.text, "joint": space.joint, "sizes": found}
