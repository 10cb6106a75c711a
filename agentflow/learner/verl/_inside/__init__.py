# pyright: basic, reportMissingImports=false
"""Extensions loaded by verl in its own environment: `VERL_USE_EXTERNAL_MODULES=agentflow.learner.verl._inside`.

They use verl's registries: a CPU platform, the losses and the advantage estimator, a trainer that accepts requests, and a
checkpoint engine that writes the weights as a folder. Nothing is patched.
"""

from agentflow.learner.verl._inside import _losses as _losses
from agentflow.learner.verl._inside import _platform as _platform
from agentflow.learner.verl._inside import _trainer as _trainer
