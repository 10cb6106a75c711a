"""What this machine can run, by trying it: runtimes, backends with their tools, models, networks; and what mends the rest."""

from agentflow.doctor._examine import AREAS, Area, examine
from agentflow.doctor._finding import Diagnosis, DiagnosisState

__all__ = ["AREAS", "Area", "Diagnosis", "DiagnosisState", "examine"]
