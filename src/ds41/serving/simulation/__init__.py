"""A discrete-event model of a serving cluster under a load of agents, fed by the byte ledger and by costs of steps."""

from importlib import import_module

# A module is imported when one of its names is asked for.
_MODULES = {
    "cluster": ("Pools", "TierSpec", "simulate"),
    "costs": ("Costs", "Finished", "MeasuredCosts", "RooflineCosts", "Started", "StepWork"),
    "drafts": ("Drafts", "survival_of"),
    "jobs": ("EngineSpec",),
    "line": ("Line",),
    "report": ("Report", "Span", "TurnRecord"),
    "workload": ("Pauses", "SessionPlan", "TurnPlan", "agent_sessions", "poisson_arrivals", "sessions_of"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
