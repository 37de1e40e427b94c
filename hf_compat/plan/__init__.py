"""The numbers of a run that are known before it starts; neither torch nor lightning is imported."""

from hf_compat.plan.plan import DataPosition, ResumeOffset, RunPlan, build_plan, plan_for_rest

__all__ = ["DataPosition", "ResumeOffset", "RunPlan", "build_plan", "plan_for_rest"]
