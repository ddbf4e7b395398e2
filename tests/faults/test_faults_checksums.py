"""Flipped bits: every bit of a saved model or a checkpoint counts."""

import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from stochseg.errors import UserError
from stochseg.files import MANIFEST, verify_manifest
from stochseg.models import SegmenterConfig, StochasticSegmenter, create, load, save
from stochseg.training.average import MovingAverage
from stochseg.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from stochseg.types import DatasetInfo

FILES = (
    MANIFEST,
    "config.json",
    "model.safetensors",
    "state/model.safetensors",
    "state/optimizer.safetensors",
    "state/progress.json",
)


class Dot(StochasticSegmenter):
    """The smallest model: two weights and two biases."""

    name = "dot"
    config_type: ClassVar[type[SegmenterConfig]] = SegmenterConfig

    def __init__(self):
        super().__init__(DatasetInfo(num_classes=2, image_channels=1), SegmenterConfig())
        self.network = nn.Conv2d(1, 2, 1)


def parts():
    """Model, moving average and optimizer after one step."""
    model = Dot()
    average = MovingAverage(model, 0.9)
    optimizer = torch.optim.Adam(model.parameters())
    sum(parameter.square().sum() for parameter in model.parameters()).backward()
    optimizer.step()
    return model, average, optimizer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "last"
    save_checkpoint(folder, *parts(), Progress(step=1))
    return folder


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_every_file_has_a_checksum(checkpoint):
    listed = [line.split("  ")[1] for line in (checkpoint / MANIFEST).read_text().splitlines()[:-1]]
    assert (MANIFEST, *listed) == tuple(files_of(checkpoint)) == FILES
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet", MANIFEST], cwd=checkpoint, check=True)


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_found(checkpoint, name):
    file = checkpoint / name
    content = file.read_bytes()
    handle = os.open(file, os.O_RDWR)
    try:
        for place, byte in enumerate(content):
            for bit in range(8):
                os.pwrite(handle, bytes([byte ^ 1 << bit]), place)
                with pytest.raises(UserError, match="damaged"):
                    verify_manifest(checkpoint, only=() if name == MANIFEST else (name,))
            os.pwrite(handle, bytes([byte]), place)
    finally:
        os.close(handle)
    verify_manifest(checkpoint)


def test_a_damaged_checkpoint_is_not_loaded(checkpoint, tmp_path):
    draw = random.Random(0)
    assert load_checkpoint(checkpoint, *parts()).step == 1
    for i, name in enumerate(files_of(checkpoint) * 8):
        folder = Path(shutil.copytree(checkpoint, tmp_path / str(i)))
        flip(folder / name, draw.randrange(8 * (folder / name).stat().st_size))
        with pytest.raises(UserError, match=rf"{Path(name).name} is damaged"):
            load_checkpoint(folder, *parts())


def test_a_damaged_model_is_not_loaded(tmp_path):
    draw = random.Random(1)
    saved = save(create("unet-ce", 2, 1, base=4, multipliers=[1]), tmp_path / "model")
    for i, name in enumerate(files_of(saved) * 4):
        folder = Path(shutil.copytree(saved, tmp_path / str(i)))
        flip(folder / name, draw.randrange(8 * (folder / name).stat().st_size))
        with pytest.raises(UserError, match=rf"{name} is damaged"):
            load(folder)
    load(saved)


def test_a_file_that_is_changed_on_purpose(tmp_path):
    saved = save(create("unet-ce", 2, 1, base=4, multipliers=[1]), tmp_path / "model")
    (saved / "config.json").write_text((saved / "config.json").read_text().replace("  ", " "))
    with pytest.raises(UserError, match=rf"config\.json.*delete {MANIFEST}"):
        load(saved)
    (saved / MANIFEST).unlink()
    load(saved)


def test_a_model_that_is_replaced_while_it_is_read(tmp_path, monkeypatch):
    """The reader sees the checksums of the old model and the weights of the new one, and reads again."""
    saved = save(create("unet-ce", 2, 1, base=4, multipliers=[1]), tmp_path / "model")
    new = create("unet-ce", 2, 1, base=8, multipliers=[1])
    replaced = []

    def verify(folder, only):
        if not replaced:
            replaced.append(save(new, saved))
            raise UserError("model.safetensors is damaged")
        verify_manifest(folder, only)

    monkeypatch.setattr("stochseg.models.io.verify_manifest", verify)
    assert load(saved).config.base == 8
