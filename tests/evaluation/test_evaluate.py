"""Evaluation of models whose scores are known exactly."""

import csv
import json
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

from stochseg.data import Phantoms
from stochseg.errors import UserError
from stochseg.evaluation import evaluate, evaluations_curve, table, write_results
from stochseg.metrics import ged, hm_iou
from stochseg.models import StochasticSegmenter, create
from stochseg.models.config import SegmenterConfig
from stochseg.models.intensities import with_intensities
from stochseg.models.sampling import Drawing, Drawn, SamplingOptions
from stochseg.types import DatasetInfo, Example, Normalization


class Known(StochasticSegmenter):
    """A model without a network; the test determines its samples."""

    name: ClassVar[str] = "known"

    def __init__(self, info):
        super().__init__(info, SegmenterConfig())
        self.anchor = torch.nn.Parameter(torch.zeros(()))  # gives the model a device

    def draw_these(self, labels, mean, evaluations=1):
        """Draw these label maps "n h w" as the samples of one image."""
        probabilities = F.one_hot(labels, self.num_classes).movedim(-1, 1).float()
        return Drawing(
            lambda rows, *_: Drawn(probabilities[rows.sample], labels[rows.sample], evaluations), mean=mean[None]
        )


class Oracle(Known):
    """Samples the true distribution of the phantom that it recognizes."""

    def __init__(self, data: Phantoms):
        super().__init__(data.info)
        self.data = data

    def drawing(self, image, keys, options):
        index = next(i for i in range(len(self.data)) if torch.equal(self.data[i].image, image[0]))
        truth = self.data.truth(index)
        one_hot = F.one_hot(truth.modes, self.num_classes).permute(0, 3, 1, 2).float()
        mean = torch.einsum("m,mlhw->lhw", truth.probabilities.float(), one_hot)
        return self.draw_these(self.data.draw(index, options.n, options.seed + 1), mean)


class Blank(Known):
    """Predicts background everywhere, with certainty."""

    def drawing(self, image, keys, options, evaluations=1):
        labels = torch.zeros(options.n, *image.shape[-2:], dtype=torch.int64)
        mean = F.one_hot(labels[0], self.num_classes).permute(2, 0, 1).float()
        return self.draw_these(labels, mean, evaluations)


class Squares:
    """Images with two raters: one marks nothing, one a square of a quarter of the image."""

    def __init__(self, count=3, void=False):
        self.info = DatasetInfo(name="squares", num_classes=2, image_channels=1, ignore=255 if void else None)
        self.count, self.void = count, void

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        labels = torch.zeros(2, 8, 8, dtype=torch.int64)
        labels[1, :4, :4] = 1
        if self.void:
            labels[1, :2, :4] = 255
        return Example(torch.full((1, 8, 8), float(i)), labels, f"square-{i}")


@pytest.fixture(scope="module")
def perfect():
    data = Phantoms("test", size=16, variant="multiclass", count=30)
    return evaluate(Oracle(data), data, options=SamplingOptions(n=100))


def test_samples_of_the_true_distribution_have_perfect_scores(perfect):
    m = perfect.metrics
    # The unbiased estimate from 30 images of 100 samples has a standard deviation of 0.0004.
    assert m["ged_truth_unbiased"] == pytest.approx(0, abs=0.002)
    assert m["mode_iou"] == pytest.approx(1)
    # The frequencies of 100 samples of 4 modes have a total variation of about 0.06.
    assert m["mode_tv"] < 0.1
    assert m["ece"] < 0.05
    assert m["ged_16"] > m["ged_100"] > m["ged_unbiased"]
    assert perfect.modes.names == ("nothing", "core", "core and halo", "all solid")
    assert perfect.modes.truth.shape == perfect.modes.frequency.shape == (30, 4)
    assert perfect.modes.frequency.sum(1) == pytest.approx(1)


def test_scores_of_a_constant_model_equal_those_computed_by_hand():
    m = evaluate(Blank(Squares().info), Squares(), options=SamplingOptions(n=20)).metrics
    # d(sample, rater) is 0 or 1 with equal probability, and so is d(rater, rater').
    for key in ("ged_16", "ged_20", "ged_unbiased", "hm_iou_16", "hm_iou_20"):
        assert m[key] == pytest.approx(0.5), key
    assert m["diversity_16"] == m["diversity_unbiased"] == pytest.approx(0)
    assert m["miou"] == pytest.approx((112 / 128 + 0) / 2)
    assert m["ece"] == pytest.approx(16 / 128)
    assert m["brier"] == pytest.approx(2 * 16 / 128)
    assert m["evaluations_per_sample"] == 1
    assert not any(key.startswith("mode") or "truth" in key for key in m)


def test_latin_samples_have_no_unbiased_scores_and_no_scores_of_fewer_samples():
    model = create("ccdm-fast", 2, 1, tower=[4], light=[4], num_timesteps=4, evaluations=2)
    data = Phantoms("test", size=16, count=2)
    free, latin = (
        evaluate(model, data, options=SamplingOptions(n=20, noise=noise)).metrics for noise in ("independent", "latin")
    )
    assert free.keys() - latin.keys() == {
        *("ged_unbiased", "ged_truth_unbiased", "diversity_unbiased", "ged_16", "hm_iou_16", "diversity_16")
    }
    assert {"ged_20", "hm_iou_20", "mode_tv", "ece_foreground"} <= latin.keys()


def test_void_pixels_are_ignored():
    m = evaluate(Blank(Squares(void=True).info), Squares(void=True), options=SamplingOptions(n=2)).metrics
    assert m["miou"] == pytest.approx((112 / 120 + 0) / 2)
    assert m["ece"] == pytest.approx(8 / 120)
    assert m["brier"] == pytest.approx(2 * 8 / 120)


def test_scores_of_fewer_samples_use_the_first_samples():
    data = Phantoms("val", size=16, count=2)
    oracle = Oracle(data)
    result = evaluate(oracle, data, options=SamplingOptions(n=100, seed=3))
    for i, row in enumerate(result.images):
        labels = oracle.sample(data[i].image[None], 100, seed=3).labels
        for n in (16, 32, 50, 100):
            assert row[f"ged_{n}"] == pytest.approx(ged(labels[:, :n], data[i].raters[None], 2).item(), abs=1e-12)
            assert row[f"hm_iou_{n}"] == pytest.approx(hm_iou(labels[:, :n], data[i].raters[None], 2).item(), abs=1e-12)


def test_a_limit_takes_evenly_spaced_images():
    data, seen = Squares(10), []
    result = evaluate(
        Blank(data.info), data, limit=3, keep=2, progress=lambda *now: seen.append(now), options=SamplingOptions(n=2)
    )
    assert [row["id"] for row in result.images] == ["square-0", "square-3", "square-6"]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert [example.id for example, _ in result.kept] == ["square-0", "square-3"]


def test_written_results_can_be_read_again(perfect, tmp_path):
    write_results(perfect, tmp_path / "a" / "b")
    scores = json.loads((tmp_path / "a/b/metrics.json").read_text())
    for key in (
        *("ged_16", "hm_iou_16", "ged_unbiased", "diversity_16", "miou", "ece", "brier"),
        *("seconds_per_image", "evaluations_per_sample", "ged_32", "ged_50", "ged_100", "mode_tv"),
    ):
        assert isinstance(scores[key], float), key
    assert scores["settings"]["n"] == 100
    with (tmp_path / "a/b/metrics.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["ged_16"]) == scores["ged_16"]
    with (tmp_path / "a/b/images.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    assert sum(float(row["ged_16"]) for row in rows) / 30 == pytest.approx(scores["ged_16"])


def test_the_table_shows_every_metric(perfect):
    shown = " ".join(str(cell) for column in table(perfect).columns for cell in column.cells)
    assert "/" not in shown, "scores per class have a table of their own"
    for words in ("GED, n = 16", "HM-IoU, n = 100", "mIoU", "total variation", "evaluations"):
        assert words in shown
    assert f"{perfect.metrics['ged_16']:.4f}" in shown


def test_scores_per_class_equal_those_of_its_mask(perfect):
    """Of phantoms with four labels, against the binary scores of each label."""
    data = Phantoms("test", size=16, variant="multiclass", count=30)
    oracle, m, names = Oracle(data), perfect.metrics, data.info.names
    drawn = [oracle.sample(data[i].image[None], 100) for i in range(30)]
    for label, name in enumerate(names):
        both = either = total = 0
        distances = []
        for i, out in enumerate(drawn):
            fused, raters = (out.fused()[0] == label).expand_as(data[i].raters), data[i].raters == label
            both, either = both + int((fused & raters).sum()), either + int((fused | raters).sum())
            total += int(fused.sum() + raters.sum())
            distances.append(ged((out.labels == label).long(), raters[None].long(), 2).item())
        assert m[f"iou/{name}"] == pytest.approx(both / either)
        assert m[f"dice/{name}"] == pytest.approx(2 * both / total)
        if label:
            assert m[f"ged_100/{name}"] == pytest.approx(sum(distances) / 30)
    assert m["miou"] == pytest.approx(sum(m[f"iou/{name}"] for name in names) / len(names))
    assert m["ged_100"] == pytest.approx(sum(m[f"ged_100/{name}"] for name in names[1:]) / (len(names) - 1))
    assert f"ged_100/{names[0]}" not in m, "the background has no IoU of its own in GED"
    assert f"ged_100/{names[1]}" in perfect.images[0]


def test_two_classes_have_no_scores_per_class_and_absent_classes_none_either():
    data = Squares()
    assert not any("/" in key for key in evaluate(Blank(data.info), data, options=SamplingOptions(n=2)).metrics)
    data.info = data.info.model_copy(update={"num_classes": 4, "class_names": ("a", "b", "b", "c")})
    m = evaluate(Blank(data.info), data, options=SamplingOptions(n=2)).metrics
    # Two names are equal, so that the keys have numbers; no map has the labels 2 and 3.
    assert {key for key in m if key.startswith("iou/")} == {"iou/0", "iou/1"}
    assert (m["ged_2/2"], m["ged_2/3"]) == (0, 0)


def test_the_fingerprint_is_that_of_the_scored_images():
    def fingerprint(data, limit=None):
        found = evaluate(Blank(data.info), data, limit=limit, options=SamplingOptions(n=2))
        return found.settings["data_sha256"]

    assert fingerprint(Squares()) == fingerprint(Squares())
    assert fingerprint(Squares(6), 3) != fingerprint(Squares())
    other = Squares()
    other.info = other.info.model_copy(update={"ignore": 255})
    assert fingerprint(other) == fingerprint(Squares())
    assert fingerprint(Squares(void=True)) != fingerprint(Squares())


def test_the_curve_has_a_point_per_number_of_evaluations():
    data = Phantoms("val", size=8, count=1)
    model = create("ccdm", 2, 1, base=4, multipliers=[1], blocks=1, attention=[], num_timesteps=8)
    curve = evaluations_curve(model, data, [1, 4], options=SamplingOptions(n=2))
    assert {steps: m["evaluations_per_sample"] for steps, m in curve.items()} == {1: 1, 4: 4}
    assert list(evaluations_curve(model, data, [1, 4], options=SamplingOptions(n=2, sampler="corrector"))) == [1, 7]
    result = evaluate(model, data, options=SamplingOptions(n=2, evaluations=4, sampler="corrector"))
    assert (result.settings["evaluations"], result.metrics["evaluations_per_sample"]) == (4, 7)


def test_impossible_arguments_are_refused():
    data = Squares()
    with pytest.raises(UserError, match="split is empty"):
        evaluate(Blank(data.info), Squares(0), options=SamplingOptions(n=2))
    with pytest.raises(UserError, match="limit must be at least 1, got 0"):
        evaluate(Blank(data.info), data, limit=0, options=SamplingOptions(n=2))
    other = DatasetInfo(num_classes=3, image_channels=1)
    with pytest.raises(UserError, match=r"3 classes .* 2 and 1"):
        evaluate(Blank(other), data, options=SamplingOptions(n=2))


def test_images_are_normalized_as_the_model_expects():
    """The same raw images under another normalization give the same metrics."""
    seen = []

    class Recorder(Blank):
        def __init__(self):
            super().__init__(DatasetInfo(num_classes=2, image_channels=1))

        def drawing(self, image, keys, options):
            seen.append(image)
            return super().drawing(image, keys, options)

    data = Phantoms("val", size=8, count=1)
    evaluate(Recorder(), data, options=SamplingOptions(n=2))
    other = data.info.model_copy(update={"normalization": Normalization(mean=(10.0,), std=(3.0,))})
    data.info = other
    evaluate(Recorder(), data, options=SamplingOptions(n=2))
    torch.testing.assert_close(seen[0], seen[1], atol=1e-4, rtol=0)


class Silent(Squares):
    """The third rater left everything void; the first image has only this rater."""

    def __init__(self):
        super().__init__(void=True)

    def __getitem__(self, i):
        example = super().__getitem__(i)
        void = torch.full_like(example.raters[:1], 255)
        labels = torch.cat([example.raters, void]) if i else void
        return Example(example.image, labels, example.id, rater_names=("a", "b", "c")[-len(labels) :])


def test_raters_who_left_everything_void_are_ignored():
    """If their mask counted, no pixel would be left to compare."""
    data = Silent()
    found = evaluate(Blank(data.info), data, options=SamplingOptions(n=4))
    expected = evaluate(Blank(data.info), Squares(count=1, void=True), options=SamplingOptions(n=4))
    assert found.settings["images"] == 2
    assert found.metrics["ged_4"] == pytest.approx(expected.metrics["ged_4"])
    assert found.metrics["ged_4"] > 0.1


def test_evaluations_are_averaged_over_images():
    class Varies(Blank):
        def drawing(self, image, keys, options):
            return super().drawing(image, keys, options, evaluations=1 + int(image.max()))

    data = Squares()
    assert evaluate(Varies(data.info), data, options=SamplingOptions(n=2)).metrics["evaluations_per_sample"] == 2


def test_data_of_another_scale_are_refused_before_the_work():
    """Scores of a model on images that it cannot read say nothing about the model."""
    data = Phantoms("val", size=16, count=6)
    model = create("unet-ce", info=with_intensities(data), base=8, multipliers=[1, 2])
    evaluate(model, data, options=SamplingOptions(n=2), limit=2)

    class Fractions(Phantoms):
        def __getitem__(self, index):
            example = super().__getitem__(index)
            return replace(example, image=self.info.normalization(self.info.normalization.inverse(example.image) / 255))

    with pytest.raises(UserError, match="multiply it by 255"):
        evaluate(model, Fractions("val", size=16, count=6), options=SamplingOptions(n=2))
