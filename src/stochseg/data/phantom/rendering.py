"""Rendering of phantoms: from scenes to pixels, with analytic soft edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stochseg.data.phantom.scene import N, Nodule, Plane, Scene, Tube, Wall, course

Mask: TypeAlias = npt.NDArray[np.bool_]


def smooth_step(value: N, low: float, high: float) -> N:
    """Return 0 below `low`, 1 above `high`, and a smooth cubic between."""
    u: N = np.clip((value - low) / (high - low), 0.0, 1.0)
    return u * u * (3.0 - 2.0 * u)


def render(scene: Scene, rng: np.random.Generator, size: int) -> tuple[npt.NDArray[np.uint8], Mask, Mask, Mask]:
    """Render the image "h w" uint8, and the masks "h w" of the core, the whole nodule and the feeding vessel."""
    image, to_core, to_halo, feeder = _render_slice(scene, rng, size, (1.0, 1.0))
    return image, *_nodule_masks(to_core, to_halo), feeder


def render_volume(
    scene: Scene, rng: np.random.Generator, size: int, heights: Sequence[float]
) -> tuple[npt.NDArray[np.uint8], Mask, Mask]:
    """Render slices of a scene whose nodule is a ball: the image "d h w" uint8, and the masks of core and nodule.

    heights: of the slices over the center of the nodule, in scene coordinates.
    """
    drift = rng.uniform(-0.8, 0.8, (len(scene.distractors), 2))
    slices = [_render_slice(_section(scene, z, drift), rng, size, _section_radii(scene.nodule, z))[:3] for z in heights]
    image, to_core, to_halo = (np.stack(part) for part in zip(*slices, strict=True))
    return image, *_nodule_masks(to_core, to_halo)


def _section(scene: Scene, z: float, drift: Plane) -> Scene:
    """Return the scene of a slice: other vessels cross it elsewhere, and the feeding one stays near the middle."""
    moved = [
        replace(tube, x=tube.x + z * dx, y=tube.y + z * dy)
        for tube, (dx, dy) in zip(scene.distractors, drift.tolist(), strict=True)
    ]
    feeder = replace(scene.feeder, contrast=scene.feeder.contrast * math.exp(-((z / 0.1) ** 2)))
    return replace(scene, feeder=feeder, distractors=tuple(moved))


def _section_radii(nodule: Nodule, z: float) -> tuple[float, float]:
    """Return the radii of core and halo in a slice, relative to those in the middle; negative beyond the ball."""
    ratios = (abs(z) / nodule.radius, abs(z) / (nodule.growth * nodule.radius))
    core, halo = (math.sqrt(1.0 - u * u) if u < 1.0 else 1.0 - u for u in ratios)
    return core, halo


def _render_slice(
    scene: Scene, rng: np.random.Generator, size: int, radii: tuple[float, float]
) -> tuple[npt.NDArray[np.uint8], Plane, Plane, Mask]:
    """Render the image "h w" uint8, the distances from core and halo, and the mask of the feeding vessel.

    radii: of core and halo, relative to those of the nodule.
    """
    x, y = _grid(size)
    to_core, to_halo = _nodule_distances(scene.nodule, x, y, radii)
    texture, mottle = _texture(rng, size)
    in_core = _inside(to_core, _edge_width(size, scene.nodule.core_edge))
    in_halo = _inside(to_halo, _edge_width(size, scene.nodule.halo_edge))
    nodule = scene.nodule.halo * (1.0 + 0.10 * mottle) * in_halo + scene.nodule.gap * in_core
    vessels, feeder = _vessel_layer(scene, x, y, to_halo, size)
    # The nodule displaces aerated tissue and with it most of its texture, which would blur the contrasts.
    texture *= 1.0 - 0.7 * in_halo
    image = scene.level + scene.slope[0] * x + scene.slope[1] * y + texture + np.maximum(nodule, vessels)
    if scene.wall is not None:
        image = _add_wall(image, scene.wall, x, y, mottle, size)
    image = image + _grain(rng, size)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8), to_core, to_halo, feeder


@lru_cache(maxsize=8)
def _grid(size: int) -> tuple[Plane, Plane]:
    """Return the pixel centers, x "1 w" and y "h 1"."""
    centers = ((np.arange(size) + 0.5) * 2.0 / size - 1.0).astype(np.float32)
    return centers[None, :], centers[:, None]


def _edge_width(size: int, sharpness: float = 0.013) -> float:
    """Return the width of a soft edge: the blur of the scanner and the extent of a pixel, added in squares."""
    return math.hypot(sharpness, 0.3 * 2.0 / size)


def _inside(distance: Plane, width: float) -> Plane:
    """Return the fraction of a pixel inside an outline, from its signed distance: 1 inside, 0 outside, 0.5 on it."""
    inside: Plane = 0.5 - 0.5 * np.tanh(distance / width)
    return inside


def _nodule_distances(nodule: Nodule, x: Plane, y: Plane, radii: tuple[float, float]) -> tuple[Plane, Plane]:
    """Return the radial distances from the outlines of core and halo, negative inside. The halo follows the core."""
    dx, dy = x - nodule.x, y - nodule.y
    rho = np.hypot(dx, dy)
    turn = (dx + 1j * dy) / (rho + 1e-6)
    order = turn * turn
    core, extra = np.ones_like(rho), np.ones_like(rho)
    for a, b in zip(nodule.core_lobes, nodule.halo_lobes, strict=True):
        core += (order * np.complex64(a)).real
        extra += (order * np.complex64(b)).real
        order = order * turn
    core *= nodule.radius
    return rho - radii[0] * core, rho - radii[1] * (nodule.growth * core * extra)


def _nodule_masks(to_core: Plane, to_halo: Plane) -> tuple[Mask, Mask]:
    """Return the masks of the core and the whole nodule.

    On a coarse grid the nearest pixel replaces an empty core, and the whole includes further pixels until the core is
    at most 0.6 of it, so that the modes always differ clearly.
    """
    core = to_core <= max(0.0, to_core.min())
    rank = math.ceil(core.sum() / 0.6) - 1
    return core, core | (to_halo <= max(0.0, np.partition(to_halo, rank, axis=None)[rank]))


def _vessel_layer(scene: Scene, x: Plane, y: Plane, to_halo: Plane, size: int) -> tuple[Plane, Mask]:
    """Return the brightness of all vessels, and the mask of the feeding one."""
    layer = np.zeros((size, size), np.float32)
    few = max(1, 2**16 // size**2)  # tubes at a time, so that the arrays stay in the processor's cache
    for i in range(0, len(scene.distractors), few):
        layer = np.maximum(layer, _brightness(scene.distractors[i : i + few], x, y, size))
    # The other vessels leave the slice before they reach the nodule, so that the feeding one is unambiguous.
    layer *= smooth_step(to_halo, 0.06, 0.32)
    distance, radius = _tube_distances((scene.feeder,), x, y)
    mask = distance[0] <= np.maximum(radius[0], 0.6 * 2.0 / size)
    return np.maximum(layer, _brightness((scene.feeder,), x, y, size)), mask


def _brightness(tubes: tuple[Tube, ...], x: Plane, y: Plane, size: int) -> Plane:
    """Return the brightness of the brightest tube, "h w"."""
    distance, radius = _tube_distances(tubes, x, y)
    width = _edge_width(size)
    # A blurred slab: thin tubes lose brightness instead of breaking up on coarse grids.
    slab = np.tanh((radius + distance) / width) + np.tanh((radius - distance) / width)
    contrast = np.array([0.5 * tube.contrast for tube in tubes], np.float32)
    brightness: Plane = (slab * contrast[:, None, None]).max(0)
    return brightness


def _tube_distances(tubes: tuple[Tube, ...], x: Plane, y: Plane) -> tuple[Plane, Plane]:
    """Return the distance of each pixel from the axis of each tube, and the radius there, both "v h w"."""
    rows = [(t.x, t.y, t.heading, t.length, t.bend, t.twist, t.start, t.end) for t in tubes]
    ox, oy, heading, length, bend, twist, start, end = np.array(rows, np.float32).T[:, :, None, None]
    cos, sin = np.cos(heading), np.sin(heading)
    dx, dy = x - ox, y - oy
    along = dx * cos + dy * sin
    s = np.clip(along, 0.0, length)
    lateral, slope = course(s, bend, twist)
    across = dy * cos - dx * sin - lateral
    beyond = along - s
    distance = np.sqrt(across * across / (1.0 + slope * slope) + beyond * beyond)
    return distance, start + s * ((end - start) / length)


def _add_wall(image: Plane, wall: Wall, x: Plane, y: Plane, mottle: Plane, size: int) -> Plane:
    """Add pleura and muscle, a darker layer of fat, and a rib cut lengthwise."""
    cos, sin = math.cos(wall.heading), math.sin(wall.heading)
    along = y * cos - x * sin
    depth = x * cos + y * sin - wall.depth + wall.curve * along * along
    rib = np.hypot((along - wall.rib) / 0.42, (depth - 0.16) / 0.085)
    width = _edge_width(size)
    tissue = wall.brightness + 5.0 * mottle
    tissue = tissue - 45.0 * _inside(0.25 - depth, 0.05)
    tissue = tissue + 48.0 * _inside(rib - 1.0, 0.25) - 22.0 * _inside(rib - 0.55, 0.3)
    blended: Plane = image + (tissue - image) * _inside(-depth, width)
    return blended


@lru_cache(maxsize=32)
def _smoother(size: int, knots: int, width: float) -> Plane:
    """Return Gaussian bumps "size knots" whose rows have norm 1, so that smoothed white noise keeps variance 1."""
    centers = np.linspace(-1.0, 1.0, knots)
    weights = np.exp(-0.5 * ((_grid(size)[1] - centers) / width) ** 2)
    smoother: Plane = (weights / np.linalg.norm(weights, axis=1, keepdims=True)).astype(np.float32)
    return smoother


def _smooth_noise(rng: np.random.Generator, size: int, knots: int, width: float) -> Plane:
    """Draw correlated noise "h w" of mean 0 and variance 1."""
    basis = _smoother(size, knots, width)
    noise: Plane = basis @ rng.standard_normal((knots, knots), np.float32) @ basis.T
    return noise


def _texture(rng: np.random.Generator, size: int) -> tuple[Plane, Plane]:
    """Draw the texture of the parenchyma in gray levels, and its finest octave alone, with variance 1."""
    coarse = _smooth_noise(rng, size, 6, 0.30)
    middle = _smooth_noise(rng, size, 16, 0.10)
    mottle = _smooth_noise(rng, size, 36, 0.045)
    # The square skews the fine octave: specks brighter than the tissue, like vessels too small to be resolved.
    return 3.5 * coarse + 2.5 * middle + 2.5 * mottle + 1.5 * (mottle * mottle - 1.0), mottle


def _grain(rng: np.random.Generator, size: int) -> Plane:
    """Draw the noise of the scanner. Larger pixels average more of it away."""
    return min(6.5 * math.sqrt(size / 128.0), 9.0) * _smooth_noise(rng, size, size, 0.011)
