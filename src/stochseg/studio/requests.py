"""Checks of requests against models, inputs and limits, before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping

from stochseg.studio.errors import Refusal
from stochseg.studio.schemas import JobRequest
from stochseg.studio.settings import Limits
from stochseg.studio.store import Json


def check_job(request: JobRequest, model: Json, facts: Json, limits: Limits) -> Json:
    """The record of a job that can be computed.

    Args:
        request: what the client wants.
        model: facts about its model.
        facts: about its input.
        limits: of the server.

    Raises:
        Refusal: 422, with the parameter that does not fit.
    """
    _check_numbers(request, model, limits)
    _check_input(request, model, facts)
    _check_rater(request, model)
    options = {
        "n": request.samples,
        "seed": request.seed,
        "noise": request.noise,
        "evaluations": request.evaluations,
        "slices": request.slices,
        "rater": request.rater,
        "allow_unusual_input": request.allow_unusual_input,
    }
    return {
        "input": request.input,
        "model": request.model,
        "options": {key: value for key, value in options.items() if value is not None},
        "points": [list(point) for point in request.points or ()],
        "shape": [*facts["shape"], facts["channels"]],
        "keep": request.keep,
        "parameters": request.model_dump(exclude={"input", "model"}),
    }


def _check_numbers(request: JobRequest, model: Json, limits: Limits) -> None:
    if request.samples > limits.samples:
        raise _unfit("samples", f"1 to {limits.samples}", request.samples)
    if request.evaluations is not None and not model["takes_evaluations"]:
        raise _unfit("evaluations", f"null, because {model['name']} has no choice", request.evaluations)
    most = model["limits"]["evaluations"]
    if request.evaluations is not None and request.evaluations > most:
        raise _unfit("evaluations", f"1 to {most}", request.evaluations)


def _check_input(request: JobRequest, model: Json, facts: Json) -> None:
    volume, volumes = facts["spatial_dims"] == 3, model["spatial_dims"] == 3
    if volumes and not volume:
        raise _unfit("input", f"a volume, because {model['name']} segments volumes", "an image")
    if facts["channels"] != model["image_channels"]:
        raise _unfit("input", f"{model['image_channels']} channel(s)", f"{facts['channels']} channel(s)")
    if request.slices is not None and volumes:
        raise _unfit("slices", f"null, because {model['name']} segments volumes", request.slices)
    for point in request.points or ():
        if not model["takes_points"] or not volume:
            raise _unfit("points", "a volume, and a model that declares how to cut it (takes_points)", list(point))
        ends = [length - 0.5 for length in reversed(facts["shape"])]
        if any(value > end for value, end in zip(point, ends, strict=True)):
            raise _unfit("points", f"voxels inside {'×'.join(f'{end + 0.5:g}' for end in ends)}", list(point))


def _check_rater(request: JobRequest, model: Json) -> None:
    names = model["rater_names"]
    if request.rater is None or request.rater in names:
        return
    if names:
        remedy = "choose one of them, or omit it to draw as any of them would"
        raise _unfit("rater", f"null or one of {', '.join(names)}", request.rater, remedy)
    remedy = "omit it, or choose a model that was trained with rater_conditioning"
    raise _unfit("rater", f"null, because {model['name']} does not know its raters apart", request.rater, remedy)


def _unfit(parameter: str, expected: str, got: object, remedy: str = "change it") -> Refusal:
    return Refusal(422, f"{parameter}: expected {expected}, got {got}", expected=expected, got=got, remedy=remedy)


def require_model(models: Mapping[str, Json], name: str) -> Json:
    """Facts about a model by name."""
    if name not in models:
        raise Refusal(422, f"unknown model {name!r}", expected=", ".join(sorted(models)), got=name)
    return models[name]
