"""Best, median and worst images."""

import numpy as np
import pytest
import torch

from stochseg.data import Phantoms
from stochseg.evaluation import Evaluation, evaluate
from stochseg.metrics import ged
from stochseg.models.sampling import SamplingOptions
from stochseg.reports.cases import draw_case, pick_cases
from tests.support.predictions import small_model


def test_cases_are_drawn_with_the_samples_that_were_scored():
    model, data, options = small_model(), Phantoms("val", size=16, count=5), SamplingOptions(n=3, seed=2)
    rows = {row["id"]: row for row in evaluate(model, data, options=options).images}
    out = draw_case(model, data, 3, options).samples
    assert ged(out.labels, data[3].raters[None], 2).item() == pytest.approx(rows[data[3].id]["ged_3"], abs=1e-9)
    fewer = draw_case(model, data, 3, options.model_copy(update={"evaluations": 1})).samples
    assert torch.equal(fewer.mean, model.sample(data[3].image[None], 3, seed=2, evaluations=1).mean)
    assert not torch.equal(fewer.mean, out.mean)


@pytest.mark.parametrize(
    ("count", "kinds"),
    [
        (1, ["Worst"]),
        (2, ["Best", "Worst"]),
        (4, ["Best", "Median", "Worst"]),
        (9, ["Best"] * 2 + ["Median"] * 2 + ["Worst"] * 2),
    ],
)
def test_no_case_is_picked_twice(count, kinds):
    scores = np.random.default_rng(count).permutation(count) / 10
    cases = pick_cases(Evaluation({}, [{"ged_4": score} for score in scores], {"n": 4}))
    assert [kind for kind, _ in cases] == kinds
    assert len({i for _, i in cases}) == len(cases)
    ordered = [scores[i] for _, i in cases]
    assert ordered == sorted(ordered)
    if count > 3:
        assert np.median(scores) in ordered or count % 2 == 0
