"""Every number a run decides before it starts; neither torch nor lightning is imported."""

from hf_compat.plan.plan import RunPlan, build_plan

__all__ = ["RunPlan", "build_plan"]
