"""Rater confusion: probabilities, loss and samples against loops, and raters of known habits."""

import pytest
import torch

from tests.support.models import fresh, images, labels, lively

TINY = {"base": 4, "multipliers": [1, 2], "blocks": 1}


@pytest.mark.parametrize("level", ["global", "pixel"])
def test_probabilities_of_a_rater_are_matrix_times_truth(level):
    model = lively("rater-confusion", 3, **TINY, level=level)
    with torch.no_grad():
        out = model.outputs(images(2, h=3, w=2))
        written = model.written(out, torch.tensor([0, 0]))
    for m in range(2):
        for h, w in [(0, 0), (2, 1)]:
            truth = out[m, :3, h, w].softmax(0)
            raw = model.matrices[0].detach()
            if level == "pixel":
                raw = raw + out[m, 3:, h, w].view(3, 3)
            expected = [sum(raw[:, j].softmax(0)[i] * truth[j] for j in range(3)) for i in range(3)]
            torch.testing.assert_close(written[m, :, h, w], torch.stack(expected))


def test_loss_is_the_likelihood_of_the_drawn_labels_and_the_trace():
    model, x, y = lively("rater-confusion", 3, **TINY, trace=0.3), images(2), labels(2, 1, 3)
    out = model(x, y)
    p = model.written(model.outputs(x), torch.tensor([0, 0])).gather(1, y)
    trace = model.matrices[0].softmax(0).trace()
    torch.testing.assert_close(out["loss"], -p.log().mean() + 0.3 * trace)
    torch.testing.assert_close(out["trace"], trace)


def test_matrices_start_near_the_identity():
    matrix = fresh("rater-confusion", 4).matrices[0].softmax(0)
    torch.testing.assert_close(matrix.diagonal(), torch.full((4,), 0.9))
    torch.testing.assert_close(matrix.sum(0), torch.ones(4))
