"""Models as workers load them: by their path, once per process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stochseg.errors import UserError
from stochseg.inference.engines import with_engine
from stochseg.inference.plan import Plan, PredictOptions, hash_model
from stochseg.models import StochasticSegmenter, load
from stochseg.models.io import SHIPPED, find_model
from stochseg.workers import Pool, Runner


@dataclass(frozen=True)
class StoredModel:
    """A saved model; a call loads it.

    path: absolute, or the name of a bundled model; device: by name; engine: of sampling; sha256: of the model, because
    the files may be replaced by a training.
    """

    path: str
    device: str
    engine: str
    sha256: str

    @classmethod
    def of(cls, model: StochasticSegmenter, path: str | Path, device: str, engine: str = "eager") -> StoredModel:
        """Describe a model that was loaded from `path`.

        Raises:
            UserError: There is no saved model.
        """
        bundled = find_model(Path(path)).parent == SHIPPED
        return cls(str(path) if bundled else os.path.abspath(path), device, engine, hash_loaded(model))

    def __call__(self) -> StochasticSegmenter:
        """Load the model.

        Raises:
            UserError: It differs from the one that was described.
        """
        model = load(self.path, device=self.device)
        if hash_loaded(model) != self.sha256:
            raise UserError(f"{self.path} differs from the model of the command; do not train it at the same time")
        return with_engine(model, self.engine)


def hash_loaded(model: StochasticSegmenter) -> str:
    """Hash a model with its config and the facts about its data.

    Args:
        model: The model, without an engine, which would replace its modules.

    Returns:
        SHA-256 in hexadecimal.
    """
    return hash_model(model, model.config.model_dump(mode="json"), model.info.model_dump(mode="json"))


@dataclass(frozen=True)
class StoredPlan:
    """A plan of a saved model; a call makes it. origin: the model as the user named it, for the record."""

    model: StoredModel
    options: PredictOptions
    origin: str

    def __call__(self) -> Plan:
        """Load the model and prepare it."""
        return Plan(self.model(), self.options, self.origin)


def run_on(
    pool: Pool | None, model: StochasticSegmenter, path: str | Path, engine: str = "eager"
) -> Runner[StochasticSegmenter] | None:
    """Let workers evaluate a model.

    Args:
        pool: The workers; see `stochseg.workers.open_pool`.
        model: The model, without its engine.
        path: From which it was loaded; the workers load it from there.
        engine: Of sampling on the workers.

    Returns:
        The `runner` of `evaluate`; None without workers.

    Raises:
        UserError: There is no model at `path`.
    """
    return None if pool is None else partial(pool.run, StoredModel.of(model, path, pool.device, engine))
