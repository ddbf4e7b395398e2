"""The data set of phantoms, and the decisions of its raters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from stochseg.config import Config
from stochseg.data.phantom.rendering import Mask, render, render_volume, smooth_step
from stochseg.data.phantom.scene import CORE_CONTRAST, GAP_CONTRAST, HALO_CONTRAST, Nodule, draw_scene
from stochseg.data.protocol import register_dataset
from stochseg.errors import UserError, unknown_name
from stochseg.limits import MAX_SEED
from stochseg.types import DatasetInfo, Example, Spacing, Truth

Variant = Literal["binary", "multiclass"]

SPLITS = {"train": 0, "val": 1, "test": 2}
CLASS_NAMES = {"binary": ("background", "nodule"), "multiclass": ("background", "solid", "ground-glass", "vessel")}
MODE_NAMES = {
    "binary": ("nothing", "core", "with halo"),
    "multiclass": ("nothing", "core", "core and halo", "all solid"),
}

FIELD_MM = 0.7 * 128
"""Field of view in millimeters, the same at every size."""
DEPTH_MM = 36.0
"""Depth of a volume in millimeters, the same for any number of slices."""
MAX_SLICES = 1024
CACHE_BYTES = 128 * 2**20
RATER_STREAM, DRAW_STREAM = 1, 2
"""Random streams in addition to the scene's own. Never 0, because numpy's seeding ignores trailing zeros."""


class PhantomConfig(Config):
    """Options of one split of the phantoms."""

    size: int = Field(default=128, ge=8, le=4096)
    variant: Variant = "binary"
    count: int = Field(default=1000, ge=1, le=10**7)
    raters: int = Field(default=4, ge=1, le=1000)
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    habits: tuple[float, ...] = Field((), description="one per rater: added to their log-odds of including the halo")


@register_dataset("phantom")
class Phantoms:
    """CT-like lung slices with one ambiguous nodule. Synthetic: no patient, no scanner, no human rater.

    Each slice shows parenchyma, branching vessels, sometimes the chest wall, and near the center a lobulated solid
    core inside a ground-glass halo, fed by a vessel. A rater decides in two steps, each with a probability that
    depends on the image:

    - Is there a nodule at all? P("nothing") falls from 0.7 to 0.05 as the contrast of the core rises.
    - Does the halo belong to it? P(halo | nodule) rises from 0.1 to 0.9 with the contrast of the halo.

    Variant "binary" has the modes "nothing", "core" and "with halo". Variant "multiclass" labels solid 1, ground-glass
    2 and the feeding vessel 3 (in every mode, nodule pixels excluded); a rater who includes the halo labels it solid
    too ("all solid") with a probability that falls from 0.9 to 0.1 as the brightness gap between core and halo widens.

    `truth` gives the modes and their probabilities, and the raters are independent draws from them. The probabilities
    belong to the contrasts of the noiseless scene. Grain and texture leave an error of 3 to 4 gray levels, of a range
    of 70 and more, when a contrast is measured in the image: a careful reader gets the probabilities right to within
    0.02 ("nothing") and 0.04 (the others), root mean square.

    With `habits`, the raters are persons, "rater1", "rater2", ..., with one map of each per image. A rater of habit h
    includes the halo with the probability sigmoid(logit(p) + h), where p is the one above: below 0 they keep to the
    core, above 0 they are generous.

    Everything is a function of (seed, split, index, size, variant); the scene itself of the first three.

    Args:
        split: "train", "val" or "test".
        size: Height and width.
        variant: "binary" or "multiclass".
        count: Number of images.
        raters: Label maps per image.
        seed: Seed of the scenes and raters.
        habits: One number per rater, instead of `raters`.

    Example:
        >>> data = Phantoms("train", size=32, count=10)
        >>> example, truth = data[0], data.truth(0)
        >>> tuple(example.raters.shape), truth.names
        ((4, 32, 32), ('nothing', 'core', 'with halo'))
        >>> float(truth.probabilities.sum())
        1.0
    """

    def __init__(
        self,
        split: str,
        *,
        size: int = 128,
        variant: Variant = "binary",
        count: int = 1000,
        raters: int = 4,
        seed: int = 0,
        habits: Sequence[float] = (),
    ) -> None:
        if split not in SPLITS:
            raise unknown_name("split of phantom", split, SPLITS)
        options = {"size": size, "variant": variant, "count": count, "raters": len(habits) or raters, "seed": seed}
        self.split = split
        self.config = PhantomConfig.parse({**options, "habits": tuple(habits)}, where="phantom")
        names = CLASS_NAMES[self.config.variant]
        self.info = DatasetInfo(
            name="phantom",
            num_classes=len(names),
            image_channels=1,
            class_names=names,
            rater_names=tuple(f"rater{i + 1}" for i in range(len(habits))),
        )
        self._spacing: Spacing = (FIELD_MM / self.config.size,) * 2
        self._cache: dict[int, _Case] = {}

    def __len__(self) -> int:
        return self.config.count

    @property
    def habits(self) -> tuple[float, ...]:
        """The habits of the raters, if they have any."""
        return self.config.habits

    @property
    def groups(self) -> list[str]:
        """Every phantom is a group of its own."""
        return [self._name(index) for index in range(len(self))]

    def _name(self, index: int) -> str:
        return f"{self.info.name}-{self.split}-{index:05d}"

    def __getitem__(self, index: int) -> Example:
        index = range(len(self))[index]
        case = self._case(index)
        name = self._name(index)
        return Example(
            image=self.info.normalization(torch.from_numpy(case.image)[None]),
            raters=self._rate(case, self._rng(index, RATER_STREAM)),
            id=name,
            group=name,
            spacing=self._spacing,
            rater_names=self.info.rater_names,
        )

    def _rate(self, case: _Case, rng: np.random.Generator) -> Tensor:
        if not self.config.habits:
            return _pick(case, self.config.raters, rng)
        return torch.cat([_pick(case.of(habit), 1, rng) for habit in self.config.habits])

    def truth(self, index: int, rater: str | None = None) -> Truth:
        """Return the distribution from which the raters of an image are drawn, with probabilities "m" float64.

        Args:
            index: Number of the image.
            rater: That of this rater, if they have habits; None: of a rater chosen at random.
        """
        case, habits = self._case(index), dict(zip(self.info.rater_names, self.config.habits, strict=True))
        chosen = habits.values() if rater is None else [habits[rater]]
        probabilities = np.mean([case.of(h).probabilities for h in chosen], axis=0) if habits else case.probabilities
        modes = torch.from_numpy(case.modes.astype(np.int64))
        return Truth(modes, torch.from_numpy(probabilities.copy()), MODE_NAMES[self.config.variant])

    def raw(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the image before normalization, "*space" uint8."""
        return self._case(index).image.copy()

    def draw(self, index: int, n: int, seed: int) -> Tensor:
        """Draw n further label maps "n *space" from the truth, as a perfect model would. Map i does not depend on n."""
        if n < 1 or seed < 0:
            raise UserError(f"phantom draw: expected n >= 1 and seed >= 0; got n={n}, seed={seed}")
        index = range(len(self))[index]
        return _pick(self._case(index), n, self._rng(index, DRAW_STREAM, seed))

    def _rng(self, index: int, *stream: int) -> np.random.Generator:
        return np.random.default_rng((self.config.seed, SPLITS[self.split], index, *stream))

    def _case(self, index: int) -> _Case:
        index = range(len(self))[index]
        if index in self._cache:
            return self._cache[index]
        case = self._make_case(self._rng(index))
        # A full cache keeps its content: over shuffled epochs, evicting only trades one hit for another.
        if (len(self._cache) + 1) * (case.image.nbytes + case.modes.nbytes) <= CACHE_BYTES:
            self._cache[index] = case
        return case

    def _make_case(self, rng: np.random.Generator) -> _Case:
        return _draw_slice(rng, self.config.size, self.config.variant)


@register_dataset("phantom-3d")
class PhantomVolumes(Phantoms):
    """Volumes with one ambiguous nodule, whose readings hold together over all slices.

    The scenes and raters of `Phantoms`, variant "binary": core and halo are lobulated balls, and the decision of a
    rater ("nothing", "core" or "with halo") is one for the whole volume. Texture and grain differ between slices.

    Args:
        split: "train", "val" or "test".
        size: Height and width of the slices.
        slices: Number of slices; they always cover 36 mm.
        count: Number of volumes.
        raters: Label maps per volume.
        seed: Seed of the scenes and raters.

    Example:
        >>> data = PhantomVolumes("train", size=32, slices=9, count=10)
        >>> tuple(data[0].image.shape), tuple(data[0].raters.shape), data[0].spacing
        ((1, 9, 32, 32), (4, 9, 32, 32), (4.0, 2.8, 2.8))
        >>> tuple(data.truth(0).modes.shape), data.truth(0).names
        ((3, 9, 32, 32), ('nothing', 'core', 'with halo'))
    """

    def __init__(
        self, split: str, *, size: int = 64, slices: int = 12, count: int = 1000, raters: int = 4, seed: int = 0
    ) -> None:
        super().__init__(split, size=size, count=count, raters=raters, seed=seed)
        if not 1 <= slices <= MAX_SLICES:
            raise UserError(f"phantom-3d: expected 1 to {MAX_SLICES} slices, got {slices}")
        self.slices = slices
        self.info = self.info.model_copy(update={"name": "phantom-3d", "spatial_dims": 3})
        self._spacing = (DEPTH_MM / slices, *self._spacing)

    def space(self, i: int) -> tuple[int, int, int]:
        """Return the size of a volume without drawing it."""
        return self.slices, self.config.size, self.config.size

    def _make_case(self, rng: np.random.Generator) -> _Case:
        scene = draw_scene(rng)
        heights = ((np.arange(self.slices) + 0.5) / self.slices - 0.5) * DEPTH_MM + rng.uniform(-3.0, 3.0)
        # Scene coordinates: the field of view is 2 wide.
        image, core, whole = render_volume(scene, rng, self.config.size, (heights * 2.0 / FIELD_MM).tolist())
        return _binary_case(image, core, whole, scene.nodule)


@dataclass(frozen=True)
class _Case:
    """An image "*space", its modes "m *space" and their probabilities "m"."""

    image: npt.NDArray[np.uint8]
    modes: npt.NDArray[np.uint8]
    probabilities: npt.NDArray[np.float64]

    def of(self, habit: float) -> _Case:
        """The case as a rater of this habit sees it: the odds of the modes with the halo change, that of none do not.

        Modes are nothing, the core, and one or several with the halo.
        """
        nothing, core, *halo = self.probabilities
        odds = np.exp(habit) * sum(halo) / core
        with_halo = (1 - nothing) * odds / (1 + odds)
        scaled = np.array([nothing, 1 - nothing - with_halo, *(with_halo * p / sum(halo) for p in halo)])
        return replace(self, probabilities=scaled)


def _pick(case: _Case, n: int, rng: np.random.Generator) -> Tensor:
    """Draw n modes by their probabilities, "n *space" int64."""
    chosen = rng.choice(len(case.modes), size=n, p=case.probabilities)
    return torch.from_numpy(case.modes[chosen].astype(np.int64))


def _draw_slice(rng: np.random.Generator, size: int, variant: Variant) -> _Case:
    scene = draw_scene(rng)
    image, core, whole, vessel = render(scene, rng, size)
    if variant == "binary":
        return _binary_case(image, core, whole, scene.nodule)
    only_vessel = np.where(vessel & ~whole, 3, 0)
    with_core = np.where(core, 1, only_vessel)
    modes = [only_vessel, with_core, np.where(whole & ~core, 2, with_core), np.where(whole, 1, only_vessel)]
    return _Case(image, np.stack(modes).astype(np.uint8), _probabilities(scene.nodule, variant))


def _binary_case(image: npt.NDArray[np.uint8], core: Mask, whole: Mask, nodule: Nodule) -> _Case:
    modes = np.stack([np.zeros_like(core), core, whole]).astype(np.uint8)
    return _Case(image, modes, _probabilities(nodule, "binary"))


def _probabilities(nodule: Nodule, variant: Variant) -> npt.NDArray[np.float64]:
    """Return the probabilities of the modes, a function of the three visible contrasts alone."""
    nothing = 0.70 - 0.65 * smooth_step(nodule.halo + nodule.gap, *CORE_CONTRAST)
    halo = 0.1 + 0.8 * smooth_step(nodule.halo, *HALO_CONTRAST)
    solid = 0.9 - 0.8 * smooth_step(nodule.gap, *GAP_CONTRAST)
    with_halo = [halo] if variant == "binary" else [halo * (1.0 - solid), halo * solid]
    something = 1.0 - nothing
    return np.array([nothing, something * (1.0 - halo), *(something * p for p in with_halo)])
