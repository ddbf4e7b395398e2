"""The stateful classes equal the functions: after pickling, in batches and in two processes."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from stochseg.errors import UserError
from stochseg.metrics import (
    METRICS,
    BrierScore,
    ExpectedCalibrationError,
    GeneralizedEnergyDistance,
    HungarianMatchedIoU,
    MeanIoU,
    SampleDiversity,
    brier,
    calibration_bins,
    confusion_matrix,
    diversity,
    ece,
    ged,
    hm_iou,
    miou,
)
from stochseg.metrics.stateful import Metric

NUM_CLASSES = 3


def images(b: int = 5) -> dict[str, tuple[Tensor, ...]]:
    """The arguments of `update` of each metric, for b images."""
    generator = torch.Generator().manual_seed(0)
    samples = torch.randint(NUM_CLASSES, (b, 6, 8, 9), generator=generator)
    raters = torch.randint(NUM_CLASSES, (b, 4, 8, 9), generator=generator)
    samples[0] = 0
    # In float64, because the float32 softmax of two processes may differ with their numbers of threads.
    mean = torch.randn(b, NUM_CLASSES, 8, 9, generator=generator, dtype=torch.float64).softmax(1)
    mask = torch.rand(b, 4, 8, 9, generator=generator) > 0.3
    return {
        "ged": (samples, raters),
        "hm_iou": (samples, raters),
        "diversity": (samples,),
        "miou": (samples[:, 0], raters[:, 0]),
        "ece": (mean, raters, mask),
        "brier": (mean, raters, mask),
    }


def expected(name: str) -> float:
    """The number over all images, by the functions alone."""
    args = images()[name]
    if name == "ged":
        return ged(*args, NUM_CLASSES).mean().item()
    if name == "hm_iou":
        return hm_iou(*args, NUM_CLASSES).mean().item()
    if name == "diversity":
        return diversity(*args, NUM_CLASSES).mean().item()
    if name == "miou":
        return miou(confusion_matrix(*args, NUM_CLASSES)).item()
    mean, raters, mask = args
    if name == "ece":
        return ece(calibration_bins(mean, raters, mask=mask)).item()
    pixels = mask.sum((1, 2, 3))
    return ((brier(mean, raters, mask) * pixels).sum() / pixels.sum()).item()


def updated(name: str, *parts: slice) -> Metric:
    metric = METRICS[name](num_classes=NUM_CLASSES)
    for part in parts:
        metric.update(*(values[part] for values in images()[name]))
    return metric


def test_every_metric_has_a_case() -> None:
    assert set(images()) == set(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_batches_add_up_to_the_data_set(name: str) -> None:
    whole, batches = updated(name, slice(None)), updated(name, slice(0, 2), slice(2, 3), slice(3, 5))
    assert whole.compute().shape == ()
    assert whole.compute().item() == pytest.approx(expected(name), abs=1e-12)
    assert batches.compute().item() == pytest.approx(expected(name), abs=1e-12)
    assert updated(name, slice(0, 2)).compute().item() != pytest.approx(expected(name), abs=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_forward_gives_the_batch_and_keeps_the_total(name: str) -> None:
    metric = METRICS[name](num_classes=NUM_CLASSES)
    args = images()[name]
    first = metric(*(values[:2] for values in args))
    metric(*(values[2:] for values in args))
    assert first.item() == pytest.approx(updated(name, slice(0, 2)).compute().item(), abs=1e-12)
    assert metric.compute().item() == pytest.approx(expected(name), abs=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_pickling_between_updates_changes_nothing(name: str) -> None:
    metric = pickle.loads(pickle.dumps(updated(name, slice(0, 2))))
    metric.update(*(values[2:] for values in images()[name]))
    assert metric.compute().item() == pytest.approx(expected(name), abs=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_reset_forgets_earlier_images(name: str) -> None:
    metric = updated(name, slice(0, 2))
    metric.reset()
    metric.update(*images()[name])
    assert metric.compute().item() == pytest.approx(expected(name), abs=1e-12)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_compute_without_data_raises(name: str) -> None:
    with pytest.raises(UserError, match=r"no pixel|nothing was counted"):
        METRICS[name](num_classes=NUM_CLASSES).compute()


# --- options ---------------------------------------------------------------------------------------------


def test_weights_and_unbiased_reach_the_functions() -> None:
    samples, raters = images()["ged"]
    weights, rater_weights = torch.rand(5, 6) + 0.1, torch.rand(5, 4) + 0.1
    metric = GeneralizedEnergyDistance(NUM_CLASSES, unbiased=True)
    metric.update(samples, raters, weights, rater_weights)
    both = {"weights": weights, "rater_weights": rater_weights}
    torch.testing.assert_close(metric.compute(), ged(samples, raters, 3, **both, unbiased=True).mean())

    spread = SampleDiversity(NUM_CLASSES, unbiased=True)
    spread.update(samples, weights)
    torch.testing.assert_close(spread.compute(), diversity(samples, 3, weights=weights, unbiased=True).mean())

    matched = HungarianMatchedIoU(NUM_CLASSES)
    matched.update(samples, raters, weights)
    torch.testing.assert_close(matched.compute(), hm_iou(samples, raters, 3, weights=weights).mean())


def test_void_and_bins_reach_the_functions() -> None:
    prediction, target = images()["miou"]
    target = target.clone()
    target[:, 0] = 255
    metric = MeanIoU(NUM_CLASSES, ignore=255)
    metric.update(prediction, target)
    torch.testing.assert_close(metric.compute(), miou(confusion_matrix(prediction, target, 3, 255)))

    mean, raters, _ = images()["ece"]
    error = ExpectedCalibrationError(NUM_CLASSES, bins=4)
    error.update(mean, raters)
    torch.testing.assert_close(error.compute(), ece(calibration_bins(mean, raters, 4)))


def test_an_image_that_is_void_everywhere_adds_nothing_to_brier() -> None:
    mean, raters, mask = images()["brier"]
    mask = mask.clone()
    mask[0] = False
    metric = BrierScore(NUM_CLASSES)
    metric.update(mean, raters, mask)
    other = BrierScore(NUM_CLASSES)
    other.update(mean[1:], raters[1:], mask[1:])
    torch.testing.assert_close(metric.compute(), other.compute())


@pytest.mark.parametrize("metric", [BrierScore, ExpectedCalibrationError])
def test_another_number_of_classes_raises(metric: type[Metric]) -> None:
    mean, raters, _ = images()["brier"]
    with pytest.raises(UserError, match='mean "b l .space": expected l = 7'):
        metric(num_classes=7).update(mean, raters)


# --- two processes ---------------------------------------------------------------------------------------


def _process(rank: int, folder: str) -> None:
    """Compute every metric with half of the images (3 and 2), and a GED with all images in process 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    results = {name: updated(name, slice(rank, None, 2)).compute() for name in METRICS}
    results["all with one"] = updated("ged", *[slice(None)][rank:]).compute()
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_give_the_number_of_one() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_process, args=(folder,), nprocs=2)
        results = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for result in results:
        for name in METRICS:
            assert result[name].item() == pytest.approx(expected(name), abs=1e-12), name
        assert result["all with one"].item() == pytest.approx(expected("ged"), abs=1e-12)
