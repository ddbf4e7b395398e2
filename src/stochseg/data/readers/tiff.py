"""TIFF of any depth and number of channels.

Pillow reduces colors of 16 bits to 8, drops fourth channels and refuses more: tifffile decodes these. Pillow decodes
the others, because it also converts coded colors such as palettes and YCbCr.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from dataclasses import replace

import numpy as np
import tifffile
from PIL import TiffImagePlugin

from stochseg.data.readers.pictures import Palette, Picture, read_with_pillow, several_images, stated_spacing
from stochseg.errors import UserError
from stochseg.limits import check_memory

CLASSIC, BIG = (b"II*\0", b"MM\0*"), (b"II+\0", b"MM\0+")
"""First bytes of TIFF and BigTIFF, in both byte orders."""
_PIXELS = re.compile(r"<(?:\w+:)?Pixels\b[^>]*>")
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_UNITS = {"nm": 1e-6, "µm": 1e-3, "μm": 1e-3, "um": 1e-3, "mm": 1.0, "cm": 10.0, "m": 1000.0}
"""Millimeters per unit of OME, whose default is the micrometer."""
MAX_DESCRIPTION = 10**6
"""Characters of OME metadata that are searched."""
_GRAY, _RGB = (0, 1), 2
"""Values of PhotometricInterpretation; the others are coded colors."""


def read_tiff(content: bytes, where: str, palette: Palette) -> Picture:
    """Decode a TIFF of one page without loss."""
    tags = _read_tags(content)
    bits, channels = set(tags.get(TiffImagePlugin.BITSPERSAMPLE, (1,))), tags.get(TiffImagePlugin.SAMPLESPERPIXEL, 1)
    meaning = tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION)
    colors = meaning not in _GRAY and (meaning != _RGB or channels == 3)
    if channels == 1 or (bits == {8} and colors):
        picture = read_with_pillow(content, where, palette)
        return replace(picture, spacing=ome_spacing(content) or picture.spacing)
    if tags.next:
        raise several_images(where, "several pages")
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        page = file.pages.first
        check_memory(len(content) + 2 * page.nbytes, where)
        ends = [sum(segment) for segment in zip(page.dataoffsets, page.databytecounts, strict=True)]
        if max(ends) > len(content) or len(ends) < math.prod(page.chunked):
            raise UserError(f"{where} is cut short; copy it again")
        values = np.asarray(page.asarray())
        return Picture(np.moveaxis(values, 0, -1) if page.axes == "SYX" else values, ome_spacing(content))


def ome_spacing(content: bytes) -> tuple[float, float] | None:
    """Read the size of a pixel in millimeters, (row, column), from the OME metadata of a TIFF; None without them."""
    try:
        stored = str(_read_tags(content).get(TiffImagePlugin.IMAGEDESCRIPTION, ""))[:MAX_DESCRIPTION]
        description = stored.encode("latin-1", "ignore").decode("utf-8", "ignore")  # Pillow takes it for Latin-1
    except Exception:  # a damaged directory is reported when the pixels are read
        return None
    pixels = _PIXELS.search(description) if "<OME" in description else None
    if pixels is None:
        return None
    stated = dict(_ATTRIBUTE.findall(pixels[0]))
    try:
        units = [_UNITS[stated.get(f"PhysicalSize{axis}Unit", "µm")] for axis in "YX"]
        height, width = (float(stated[f"PhysicalSize{axis}"]) * unit for axis, unit in zip("YX", units, strict=True))
    except (KeyError, ValueError):
        return None
    return stated_spacing(height, width)


def _read_tags(content: bytes) -> TiffImagePlugin.ImageFileDirectory_v2:
    """Read the tags of the first page; `next` is 0 if it is the only one. A directory that is cut short fails."""
    tags = TiffImagePlugin.ImageFileDirectory_v2(content[: 16 if content.startswith(BIG) else 8])
    file = io.BytesIO(content)
    file.seek(tags.next)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Pillow only warns about it
        tags.load(file)
    return tags
