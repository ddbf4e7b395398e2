"""Agreement of a model with raters, collected while it is evaluated: calibration and disagreement."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import stats

from stochseg.metrics import CalibrationBins, diversity, foreground_bins, without_void
from stochseg.plotting.curves import reliability_diagram, scatter
from stochseg.plotting.output import embed_plot
from stochseg.plotting.pictures import FloatArray
from stochseg.reports.page import Picture, Section
from stochseg.types import Batch, Samples


@dataclass
class Agreement:
    """Statistics of samples and raters, one entry per image; pass it to `evaluate` as `on_image`.

    bins: calibration of foreground labels; indices: number of the image in the data; sample_distance: mean 1 − IoU of
    two different samples; rater_distance: the same of raters, nan for a single rater; entropy: summed over the image,
    of the frequencies of the raters and of the mean of the samples.
    """

    num_classes: int
    bins: CalibrationBins | None = None
    indices: list[int] = field(default_factory=list)
    sample_distance: list[float] = field(default_factory=list)
    rater_distance: list[float] = field(default_factory=list)
    entropy: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, index: int, batch: Batch, out: Samples) -> None:
        """Add one image: its number, its batch of one and its samples."""
        bins = foreground_bins(out.mean, batch.raters, mask=batch.mask)
        self.bins = bins if self.bins is None else self.bins + bins
        self.indices.append(index)
        samples, raters = without_void(out.labels, batch.raters, batch.mask)
        weights = out.weights.double()
        single = float(weights.square().sum() / weights.sum() ** 2) > 1 - 1e-9  # one sample has all the weight
        distance = 0.0 if single else diversity(samples, self.num_classes, weights=out.weights, unbiased=True).item()
        self.sample_distance.append(distance)
        several = raters.shape[1] > 1
        distance = diversity(raters, self.num_classes, unbiased=True).item() if several else float("nan")
        self.rater_distance.append(distance)
        frequency = torch.nn.functional.one_hot(raters[0], self.num_classes).double().mean(0)
        mask = torch.ones_like(samples[0, 0]) if batch.mask is None else batch.mask[0].all(0)
        self.entropy.append((-torch.xlogy(frequency, frequency).sum().item(), (out.entropy[0] * mask).sum().item()))

    def section(self, ece: float) -> Section:
        """Section with a reliability diagram, and scatter plots of disagreement if images have several raters.

        ece: calibration error of the top label.
        """
        assert self.bins is not None
        calibration = Picture(
            embed_plot(reliability_diagram(self.bins)),
            "Calibration:",
            "of all pixels with a predicted probability of 30%, raters should mark 30%. Below the diagonal, the model "
            f"is overconfident; above it, underconfident. Error of the top label (ECE, lower is better): {ece:.4f}. "
            "Bars: pixels, once per rater; points of few pixels are noisy.",
        )
        several = ~np.isnan(self.rater_distance)
        if not several.any():
            text = "Every image has one rater, so there is no disagreement to compare with."
            return Section("Agreement with the raters", text, pictures=[calibration])
        samples, raters = np.array(self.sample_distance)[several], np.array(self.rater_distance)[several]
        rater_entropy, sample_entropy = np.array(self.entropy)[several].T
        distance = Picture(
            embed_plot(scatter(raters, samples, "two raters: 1 − IoU", "two samples: 1 − IoU")),
            "Disagreement of shapes:",
            f"{correlations(raters, samples)}. Means: raters {raters.mean():.3f}, samples {samples.mean():.3f}.",
        )
        entropy = Picture(
            embed_plot(scatter(rater_entropy, sample_entropy, "entropy of raters (nats)", "entropy of samples (nats)")),
            "Entropy of the image:",
            f"{correlations(rater_entropy, sample_entropy)}. Few raters underestimate it: samples should have more.",
        )
        text = (
            "Are the probabilities of pixels right, and is the model uncertain where raters disagree? On the diagonal, "
            "it is as uncertain as they are. The two plots of disagreement show one point per image."
        )
        return Section("Agreement with the raters", text, pictures=[calibration, distance, entropy])


def correlations(x: FloatArray, y: FloatArray) -> str:
    """Pearson's and Spearman's correlation as text."""
    if len(x) < 3 or np.ptp(x) < 1e-12 or np.ptp(y) < 1e-12:
        return "correlation undefined (constant values or fewer than three images)"
    return f"correlation {stats.pearsonr(x, y)[0]:.2f} (of ranks {stats.spearmanr(x, y)[0]:.2f})"
