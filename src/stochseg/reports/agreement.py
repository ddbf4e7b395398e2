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

    def calibration_section(self, ece: float) -> Section:
        """Section with the reliability diagram. ece: calibration error of the top label."""
        assert self.bins is not None
        text = (
            "Of all pixels to which the model gives a probability of, say, 30%, raters should mark 30%. On the "
            "diagonal, probabilities are calibrated; below it, the model is overconfident; above it, underconfident. "
            "The bars count pixels (once per rater) on a logarithmic scale; points of few pixels are noisy. "
            f"Calibration error of the top label (ECE, lower is better): {ece:.4f}."
        )
        title = "Fraction of raters by predicted probability."
        return Section("Calibration", text, pictures=[Picture(embed_plot(reliability_diagram(self.bins)), title)])

    def disagreement_section(self) -> Section:
        """Section that compares the disagreement of samples with the disagreement of raters."""
        heading, raters = "Disagreement of model and raters", np.array(self.rater_distance)
        several = ~np.isnan(raters)
        if not several.any():
            return Section(heading, "Every image has one rater, so there is no disagreement to compare with.")
        samples, raters = np.array(self.sample_distance)[several], raters[several]
        of_raters, of_samples = np.array(self.entropy)[several].T
        shapes = scatter(raters, samples, "two raters: 1 − IoU", "two samples: 1 − IoU")
        entropies = scatter(of_raters, of_samples, "entropy of raters (nats)", "entropy of samples (nats)")
        text = (
            "One point per image. If points rise together, the model is uncertain where raters disagree; if they are "
            "on the diagonal, it is as uncertain as they are."
        )
        means = f"mean of raters {raters.mean():.3f}, of samples {samples.mean():.3f}"
        note = "Few raters underestimate the entropy, so that samples should have more"
        pictures = [
            Picture(embed_plot(shapes), "Disagreement of shapes:", f"{correlations(raters, samples)}; {means}."),
            Picture(embed_plot(entropies), "Total entropy:", f"{correlations(of_raters, of_samples)}. {note}."),
        ]
        return Section(heading, text, pictures=pictures)


def correlations(x: FloatArray, y: FloatArray) -> str:
    """Describe Pearson's and Spearman's correlation.

    >>> correlations(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    'correlation 0.99 (of ranks 1.00)'
    """
    if len(x) < 3 or np.ptp(x) < 1e-12 or np.ptp(y) < 1e-12:
        return "correlation undefined (constant values or fewer than three images)"
    return f"correlation {stats.pearsonr(x, y)[0]:.2f} (of ranks {stats.spearmanr(x, y)[0]:.2f})"
