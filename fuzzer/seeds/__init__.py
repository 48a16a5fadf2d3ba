"""Seeds: YAML files that describe a model, its inputs, and what to compare."""

from fuzzer.seeds.schema import Accept, Dim, InputSpec, ModelSpec, Seed, Task, Tolerance, Weights

__all__ = ["Accept", "Dim", "InputSpec", "ModelSpec", "Seed", "Task", "Tolerance", "Weights"]
