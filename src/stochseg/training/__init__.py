"""Training: a config, a deterministic stream of batches, a loop, checkpoints."""

from stochseg.training.config import TrainConfig, override, read_config
from stochseg.training.loop import TrainingDiverged, train
from stochseg.training.splits import open_split

__all__ = ["TrainConfig", "TrainingDiverged", "open_split", "override", "read_config", "train"]
