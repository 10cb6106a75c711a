"""Diagnosis of a machine: tries runtimes, backends, models and networks, and reports how to fix what fails."""

from agentflow.doctor._checks import Diagnosis, DiagnosisState
from agentflow.doctor._examine import AREAS, Area, examine

__all__ = ["AREAS", "Area", "Diagnosis", "DiagnosisState", "examine"]
