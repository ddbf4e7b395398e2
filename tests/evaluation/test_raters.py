"""Agreement of the raters of a data set, compared with computations by hand and with known habits."""

import numpy as np
import pytest
import torch
from PIL import Image

from stochseg.data.example import write_example_folder
from stochseg.data.folder import init_folder
from stochseg.errors import UserError
from stochseg.evaluation.raters import compare_raters, measure_raters
from stochseg.metrics.agreement import count_votes, surface_distance
from stochseg.types import DatasetInfo, Example

INFO = DatasetInfo(num_classes=3, image_channels=1)


def example(id, maps, group="", names=("ana", "ben", "chi"), spacing=(0.5, 2.0)):
    maps = torch.as_tensor(np.asarray(maps), dtype=torch.int64)
    return Example(torch.zeros(1, *maps.shape[1:]), maps, id, group or id, spacing, names[: len(maps)])


def random_maps(seed, k=3):
    rng = np.random.default_rng(seed)
    truth = np.kron(rng.integers(0, 3, (3, 4)), np.ones((4, 3), int))
    return np.where(rng.random((k, *truth.shape)) < 0.2, rng.integers(0, 3, (k, *truth.shape)), truth)


def test_pairs_are_those_of_a_computation_by_hand():
    cases = {f"p{i}": random_maps(i) for i in range(4)}
    report = measure_raters([example(id, maps) for id, maps in cases.items()], INFO)
    for label in (1, 2):
        dice, distance = [], []
        for maps in cases.values():
            pairs = [(maps[i] == label, maps[j] == label) for i, j in ((0, 1), (0, 2), (1, 2))]
            dice.append(np.mean([2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in pairs]))
            distance.append(np.mean([surface_distance(a, b, (0.5, 2.0)) for a, b in pairs]))
        assert report.agreement("dice", label).value == pytest.approx(np.mean(dice))
        assert report.agreement("distance", label).value == pytest.approx(np.mean(distance))
        found = report.agreement("iou", label)
        assert found.low < found.value < found.high
    one = [2 * ((m[0] == 1) & (m[2] == 1)).sum() / ((m[0] == 1).sum() + (m[2] == 1).sum()) for m in cases.values()]
    assert report.agreement("dice", 1, ("ana", "chi")).value == pytest.approx(np.mean(one))


def test_kappa_pools_the_pixels_of_all_images():
    cases = [random_maps(i) for i in range(3)]
    report = measure_raters([example(str(i), maps) for i, maps in enumerate(cases)], INFO)
    pooled = count_votes(np.concatenate([maps.reshape(3, -1) for maps in cases], 1), 3)
    assert report.kappa().value == pytest.approx(pooled.kappa)
    assert report.kappa(2).value == pytest.approx(pooled.kappa_per_class[2])


def test_habits_are_found():
    """ana draws half as much as the others, chi calls class 1 class 2."""
    examples = []
    for i in range(6):
        plain = np.zeros((10, 12), int)
        plain[2:6, 2 : 6 + i % 2] = 1
        small, other = plain.copy(), np.where(plain == 1, 2, 0)
        small[4:] = 0
        examples.append(example(f"p{i}", [small, plain, plain, other], names=("ana", "ben", "dan", "chi")))
    report = measure_raters(examples, INFO)
    assert report.confusion_of("chi")[1].tolist() == [0, 0, 1]
    assert report.confusion_of("ana")[1].tolist() == pytest.approx([0.5, 0.5, 0])
    assert report.confusion_of("ben")[1, 1] == 1
    bias = report.bias("ana", 1)
    assert bias.value == pytest.approx(0.5 / (2 / 3) - 1)
    assert bias.low <= bias.value <= bias.high
    assert report.bias("chi", 2).value == np.inf or np.isnan(report.bias("chi", 2).value)


def test_intervals_resample_patients_not_images():
    maps = [random_maps(0), random_maps(1)]
    alone = measure_raters([example(f"p{i}", maps[i % 2], group=f"g{i}") for i in range(40)], INFO)
    paired = measure_raters([example(f"p{i}", maps[i % 2], group=f"g{i % 2}") for i in range(40)], INFO)
    narrow, wide = (r.agreement("dice", 1) for r in (alone, paired))
    assert narrow.value == pytest.approx(wide.value)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_void_and_empty_maps():
    info = INFO.model_copy(update={"ignore": 255})
    empty, void = np.zeros((4, 4), int), np.full((4, 4), 255)
    half = np.where(np.arange(16).reshape(4, 4) < 8, 1, 255)
    report = measure_raters([example("a", [empty, empty]), example("b", [half, half])], info)
    assert report.agreement("dice", 1).value == 1
    assert np.isnan(report.agreement("dice", 2).value)
    assert measure_raters([example("c", [void])], info).images == 0


def test_the_command_writes_a_page(tmp_path, run):
    root = write_example_folder(tmp_path / "mine", count=9, size=24)
    init_folder(root)
    code, out, _ = run("data", "raters", root, "--out", tmp_path / "page.html")
    assert code == 0
    assert "Fleiss" in out
    page = (tmp_path / "page.html").read_text()
    assert all(name in page for name in ("ana", "ben", "chi", "Dice of two raters", "compared with the mean"))
    report = compare_raters(root)
    assert f"{report.agreement('dice', 1).value:.3f}" in page


def test_distances_are_in_pixels_unless_all_images_state_their_spacing():
    maps = random_maps(0, 2)
    report = measure_raters([example("a", maps), example("b", maps, spacing=None)], INFO)
    assert not report.in_mm
    assert report.agreement("distance", 1).value == pytest.approx(surface_distance(*(maps == 1)))


def test_raters_who_mark_nothing_have_a_page(tmp_path, run):
    root = write_example_folder(tmp_path / "mine", count=9, size=24)
    init_folder(root)
    for file in root.glob("labels/*/*.png"):
        Image.fromarray(np.zeros((24, 24), np.uint8)).save(file)
    assert run("data", "raters", root, "--out", tmp_path / "page.html")[0] == 0
    assert "least agreement" not in (tmp_path / "page.html").read_text()


def test_one_rater_is_an_error(tmp_path):
    root = write_example_folder(tmp_path / "mine", count=8, size=16)
    for rater in ("ben", "chi"):
        for file in (root / "labels" / rater).iterdir():
            file.unlink()
    for file in (root / "images").iterdir():
        if not (root / "labels/ana" / file.name).exists():
            file.unlink()
    init_folder(root)
    with pytest.raises(UserError, match="no image has two raters"):
        compare_raters(root)
