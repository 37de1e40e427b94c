"""The numbers of a run that are known before it starts; neither torch nor lightning is imported."""

from hf_compat.plan.plan import RunPlan, build_plan
from hf_compat.plan.position import DataPosition, ResumeOffset, plan_for_rest

__all__ = ["DataPosition", "ResumeOffset", "RunPlan", "build_plan", "plan_for_rest"]
