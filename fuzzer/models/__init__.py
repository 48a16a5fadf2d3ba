"""Models: from a seed to a module that backends can prepare."""

from fuzzer.models.build import build_model, weights_hash
from fuzzer.models.model import Model

__all__ = ["Model", "build_model", "weights_hash"]
