"""Image features on disk, for data that are the same in every epoch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stochseg.errors import UserError
from stochseg.files import replaced_file

if TYPE_CHECKING:
    from stochseg.networks.encoders.base import ImageEncoder

Floats = npt.NDArray[np.float32]


class FeatureCache:
    """One float32 .npy file per image, named by a hash of the image and of the encoder's weights.

    A changed image or encoder is thus another file. Several processes may share the folder. A missing folder (a model
    on another machine) is not created: features are then computed without the cache.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._encoder = b""

    def __call__(self, encoder: ImageEncoder, image: Tensor) -> Tensor:
        """Return the features of images "b c h w"; compute and store only those that are missing."""
        if not self.folder.is_dir():
            return encoder.features(image)
        self._encoder = self._encoder or fingerprint(encoder)
        files = [self.folder / f"{self._name(row)}.npy" for row in image.detach().float().cpu().numpy()]
        missing = [i for i, file in enumerate(files) if not file.is_file()]
        computed = dict(zip(missing, encoder.features(image[missing]), strict=True)) if missing else {}
        for i, value in computed.items():
            _write(files[i], value.float().cpu().numpy())
        rows = [computed[i] if i in computed else _read(file) for i, file in enumerate(files)]
        return torch.stack([row.to(image) for row in rows])

    def _name(self, image: Floats) -> str:
        content = np.ascontiguousarray(image).tobytes() + repr(image.shape).encode() + self._encoder
        return hashlib.blake2b(content, digest_size=16).hexdigest()


def fingerprint(module: nn.Module) -> bytes:
    """Hash of an encoder: its kind and all its tensors, constants included."""
    kind = f"{type(module).__name__} {getattr(module, 'name', '')}{getattr(module, 'variant', '')}"
    digest = hashlib.blake2b(kind.encode(), digest_size=16)
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        digest.update(name.encode() + np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return digest.digest()


def _write(file: Path, value: Floats) -> None:
    """Write the whole file or nothing: another process may be reading."""
    with replaced_file(file) as scratch, scratch.open("wb") as stream:
        np.save(stream, value, allow_pickle=False)


def _read(file: Path) -> Tensor:
    try:
        return torch.from_numpy(np.load(file, allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{file}: damaged file in the feature cache ({error}); delete it") from None
