"""References of a table of scores against brute force: all draws of n maps written out, or many draws."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from stochseg import metrics
from stochseg.data import Phantoms, spread
from stochseg.evaluation import Evaluation, evaluate, reference_table, score_references, write_results
from stochseg.evaluation.references import worse_than_blind
from stochseg.models.sampling import SamplingOptions
from stochseg.types import DatasetInfo, Example
from tests.support.models import lively

N, SIZE, L = 3, 4, 3


class Maps:
    """Images with random label maps: a patient each, except the last two images, which share one."""

    def __init__(self, images=5, raters=2, ignore=None, sizes=()):
        self.info = DatasetInfo(name="maps", num_classes=L, image_channels=1, ignore=ignore)
        generator = torch.Generator().manual_seed(0)
        self.examples = []
        for i in range(images):
            size = sizes[i] if sizes else (SIZE, SIZE)
            maps = torch.randint(L, (raters, *size), generator=generator)
            if ignore is not None:
                maps[:, :1] = ignore
                maps[0, 1] = ignore
            group = "shared" if i >= images - 2 else f"patient {i}"
            self.examples.append(Example(torch.zeros(1, *size), maps, f"image {i}", group))

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        return self.examples[range(len(self))[i]]


def expected_ged(choices, raters, n=N) -> float:
    """The mean GED_n over all n-tuples of the choices "m *space", each as likely."""
    tuples = [torch.stack(maps) for maps in itertools.product(choices, repeat=n)]
    found = metrics.ged(torch.stack(tuples), raters[None].expand(len(tuples), *raters.shape), L)
    return found.mean().item()


def others(data, i):
    """The readings that the blind reference may draw: the rater of image j is j modulo their number."""
    example = data[i]
    return [data[j].raters[j % len(data[j].raters)] for j in range(len(data)) if data[j].group != example.group]


def test_expected_ged_is_the_mean_over_all_draws():
    data = Maps()
    found = score_references(data, [N])
    choices = {
        "blind": lambda i: others(data, i),
        "empty": lambda i: [torch.zeros(SIZE, SIZE, dtype=torch.int64)],
        "majority": lambda i: [data[i].raters.mode(0).values],  # of two raters that differ: the lower label
        "raters": lambda i: list(data[i].raters),
    }
    for name, choose in choices.items():
        exact = np.mean([expected_ged(choose(i), data[i].raters) for i in range(len(data))])
        assert found[name][f"ged_{N}"] == pytest.approx(exact, abs=1e-12), name
    assert found["empty"][f"diversity_{N}"] == found["majority"][f"diversity_{N}"] == 0


def test_pixels_drawn_by_themselves_have_the_mean_over_all_maps():
    """Two pixels on which two raters differ: four maps, each as likely. The draws are 32 per image, of many images."""
    data = Maps(images=400)
    for i, example in enumerate(data.examples):
        raters = torch.zeros(2, 1, 3, dtype=torch.int64)
        raters[0, 0, :2] = 1
        data.examples[i] = replace(example, image=torch.zeros(1, 1, 3), raters=raters)
    maps = [torch.tensor([[a, b, 0]]) for a in (0, 1) for b in (0, 1)]
    exact = expected_ged(maps, data[0].raters, n=2)
    assert score_references(data, [2])["pixels"]["ged_2"] == pytest.approx(exact, abs=0.01)


def test_hm_iou_of_single_maps_is_their_iou_with_the_raters():
    data = Maps()
    found = score_references(data, [N])
    empty = torch.zeros(1, 1, SIZE, SIZE, dtype=torch.int64)
    exact = np.mean([metrics.pairwise_iou(empty, example.raters[None], L).mean().item() for example in data.examples])
    assert found["empty"][f"hm_iou_{N}"] == pytest.approx(exact, abs=1e-12)


def test_pixels_scores_are_those_of_the_mean_probabilities():
    """The raters drawn with replacement have the raters' frequencies as their mean."""
    data = Maps()
    found = score_references(data, [N])["raters"]
    total = count = 0.0
    for example in data.examples:
        mean = torch.stack([(example.raters == label).double().mean(0) for label in range(L)])
        for reading in example.raters:
            onehot = torch.stack([(reading == label).double() for label in range(L)])
            total += ((mean - onehot) ** 2).sum().item()
            count += reading.numel()
    assert found["brier"] == pytest.approx(total / count, abs=1e-12)
    assert found["ece"] == score_references(data, [N])["pixels"]["ece"]


def test_void_pixels_do_not_count():
    data, clean = Maps(ignore=255), Maps(ignore=255)
    for i, example in enumerate(clean.examples):  # other labels where a rater of the image itself is void
        maps = example.raters.clone()
        maps[1, 1] = 2
        clean.examples[i] = replace(example, raters=maps)
    a, b = (score_references(each, [N]) for each in (data, clean))
    for name in ("empty", "raters"):
        assert a[name][f"ged_{N}"] == pytest.approx(b[name][f"ged_{N}"], abs=1e-12)


def test_readings_of_other_sizes_are_resized():
    data = Maps(images=3, sizes=[(4, 4), (8, 8), (8, 4)])
    assert np.isfinite(score_references(data, [N])["blind"][f"ged_{N}"])


def test_one_patient_has_no_blind_and_one_rater_no_reference_made_of_raters():
    assert "blind" not in score_references(Maps(images=2), [N])
    assert list(score_references(Maps(raters=1), [N])) == ["blind", "empty"]


def test_limit_scores_the_images_of_evaluate():
    data = Maps(images=9)
    few = score_references(data, [N], limit=3)["majority"][f"ged_{N}"]
    exact = np.mean([expected_ged([data[i].raters.mode(0).values], data[i].raters) for i in spread(9, 3)])
    assert few == pytest.approx(exact, abs=1e-12)


@pytest.fixture(scope="module")
def result() -> Evaluation:
    data = Phantoms("val", size=16, count=4)
    scores = evaluate(lively("unet-ce"), data, options=SamplingOptions(n=2))
    return scores.with_references(data, None)


def test_a_model_worse_than_blind_is_marked(result):
    bad, good = ({**result.metrics, "ged_2": result.references["blind"]["ged_2"] + gap} for gap in (0.01, -0.01))
    assert worse_than_blind(bad, result.references, 2)
    assert not worse_than_blind(good, result.references, 2)
    assert not worse_than_blind(bad, {}, 2)
    names = [replace(result, metrics=each).reference_rows()[1][0][0] for each in (bad, good)]
    assert ["worse than blind" in name for name in names] == [True, False]


def test_references_are_written_and_shown(result, tmp_path):
    files = write_results(result, tmp_path)
    assert files[-1].name == "references.csv"
    assert files[-1].read_text().count("\n") == 6
    assert '"references"' in files[0].read_text()
    assert reference_table(result).row_count == 6
    assert reference_table(replace(result, references={})) is None
