"""Predictions in the files that nnU-Net writes."""

import json
from pathlib import Path

import nibabel
import numpy as np

LABELS = {"background": 0, "liver": 1, "tumor": 2}


def softmax_field(shape: tuple[int, ...], seed: int, classes: int = 3) -> np.ndarray:
    """Smooth random probabilities "l x y z"."""
    rng = np.random.default_rng(seed)
    coarse = rng.normal(size=(classes, *(-(-n // 3) for n in shape))) * 3
    logits = coarse
    for axis in range(1, len(shape) + 1):
        logits = logits.repeat(3, axis)
    logits = logits[(slice(None), *(slice(n) for n in shape))] + rng.normal(size=(classes, *shape)) * 0.3
    p = np.exp(logits - logits.max(0))
    return p / p.sum(0)


def write_fold(folder: Path, cases: dict[str, np.ndarray], affine: np.ndarray, *, archives=True, turned=False) -> None:
    """Write the predictions of one fold: CASE.nii.gz, CASE.npz ("l z y x" float16), CASE.pkl, dataset.json.

    cases: probabilities "l x y z" by name; turned: as the reader that turns images to RAS leaves the archive.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, p in cases.items():
        image = nibabel.Nifti1Image(p.argmax(0).astype(np.uint8), affine)
        nibabel.save(image, folder / f"{name}.nii.gz")
        if not archives:
            continue
        soft = p.astype(np.float16)
        if turned:
            turn = nibabel.io_orientation(affine)
            soft = np.stack([nibabel.apply_orientation(each, turn) for each in soft])
        np.savez_compressed(folder / f"{name}.npz", probabilities=soft.transpose(0, 3, 2, 1))
        (folder / f"{name}.pkl").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")  # must never be opened
    description = {"channel_names": {"0": "CT"}, "labels": LABELS, "numTraining": 9, "file_ending": ".nii.gz"}
    (folder / "dataset.json").write_text(json.dumps(description))
