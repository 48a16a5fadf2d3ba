"""Diagnosis: from a failed verdict to a label of the taxonomy, with the evidence for it."""

from fuzzer.diagnose import on_inputs, on_target, on_terms, operator  # noqa: F401  built-in interventions register themselves
from fuzzer.diagnose.label import TAXONOMY, Diagnosis, Label, suspected
from fuzzer.diagnose.primary import GRAVITY, primary
from fuzzer.diagnose.provisional import provisional

__all__ = ["GRAVITY", "TAXONOMY", "Diagnosis", "Label", "primary", "provisional", "suspected"]
