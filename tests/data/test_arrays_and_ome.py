"""Arrays of numpy as images and label maps, and pixel sizes of OME-TIFF."""

import numpy as np
import pytest
import tifffile

from stochseg.data.folder import Folder, init_folder
from stochseg.errors import UserError
from stochseg.inference import GatherOptions, gather
from stochseg.inference.sources import read_stack


def test_a_folder_of_arrays(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(3):
        for part in ("images", "labels/ana"):
            (tmp_path / part).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / f"images/p{i}.npy", rng.normal(size=(8, 9)))
        np.savez(tmp_path / f"labels/ana/p{i}.npz", rng.integers(0, 2, (8, 9)).astype(np.uint8))
    init_folder(tmp_path)
    data = Folder("train", root=str(tmp_path))
    with np.load(tmp_path / f"labels/ana/{data.ids[0]}.npz") as stored:
        assert (data[0].raters[0].numpy() == stored["arr_0"]).all()
    assert data[0].image.shape == (1, 8, 9)


def test_arrays_of_objects_and_volumes_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match="cannot be read"):
        read_stack([tmp_path / "a.npy"])
    np.save(tmp_path / "b.npy", np.zeros((20, 30, 40), np.float32))
    with pytest.raises(UserError, match="save it as NIfTI"):
        read_stack([tmp_path / "b.npy"])


@pytest.mark.parametrize(("unit", "factor"), [("µm", 1e-3), ("mm", 1.0)])
@pytest.mark.parametrize("shape", [(8, 10), (8, 10, 4)])
def test_ome_states_the_size_of_pixels(tmp_path, unit, factor, shape):
    axes = {"axes": "YXS"[: len(shape)], "PhysicalSizeX": 0.5, "PhysicalSizeY": 0.25}
    axes |= {"PhysicalSizeXUnit": unit, "PhysicalSizeYUnit": unit}
    tifffile.imwrite(tmp_path / "a.ome.tif", np.zeros(shape, np.uint8), metadata=axes, ome=True)
    stack = read_stack([tmp_path / "a.ome.tif"])
    assert stack.pixel == pytest.approx((0.25 * factor, 0.5 * factor))


def test_results_of_ome_are_ome(tmp_path):
    metadata = {"axes": "YX", "PhysicalSizeX": 0.5, "PhysicalSizeY": 0.25}
    tifffile.imwrite(tmp_path / "a.ome.tif", np.zeros((8, 10), np.uint8), metadata=metadata, ome=True)
    for i in range(2):
        np.save(tmp_path / f"{i}.npy", np.full((8, 10), i, np.uint8))
    files = [tmp_path / "0.npy", tmp_path / "1.npy"]
    (outcome,) = gather(files, tmp_path / "out", tmp_path / "a.ome.tif", GatherOptions(classes=("rest", "cell")))
    assert outcome.status == "done", outcome.problem
    with tifffile.TiffFile(outcome.folder / "mean.tif") as file:
        assert file.is_ome
        assert 'PhysicalSizeX="0.5"' in file.ome_metadata
        assert 'Name="cell"' in file.ome_metadata
        assert file.asarray().shape == (2, 8, 10)
    assert tifffile.imread(outcome.folder / "samples.tif").shape == (2, 8, 10)
