# pyright: basic, reportMissingImports=false
"""What stock verl loads of ours, by `VERL_USE_EXTERNAL_MODULES=agentflow.learner.verl._inside`, in verl's environment.

Everything goes through verl's own registries: a platform that computes on the CPU, the losses and the advantage
estimator, a trainer that takes orders, a checkpoint engine that writes the weights as a folder. Nothing is patched.
"""

from agentflow.learner.verl._inside import _losses as _losses
from agentflow.learner.verl._inside import _platform as _platform
from agentflow.learner.verl._inside import _trainer as _trainer
from agentflow.learner.verl._inside import _weights as _weights
