"""Gaussian diffusion over real-valued maps (Ho et al. 2020), for any jump of any time grid.

x_t = sqrt(alpha_bar_t) x0 + sqrt(1 - alpha_bar_t) eps, with the same `Schedule` as the categorical process: there
alpha_bar is the probability that a label survives, here the fraction of variance that the data keep.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stochseg.core.noise import Noise, draw_normal
from stochseg.core.schedule import Schedule, per_row


def standard_normal(noise: Noise, shape: Sequence[int]) -> Tensor:
    """Draw standard normal numbers by inverse CDF.

    Args:
        noise: source of the uniforms.
        shape: the first axis is the batch.

    Returns:
        float32 of this shape.
    """
    return draw_normal(noise.uniform(shape))


class GaussianProcess:
    """Forward process q, and its exact posterior for any jump, for one schedule.

    Maps are "b c *space"; t and s are "b" integers, best on the CPU: copying them from another device waits for it.

    Args:
        schedule: the noise schedule, such as `cosine(250)`.

    Example:
        >>> from stochseg.core import cosine
        >>> process = GaussianProcess(cosine(250))
        >>> x0, eps, t = torch.ones(1, 2, 4, 4), torch.zeros(1, 2, 4, 4), torch.tensor([100])
        >>> torch.allclose(process.predict_x0(process.q_sample(x0, t, eps), eps, t), x0)
        True
    """

    def __init__(self, schedule: Schedule):
        self.schedule = schedule

    @property
    def num_timesteps(self) -> int:
        """T."""
        return self.schedule.num_timesteps

    # ------------------------------------------------------------------ forward

    def q_sample(self, x0: Tensor, t: Tensor, eps: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute x_t of x0 for the standard normal `eps`.

        Args:
            x0: "b c *space".
            t: "b" in 0..T.
            eps: "b c *space".
            mask: "b *space" bool, False = void. There x_t is `eps`, a draw from the prior, so that a network never
                reads a void label.
        """
        bar = self.schedule.at(t)
        x_t = per_row(bar.sqrt(), x0) * x0 + per_row((1 - bar).sqrt(), x0) * eps
        return x_t if mask is None else torch.where(mask[:, None], x_t, eps)

    def predict_x0(self, x_t: Tensor, eps: Tensor, t: Tensor) -> Tensor:
        """Compute the x0 that the noise `eps` brought to x_t."""
        bar = self.schedule.at(t)
        return per_row(bar.rsqrt(), x_t) * x_t - per_row((1 / bar - 1).sqrt(), x_t) * eps

    def predict_eps(self, x_t: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        """Compute the noise that brought x0 to x_t, for t >= 1."""
        bar = self.schedule.at(t)
        return (x_t - per_row(bar.sqrt(), x_t) * x0) / per_row((1 - bar).sqrt(), x_t)

    # ------------------------------------------------------------------ reverse

    def posterior(self, x_t: Tensor, x0: Tensor, t: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Compute mean and variance of q(x_s | x_t, x0), for any jump 0 <= s < t <= T.

        With a = alpha_bar_t / alpha_bar_s (Ho et al. 2020, Eqs. 6 and 7, where s = t - 1):

            mean = ( sqrt(alpha_bar_s) (1 - a) x0 + sqrt(a) (1 - alpha_bar_s) x_t ) / (1 - alpha_bar_t)
            variance = (1 - a) (1 - alpha_bar_s) / (1 - alpha_bar_t)

        Returns:
            The mean "b c *space" and the variance "b 1 1 ...".

        Raises:
            UserError: if a jump is impossible.
        """
        bar_t, bar_s, added = self._jump(t, s)
        of_x0 = bar_s.sqrt() * added / (1 - bar_t)
        of_x_t = (1 - added).sqrt() * (1 - bar_s) / (1 - bar_t)
        mean = per_row(of_x0, x_t) * x0 + per_row(of_x_t, x_t) * x_t
        return mean, per_row(added * (1 - bar_s) / (1 - bar_t), x_t)

    def log_variance(self, v: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """Compute a learned log-variance of x_s given x_t (Nichol and Dhariwal 2021, Eq. 15).

        v = 1 is the variance of the forward jump, v = 0 that of the posterior; in between their logarithms are mixed.
        At s = 0 the posterior's variance is zero and has no logarithm; the variance of the jump to s = 1 from t = 2 or
        above replaces it.

        Args:
            v: "b c *space".
            t: "b", the step of x_t.
            s: "b", the step to jump to.

        Returns:
            "b c *space".
        """
        t, s = t.cpu(), s.cpu()
        _, _, upper = self._jump(t, s)
        bar_t, bar_s = self.schedule.at(t.clamp(min=min(2, self.num_timesteps))), self.schedule.at(s.clamp(min=1))
        lower = ((1 - bar_t / bar_s) * (1 - bar_s) / (1 - bar_t)).clamp(min=1e-20)
        return v * per_row(upper.log(), v) + (1 - v) * per_row(lower.log(), v)

    def _jump(self, t: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """alpha_bar_t, alpha_bar_s and the variance 1 - alpha_bar_t / alpha_bar_s that the jump from s to t adds."""
        t, s = t.cpu(), s.cpu()
        self.schedule.check_jump(t, s)
        bar_t, bar_s = self.schedule.at(t), self.schedule.at(s)
        return bar_t, bar_s, 1 - bar_t / bar_s


def normal_kl(mean_q: Tensor, log_var_q: Tensor, mean_p: Tensor, log_var_p: Tensor) -> Tensor:
    """Compute KL( N(mean_q, exp(log_var_q)) || N(mean_p, exp(log_var_p)) ) per element.

    Args:
        mean_q: mean of q.
        log_var_q: log-variance of q.
        mean_p: mean of p.
        log_var_p: log-variance of p.

    Returns:
        Nats, of the common shape.

    Example:
        >>> normal_kl(torch.ones(1), torch.zeros(1), torch.zeros(1), torch.zeros(1))
        tensor([0.5000])
    """
    difference = log_var_q - log_var_p
    return 0.5 * (difference.exp() - 1 - difference + (mean_q - mean_p) ** 2 * (-log_var_p).exp())
