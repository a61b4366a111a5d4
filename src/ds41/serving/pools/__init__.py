"""Vision encoder, prefill and decode as pools of workers that scale apart and hand over pages and windows.

Source: report section 3.2 (disaggregation of encoder, prefill and decode).
"""

from ds41.serving.pools.cluster import Cluster, PoolPlan
from ds41.serving.pools.local import EngineOptions, PoolSizes, local_cluster
from ds41.serving.pools.requests import (
    Answer,
    NoWorkers,
    Overloaded,
    Request,
    RequestReport,
    Stage,
    TooLong,
    WorkerLost,
)

__all__ = [
    "Answer",
    "Cluster",
    "EngineOptions",
    "NoWorkers",
    "Overloaded",
    "PoolPlan",
    "PoolSizes",
    "Request",
    "RequestReport",
    "Stage",
    "TooLong",
    "WorkerLost",
    "local_cluster",
]
