"""Base inputs: what a seed's inputs look like before anything is mutated."""

from fuzzer.inputs.sample import base_sample, noise_sample, oversized, sample_with_dims
from fuzzer.inputs.valid import valid_sample

__all__ = ["base_sample", "noise_sample", "oversized", "sample_with_dims", "valid_sample"]
