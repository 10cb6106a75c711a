"""Diagnosis of a machine: tries runtimes, backends, models and networks, and reports how to fix what fails."""

from agentflow.doctor._checks import AREAS, Area, Diagnosis, DiagnosisState, examine
from agentflow.doctor._live import RecordedAnswer, examine_live

__all__ = ["AREAS", "Area", "Diagnosis", "DiagnosisState", "RecordedAnswer", "examine", "examine_live"]
