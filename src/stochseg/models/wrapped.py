"""Any torch segmentation network as a stochastic segmenter: an ensemble, MC dropout or test-time augmentation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from stochseg.core import Noise
from stochseg.errors import UserError
from stochseg.models.base import StochasticSegmenter
from stochseg.models.config import SegmenterConfig
from stochseg.models.sampling import Drawing, Drawn, Keys, Report, Rows, SamplingOptions
from stochseg.networks import Sizes, Tiling, blended, pad_to_multiple
from stochseg.networks.shapes import crop
from stochseg.networks.sharing import shared_copy
from stochseg.types import DatasetInfo

Member = tuple[int, tuple[int, ...]]
"""Which network sees the image, and along which axes it is flipped."""


class WrappedConfig(SegmenterConfig):
    """How networks become samples."""

    draw: Literal["members", "dropout", "flips"] = Field(
        "members",
        description="members: one network per sample; dropout: random units are dropped; flips: the image is flipped, "
        "and the result back",
    )
    output: Literal["logits", "probabilities"] = Field("logits", description="what the networks return")
    multiple: int = Field(1, ge=1, le=1024, description="height and width are padded to multiples of this")


class WrappedSegmenter(StochasticSegmenter):
    """Networks of other libraries behind the interface of all models; made by `wrap`.

    With members and flips, sample i is that of member i modulo their number, and weights give all members the same
    part of the mean. With dropout, sample i is a pass of its own with the noise of (seed, image, i).
    """

    name = "wrapped"
    config_type: ClassVar[type[WrappedConfig]] = WrappedConfig
    config: WrappedConfig
    takes_volumes = True
    tiling: Tiling | None = None

    def __init__(self, info: DatasetInfo, config: WrappedConfig, networks: Sequence[nn.Module]):
        super().__init__(info, config)
        self.networks = nn.ModuleList(networks)
        self.device_marker = nn.Parameter(torch.zeros(()), requires_grad=False)  # networks may have no weights
        if config.draw == "dropout" and not any(_dropouts(self.networks)):
            raise UserError(
                "draw='dropout': expected a network with dropout layers of a probability above 0, found none; build "
                "it with dropout, or use draw='flips' or several networks"
            )

    @property
    def members(self) -> list[Member]:
        """The members that take turns; of dropout, the networks."""
        axes = range(-self.info.spatial_dims, 0) if self.config.draw == "flips" else ()
        flips = [chosen for count in range(len(axes) + 1) for chosen in itertools.combinations(axes, count)]
        return list(itertools.product(range(len(self.networks)), flips))

    @property
    def independent(self) -> bool:
        return self.config.draw == "dropout" and len(self.networks) == 1

    def loss(self, *args: Any, **kwargs: Any) -> Any:
        """Networks are trained by their own library."""
        raise UserError("a wrapped network is trained by its own library; wrap it afterwards")

    def tiled(self, tile: Sizes, overlap: Sizes) -> StochasticSegmenter:
        if self.config.draw == "dropout":
            raise UserError("dropout cannot be tiled: every window would drop other units, and they would not fit")
        model = shared_copy(self)
        model.tiling = Tiling.of(tile, overlap, self.info.spatial_dims)
        return model

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        members, n = self.members, options.n
        turn = torch.arange(n) % len(members)
        weights = (1 / torch.bincount(turn)[turn].double()).float().expand(len(image), n)

        def draw(rows: Rows, noise: Noise, report: Report) -> Drawn:
            seeds = (noise.uniform((len(rows.image), 2)) * 2**24).long().tolist()
            parts = []
            for place, sample, (high, low) in zip(rows.image.tolist(), rows.sample.tolist(), seeds, strict=True):
                member = members[sample % len(members)]
                if self.config.draw == "dropout":
                    with dropping(self.networks, (high << 24) + low, image.device):
                        parts.append(self._probabilities(member, image[place : place + 1]))
                else:
                    parts.append(self._probabilities(member, image[place : place + 1]))
            report(0)
            return Drawn(torch.cat(parts))

        return Drawing(draw, weights=None if self.independent else weights.to(image.device) / weights[0].sum())

    def _probabilities(self, member: Member, image: Tensor) -> Tensor:
        """The probabilities "1 l *space" of one member."""
        network, axes = member
        flipped = image.flip(axes) if axes else image
        run = self._run(self.networks[network])
        output = run(flipped) if self.tiling is None else blended(run, flipped, self.tiling)
        return (output.flip(axes) if axes else output).softmax(1)

    def _run(self, network: nn.Module) -> Callable[[Tensor], Tensor]:
        """The network as a function from images "b c *space" to logits "b l *space"."""

        def run(image: Tensor) -> Tensor:
            output = _tensor(network(pad_to_multiple(image, self.config.multiple)))
            binary = output.ndim == image.ndim and output.shape[1] == 1 and self.num_classes == 2
            if binary and self.config.output == "logits":  # softmax of (0, x) is the sigmoid of x
                output = torch.cat([torch.zeros_like(output), output], 1)
            elif binary:
                output = torch.cat([1 - output, output], 1)
            if self.config.output == "probabilities":
                output = output.clamp_min(torch.finfo(torch.float32).tiny).log()
            output = crop(output, image.shape[2:]).float()
            expected = (len(image), self.num_classes, *image.shape[2:])
            if output.shape != expected:
                raise UserError(
                    f"the network: expected an output of shape {expected}, got {tuple(output.shape)} for an image of "
                    f"shape {tuple(image.shape)}; check num_classes of info, or pad with multiple=32"
                )
            return output

        return run


def wrap(
    networks: nn.Module | Sequence[nn.Module],
    info: DatasetInfo,
    *,
    draw: Literal["members", "dropout", "flips"] | None = None,
    output: Literal["logits", "probabilities"] = "logits",
    multiple: int = 1,
) -> WrappedSegmenter:
    """Make networks of any library (MONAI, segmentation_models_pytorch, nnU-Net …) a stochastic segmenter.

    The result has `sample`, and works with `stochseg.inference.predict`, `evaluate`, `measure` and all figures. A
    network maps images "b c *space" to logits or probabilities "b l *space", or to one channel for the foreground; of a
    list or tuple (deep supervision) the first entry counts, of a dictionary "out" or "logits".

    Args:
        networks: one network, or the members of an ensemble.
        info: classes, channels, and the normalization that the networks were trained with.
        draw: "members" (the default of several networks), "dropout" (MC dropout), or "flips" (test-time augmentation
            along all axes; the default of one network).
        output: what the networks return.
        multiple: pad height and width to multiples of this number, which networks with levels need.

    Returns:
        A model with the weights of the networks. It cannot be trained or saved: its networks belong to their library.

    Raises:
        UserError: if there is no network, or none with dropout for draw="dropout".

    >>> import stochseg
    >>> network = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Dropout(0.5))
    >>> model = wrap(network, stochseg.DatasetInfo(num_classes=2, image_channels=1), draw="dropout")
    >>> model.sample(torch.zeros(1, 1, 8, 8), n=4)
    Samples(1 image of 8×8 pixels, 4 label maps each, 2 classes, seed 0, evaluations 1)
    """
    members = [networks] if isinstance(networks, nn.Module) else list(networks)
    if not members or not all(isinstance(member, nn.Module) for member in members):
        raise UserError(f"wrap: expected one torch.nn.Module or several, got {networks!r}")
    draw = draw or ("members" if len(members) > 1 else "flips")
    if draw == "members" and len(members) == 1:
        raise UserError("wrap: draw='members' needs several networks; use draw='dropout' or 'flips' for one")
    config = WrappedConfig.parse({"draw": draw, "output": output, "multiple": multiple}, where="wrap")
    return WrappedSegmenter(info, config, members).eval()


@contextmanager
def dropping(network: nn.Module, seed: int, device: torch.device) -> Iterator[None]:
    """Let dropout layers drop, with random numbers of this seed; the state of torch's generators comes back."""
    layers = [layer for layer in _dropouts(network) if not layer.training]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for layer in layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False


def _dropouts(network: nn.Module) -> Iterator[nn.Module]:
    """Layers of torch that drop units at random, and those of timm that drop paths."""
    for layer in network.modules():
        chance = getattr(layer, "p", getattr(layer, "drop_prob", 0))
        if "drop" in type(layer).__name__.lower() and isinstance(chance, float) and chance > 0:
            yield layer


def _tensor(output: Any) -> Tensor:
    """The output of a network as one tensor."""
    if isinstance(output, dict):
        output = output.get("out", output.get("logits"))
    while isinstance(output, (list, tuple)) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise UserError(f"the network: expected a tensor, or a list or dictionary with one, got {type(output)}")
    return output
