"""Files of a source, from a folder or straight from a zip, and image decoding with errors that name the file.

Read are PNG, JPEG, TIFF and whatever else Pillow opens, and with `stochseg[medical]` NIfTI and DICOM slices.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import Image, TiffImagePlugin, UnidentifiedImageError

from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.types import DatasetInfo


@dataclass(frozen=True)
class Picture:
    """Raw intensities "h w" or "h w c", and the millimeters a pixel (h, w) where the file tells them."""

    values: np.ndarray
    spacing: tuple[float, float] | None = None


def files_below(folder: Path) -> Iterator[Path]:
    """All files in a folder and below, also behind links to folders, but for those that lead back up."""
    for here, folders, files in os.walk(folder, followlinks=True):
        real = Path(here).resolve()
        folders[:] = [name for name in folders if not real.is_relative_to((Path(here) / name).resolve())]
        yield from (file for name in files if (file := Path(here) / name).is_file())


class Tree:
    """A folder or a zip as a list of names with "/" between parts, relative to its top."""

    def __init__(self, path: Path):
        self.path = path
        if path.is_dir():
            self._zip = None
        elif zipfile.is_zipfile(path):
            try:
                self._zip = zipfile.ZipFile(path)
            except (zipfile.BadZipFile, NotImplementedError) as error:
                raise UserError(f"{path} is a damaged zip file ({error}); copy or download it again") from None
        else:
            raise UserError(f"{path}: expected a folder or a zip file (a zip that was cut short is not one)")

    @cached_property
    def names(self) -> list[str]:
        """All files, sorted; junk that archives of Macs carry is left out. A zip whose names leave it is refused."""
        if self._zip is None:
            found = [p.relative_to(self.path).as_posix() for p in files_below(self.path)]
        else:
            found = [n for n in self._zip.namelist() if not n.endswith("/")]
            for name in found:
                parts = PurePosixPath(name.replace("\\", "/"))
                if parts.is_absolute() or ".." in parts.parts or ":" in parts.parts[0]:
                    raise UserError(
                        f"{self.path}: the entry {name!r} points outside the archive; refused, nothing was read"
                    )
        hidden = ("__MACOSX", ".")
        return sorted(n for n in found if not any(part.startswith(hidden) for part in n.split("/")))

    def read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes() if self._zip is None else self._zip.read(name)
        except (OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"{self.where(name)} cannot be read: {error}") from None

    def image(self, name: str) -> np.ndarray:
        """Decoded pixels, "h w" or "h w c"; palette images give their indices."""
        return decode(self.read(name), self.where(name))

    def picture(self, name: str) -> Picture:
        """An image of any known format; palette images give their colors."""
        return _decode_any(self.read(name), self.where(name), _COLORS)

    def labels(self, name: str) -> np.ndarray:
        """A label map of any known format as it is stored: "h w", or "h w c" where labels are colors."""
        return _decode_any(self.read(name), self.where(name), _INDICES).values

    def where(self, name: str) -> str:
        """The file as a person would look for it."""
        return f"{self.path}{'/' if self._zip is None else ':'}{name}"


def stack_labels(maps: Sequence[np.ndarray], names: Sequence[str], size: tuple[int, ...]) -> np.ndarray:
    """Label maps "k h w"; one of another size is named."""
    for array, name in zip(maps, names, strict=True):
        if array.shape != size:
            raise UserError(
                f"{name}: expected a label map of {size[0]}×{size[1]} like its image, got shape {array.shape}"
            )
    return np.stack(maps)


def check_labels(labels: np.ndarray, info: DatasetInfo, where: str, remedy: str) -> np.ndarray:
    """The label map itself, when all its values are declared."""
    allowed = {*range(info.num_classes), *({info.ignore} - {None})}
    wrong = sorted(set(np.unique(labels).tolist()) - allowed)
    if wrong:
        void = f" or {info.ignore} (ignore)" if info.ignore is not None else ""
        raise UserError(f"{where}: expected labels 0..{info.num_classes - 1}{void}, got {wrong[:5]}; {remedy}")
    return labels


# ---------------------------------------------------------------------- decoding

_INDICES: Mapping[str, str] = MappingProxyType({})
_COLORS = MappingProxyType({"P": "RGB", "PA": "RGBA", "1": "L"})
"""Pillow modes whose stored numbers are not intensities, and the mode that has them."""


def decode(content: bytes, where: str) -> np.ndarray:
    """Pixels of a picture file as they are stored; palette images give their indices."""
    return _guarded(_read_picture, content, where, _INDICES).values


def _decode_any(content: bytes, where: str, converted: Mapping[str, str]) -> Picture:
    """By what the file is: DICOM carries a mark, NIfTI is known by its name, Pillow finds the others."""
    name = where.lower()
    if name.endswith(".dcm") or content[128:132] == b"DICM":
        picture = _guarded(_read_dicom, content, where, converted)
    elif name.endswith((".nii", ".nii.gz")):
        picture = _guarded(_read_nifti, content, where, converted)
    else:
        picture = _guarded(_read_picture, content, where, converted)
    return Picture(_plain(picture.values, where), picture.spacing)


Reader = Callable[[bytes, str, Mapping[str, str]], Picture]


def _guarded(read: Reader, content: bytes, where: str, converted: Mapping[str, str]) -> Picture:
    try:
        return read(content, where, converted)
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail in any way, anywhere in a decoder
        reason = "no known format" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
        raise UserError(f"{where} cannot be read as an image ({reason}); it is damaged or of another kind") from None


def _plain(values: np.ndarray, where: str) -> np.ndarray:
    """Native byte order and at most 32 bits: what torch and the packed store take."""
    if values.dtype == bool:
        return values.astype(np.uint8)
    if values.dtype.kind not in "uif":
        raise UserError(f"{where}: expected one number a pixel and channel, got {values.dtype}")
    if values.dtype.kind == "f" or values.size == 0:
        return values.astype(np.float32)
    if values.dtype.itemsize <= 2:
        return values.astype(values.dtype.newbyteorder("="))
    limits = np.iinfo(np.int32)
    fits = values.min() >= limits.min and values.max() <= limits.max
    return values.astype(np.int32 if fits else np.float32)


# ---------------------------------------------------------------------- Pillow, and TIFF with many channels


def _read_picture(content: bytes, where: str, converted: Mapping[str, str]) -> Picture:
    if content[:4] in (b"II*\0", b"MM\0*"):
        content, channels, tags = _one_channel_tiff(content, where)
    else:
        channels, tags = 1, {}
        _refuse_lossy(content, where)
    with Image.open(io.BytesIO(content)) as image:
        pages = getattr(image, "n_frames", 1)
        if pages > 1 and image.format != "MPO":  # a photograph whose second picture is its preview
            raise _several(where, f"{pages} pages")
        values = np.asarray(image.convert(converted[image.mode]) if image.mode in converted else image)
    if channels > 1:
        values = _undo_predictor(values.reshape(values.shape[0], -1, channels), tags)
    return Picture(values)


def _several(where: str, what: str) -> UserError:
    return UserError(
        f"{where} holds {what}, expected one 2-D image; save each as a file of its own "
        "(ID-000, ID-001, …) and let `group` in dataset.yaml name the patient"
    )


def _refuse_lossy(content: bytes, where: str) -> None:
    """Files whose bits Pillow might halve without a word."""
    depth, kind = content[24:25], content[25:26]
    if content[:4] == b"\x89PNG" and depth == b"\x10" and kind != b"\0":
        raise UserError(f"{where}: 16 bits a channel are read from gray PNG only; save this picture as TIFF")
    if content[:4] in (b"II+\0", b"MM\0+"):
        raise UserError(f"{where} is a BigTIFF; save it as a classic TIFF, which holds up to 4 GB")


_TIFF = TiffImagePlugin
_STRIPS = (_TIFF.STRIPOFFSETS, _TIFF.STRIPBYTECOUNTS, _TIFF.ROWSPERSTRIP)
_TILES = (_TIFF.TILEOFFSETS, _TIFF.TILEBYTECOUNTS, _TIFF.TILELENGTH)
_PLACES = (_TIFF.IMAGELENGTH, _TIFF.COMPRESSION, *_STRIPS, *_TILES)
_PREDICTOR_TAG = 317

Tags = Mapping[int, Any]


def _one_channel_tiff(content: bytes, where: str) -> tuple[bytes, int, Tags]:
    """A TIFF that Pillow can read without loss, the channels that lie in it as one, and its tags.

    Pillow cuts colors of 16 bits down to 8, drops fourth channels and refuses more, but reads gray of any depth.
    Channels lie beside each other in a row: the same bytes under another directory are a gray picture c times as wide.
    """
    tags = _tiff_tags(content)
    bits, channels = set(tags.get(_TIFF.BITSPERSAMPLE, (1,))), tags.get(_TIFF.SAMPLESPERPIXEL, 1)
    coded = tags.get(_TIFF.PHOTOMETRIC_INTERPRETATION) not in (0, 1, 2)  # such as YCbCr: Pillow's task
    if channels == 1 or (bits == {8} and (channels == 3 or coded)):
        return content, 1, tags
    if tags.next:
        raise _several(where, "several pages")
    if len(bits) > 1 or tags.get(_TIFF.PLANAR_CONFIGURATION, 1) != 1 or tags.get(_PREDICTOR_TAG, 1) > 2:
        raise UserError(
            f"{where}: expected {channels} channels of one depth, interleaved, without a float predictor; "
            "save the TIFF with planar configuration 1 and no compression"
        )
    wide = _wide(tags, channels)
    if _end(wide) > len(content):
        raise UserError(f"{where} is cut short; copy it again")
    order = "<" if content[:2] == b"II" else ">"
    start = len(content) + len(content) % 2  # a directory begins on an even byte
    gray = content[:4] + struct.pack(f"{order}I", start) + content[8:].ljust(start - 8, b"\0")
    return gray + _directory(wide, order, start), channels, tags


def _tiff_tags(content: bytes) -> TiffImagePlugin.ImageFileDirectory_v2:
    """The tags of the first page; `next` is 0 if it is the last."""
    tags = TiffImagePlugin.ImageFileDirectory_v2(content[:8])
    file = io.BytesIO(content)
    file.seek(tags.next)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Pillow only warns when the directory is cut short
        tags.load(file)
    return tags


def _end(tags: Mapping[int, tuple[int, ...]]) -> int:
    """The first byte behind all strips or tiles."""
    starts, lengths = _STRIPS[:2] if _TIFF.STRIPOFFSETS in tags else _TILES[:2]
    return max(start + length for start, length in zip(tags[starts], tags[lengths], strict=True))


def _wide(tags: Tags, channels: int) -> dict[int, tuple[int, ...]]:
    """The tags of the gray picture whose columns are the channels of all columns."""
    wide = {tag: _numbers(tags[tag]) for tag in _PLACES if tag in tags}
    wide |= {tag: (tags[tag] * channels,) for tag in (_TIFF.IMAGEWIDTH, _TIFF.TILEWIDTH) if tag in tags}
    wide |= {_TIFF.SAMPLESPERPIXEL: (1,), _TIFF.PHOTOMETRIC_INTERPRETATION: (1,)}
    wide[_TIFF.BITSPERSAMPLE] = _numbers(tags[_TIFF.BITSPERSAMPLE])[:1]
    wide[_TIFF.SAMPLEFORMAT] = _numbers(tags.get(_TIFF.SAMPLEFORMAT, 1))[:1]
    return wide


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple) else (value,)


def _directory(tags: Mapping[int, tuple[int, ...]], order: str, start: int) -> bytes:
    """A TIFF directory of 32-bit numbers that stands at byte `start`."""
    entries, lists = b"", b""
    behind = start + 2 + 12 * len(tags) + 4
    for tag, values in sorted(tags.items()):
        numbers = struct.pack(f"{order}{len(values)}I", *values)
        place = numbers if len(values) == 1 else struct.pack(f"{order}I", behind + len(lists))
        lists += numbers if len(values) > 1 else b""
        entries += struct.pack(f"{order}HHI", tag, 4, len(values)) + place
    return struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + lists


def _undo_predictor(values: np.ndarray, tags: Tags) -> np.ndarray:
    """Horizontal differencing, if used, is between pixels: it has to be undone channel by channel, in every tile."""
    if tags.get(_PREDICTOR_TAG, 1) == 1:
        return values
    step = tags.get(_TIFF.TILEWIDTH, values.shape[1])
    parts = [values[:, left : left + step] for left in range(0, values.shape[1], step)]
    return np.concatenate([np.cumsum(part, axis=1, dtype=values.dtype) for part in parts], axis=1)


# ---------------------------------------------------------------------- medical formats


MILLIMETRES = {"meter": 1000.0, "micron": 0.001}
"""Units of NIfTI that are others."""


def _read_nifti(content: bytes, where: str, converted: Mapping[str, str]) -> Picture:
    """NIfTI's first axis is x, so it becomes the width."""
    nibabel = require("nibabel", "medical", where)
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    second = 540 in struct.unpack("<i", content[:4]) + struct.unpack(">i", content[:4])
    file = (nibabel.Nifti2Image if second else nibabel.Nifti1Image).from_bytes(content)
    values, zooms = np.asanyarray(file.dataobj), list(file.header.get_zooms())
    axes = [i for i, length in enumerate(values.shape) if length > 1]
    if len(axes) > 2:
        raise _several(where, f"a volume of shape {values.shape}")
    axes += [i for i in range(values.ndim) if i not in axes][: 2 - len(axes)]
    across, down = sorted(axes)
    image = values.reshape(values.shape[across], values.shape[down]).T
    millimeters = MILLIMETRES.get(file.header.get_xyzt_units()[0], 1.0)
    return Picture(image, _spacing(zooms[down] * millimeters, zooms[across] * millimeters))


def _spacing(down: float, across: float) -> tuple[float, float] | None:
    """Headers without a spacing hold zeros or NaN."""
    return (float(down), float(across)) if down > 0 and across > 0 else None


def _read_dicom(content: bytes, where: str, converted: Mapping[str, str]) -> Picture:
    """Stored values with the modality's slope and intercept; MONOCHROME1 is not inverted."""
    pydicom, pixels = (require(module, "medical", where) for module in ("pydicom", "pydicom.pixels"))
    try:
        file = pydicom.dcmread(io.BytesIO(content))
    except pydicom.errors.InvalidDicomError:
        raise UserError(f"{where} is not a DICOM file: its mark is missing; export it again") from None
    if "PixelData" not in file:
        raise UserError(f"{where} has no pixel data (a report or a structure set?); expected an image, take it out")
    if int(file.get("NumberOfFrames") or 1) > 1:
        raise _several(where, f"{file.NumberOfFrames} frames")
    try:
        values = file.pixel_array
    except (RuntimeError, NotImplementedError) as error:
        raise UserError(
            f"{where}: the compressed pixels cannot be read ({error}); "
            "install a decoder with: pip install pylibjpeg[all], or save the file uncompressed"
        ) from None
    if file.PhotometricInterpretation == "PALETTE COLOR":
        values = pixels.apply_color_lut(values, file) if "P" in converted else values
    elif values.ndim == 2:
        values = _rescaled(values, float(file.get("RescaleSlope", 1)), float(file.get("RescaleIntercept", 0)))
    rows, columns = file.get("PixelSpacing") or (0.0, 0.0)
    return Picture(values, _spacing(float(rows), float(columns)))


def _rescaled(values: np.ndarray, slope: float, intercept: float) -> np.ndarray:
    """Whole numbers stay so, in the fewest bits: Hounsfield units are int16."""
    if (slope, intercept) == (1.0, 0.0):
        return values
    scaled = values * slope + intercept
    if not (slope.is_integer() and intercept.is_integer()):
        return scaled
    fits = scaled.min() >= -(2**15) and scaled.max() < 2**15
    return scaled.astype(np.int16 if fits else np.int32)
