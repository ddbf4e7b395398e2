"""Samples, Batch and DatasetInfo against plain loops."""

import math
from dataclasses import replace

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
