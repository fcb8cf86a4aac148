"""What an engine's end means, and what follows from it: faults by class, each with a policy. Pure."""

from orchestrator.faults.classes import POLICIES, Fault, Gives, Policy
from orchestrator.faults.codes import FAULTS, fault_of, policy_of
from orchestrator.faults.ending import Ended, judge

__all__ = ["FAULTS", "POLICIES", "Ended", "Fault", "Gives", "Policy", "fault_of", "judge", "policy_of"]
