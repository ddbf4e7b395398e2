"""Scenes of phantoms: the anatomy of a synthetic lung slice before any pixel exists.

Scene coordinates: x to the right, y downwards, both in [-1, 1] over the field of view. A scene does not depend on the
pixel grid, so one index shows the same anatomy at every size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Lobes: TypeAlias = npt.NDArray[np.complex128]
"""Coefficients of the angular orders 2, 3, ... of an outline."""
Plane: TypeAlias = npt.NDArray[np.floating[Any]]
N = TypeVar("N", float, Plane)

HALO_CONTRAST = (16.0, 88.0)
"""Range of gray levels (of 255) between parenchyma and halo."""
GAP_CONTRAST = (24.0, 110.0)
"""Range of gray levels between halo and core."""
CORE_CONTRAST = (HALO_CONTRAST[0] + GAP_CONTRAST[0], HALO_CONTRAST[1] + GAP_CONTRAST[1])
"""Range of gray levels between parenchyma and core."""


@dataclass(frozen=True)
class Nodule:
    """A lobulated solid core inside a ground-glass halo."""

    x: float
    y: float
    radius: float
    """Mean radius of the core."""
    growth: float
    """Mean radius of the halo, relative to the core."""
    core_lobes: Lobes
    halo_lobes: Lobes
    core_edge: float
    """Width of the soft edge."""
    halo_edge: float
    halo: float
    """Gray levels between parenchyma and halo."""
    gap: float
    """Gray levels between halo and core."""


@dataclass(frozen=True)
class Tube:
    """A curved capsule with the lateral course bend·s² + twist·s³, and the radii of its start and end."""

    x: float
    y: float
    heading: float
    length: float
    bend: float
    twist: float
    start: float
    end: float
    contrast: float

    def at(self, s: float) -> tuple[float, float, float]:
        """Return the point and the heading at distance s along the axis."""
        lateral, slope = course(s, self.bend, self.twist)
        cos, sin = math.cos(self.heading), math.sin(self.heading)
        x, y = self.x + s * cos - lateral * sin, self.y + s * sin + lateral * cos
        return x, y, self.heading + math.atan(slope)


@dataclass(frozen=True)
class Wall:
    """The chest wall, beyond the curve `depth - curve·s²` in direction `heading`."""

    heading: float
    depth: float
    curve: float
    brightness: float
    rib: float


@dataclass(frozen=True)
class Scene:
    """All structures of a slice; `level` and `slope` are the brightness of the parenchyma and its gradient."""

    level: float
    slope: tuple[float, float]
    nodule: Nodule
    feeder: Tube
    distractors: tuple[Tube, ...]
    wall: Wall | None


def course(s: N, bend: N, twist: N) -> tuple[N, N]:
    """Return the lateral offset of a tube at distance s along its heading, and the slope of its course."""
    return s * s * (bend + twist * s), s * (2.0 * bend + 3.0 * twist * s)


def draw_scene(rng: np.random.Generator) -> Scene:
    """Draw a random scene."""
    hilum = rng.uniform(0.0, 2.0 * math.pi)
    nodule = _draw_nodule(rng)
    wall = _draw_wall(rng, hilum + math.pi) if rng.random() < 0.45 else None
    trees = [tube for _ in range(rng.integers(2, 5)) for tube in _draw_tree(rng, hilum)]
    dots = [_draw_dot(rng, nodule) for _ in range(rng.integers(2, 7))]
    return Scene(
        level=rng.uniform(28.0, 46.0),
        slope=(rng.uniform(-6.0, 6.0), rng.uniform(-6.0, 6.0)),
        nodule=nodule,
        feeder=_draw_feeder(rng, nodule, hilum),
        distractors=(*trees, *dots),
        wall=wall,
    )


def _draw_nodule(rng: np.random.Generator) -> Nodule:
    radius = rng.uniform(0.15, 0.235)
    overlap = rng.uniform(0.35, 0.52)  # area of the core, relative to the whole nodule
    return Nodule(
        x=rng.uniform(-0.12, 0.12),
        y=rng.uniform(-0.12, 0.12),
        radius=radius,
        growth=1.0 / math.sqrt(overlap),
        core_lobes=_draw_lobes(rng, (0.12, 0.08, 0.06, 0.04)),
        halo_lobes=_draw_lobes(rng, (0.06, 0.06, 0.05, 0.04)),
        core_edge=rng.uniform(0.014, 0.026),
        halo_edge=rng.uniform(0.020, 0.036),
        halo=rng.uniform(*HALO_CONTRAST),
        gap=rng.uniform(*GAP_CONTRAST),
    )


def _draw_lobes(rng: np.random.Generator, amplitudes: tuple[float, ...]) -> Lobes:
    phase = rng.uniform(0.0, 2.0 * math.pi, len(amplitudes))
    lobes: Lobes = rng.uniform(0.3, 1.0, len(amplitudes)) * amplitudes * np.exp(1j * phase)
    return lobes


def _draw_wall(rng: np.random.Generator, heading: float) -> Wall:
    return Wall(
        heading=heading + rng.uniform(-0.5, 0.5),
        depth=rng.uniform(0.68, 0.92),
        curve=rng.uniform(0.08, 0.30),
        brightness=rng.uniform(185.0, 215.0),
        rib=rng.uniform(-0.6, 0.6),
    )


def _draw_feeder(rng: np.random.Generator, nodule: Nodule, hilum: float) -> Tube:
    """Draw the feeding vessel. It starts at the rim of the core, so that it touches the nodule of every mode."""
    heading = hilum + rng.uniform(-0.6, 0.6)
    return Tube(
        x=nodule.x + nodule.radius * math.cos(heading),
        y=nodule.y + nodule.radius * math.sin(heading),
        heading=heading,
        length=1.8,
        bend=rng.uniform(-0.5, 0.5),
        twist=rng.uniform(-0.25, 0.25),
        start=rng.uniform(0.028, 0.036),
        end=rng.uniform(0.05, 0.07),
        contrast=rng.uniform(90.0, 135.0),
    )


def _draw_tree(rng: np.random.Generator, hilum: float) -> list[Tube]:
    """Draw a trunk that comes from the hilum, and its branches, which are thinner."""
    side = rng.uniform(-1.1, 1.1)
    radius = rng.uniform(0.022, 0.055)
    trunk = Tube(
        x=1.25 * math.cos(hilum) - side * math.sin(hilum),
        y=1.25 * math.sin(hilum) + side * math.cos(hilum),
        heading=hilum + math.pi + rng.uniform(-0.45, 0.45),
        length=rng.uniform(1.0, 2.0),
        bend=rng.uniform(-0.25, 0.25),
        twist=rng.uniform(-0.1, 0.1),
        start=radius,
        end=0.3 * radius,
        contrast=rng.uniform(75.0, 140.0),
    )
    return [trunk, *(_draw_branch(rng, trunk) for _ in range(rng.integers(1, 4)))]


def _draw_branch(rng: np.random.Generator, parent: Tube) -> Tube:
    s = rng.uniform(0.3, 0.85) * parent.length
    x, y, heading = parent.at(s)
    radius = parent.start + (parent.end - parent.start) * s / parent.length
    return Tube(
        x=x,
        y=y,
        heading=heading + math.copysign(rng.uniform(0.35, 0.95), rng.random() - 0.5),
        length=rng.uniform(0.35, 0.9),
        bend=rng.uniform(-0.5, 0.5),
        twist=rng.uniform(-0.4, 0.4),
        start=0.85 * radius,
        end=0.3 * radius,
        contrast=0.9 * parent.contrast,
    )


def _draw_dot(rng: np.random.Generator, nodule: Nodule) -> Tube:
    """Draw the cross section of a vessel: a very short tube."""
    angle, distance = rng.uniform(0.0, 2.0 * math.pi), rng.uniform(0.5, 1.25)
    radius = rng.uniform(0.014, 0.042)
    return Tube(
        x=nodule.x + distance * math.cos(angle),
        y=nodule.y + distance * math.sin(angle),
        heading=rng.uniform(0.0, math.pi),
        length=rng.uniform(0.1, 1.2) * radius,
        bend=0.0,
        twist=0.0,
        start=radius,
        end=0.8 * radius,
        contrast=rng.uniform(60.0, 130.0),
    )
