"""Features of a fixed data set kept on disk: computed at the first pass, read at all others."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor, nn

from stochseg.errors import UserError


class FeatureCache:
    """One float32 .npy file an image, named by the image's content and by the encoder's weights: a changed image or
    encoder is another file, never a wrong answer. Several processes may share the folder.

    A folder that does not exist (a model taken to another machine) is not made: features are computed as without it.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._encoder = b""

    def __call__(self, encoder: nn.Module, image: Tensor) -> Tensor:
        """encoder: with `features`; image: "b c h w"."""
        if not self.folder.is_dir():
            return encoder.features(image)
        self._encoder = self._encoder or fingerprint(encoder)
        files = [self.folder / f"{self._name(row)}.npy" for row in image.detach().float().cpu().numpy()]
        missing = [i for i, file in enumerate(files) if not file.is_file()]
        fresh = dict(zip(missing, encoder.features(image[missing]), strict=True)) if missing else {}
        for i, value in fresh.items():
            _write(files[i], value.float().cpu().numpy())
        rows = [fresh[i] if i in fresh else _read(file).to(image) for i, file in enumerate(files)]
        return torch.stack([row.to(image) for row in rows])

    def _name(self, image: np.ndarray) -> str:
        content = np.ascontiguousarray(image).tobytes() + repr(image.shape).encode() + self._encoder
        return hashlib.blake2b(content, digest_size=16).hexdigest()


def fingerprint(module: nn.Module) -> bytes:
    """What tells two encoders apart: their kind, and all their tensors, constants included."""
    digest = hashlib.blake2b(f"{type(module).__name__} {getattr(module, 'name', '')}".encode(), digest_size=16)
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        digest.update(name.encode() + np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return digest.digest()


def _write(file: Path, value: np.ndarray) -> None:
    """All or nothing: another process may read at the same time."""
    scratch = file.with_name(f"{uuid4().hex}.part")
    with scratch.open("wb") as stream:
        np.save(stream, value, allow_pickle=False)
    os.replace(scratch, file)


def _read(file: Path) -> Tensor:
    try:
        return torch.from_numpy(np.load(file, allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{file}: a damaged file in the feature cache ({error}); delete it") from None
