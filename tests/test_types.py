"""Samples, Batch and DatasetInfo against plain loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from stochseg.errors import UserError
from stochseg.types import Batch, DatasetInfo, Example, Normalization, Samples

B, N, L, H, W = 2, 5, 3, 4, 6


@pytest.fixture
def samples() -> Samples:
    weights = torch.rand(B, N) + 0.1
    return Samples(
        labels=torch.randint(L, (B, N, H, W)),
        mean=torch.rand(B, L, H, W).softmax(1),
        weights=weights / weights.sum(1, keepdim=True),
        seed=7,
    )


def pixels():
    return [(b, y, x) for b in range(B) for y in range(H) for x in range(W)]


def test_frequency_is_the_weighted_share(samples):
    for b, y, x in pixels():
        for label in range(L):
            share = sum(samples.weights[b, i].item() for i in range(N) if samples.labels[b, i, y, x] == label)
            assert samples.frequency[b, label, y, x].item() == pytest.approx(share, abs=1e-6)


def test_entropy_is_in_nats_and_zero_where_certain(samples):
    for b, y, x in pixels():
        p = samples.mean[b, :, y, x].tolist()
        assert samples.entropy[b, y, x].item() == pytest.approx(-sum(q * math.log(q) for q in p), abs=1e-5)
    certain = replace(samples, mean=torch.eye(L)[0].view(1, L, 1, 1).expand_as(samples.mean))
    assert (certain.entropy == 0).all()


def test_fused_by_mean_and_by_weighted_vote(samples):
    for b, y, x in pixels():
        assert samples.fused()[b, y, x] == max(range(L), key=lambda k: samples.mean[b, k, y, x])
        votes = [0.0] * L
        for i in range(N):
            votes[samples.labels[b, i, y, x]] += samples.weights[b, i].item()
        assert votes[samples.fused("vote")[b, y, x]] == pytest.approx(max(votes))
    with pytest.raises(UserError, match="unknown rule 'median'; known: mean, vote"):
        samples.fused("median")


def test_to_keeps_everything(samples):
    moved = samples.to("cpu")
    assert (moved.seed, moved.evaluations, moved.num_classes) == (7, 1, L)
    assert torch.equal(moved.labels, samples.labels)


def example(k, size=(4, 4), fill=None):
    labels = torch.arange(k)[:, None, None].expand(k, *size).clone() if fill is None else torch.full((k, *size), fill)
    return Example(torch.zeros(1, *size), labels, id=f"{k}")


def test_collate_pads_raters_and_says_how_many_are_real():
    batch = Batch.collate([example(2), example(5), example(1)])
    assert batch.raters[:, :, 0, 0].tolist() == [[0, 1, 0, 0, 0], [0, 1, 2, 3, 4], [0, 0, 0, 0, 0]]
    assert batch.rater_count.tolist() == [2, 5, 1]
    assert batch.ids == ("2", "5", "1")
    assert batch.mask is None


def test_collate_turns_void_into_a_mask():
    batch = Batch.collate([example(2), example(1, fill=255)], ignore=255)
    assert batch.mask[0].all()
    assert not batch.mask[1, 0].any()
    assert (batch.raters[1] == 0).all()


def test_normalization_and_its_inverse():
    raw = torch.randint(0, 256, (3, 4, 5), dtype=torch.uint8)
    norm = Normalization(mean=(10.0, 20.0, 30.0), std=(1.0, 2.0, 3.0))
    for c in range(3):
        torch.testing.assert_close(norm(raw)[c], (raw[c].float() - 10 * (c + 1)) / (c + 1))
    torch.testing.assert_close(norm.inverse(norm(raw)), raw.float())


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"class_names": ["a"]}, "class_names has 1 entries, expected 3"),
        ({"palette": ["#000000"]}, "palette has 1 entries, expected 3"),
        ({"normalization": {"mean": [1.0, 2.0, 3.0, 4.0]}}, "normalization.mean has 4 entries, expected 2 or 1"),
        ({"ignore": 1}, "ignore 1 is one of the 3 classes"),
        ({"num_classes": 1}, "'num_classes'.*greater than or equal to 2; got 1"),
        ({"normalization": {"men": [1.0]}}, "unknown key 'normalization.men'; known keys: mean, std"),
    ],
)
def test_info_that_contradicts_itself_is_refused(wrong, says):
    with pytest.raises(UserError, match=f"scan.yaml: .*{says}"):
        DatasetInfo.parse({"num_classes": 3, "image_channels": 2, **wrong}, where="scan.yaml")


def test_every_class_has_a_name_and_a_color():
    info = DatasetInfo(num_classes=30, image_channels=1)
    assert len(set(info.names)) == len(info.colors) == 30


INFO = DatasetInfo(num_classes=L, image_channels=1, class_names=("air", "bone", "fat"), ignore=255)


def test_saving_and_loading_keeps_everything(samples, tmp_path):
    kept = replace(samples, info=INFO, evaluations=5)
    again = Samples.load(kept.save(tmp_path / "new" / "samples.npz"))
    for name in ("labels", "mean", "weights"):
        assert torch.equal(getattr(again, name), getattr(kept, name))
        assert getattr(again, name).dtype == getattr(kept, name).dtype
    assert (again.seed, again.evaluations, again.info) == (7, 5, INFO)
    assert again.class_names == INFO.class_names
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["samples.npz"]
    assert Samples.load(samples.save(tmp_path / "plain.npz")).info is None


def test_files_that_hold_no_samples_are_refused(samples, tmp_path):
    with pytest.raises(UserError, match=r"\.npz.*samples\.txt"):
        samples.save(tmp_path / "samples.txt")
    with pytest.raises(UserError, match="missing"):
        Samples.load(tmp_path / "missing.npz")
    whole = samples.save(tmp_path / "whole.npz").read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2]):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(UserError, match=r"bad\.npz.*Samples\.save"):
            Samples.load(tmp_path / "bad.npz")


def test_indexing_takes_images(samples):
    for index in (0, 1, -1):
        one = samples[index]
        assert len(one) == 1
        assert torch.equal(one.labels[0], samples.labels[index])
        assert torch.equal(one.mean[0], samples.mean[index])
        assert torch.equal(one.weights[0], samples.weights[index])
    assert torch.equal(samples[:].labels, samples.labels)
    assert len([one.fused() for one in samples]) == B
    with pytest.raises(IndexError, match="2 of samples of 2"):
        samples[2]


@pytest.mark.parametrize("space", [(7,), (2, 3, 4)])
def test_any_number_of_dimensions(samples, space):
    """Statistics of volumes and lines are those of the same pixels in two dimensions."""
    count = math.prod(space)
    flat = Samples(torch.randint(L, (B, N, 1, count)), torch.rand(B, L, 1, count).softmax(1), samples.weights, 0)
    shaped = Samples(flat.labels.view(B, N, *space), flat.mean.view(B, L, *space), flat.weights, 0)
    assert torch.equal(shaped.frequency.flatten(2), flat.frequency.flatten(2))
    assert torch.equal(shaped.entropy.flatten(1), flat.entropy.flatten(1))
    assert torch.equal(shaped.fused("vote").flatten(1), flat.fused("vote").flatten(1))
    assert "×".join(map(str, space)) in repr(shaped)


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({"labels": torch.zeros(B, N, H, W)}, "int64.*float32"),
        ({"labels": torch.zeros(B, N, H, W, dtype=torch.uint8)}, "int64.*uint8"),
        ({"mean": torch.zeros(B, L, H, W + 1)}, r"\*space.*4, 7"),
        ({"weights": torch.zeros(B, N + 1)}, "weights.*2, 6"),
        ({"info": DatasetInfo(num_classes=2, image_channels=1)}, "2 classes.*3"),
    ],
)
def test_parts_that_do_not_fit_are_refused(samples, change, keys):
    with pytest.raises(UserError, match=keys):
        replace(samples, **change)


@pytest.mark.parametrize("window", [((1, 3), (2, 5)), ((0, 4), (2, 6)), ((0, 3), (0, 6)), None])
def test_samples_that_are_cut_off_touch_a_border_of_the_window_inside_the_image(samples, window):
    inside = torch.zeros(H, W, dtype=torch.bool)
    (top, bottom), (left, right) = window or ((0, H), (0, W))
    inside[top:bottom, left:right] = True
    labels = samples.labels.where(inside & (torch.rand(B, N, H, W) < 0.2), 0)
    drawn = replace(samples, labels=labels, window=window)
    for b in range(B):
        for i in range(N):
            touching = False
            for y, x in labels[b, i].nonzero().tolist():
                around = [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
                touching |= any(0 <= u < H and 0 <= v < W and not inside[u, v] for u, v in around)
            assert bool(drawn.cut_off[b, i]) == touching


def test_the_window_is_saved_and_must_lie_inside_the_image(samples, tmp_path):
    drawn = replace(samples, window=((1, 3), (2, 5)))
    assert Samples.load(drawn.save(tmp_path / "a.npz")).window == drawn.window
    assert drawn[0].window == drawn.window
    for wrong in (((0, 9), (0, 2)), ((0, 2),), ((2, 2), (0, 3))):
        with pytest.raises(UserError, match="window"):
            replace(samples, window=wrong)


@pytest.mark.parametrize("count", [2, 8, 9, 40])
def test_every_class_has_a_color_of_its_own(count):
    colors = DatasetInfo(num_classes=count, image_channels=1).colors
    assert len(set(colors)) == len(colors) == count


def test_intensities_must_fit_the_channels():
    four = {"lowest": [0, 0], "highest": [1, 1], "darkest": [0, 0], "span": [1, 1]}
    with pytest.raises(UserError, match="intensities.lowest has 2 entries"):
        DatasetInfo.parse({"num_classes": 2, "image_channels": 3, "intensities": four})
    info = DatasetInfo.parse({"num_classes": 2, "image_channels": 2, "intensities": four})
    assert DatasetInfo.parse(info.model_dump(mode="json")) == info
    assert "intensities" not in DatasetInfo(num_classes=2, image_channels=1).model_dump()


LABELS = np.random.default_rng(0).integers(0, 3, (5, 4, 6, 7))
SOFT = np.random.default_rng(0).dirichlet([1, 1, 1], (5, 6, 7)).transpose(0, 3, 1, 2)


@pytest.mark.parametrize(
    "change",
    [lambda x: x[..., ::-1], lambda x: x.astype(x.dtype.newbyteorder(">")), lambda x: [torch.tensor(m) for m in x]],
    ids=["flipped", "big-endian", "list of tensors"],
)
def test_arrays_of_any_memory_order_become_samples(change):
    labels, soft = change(LABELS[:, 0]), change(SOFT)
    drawn = Samples.from_labels(labels)
    assert (drawn.labels[0].numpy() == np.stack([np.asarray(each) for each in labels])).all()
    drawn = Samples.from_probabilities(soft)
    assert np.allclose(drawn.mean[0].numpy(), np.stack([np.asarray(each) for each in soft]).mean(0), atol=1e-6)


def test_label_maps_of_one_volume_are_recognized_by_the_info():
    info = DatasetInfo(num_classes=3, image_channels=1, spatial_dims=3)
    drawn = Samples.from_labels(LABELS, info=info)
    assert (drawn.labels[0].numpy() == LABELS).all()
    with pytest.raises(UserError, match="from_labels: expected integers"):
        Samples.from_labels(LABELS[0], info=info)


def test_probabilities_slightly_outside_0_and_1_have_an_entropy():
    soft = np.stack([np.full((3, 3), 1.004), np.full((3, 3), -0.004)])[None]
    assert (Samples.from_probabilities(soft).entropy == 0).all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Samples.from_labels(LABELS[:, 0], weights=[1, 1, math.inf, 1, 1]), "weights: expected finite"),
        (lambda: Samples.from_labels([np.zeros((4, 4), int), np.zeros((4, 5), int)]), "of one shape"),
        (lambda: Samples.from_labels(None), "from_labels: expected"),
        (lambda: Samples.from_labels(LABELS[:, 0] * 10**12), "expected labels 0..65534"),
        (lambda: Samples.from_probabilities(SOFT[:0]), "from_probabilities: expected floats"),
    ],
)
def test_maps_that_are_no_samples_are_refused(make, says):
    with pytest.raises(UserError, match=says):
        make()
