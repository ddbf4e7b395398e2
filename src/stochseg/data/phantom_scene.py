"""The phantoms' scenes: how the anatomy of a synthetic lung slice is drawn, and how it becomes pixels.

Scene coordinates: x to the right, y downwards, both in [-1, 1] over the field of view. A scene is drawn
without looking at the pixel grid, so one index shows the same anatomy at every size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

# Gray levels (of 255) by which halo and core rise above the parenchyma and the halo: what the raters see.
HALO_CONTRAST = (16.0, 88.0)
GAP_CONTRAST = (24.0, 110.0)
CORE_CONTRAST = (HALO_CONTRAST[0] + GAP_CONTRAST[0], HALO_CONTRAST[1] + GAP_CONTRAST[1])


def smooth_step(value: np.ndarray | float, low: float, high: float) -> np.ndarray | float:
    """0 below `low`, 1 above `high`, a smooth cubic between."""
    u = np.clip((value - low) / (high - low), 0.0, 1.0)
    return u * u * (3.0 - 2.0 * u)


# --- the scene: what is drawn before any pixel exists ----------------------------------------------------


@dataclass(frozen=True)
class Nodule:
    """Center, mean radii of core and halo, their lobes (order, amplitude, phase), edges and contrasts."""

    x: float
    y: float
    radius: float
    growth: float
    core_lobes: np.ndarray
    halo_lobes: np.ndarray
    core_edge: float
    halo_edge: float
    halo: float
    gap: float


@dataclass(frozen=True)
class Tube:
    """A curved capsule: origin, heading, length, lateral course bend·s² + twist·s³, both radii."""

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
        """Point and heading after the way s along the axis."""
        lateral, slope = _course(s, self.bend, self.twist)
        cos, sin = math.cos(self.heading), math.sin(self.heading)
        x, y = self.x + s * cos - lateral * sin, self.y + s * sin + lateral * cos
        return x, y, self.heading + math.atan(slope)


@dataclass(frozen=True)
class Wall:
    """The chest wall: everything beyond the curve `depth - curve·s²` in direction `heading`."""

    heading: float
    depth: float
    curve: float
    brightness: float
    rib: float


@dataclass(frozen=True)
class Scene:
    level: float
    slope: tuple[float, float]
    nodule: Nodule
    feeder: Tube
    distractors: tuple[Tube, ...]
    wall: Wall | None


def draw_scene(rng: np.random.Generator) -> Scene:
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
    overlap = rng.uniform(0.35, 0.52)  # the share of the whole nodule that is core
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


def _draw_lobes(rng: np.random.Generator, amplitudes: tuple[float, ...]) -> np.ndarray:
    """Complex coefficients of the angular orders 2, 3, ... of an outline."""
    phase = rng.uniform(0.0, 2.0 * math.pi, len(amplitudes))
    return rng.uniform(0.3, 1.0, len(amplitudes)) * amplitudes * np.exp(1j * phase)


def _draw_wall(rng: np.random.Generator, heading: float) -> Wall:
    return Wall(
        heading=heading + rng.uniform(-0.5, 0.5),
        depth=rng.uniform(0.68, 0.92),
        curve=rng.uniform(0.08, 0.30),
        brightness=rng.uniform(185.0, 215.0),
        rib=rng.uniform(-0.6, 0.6),
    )


def _draw_feeder(rng: np.random.Generator, nodule: Nodule, hilum: float) -> Tube:
    """Starts at the rim of the core, so that it touches the nodule however far a rater takes it to reach."""
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
    """A trunk that comes from the hilum, and its branches, thinner than what they leave."""
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
    """A vessel cut across: a very short tube."""
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


# --- rendering: analytic soft edges on the pixel grid ----------------------------------------------------


def render(scene: Scene, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Image "h w" uint8 and the masks of the core, the whole nodule and the feeding vessel, "h w" bool."""
    x, y = _grid(size)
    to_core, to_halo = _nodule_distances(scene.nodule, x, y)
    texture, mottle = _texture(rng, size)
    nodule = _nodule_layer(scene.nodule, to_core, to_halo, mottle, size)
    vessels, feeder = _vessel_layer(scene, x, y, to_halo, size)
    # The nodule displaces aerated tissue and with it most of its texture, which would blur the contrasts.
    texture *= 1.0 - 0.7 * _inside(to_halo, _edge_width(size, scene.nodule.halo_edge))
    image = scene.level + scene.slope[0] * x + scene.slope[1] * y + texture + np.maximum(nodule, vessels)
    if scene.wall is not None:
        image = _add_wall(image, scene.wall, x, y, mottle, size)
    image = image + _grain(rng, size)
    core, whole = _nodule_masks(to_core, to_halo)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8), core, whole, feeder


@lru_cache(maxsize=8)
def _grid(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixel centers: x "1 w" and y "h 1"."""
    centers = ((np.arange(size) + 0.5) * 2.0 / size - 1.0).astype(np.float32)
    return centers[None, :], centers[:, None]


def _edge_width(size: int, sharpness: float = 0.013) -> float:
    """Width of a soft edge: the scanner's blur and the pixel's own extent, added in squares."""
    return math.hypot(sharpness, 0.3 * 2.0 / size)


def _inside(distance: np.ndarray, width: float) -> np.ndarray:
    """Share of a pixel inside an outline, from its signed distance: 1 inside, 0 outside, 0.5 on it."""
    return 0.5 - 0.5 * np.tanh(distance / width)


def _nodule_distances(nodule: Nodule, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Radial distances from the outlines of core and halo, negative inside. The halo follows the core."""
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
    return rho - core, rho - nodule.growth * core * extra


def _nodule_masks(to_core: np.ndarray, to_halo: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Core and whole nodule, "h w" bool. On a coarse grid the nearest pixel stands for an empty core, and
    the whole takes in further pixels until the core is at most 0.6 of it: the modes always differ clearly."""
    core = to_core <= max(0.0, to_core.min())
    rank = math.ceil(core.sum() / 0.6) - 1
    return core, core | (to_halo <= max(0.0, np.partition(to_halo, rank, axis=None)[rank]))


def _nodule_layer(
    nodule: Nodule, to_core: np.ndarray, to_halo: np.ndarray, mottle: np.ndarray, size: int
) -> np.ndarray:
    halo = nodule.halo * (1.0 + 0.10 * mottle) * _inside(to_halo, _edge_width(size, nodule.halo_edge))
    return halo + nodule.gap * _inside(to_core, _edge_width(size, nodule.core_edge))


def _vessel_layer(
    scene: Scene, x: np.ndarray, y: np.ndarray, to_halo: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Brightness of all vessels, and the mask of the feeding one."""
    layer = np.zeros((size, size), np.float32)
    few = max(1, 2**16 // size**2)  # so many tubes at a time that the arrays stay in the processor's cache
    for i in range(0, len(scene.distractors), few):
        layer = np.maximum(layer, _brightness(scene.distractors[i : i + few], x, y, size))
    # The other vessels leave the slice before they reach the nodule: which one feeds it stays unambiguous.
    layer *= smooth_step(to_halo, 0.06, 0.32)
    distance, radius = _tube_distances((scene.feeder,), x, y)
    mask = distance[0] <= np.maximum(radius[0], 0.6 * 2.0 / size)
    return np.maximum(layer, _brightness((scene.feeder,), x, y, size)), mask


def _brightness(tubes: tuple[Tube, ...], x: np.ndarray, y: np.ndarray, size: int) -> np.ndarray:
    """Brightness of the brightest tube, "h w"."""
    distance, radius = _tube_distances(tubes, x, y)
    width = _edge_width(size)
    # A blurred slab: thin tubes lose brightness instead of breaking up on coarse grids.
    slab = np.tanh((radius + distance) / width) + np.tanh((radius - distance) / width)
    contrast = np.array([0.5 * tube.contrast for tube in tubes], np.float32)
    return (slab * contrast[:, None, None]).max(0)


def _course(s: np.ndarray | float, bend: np.ndarray | float, twist: np.ndarray | float) -> tuple:
    """Lateral offset of a tube after the way s along its heading, and the slope of its course."""
    return s * s * (bend + twist * s), s * (2.0 * bend + 3.0 * twist * s)


def _tube_distances(tubes: tuple[Tube, ...], x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distance of each pixel from the axis of each tube, and the radius there: two "v h w" arrays."""
    rows = [(t.x, t.y, t.heading, t.length, t.bend, t.twist, t.start, t.end) for t in tubes]
    ox, oy, heading, length, bend, twist, start, end = np.array(rows, np.float32).T[:, :, None, None]
    cos, sin = np.cos(heading), np.sin(heading)
    dx, dy = x - ox, y - oy
    along = dx * cos + dy * sin
    s = np.clip(along, 0.0, length)
    lateral, slope = _course(s, bend, twist)
    across = dy * cos - dx * sin - lateral
    beyond = along - s
    distance = np.sqrt(across * across / (1.0 + slope * slope) + beyond * beyond)
    return distance, start + s * ((end - start) / length)


def _add_wall(image: np.ndarray, wall: Wall, x: np.ndarray, y: np.ndarray, mottle: np.ndarray, size: int) -> np.ndarray:
    """Pleura and muscle, a darker layer of fat, and a rib cut lengthwise."""
    cos, sin = math.cos(wall.heading), math.sin(wall.heading)
    along = y * cos - x * sin
    depth = x * cos + y * sin - wall.depth + wall.curve * along * along
    rib = np.hypot((along - wall.rib) / 0.42, (depth - 0.16) / 0.085)
    width = _edge_width(size)
    tissue = wall.brightness + 5.0 * mottle
    tissue = tissue - 45.0 * _inside(0.25 - depth, 0.05)
    tissue = tissue + 48.0 * _inside(rib - 1.0, 0.25) - 22.0 * _inside(rib - 0.55, 0.3)
    return image + (tissue - image) * _inside(-depth, width)


@lru_cache(maxsize=32)
def _smoother(size: int, knots: int, width: float) -> np.ndarray:
    """Gaussian bumps "size knots" whose rows have norm 1, so smoothed white noise keeps variance 1."""
    centers = np.linspace(-1.0, 1.0, knots)
    weights = np.exp(-0.5 * ((_grid(size)[1] - centers) / width) ** 2)
    return (weights / np.linalg.norm(weights, axis=1, keepdims=True)).astype(np.float32)


def _smooth_noise(rng: np.random.Generator, size: int, knots: int, width: float) -> np.ndarray:
    """Correlated noise "h w" of mean 0 and variance 1."""
    basis = _smoother(size, knots, width)
    return basis @ rng.standard_normal((knots, knots), np.float32) @ basis.T


def _texture(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The parenchyma's texture in gray levels, and its finest octave alone, with variance 1."""
    coarse = _smooth_noise(rng, size, 6, 0.30)
    middle = _smooth_noise(rng, size, 16, 0.10)
    mottle = _smooth_noise(rng, size, 36, 0.045)
    # The square skews the fine octave: specks brighter than the tissue, as vessels too small to be resolved.
    return 3.5 * coarse + 2.5 * middle + 2.5 * mottle + 1.5 * (mottle * mottle - 1.0), mottle


def _grain(rng: np.random.Generator, size: int) -> np.ndarray:
    """The scanner's noise. Larger pixels average more of it away."""
    return min(6.5 * math.sqrt(size / 128.0), 9.0) * _smooth_noise(rng, size, size, 0.011)
