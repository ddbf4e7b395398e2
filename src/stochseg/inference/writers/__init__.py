"""Output writers of `predict`: one entry of `WRITERS` per file of a result folder.

To add an output, write a function `write(prediction, file)` that writes one file from a `Prediction` (samples, input,
classes), and add it to `WRITERS` under the name of its file, with the condition under which an input gets it.
`stochseg.inference.result_folder.write_result` runs all of them and lists the files in result.json.
"""

from __future__ import annotations

from functools import partial

from stochseg.inference.writers.base import Prediction, Writer
from stochseg.inference.writers.dicom_maps import write_entropy_map, write_fractional_seg
from stochseg.inference.writers.dicom_seg import write_dicom_seg
from stochseg.inference.writers.geojson import write_geojson
from stochseg.inference.writers.margins import (
    write_margin_nifti,
    write_margin_preview,
    write_margin_tiff,
    write_scaled_nifti,
    write_scaled_tiff,
)
from stochseg.inference.writers.nifti import write_nifti
from stochseg.inference.writers.pictures import fits_palette, write_palette_png, write_tiff
from stochseg.inference.writers.previews import write_overlay, write_overview

__all__ = ["WRITERS", "Prediction", "Writer"]

WRITERS: dict[str, Writer] = {
    "samples.tif": Writer(partial(write_tiff, part="labels"), lambda p: p.is_picture),
    "fused.png": Writer(write_palette_png, lambda p: p.is_picture and fits_palette(p)),
    "fused.tif": Writer(partial(write_tiff, part="fused"), lambda p: p.is_picture and not fits_palette(p)),
    "mean.tif": Writer(partial(write_tiff, part="mean"), lambda p: p.is_picture),
    "entropy.tif": Writer(partial(write_tiff, part="entropy"), lambda p: p.is_picture),
    "samples.nii.gz": Writer(partial(write_nifti, part="labels"), lambda p: not p.is_picture),
    "fused.nii.gz": Writer(partial(write_nifti, part="fused"), lambda p: not p.is_picture),
    "mean.nii.gz": Writer(partial(write_nifti, part="mean"), lambda p: not p.is_picture),
    "entropy.nii.gz": Writer(partial(write_nifti, part="entropy"), lambda p: not p.is_picture),
    "fused.dcm": Writer(write_dicom_seg, lambda p: bool(p.stack.headers)),
    "probabilities.dcm": Writer(write_fractional_seg, lambda p: bool(p.stack.headers) and "dicom-maps" in p.also),
    "entropy.dcm": Writer(write_entropy_map, lambda p: bool(p.stack.headers) and "dicom-maps" in p.also),
    "calibrated-mean.tif": Writer(write_scaled_tiff, lambda p: p.is_picture and "calibrated-mean" in p.also),
    "calibrated-mean.nii.gz": Writer(write_scaled_nifti, lambda p: not p.is_picture and "calibrated-mean" in p.also),
    "margin.tif": Writer(write_margin_tiff, lambda p: p.is_picture and bool(p.margins)),
    "margin.nii.gz": Writer(write_margin_nifti, lambda p: not p.is_picture and bool(p.margins)),
    "margin.png": Writer(write_margin_preview, lambda p: bool(p.margins)),
    "fused.geojson": Writer(write_geojson, lambda p: p.is_picture and "geojson" in p.also),
    "overlay.png": Writer(write_overlay, lambda p: True),
    "overview.png": Writer(write_overview, lambda p: p.overview),
}
"""File name -> its writer, in the order in which the files are written."""
