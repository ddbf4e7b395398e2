"""Models for MONAI: the inferer, and bundles that MONAI's own command runs."""

import json
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from stochseg.data import DictionaryData, Phantoms, to_dictionaries
from stochseg.errors import UserError
from stochseg.inference import PredictOptions, predict
from stochseg.inference.monai import StochasticInferer, export_bundle
from tests.support.predictions import gray
from tests.support.scans import write_nifti

monai = pytest.importorskip("monai")
ROOT = Path(__file__).resolve().parents[2]


def run_bundle(bundle, file, out):
    """Run the command of MONAI in a process of its own."""
    arguments = ["--config_file", bundle / "configs/inference.json", "--bundle_root", bundle]
    arguments += ["--input", file, "--output_dir", out, "--num_samples", "3", "--device", "cpu"]
    command = [sys.executable, "-m", "monai.bundle", "run", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": f"{ROOT}/src", "PATH": ""})
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_bundle_segments_a_file_with_the_command_of_monai(model, tmp_path):
    pytest.importorskip("fire")
    bundle = export_bundle(model, tmp_path / "bundle")
    scan = np.random.default_rng(0).integers(0, 256, (3, 14, 12)).astype(np.uint8)
    file = write_nifti(
        tmp_path / "scan.nii.gz", scan, order=(2, 0, 1), flipped=(1,), affine=np.diag([-0.7, -0.8, 2.0, 1.0])
    )
    run_bundle(bundle, file, tmp_path / "monai")
    predict(model, file, tmp_path / "ours", PredictOptions(n=3, axis="axial"))
    for name in ("fused", "mean"):
        theirs = nibabel.load(tmp_path / f"monai/scan_{name}.nii.gz")
        ours = nibabel.load(tmp_path / f"ours/scan/{name}.nii.gz")
        assert np.allclose(theirs.affine, ours.affine, atol=1e-5)
        assert theirs.shape[:3] == ours.shape[:3]
    mean = np.asarray(nibabel.load(tmp_path / "monai/scan_mean.nii.gz").dataobj)
    inferred = StochasticInferer(3)(torch.from_numpy(scan).permute(2, 1, 0)[None, None].float(), model)[0]
    turned = nibabel.load(file)
    back = nibabel.as_closest_canonical(nibabel.Nifti1Image(mean, turned.affine))
    expected = inferred.permute(1, 2, 3, 0).numpy()  # x to the left, y to the back
    assert np.allclose(np.asarray(back.dataobj), expected[::-1, ::-1], atol=1e-5)
    metadata = json.loads((bundle / "configs/metadata.json").read_text())
    assert metadata["network_data_format"]["outputs"]["pred"]["num_channels"] == 2


def test_the_inferer_has_the_samples_of_the_model(model):
    raw = gray(20, 24)
    picture = torch.from_numpy(raw.T.copy())[None, None]  # MONAI: x first
    drawn = model.sample(raw, 5, seed=2)
    inferer = StochasticInferer(5, seed=2, output="samples")
    assert torch.equal(inferer(picture, model)[0].transpose(1, 2), drawn.labels[0])
    fused = StochasticInferer(5, seed=2, output="fused")(picture, model)
    assert torch.equal(fused[0, 0].T, drawn.fused()[0])
    assert isinstance(StochasticInferer(5)(monai.data.MetaTensor(picture), model), torch.Tensor)


def test_bundles_read_pictures(model, tmp_path):
    from monai.bundle import ConfigParser

    bundle = export_bundle(model, tmp_path / "bundle")
    raw = gray(20, 24)
    Image.fromarray(raw).save(tmp_path / "a.png")
    parser = ConfigParser(globals=False)
    parser.read_config(bundle / "configs/inference.json")
    parser.update({"bundle_root": str(bundle), "input": str(tmp_path / "a.png"), "output_dir": str(tmp_path)})
    parser.update({"num_samples": 4, "savers": {"mean": parser["savers"]["mean"]}, "device": "cpu"})
    (results,) = parser.get_parsed_content("run", lazy=True)
    expected = model.sample(raw, 4).mean[0]
    assert torch.allclose(results["mean"].as_tensor().transpose(1, 2), expected, atol=1e-6)


def test_other_networks_and_folders_are_refused(model, tmp_path):
    with pytest.raises(UserError, match="stochseg.wrap"):
        StochasticInferer()(torch.zeros(1, 1, 8, 8), torch.nn.Identity())
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="bundle"):
        export_bundle(model, tmp_path / "full")
    assert export_bundle(model, tmp_path / "bundle") == export_bundle(model, tmp_path / "bundle")


def test_data_sets_become_dictionaries_and_come_back():
    data = Phantoms("train", size=32, count=3)
    through = monai.data.Dataset(to_dictionaries(data), monai.transforms.FlipD(["image", "label"], 1))
    back = DictionaryData(through, data.info)
    assert len(back) == 3
    for i in range(3):
        before, after = data[i], back[i]
        assert torch.equal(before.image.flip(2), after.image)
        assert torch.equal(before.raters.flip(2), after.raters)
        assert (before.id, before.group, before.spacing) == (after.id, after.group, after.spacing)


@pytest.mark.parametrize(
    ("item", "match"),
    [
        ({"image": torch.zeros(1, 8, 8)}, "lacks label"),
        ({"image": torch.zeros(1, 8, 8), "label": torch.zeros(1, 8, 9)}, "one size"),
        ({"image": torch.zeros(1, 8, 8), "label": torch.full((1, 8, 8), 0.5)}, "whole numbers"),
    ],
)
def test_dictionaries_that_do_not_fit_are_refused(item, match):
    with pytest.raises(UserError, match=match):
        DictionaryData([item], Phantoms("train", size=32, count=1).info)[0]
