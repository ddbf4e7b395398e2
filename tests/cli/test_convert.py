"""`stochseg convert`: a checkpoint becomes a model; mistakes exit with 2 and leave nothing behind."""

from __future__ import annotations

import os

import pytest
import torch

import stochseg
from tests.support.released import layout, lidc_layout, random_state, write_checkpoint


class Code:
    """An object whose pickle would run a command."""

    def __reduce__(self):
        return os.system, ("touch pwned",)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_converted_checkpoint_opens(run, folder):
    write_checkpoint(folder / "lidc.pt", random_state(lidc_layout(), 2))
    code, out, _ = run("convert", "ccdm-lidc", "lidc.pt", "models/lidc")
    assert (code, stochseg.load("models/lidc").name) == (0, "ccdm")
    assert "stochseg predict models/lidc" in out
    code, _, messages = run("convert", "ccdm-lidc", "lidc.pt", "models/lidc")
    assert code == 2
    assert "models/lidc exists" in messages


def test_mistakes(run, folder):
    (folder / "text.pt").write_text("nothing of this is a checkpoint")
    (folder / "empty.pt").touch()
    torch.save([1, 2], folder / "list.pt")
    torch.save({"average_model": Code()}, folder / "code.pt")
    write_checkpoint(folder / "small.pt", random_state(layout(2, 1, 32, (1, 2)), 2))
    write_checkpoint(folder / "dots.pt", random_state(layout(20, 3, 64, (1, 2)), 20))
    before = sorted(folder.iterdir())
    for name, file, message in [
        ("ccdm-lidc", "absent.pt", "no file absent.pt"),
        ("ccdm-lidc", ".", "no file ."),
        ("ccdm-lidc", "text.pt", "text.pt is damaged or no file of torch.save"),
        ("ccdm-lidc", "empty.pt", "empty.pt is damaged or no file of torch.save"),
        ("ccdm-lidc", "list.pt", "average_model"),
        ("ccdm-lidc", "code.pt", "none of it was run"),
        ("ccdm-lidc", "small.pt", "missing (input_blocks"),
        ("ccdm-lidc", "dots.pt", "instead of"),
        ("ccdm-lids", "small.pt", "known: ccdm-cityscapes-dino, ccdm-lidc"),
    ]:
        code, _, messages = run("convert", name, file, "out")
        assert code == 2, file
        assert message in messages
        assert sorted(folder.iterdir()) == before, file
