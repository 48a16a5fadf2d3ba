"""Seeds: YAML files that describe a model, its inputs, and what to compare."""

from fuzzer.seeds.load import load_seed, load_seeds, seed_from_json, seed_from_text, seed_text, seed_to_json
from fuzzer.seeds.schema import Accept, Dim, InputSpec, ModelSpec, Seed, Task, Tolerance, Weights
from fuzzer.seeds.sketch import sketch

__all__ = [
    "Accept",
    "Dim",
    "InputSpec",
    "ModelSpec",
    "Seed",
    "Task",
    "Tolerance",
    "Weights",
    "load_seed",
    "load_seeds",
    "seed_from_json",
    "seed_from_text",
    "seed_text",
    "seed_to_json",
    "sketch",
]
