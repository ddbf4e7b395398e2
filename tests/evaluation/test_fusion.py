"""mIoU of maps fused from the first 1, 5, 10 samples, by both rules, over the whole data set."""

import pytest
import torch

from stochseg.data import Phantoms, has_single_annotations
from stochseg.errors import UserError
from stochseg.evaluation import default_count, evaluate
from stochseg.metrics import confusion_matrix, miou
from stochseg.models.sampling import SamplingOptions
from stochseg.types import VOID, DatasetInfo
from tests.support.models import batch_sizes, lively

DATA = Phantoms("val", size=16, variant="multiclass", count=3, raters=1)
SEVERAL = Phantoms("val", size=16, count=2, raters=2)


@pytest.fixture
def model():
    return lively("ccdm-fast", DATA.info.num_classes, info=DATA.info, evaluations=2, noise="independent")


def test_scores_equal_those_of_as_many_samples_fused_by_hand(model):
    scores = evaluate(model, DATA, options=SamplingOptions(n=10, seed=3)).metrics
    for n in (1, 5, 10):
        for rule in ("mean", "vote"):
            confusion = 0
            for example in (DATA[i] for i in range(3)):
                fused = model.sample(example.image[None], n, seed=3).fused(rule)
                confusion = confusion + confusion_matrix(fused, example.raters, DATA.info.num_classes)
            assert scores[f"miou_{rule}_{n}"] == pytest.approx(miou(confusion).item()), (rule, n)
    assert scores["miou"] == scores["miou_mean_10"]
    assert scores["miou_mean_1"] != scores["miou_mean_10"]


def test_each_sample_is_drawn_once(model):
    """Ten samples of each image, not 1 + 5 + 10."""
    sizes = batch_sizes(model.get_submodule(model.accelerated_modules[-1]))
    evaluate(model, DATA, options=SamplingOptions(n=10))
    assert sizes == [1, 10] * 3  # the first evaluation, of pure noise, is shared


def test_only_single_annotations_are_fused(model):
    assert has_single_annotations(DATA)
    assert not has_single_annotations(SEVERAL)
    assert (default_count(DATA), default_count(SEVERAL)) == (10, 100)
    binary = lively("ccdm-fast", evaluations=2, noise="independent")
    assert not any(key.startswith("miou_") for key in evaluate(binary, SEVERAL, options=SamplingOptions(n=5)).metrics)


def test_stratified_samples_are_fused_all_together(model):
    scores = evaluate(model, DATA, options=SamplingOptions(n=5, noise="latin")).metrics
    assert [key for key in scores if key.startswith("miou_")] == ["miou_mean_5", "miou_vote_5"]


def test_one_sample_has_no_scores_that_need_two(model):
    one = evaluate(model, DATA, options=SamplingOptions(n=1)).metrics
    two = evaluate(model, DATA, options=SamplingOptions(n=2)).metrics
    assert {key for key in two if "diversity" in key or "unbiased" in key} == {
        *("diversity_2", "diversity_unbiased", "ged_unbiased", "ged_truth_unbiased")
    }
    assert not any("diversity" in key or "unbiased" in key for key in one)
    assert {"ged_1", "hm_iou_1", "miou_mean_1", "miou_vote_1", "ece", "mode_tv"} <= one.keys()
    labels = [model.sample(DATA[i].image[None], 1).labels for i in range(3)]
    assert all(torch.equal(labels[i], model.sample(DATA[i].image[None], 2).labels[:, :1]) for i in range(3))


def with_label(name: str) -> DatasetInfo:
    """Facts about the data, for a model of one label more."""
    classes = DATA.info.num_classes + 1
    return DATA.info.model_copy(
        update={
            "num_classes": classes,
            "class_names": (*DATA.info.names, name),
            "palette": DATA.info.colors[:1] * classes,
        }
    )


def test_void_of_a_model_is_left_out_before_the_arg_max():
    """As by the CCDM authors, whose model has 20 labels for 19 classes."""
    info, kept = with_label(VOID), DATA.info.num_classes
    model = lively("ccdm-fast", kept + 1, info=info, evaluations=2, noise="independent")
    drawn = {n: [model.sample(DATA[i].image[None], n) for i in range(3)] for n in (1, 10)}
    assert any((samples.mean.argmax(1) == kept).any() for samples in drawn[1])
    result = evaluate(model, DATA, options=SamplingOptions(n=10), keep=1)
    for n, samples in drawn.items():
        fused = torch.cat([each.mean[:, :kept].argmax(1) for each in samples])
        confusion = confusion_matrix(fused, torch.cat([DATA[i].raters for i in range(3)]), kept)
        assert result.metrics[f"miou_mean_{n}"] == pytest.approx(miou(confusion).item()), n
    assert result.metrics["miou_vote_1"] == result.metrics["miou_mean_1"]
    scored = result.kept[0][1]
    torch.testing.assert_close(scored.mean.sum(1), torch.ones_like(scored.mean[:, 0]))
    assert scored.labels.max() < kept
    same = drawn[10][0].labels == scored.labels
    assert torch.equal(same, drawn[10][0].labels < kept)


def test_other_labels_more_than_the_data_have_are_refused():
    model = lively("ccdm-fast", DATA.info.num_classes + 1, info=with_label("sky"))
    with pytest.raises(UserError, match=rf"{DATA.info.num_classes + 1} classes"):
        evaluate(model, DATA, options=SamplingOptions(n=2))
