"""A package that pip installs adds a model, a data set, an importer and an engine."""

import base64
import hashlib
import os
import subprocess
import sys
import zipfile

PLUGIN = '''
import torch
from stochseg.data import Phantoms
from stochseg.inference.engines import eager
from stochseg.models import SegmenterConfig, StochasticSegmenter
from stochseg.models.sampling import Drawing, Drawn


class Coin(StochasticSegmenter):
    """Every sample is one label everywhere, drawn with equal probabilities."""

    def __init__(self, info, config):
        super().__init__(info, config)
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def drawing(self, image, keys, options):
        def draw(rows, noise, report):
            label = (noise.uniform((len(rows.image), 1))[:, 0] * self.num_classes).long()
            report(0)
            one_hot = torch.nn.functional.one_hot(label, self.num_classes).float()
            return Drawn(one_hot[..., None, None].expand(-1, -1, *image.shape[2:]))

        return Drawing(draw)


def tiny_phantoms(split):
    return Phantoms(split, size=8, count=2)


def importer(source):
    raise ValueError(f"read {source.name}")


def engine(model):
    return eager(model)
'''
ENTRY_POINTS = """
[stochseg.models]
coin = coin_plugin:Coin
[stochseg.datasets]
tiny-phantoms = coin_plugin:tiny_phantoms
[stochseg.importers]
coin-files = coin_plugin:importer
[stochseg.engines]
coin-engine = coin_plugin:engine
"""
USE = """
from pathlib import Path
import stochseg
from stochseg.data import IMPORTERS, open_dataset
from stochseg.inference import ENGINES, with_engine
assert "coin" in stochseg.list_models()
model = stochseg.create("coin", 3)
data = open_dataset("tiny-phantoms", "train")
samples = with_engine(model, "coin-engine").sample(data[0].image[None], 50)
assert model.name == "coin" and samples.labels.unique().tolist() == [0, 1, 2]
assert "coin-files" in IMPORTERS and "coin-engine" in ENGINES
saved = stochseg.save(model, Path("saved"))
assert stochseg.load(saved).name == "coin"
print("works")
"""


def wheel(folder):
    """A wheel of the plugin, as a build tool would write it."""
    file = folder / "coin_plugin-1.0-py3-none-any.whl"
    content = {
        "coin_plugin.py": PLUGIN,
        "coin_plugin-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: coin-plugin\nVersion: 1.0\n",
        "coin_plugin-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "coin_plugin-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
    }
    with zipfile.ZipFile(file, "w") as archive:
        record = ""
        for name, text in content.items():
            archive.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(text.encode())}\n"
        archive.writestr("coin_plugin-1.0.dist-info/RECORD", record + "coin_plugin-1.0.dist-info/RECORD,,\n")
    return file


def test_installed_package_extends_every_registry(tmp_path):
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*pip, str(wheel(tmp_path))], check=True, capture_output=True)
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    out = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.stdout.strip() == "works", out.stderr
