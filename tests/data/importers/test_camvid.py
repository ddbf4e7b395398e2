"""CamVid in the layout of SegNet."""

import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from stochseg.data.importers import camvid as module
from stochseg.data.importers.plans import plan_import
from stochseg.data.store import Store, write_store
from stochseg.errors import UserError

REAL = Path(__file__).resolve().parents[3].parent / "shared/data/camvid-240x180-trainval.zip"
FRAMES = {"train": ("0001TP_006690", "0016E5_00390"), "val": ("0016E5_07959",), "test": ("Seq05VD_f00000",)}


@pytest.fixture
def root(tmp_path):
    rng = np.random.default_rng(0)
    for split, frames in FRAMES.items():
        for folder in (split, f"{split}annot"):
            (tmp_path / f"SegNet/CamVid/{folder}").mkdir(parents=True)
        for frame in frames:
            image = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
            Image.fromarray(image).save(tmp_path / f"SegNet/CamVid/{split}/{frame}.png")
            labels = rng.integers(0, 12, (12, 16), dtype=np.uint8)
            Image.fromarray(labels).save(tmp_path / f"SegNet/CamVid/{split}annot/{frame}.png")
    return tmp_path / "SegNet"


def zipped(root):
    with zipfile.ZipFile(root.parent / "camvid.zip", "w") as archive:
        for file in root.rglob("*.png"):
            archive.write(file, file.relative_to(root.parent).as_posix())
    return root.parent / "camvid.zip"


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_end_to_end(root, tmp_path, form):
    plan = plan_import("camvid", zipped(root) if form == "zip" else root)
    out = write_store(plan, tmp_path / "camvid.h5")
    for split, frames in FRAMES.items():
        data = Store(split, path=str(out))
        assert {data[i].id for i in range(len(data))} == set(frames)
        for i in range(len(data)):
            labels = np.asarray(Image.open(root / f"CamVid/{split}annot/{data[i].id}.png")).astype(np.int64)
            assert torch.equal(data[i].raters, torch.from_numpy(labels)[None])
            image = np.array(Image.open(root / f"CamVid/{split}/{data[i].id}.png"))
            raw = data.info.normalization.inverse(data[i].image).permute(1, 2, 0)
            torch.testing.assert_close(raw, torch.from_numpy(image).float(), atol=1e-3, rtol=0)
    assert data.info.ignore == 11
    assert len(data.info.class_names) == 11
    assert "each frame is its own group" in data.provenance.note


def test_missing_label_map_is_named(root):
    (root / "CamVid/valannot/0016E5_07959.png").unlink()
    with pytest.raises(UserError, match=r"val/0016E5_07959\.png .*CamVid/valannot/0016E5_07959"):
        module.camvid(root)


def test_undeclared_labels_are_named(root):
    Image.fromarray(np.full((12, 16), 31, np.uint8)).save(root / "CamVid/valannot/0016E5_07959.png")
    plan = module.camvid(root)
    with pytest.raises(UserError, match=r"0016E5_07959\.png: .*0\.\.10 or 11.*\[31\]"):
        [item.read() for item in plan.items]


def test_other_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"CamVid/train/.*CamVid/trainannot"):
        module.camvid(tmp_path)


@pytest.mark.skipif(not REAL.exists(), reason="the CamVid pack is not on this machine")
def test_real_pack():
    plan = plan_import("camvid", REAL)
    assert Counter(item.split for item in plan.items) == {"train": 367, "val": 101}
    for item in plan.items[::60]:
        record = item.read()
        assert record.image.shape == (180, 240, 3)
        assert record.raters.shape == (1, 180, 240)
    sequences = {split: {i.id.split("_")[0] for i in plan.items if i.split == split} for split in ("train", "val")}
    assert sequences["train"] & sequences["val"] == {"0016E5"}, "so each frame is its own group"
