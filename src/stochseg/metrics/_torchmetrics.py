"""`Metric` of torchmetrics, imported where a torchvision that does not fit torch cannot break it."""

from __future__ import annotations

from stochseg.extras import repair_torchvision

repair_torchvision()

from torchmetrics import Metric  # noqa: E402

__all__ = ["Metric"]
