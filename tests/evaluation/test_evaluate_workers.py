"""Evaluation on several processes: the same numbers as in one, to the last digit."""

from dataclasses import replace

import pytest
import torch

from stochseg.data import Phantoms
from stochseg.errors import UserError
from stochseg.evaluation import evaluate, evaluate_seeds
from stochseg.inference import run_on
from stochseg.models import SamplingOptions, save
from tests.support.models import lively
from tests.support.workers import LosingPool

pytest.importorskip("distributed")
pytestmark = pytest.mark.xdist_group("dask")
DATA = Phantoms("val", size=16, count=9)
OPTIONS = SamplingOptions(n=16, evaluations=2)


class Voids:
    """Phantoms of three classes with one label map each, of which the first two are void."""

    info = DATA.info.model_copy(
        update={"ignore": 255, "num_classes": 3, "class_names": ("a", "b", "c"), "colors": None}
    )

    def __len__(self):
        return len(DATA)

    def __getitem__(self, i):
        example = DATA[i]
        return replace(example, raters=torch.full_like(example.raters[:1], 255) if i < 2 else example.raters[:1])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Saved models of two and of three classes, by the data they fit."""
    folder = tmp_path_factory.mktemp("models")
    found = [(DATA, lively("ccdm-fast", 2, num_timesteps=20)), (Voids(), lively("ccdm-fast", 3, num_timesteps=20))]
    return [(data, model, save(model, folder / str(i))) for i, (data, model) in enumerate(found)]


def without_time(row):
    return {key: value for key, value in row.items() if key != "seconds_per_image"}


def assert_same(a, b):
    assert without_time(a.metrics) == without_time(b.metrics)
    assert list(a.metrics) == list(b.metrics)
    assert list(map(without_time, a.images)) == list(map(without_time, b.images))
    assert a.settings == b.settings
    assert [example.id for example, _ in a.kept] == [example.id for example, _ in b.kept]
    assert all(torch.equal(x.mean, y.mean) for (_, x), (_, y) in zip(a.kept, b.kept, strict=True))
    assert (a.modes is None) == (b.modes is None)
    assert a.modes is None or (a.modes.frequency == b.modes.frequency).all()


@pytest.mark.parametrize("which", [0, 1], ids=["known truth", "voids, fused maps, classes"])
def test_the_same_to_the_last_digit(pool, models, which):
    data, model, path = models[which]
    torch.set_num_threads(1)  # as many as in a worker
    seen = []
    expected = evaluate(model, data, options=OPTIONS)
    found = evaluate(
        model, data, options=OPTIONS, runner=run_on(pool, model, path), progress=lambda *step: seen.append(step)
    )
    assert_same(found, expected)
    assert (expected.modes is not None) == (which == 0)
    assert "miou_vote_5" in expected.metrics or which == 0
    assert seen[-1] == (9, 9)


def test_several_seeds_and_every_image_handed_to_the_caller(pool, models):
    data, model, path = models[0]
    torch.set_num_threads(1)
    runner, seen = run_on(pool, model, path), []
    found = evaluate_seeds(model, data, 2, options=OPTIONS, limit=3, runner=runner)
    assert_same(found, evaluate_seeds(model, data, 2, options=OPTIONS, limit=3))
    kept = evaluate(model, data, options=OPTIONS, keep=2, runner=runner, on_image=lambda i, *_: seen.append(i)).kept
    assert sorted(seen) == list(range(9))
    assert [example.id for example, _ in kept] == [data[i].id for i in (0, 1)]


def test_an_image_that_kills_its_workers_stops_the_evaluation(models):
    """Scores without it would not be those of the data."""
    data, model, path = models[0]
    with pytest.raises(UserError, match=f"{data[4].id!r} died 2 times"):
        evaluate(model, data, options=OPTIONS, runner=run_on(LosingPool(data[4].id), model, path))
