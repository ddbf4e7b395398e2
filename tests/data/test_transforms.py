"""Augmentations and resizing: image and label maps move together."""

import itertools
from collections import Counter
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch

from stochseg.data import AUGMENTATIONS, PhantomVolumes, Resized, default_augmentation, flip_rotate
from stochseg.data.transforms import (
    flip_jitter,
    flip_jitter_warp,
    flip_rotate_jitter_warp,
    flip_rotate_slices,
    jitter,
    resize,
    warped_places,
)
from stochseg.types import DatasetInfo, Example

INFO = DatasetInfo(num_classes=2, image_channels=1)


def numbered(height: int, width: int, raters: int = 3) -> Example:
    """An example whose pixels have different numbers, equal in the image and each label map."""
    numbers = torch.arange(height * width).view(1, height, width)
    return Example(numbers.float(), numbers.repeat(raters, 1, 1), "numbered", "group", (0.5, 2.0))


def counted_volume(*shape: int) -> Example:
    numbers = torch.arange(int(np.prod(shape))).view(1, *shape)
    return Example(numbers.float(), numbers.repeat(2, 1, 1, 1), "numbered", "group", (2.5, 0.5, 2.0))


def moves(example: Example, tries: int) -> list[Example]:
    rng = np.random.default_rng(7)
    return [flip_rotate(example, rng, INFO) for _ in range(tries)]


@pytest.mark.parametrize("shape", [(5, 5), (4, 7), (7, 4)])
def test_image_and_all_label_maps_move_together(shape):
    for moved in moves(numbered(*shape), 30):
        for label_map in moved.raters:
            assert torch.equal(label_map, moved.image[0].long())


@pytest.mark.parametrize("shape", [(5, 5), (4, 7)])
def test_pixels_are_only_rearranged(shape):
    for moved in moves(numbered(*shape), 30):
        assert moved.image.shape == (1, *shape)
        assert torch.equal(moved.raters[0].flatten().sort().values, torch.arange(shape[0] * shape[1]))


@pytest.mark.parametrize(("shape", "expected"), [((5, 5), 8), ((4, 7), 4)])
def test_all_moves_are_reached_and_no_other(shape, expected):
    # A fair move is missed in 300 tries with probability below 8 · (7/8)^300 < 1e-16.
    seen = {tuple(moved.raters[0].flatten().tolist()) for moved in moves(numbered(*shape), 300)}
    assert len(seen) == expected


def test_neighbors_stay_neighbors_and_spacing_follows_the_axes():
    for moved in moves(numbered(6, 6), 40):
        step_down = int((moved.raters[0, 1, 0] - moved.raters[0, 0, 0]).abs())
        assert step_down in (1, 6)
        # The original has spacing 0.5 from row to row (numbers 6 apart) and 2.0 from column to column.
        assert moved.spacing == ((0.5, 2.0) if step_down == 6 else (2.0, 0.5))


@pytest.mark.parametrize(("shape", "expected"), [((3, 5, 5), 8), ((3, 4, 7), 4)])
def test_volumes_are_turned_in_plane(shape, expected):
    example = counted_volume(*shape)
    seen = set()
    for moved in moves(example, 300):
        assert torch.equal(moved.raters, moved.image.long().expand(2, *shape))
        assert torch.equal(moved.raters.flatten(2).min(2).values, example.raters.flatten(2).min(2).values)
        turned = abs(int(moved.raters[0, 0, 1, 0] - moved.raters[0, 0, 0, 0])) == 1
        assert moved.spacing == ((2.5, 2.0, 0.5) if turned else (2.5, 0.5, 2.0))
        seen.add(tuple(moved.raters[0].flatten().tolist()))
    assert len(seen) == expected


@pytest.mark.parametrize("name", sorted(AUGMENTATIONS))
def test_every_augmentation_takes_volumes(name):
    info = DatasetInfo(num_classes=2, image_channels=3, spatial_dims=3)
    example = Example(torch.rand(3, 4, 5, 5), torch.zeros(2, 4, 5, 5).long(), "a")
    moved = AUGMENTATIONS[name](example, np.random.default_rng(0), info)
    assert (moved.image.shape, moved.raters.shape) == (example.image.shape, example.raters.shape)


def test_names_and_the_original_are_kept():
    example = numbered(5, 5)
    before = example.image.clone()
    moved = moves(example, 8)[-1]
    assert (moved.id, moved.group) == ("numbered", "group")
    assert torch.equal(example.image, before)


def test_missing_spacing_stays_missing():
    example = Example(torch.zeros(1, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64), "a")
    assert all(moved.spacing is None for moved in moves(example, 8))


def test_moves_depend_on_the_generator_alone():
    first, second = moves(numbered(5, 5), 10), moves(numbered(5, 5), 10)
    assert all(torch.equal(a.image, b.image) for a, b in zip(first, second, strict=True))


def test_jitter_flips_labels_too_and_changes_colors_only():
    info = DatasetInfo(num_classes=2, image_channels=3)
    raw = torch.randint(0, 256, (3, 5, 6), generator=torch.Generator().manual_seed(0)).float()
    numbers = torch.arange(30).view(1, 5, 6)
    example = Example(info.normalization(raw), numbers, "photo")
    rng = np.random.default_rng(0)
    brightness = []
    for _ in range(60):
        moved = flip_jitter(example, rng, info)
        flipped = torch.equal(moved.raters, numbers.flip(-1))
        assert flipped or torch.equal(moved.raters, numbers)
        shown = info.normalization.inverse(moved.image)
        assert shown.min() >= -1e-3
        assert shown.max() <= 255 + 1e-3
        back = shown.flip(-1) if flipped else shown
        # Contrast and brightness keep the order of gray values: the image moved the same way as its labels.
        assert torch.corrcoef(torch.stack([back.mean(0).flatten(), raw.mean(0).flatten()]))[0, 1] > 0.8
        brightness.append(float(shown.mean() / raw.mean()))
    assert min(brightness) < 0.7
    assert max(brightness) > 1.2


def slow_jitter(raw: np.ndarray, factors, order) -> np.ndarray:
    """The published definition, pixel by pixel: blend with black, with the mean gray value, with the own gray value."""

    def gray(pixel):
        return 0.2989 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]

    height, width = raw.shape[1:]
    for kind in order:
        f = factors[kind]
        mean = sum(gray(raw[:, y, x]) for y in range(height) for x in range(width)) / (height * width)
        out = np.empty_like(raw)
        for c, y, x in itertools.product(range(3), range(height), range(width)):
            other = (0.0, mean, gray(raw[:, y, x]))[kind]
            out[c, y, x] = min(255.0, max(0.0, f * raw[c, y, x] + (1 - f) * other))
        raw = out
    return raw


FACTORS = (1.4, 0.6, 1.5)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_jitter_equals_the_published_definition_in_every_order(order):
    raw = torch.rand(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 255
    np.testing.assert_allclose(jitter(raw, FACTORS, order), slow_jitter(raw.numpy(), FACTORS, order), rtol=1e-6)


def test_jitter_equals_torchvision():
    found = find_spec("torchvision")
    if found is None:
        pytest.skip("torchvision is not installed")
    # Loaded alone: importing the package also loads its compiled operators, which may not fit torch.
    file = Path(found.origin).parent / "transforms" / "_functional_tensor.py"
    spec = spec_from_file_location("functional_tensor", file)
    ops = module_from_spec(spec)
    spec.loader.exec_module(ops)
    raw = torch.rand(3, 8, 9, generator=torch.Generator().manual_seed(0))
    steps = (ops.adjust_brightness, ops.adjust_contrast, ops.adjust_saturation)
    for order in itertools.permutations(range(3)):
        expected = raw
        for kind in order:
            expected = steps[kind](expected, FACTORS[kind])
        torch.testing.assert_close(jitter(255 * raw, FACTORS, order), 255 * expected, rtol=1e-5, atol=1e-3)


def test_jitter_has_all_orders_and_factors_from_half_to_one_and_a_half(monkeypatch):
    seen = []
    monkeypatch.setattr("stochseg.data.transforms.jitter", lambda raw, *how: seen.append(how) or raw)
    info = DatasetInfo(num_classes=2, image_channels=3)
    example, rng = Example(torch.zeros(3, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64), "a"), np.random.default_rng(0)
    for _ in range(200):
        flip_jitter(example, rng, info)
    assert {tuple(order) for _, order in seen} == set(itertools.permutations(range(3)))
    factors = np.array([factors for factors, _ in seen])
    assert factors.min() >= 0.5
    assert factors.max() <= 1.5
    assert factors.min(0).max() < 0.55
    assert factors.max(0).min() > 1.45


@pytest.mark.parametrize(
    ("channels", "orientation", "expected"),
    [
        (1, None, "flip-rotate"),
        (3, "free", "flip-rotate"),
        (3, "upright", "flip-jitter"),
        (1, "upright", "flip"),
        (3, None, "flip"),  # may be a street scene of an older store, or a microscope image
    ],
)
def test_the_default_augmentation_suits_the_data(channels, orientation, expected):
    info = DatasetInfo(num_classes=2, image_channels=channels, orientation=orientation)
    assert default_augmentation(info) == expected
    assert expected in AUGMENTATIONS


def test_flip_only_mirrors():
    example, rng = numbered(4, 7), np.random.default_rng(0)
    seen = {tuple(AUGMENTATIONS["flip"](example, rng, INFO).raters[0, 0].tolist()) for _ in range(60)}
    assert seen == {tuple(range(7)), tuple(range(6, -1, -1))}


@pytest.mark.parametrize("size", [(3, 4), (12, 16), (7, 5), (1, 1)])
def test_resize_keeps_image_and_labels_aligned(size):
    example = numbered(6, 8)
    moved = resize(example, size)
    assert moved.image.shape[-2:] == moved.raters.shape[-2:] == size
    assert set(moved.raters.flatten().tolist()) <= set(example.raters.flatten().tolist())
    assert moved.spacing == pytest.approx((0.5 * 6 / size[0], 2.0 * 8 / size[1]))
    # Each label is the pixel of the original under the center of the new one.
    rows, columns = (torch.arange(n) + 0.5 for n in size)
    expected = (rows * 6 / size[0]).long()[:, None] * 8 + (columns * 8 / size[1]).long()
    assert torch.equal(moved.raters[0], expected)
    # The numbers rise linearly, so a smooth image stays within a pixel of its labels.
    assert (moved.image[0] - moved.raters[0]).abs().max() <= 6 * 8 / 2 + 8


def test_resized_data_set_has_one_size():
    class Two:
        info = INFO

        def __len__(self):
            return 2

        def __getitem__(self, i):
            return numbered(4 + i, 6)

    data = Resized(Two(), (8, 8))
    assert [tuple(data[i].raters.shape) for i in range(len(data))] == [(3, 8, 8)] * 2
    assert data.info == INFO.model_copy(update={"size": (8, 8)})  # saved with the weights


def test_volumes_are_resized_in_plane():
    example = counted_volume(3, 4, 8)
    small = resize(example, (2, 4))
    assert small.spacing == (2.5, 1.0, 4.0)
    for i in range(3):
        plane = Example(example.image[:, i], example.raters[:, i], "a", spacing=(0.5, 2.0))
        assert torch.equal(small.raters[:, i], resize(plane, (2, 4)).raters)
        torch.testing.assert_close(small.image[:, i], resize(plane, (2, 4)).image)


# --- volumes ------------------------------------------------------------------------------------------------------


def numbered_volume(depth=6):
    """A volume whose slices hold their numbers, brighter in one corner, with the same labels."""
    image = torch.arange(depth).float().view(1, -1, 1, 1).repeat(1, 1, 4, 4)
    image[..., 0, 0] += 100
    return Example(image, image.long().expand(2, -1, -1, -1), "v", spacing=(2.5, 0.7, 0.6))


def test_slices_are_reversed_and_repeated_with_their_labels():
    info = DatasetInfo(num_classes=256, image_channels=1, spatial_dims=3)
    looks = Counter()
    for seed in range(600):
        out = flip_rotate_slices(numbered_volume(), np.random.default_rng(seed), info)
        assert torch.equal(out.image.long().expand(2, -1, -1, -1), out.raters)
        assert out.spacing in ((2.5, 0.7, 0.6), (2.5, 0.6, 0.7))
        looks[tuple(int(x) for x in out.image[0].amin((-2, -1)))] += 1
    plain, turned = looks[0, 1, 2, 3, 4, 5], looks[5, 4, 3, 2, 1, 0]
    assert 190 < plain < 260
    assert 190 < turned < 260
    single = [looks[(k,) * 6] for k in range(6)]
    assert min(single) > 0
    assert 45 < sum(single) < 110
    doubled = [looks[k, k, k + 1, k + 1, k + 2, k + 2] + looks[k + 2, k + 2, k + 1, k + 1, k, k] for k in range(4)]
    assert min(doubled) > 0
    assert plain + turned + sum(single) + sum(doubled) == 600


def test_rows_of_an_image_are_not_its_slices():
    image = numbered(6, 6)
    for seed in range(20):
        out, turned = (move(image, np.random.default_rng(seed), INFO) for move in (flip_rotate_slices, flip_rotate))
        assert torch.equal(out.image, turned.image)
        assert torch.equal(out.raters, turned.raters)


def test_volumes_get_the_augmentation_of_volumes():
    info = DatasetInfo(num_classes=2, image_channels=1, spatial_dims=3, orientation="free")
    assert default_augmentation(info) == "flip-rotate-slices"


# --- warps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", [flip_jitter_warp, flip_rotate_jitter_warp])
def test_warps_move_image_and_maps_together(augment):
    """An image that shows its own label map still does, except at the edge of the object, where it is blurred."""
    info = DatasetInfo(num_classes=3, image_channels=3)
    rows, columns = np.mgrid[:48, :64]
    maps = torch.from_numpy(((rows - 20) ** 2 + (columns - 30) ** 2 < 200).astype(np.int64) * 2)[None]
    image = info.normalization(100.0 * maps[0].float().expand(3, -1, -1))
    rng, moved = np.random.default_rng(0), 0
    for _ in range(8):
        warped = augment(Example(image, maps, "a"), rng, info)
        assert warped.raters.dtype == torch.int64
        assert set(warped.raters.unique().tolist()) == {0, 2}
        bright = warped.image[0] > (warped.image[0].max() + warped.image[0].min()) / 2
        assert (bright == (warped.raters[0] > 0)).float().mean() > 0.98
        moved += bool((warped.raters != maps).any())
    assert moved == 8


def test_a_warp_without_bend_is_a_turn_and_a_scale_in_pixels(monkeypatch):
    """Angles are true on images that are not square."""
    monkeypatch.setattr("stochseg.data.transforms.BEND", 0.0)
    places = warped_places((48, 96), np.random.default_rng(3))[0].double() * torch.tensor([48.0, 24.0])
    right, down = places[5, 6] - places[5, 5], places[6, 5] - places[5, 5]
    torch.testing.assert_close(right.norm(), down.norm(), rtol=1e-4, atol=1e-4)
    assert abs(right @ down) < 1e-4
    assert 0.8 <= right.norm() <= 1.25
    assert torch.atan2(right[1], right[0]).abs() <= np.pi / 12


def test_volumes_are_not_warped():
    example = PhantomVolumes("train", size=16, slices=3, count=1)[0]
    info = DatasetInfo(num_classes=2, image_channels=1, spatial_dims=3)
    warped = flip_jitter_warp(example, np.random.default_rng(0), info)
    assert torch.equal(warped.raters.sum((1, 2, 3)), example.raters.sum((1, 2, 3)))
