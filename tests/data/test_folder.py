"""A folder of PNG files as a data set."""

import json

import numpy as np
import torch
import yaml
from PIL import Image

from stochseg.data import Folder, open_dataset
from stochseg.types import Batch


def values(file) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(file)).astype(np.int64))


def test_examples_hold_what_the_files_hold(folder_root):
    example = Folder("train", root=str(folder_root))[0]
    assert example.id == "a"
    torch.testing.assert_close(example.image[0], (values(folder_root / "images/a.png") - 127.5) / 127.5)
    raters = [values(folder_root / f"labels/{rater}/a.png") for rater in ("anna", "ben")]
    assert torch.equal(example.labels, torch.stack(raters))


def test_a_rater_may_lack_an_image(folder_root):
    data = Folder("train", root=str(folder_root))
    assert [len(data[i].labels) for i in range(2)] == [2, 1]
    batch = Batch.collate([data[0], data[1]], data.info.ignore)
    assert torch.equal(batch.labels[1, 0], batch.labels[1, 1])
    assert not batch.mask[..., 0, :3].any()
    assert batch.mask[..., 1:, :].all()


def test_palette_labels_are_read_as_indices(folder_root):
    file = folder_root / "labels/anna/a.png"
    picture = Image.fromarray(np.array(Image.open(file)), mode="P")
    picture.putpalette([value // 2 for value in range(256) for _ in "rgb"])
    before = Folder("train", root=str(folder_root))[0].labels
    picture.save(file)
    assert Image.open(file).mode == "P"
    assert torch.equal(Folder("train", root=str(folder_root))[0].labels, before)


def colour(root):
    info = yaml.safe_load((root / "dataset.yaml").read_text())
    (root / "dataset.yaml").write_text(yaml.safe_dump({**info, "image_channels": 3}))


def test_palette_images_are_read_as_colours(folder_root):
    colour(folder_root)
    indices = np.random.default_rng(0).integers(0, 2, (8, 8), dtype=np.uint8)
    picture = Image.fromarray(indices, mode="P")
    picture.putpalette([17, 18, 19, 200, 0, 0])
    picture.save(folder_root / "images/a.png")
    example = Folder("train", root=str(folder_root))[0]
    expected = np.array([[17, 18, 19], [200, 0, 0]], np.float32)[indices].transpose(2, 0, 1)
    torch.testing.assert_close(example.image, (torch.from_numpy(expected) - 127.5) / 127.5)


def test_colour_and_sixteen_bit_images(folder_root):
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    Image.fromarray(deep).save(folder_root / "images/a.png")
    image = Folder("train", root=str(folder_root))[0].image
    torch.testing.assert_close(image[0], (torch.from_numpy(deep.astype(np.float32)) - 127.5) / 127.5)
    colour(folder_root)
    rgb = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(rgb).save(folder_root / "images/a.png")
    image = Folder("train", root=str(folder_root))[0].image
    torch.testing.assert_close(image, (torch.from_numpy(rgb).permute(2, 0, 1).float() - 127.5) / 127.5)


def test_other_split_names_are_allowed(folder_root):
    (folder_root / "splits.json").write_text(json.dumps({"fold-1": ["a", "b"], "fold-2": ["c"]}))
    assert len(open_dataset("folder", "fold-1", root=str(folder_root))) == 2
