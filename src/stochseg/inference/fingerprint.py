"""Fingerprints of models, by which a result knows the model that drew it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic_core import to_json

from stochseg.errors import UserError
from stochseg.models import StochasticSegmenter


def fingerprint(model: StochasticSegmenter) -> str:
    """Hash the name, the config, the facts about the data and the weights of a model."""
    return _hash(model, model.config.model_dump(mode="json"), model.info.model_dump(mode="json"))


def had_fingerprint(model: StochasticSegmenter, sha256: str, config: object) -> bool:
    """Whether this was the fingerprint of the model before keys of its config or info were renamed.

    Args:
        model: The model.
        sha256: The fingerprint.
        config: The config that was recorded with it, under the names of that time.
    """
    try:
        if not isinstance(config, Mapping) or model.config_type.parse(config) != model.config:
            return False
    except UserError:
        return False
    info = model.info.model_dump(mode="json")
    before = {new: old for old, new in model.info.renamed_keys.items()}
    renamed = {before.get(key, key): value for key, value in info.items()}
    return sha256 in (_hash(model, config, info), _hash(model, config, renamed))


def _hash(model: StochasticSegmenter, config: Any, info: Any) -> str:
    digest = hashlib.sha256(model.name.encode() + to_json(config) + to_json(info))
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode() + np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()
