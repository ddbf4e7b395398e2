"""mIoU of fused maps: numbers of samples, both rules, confusion of the whole data set."""

import pytest
import torch

from stochseg.data import open_dataset
from stochseg.evaluation import fusion_miou
from stochseg.metrics import confusion_matrix, miou
from tests.support.models import lively


@pytest.fixture
def phantoms():
    return open_dataset("phantom", "val", size=16, variant="multiclass", count=3)


@pytest.fixture
def model(phantoms):
    return lively("ccdm-fast", phantoms.info.num_classes, info=phantoms.info, evaluations=2)


def test_scores_equal_those_of_maps_fused_by_hand(model, phantoms):
    scores = fusion_miou(model, phantoms, counts=(1, 4))
    assert set(scores) == {(1, "mean"), (1, "vote"), (4, "mean"), (4, "vote")}
    labels = [model.sample(phantoms[i].image[None], 4).labels for i in range(3)]
    for n in (1, 4):
        confusion = 0
        for i, maps in enumerate(labels):
            votes = torch.nn.functional.one_hot(maps[0, :n], phantoms.info.num_classes).sum(0)
            fused = votes.argmax(-1).expand_as(phantoms[i].raters)
            confusion = confusion + confusion_matrix(fused, phantoms[i].raters, phantoms.info.num_classes)
        assert scores[n, "vote"] == pytest.approx(miou(confusion).item())
    mean = model.sample(phantoms[0].image[None], 4).mean
    fused = mean.argmax(1)[0].expand_as(phantoms[0].raters)
    confusion = confusion_matrix(fused, phantoms[0].raters, phantoms.info.num_classes)
    assert fusion_miou(model, phantoms, counts=(4,), limit=1)[4, "mean"] == pytest.approx(miou(confusion).item())
