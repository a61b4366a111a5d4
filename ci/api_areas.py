"""The pages of the API reference: what each area is, which chapters teach it, and its modules in reading order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Area:
    """One page. ``chapters``: stems under book/; ``modules``: dotted names, or ``module: Name, Name``."""

    page: str
    title: str
    about: str
    chapters: tuple[str, ...]
    modules: tuple[str, ...]


AREAS = (
    Area(
        "model",
        "The model",
        "The published configuration and the plan of its layers, the model built from it, and text out of it: prefill, "
        "decode, sampling, generation, and going on after a window was lost.",
        ("02-ced", "06-replay"),
        (
            "ds41",
            "ds41.config",
            "ds41.model",
            "ds41.block",
            "ds41.step",
            "ds41.sampling",
            "ds41.generation",
            "ds41.replay",
            "ds41.trained",
            "ds41.tokenizer",
            "ds41.environment",
        ),
    ),
    Area(
        "formats",
        "Number formats and small parts",
        "The block formats of caches and weights, the small floats that they are made of, and the parts that every "
        "layer uses.",
        ("04-fp4",),
        (
            "ds41.formats",
            "ds41.small_floats",
            "ds41.weight_formats",
            "ds41.comparison_formats",
            "ds41.rope",
            "ds41.norm",
            "ds41.linear",
        ),
    ),
    Area(
        "ledger",
        "The byte ledger",
        "What one sequence keeps, byte by byte, in this model and in others; the bytes of weights; what other choices "
        "would cost.",
        ("01-why-bytes", "05-ledger"),
        (
            "ds41.ledger",
            "ds41.records",
            "ds41.weights",
            "ds41.systems",
            "ds41.candidates",
            "ds41.counterfactuals",
            "ds41.window_cone",
            "ds41.window_persistence",
        ),
    ),
    Area(
        "cost",
        "Work, time and money",
        "What a step reads and computes, how long that takes on a device, how the model spreads over several, and what "
        "a conversation costs.",
        ("01-why-bytes", "12-kernels", "14-outgrowing"),
        (
            "ds41.reads",
            "ds41.flops",
            "ds41.roofline",
            "ds41.mhc_traffic",
            "ds41.kernel_floors",
            "ds41.matrix_instructions",
            "ds41.economics",
            "ds41.deployment",
            "ds41.agent_workload",
            "ds41.agent_workspace",
            "ds41.measured",
        ),
    ),
    Area(
        "engines",
        "Other engines",
        "What vLLM and SGLang store and print, checked against the ledger.",
        ("14-outgrowing",),
        ("ds41.engine_storages", "ds41.engine_check", "ds41.engine_facts", "ds41.cli_check_log: check_text"),
    ),
    Area(
        "cache",
        "The cache",
        "Pages that hold the global KV of all sources together, shared among sequences, and the private rows of each: "
        "windows, open groups, Engram history.",
        ("03-csa2", "06-replay"),
        ("ds41.cache",),
    ),
    Area(
        "attention",
        "Shared sparse attention",
        "The parts of an attention layer, one class each, and the operations that they share as plain torch and as "
        "kernels.",
        ("03-csa2",),
        (
            "ds41.attention",
            "ds41.attention.compressor: pool_pair",
            "ds41.ops",
            "ds41.ops.backend",
            "ds41.ops.index_scores",
            "ds41.ops.selection",
            "ds41.ops.sparse_attention",
            "ds41.ops.launches",
        ),
    ),
    Area(
        "layers",
        "Hyper-connections, experts, Engram",
        "What stands around attention in a layer: four residual streams, routed experts, and a table of remembered "
        "n-grams.",
        ("07-hyper-connections", "08-moe", "09-engram"),
        (
            "ds41.hyper_connections",
            "ds41.moe",
            "ds41.packed_experts",
            "ds41.expert_balance",
            "ds41.topic_stream",
            "ds41.engram",
            "ds41.engram.collisions",
        ),
    ),
    Area(
        "dspark",
        "DSpark",
        "Several tokens drafted in one pass of three layers, verified in one pass of the model, and the policy that "
        "decides how many.",
        ("10-dspark",),
        ("ds41.dspark", "ds41.dspark.profile"),
    ),
    Area(
        "vision",
        "Vision",
        "An image becomes patches, the tower and the aligner turn them into vectors, and these take a span of the "
        "prompt.",
        ("11-vision",),
        ("ds41.vision", "ds41.vision.tower: grid_angles, rotate_halves, space_to_depth"),
    ),
    Area(
        "checkpoint",
        "Checkpoints",
        "The official checkpoint format: what it holds, read and written.",
        ("05-ledger", "14-outgrowing"),
        ("ds41.checkpoint",),
    ),
    Area(
        "kernels",
        "Kernels",
        "The host functions of the Triton kernels: each operation is a torch operator too, and beside it stands what "
        "it must move and compute, in bytes and operations. `kernels/README.md` lists the device functions.",
        ("12-kernels",),
        (
            "ds41.ops.operators: OPERATORS, operators",
            "ds41.kernels.encode",
            "ds41.kernels.decode",
            "ds41.kernels.norm",
            "ds41.kernels.swiglu",
            "ds41.kernels.cache_write",
            "ds41.kernels.pooled_write",
            "ds41.kernels.sparse_attention",
            "ds41.kernels.attention_plan",
            "ds41.kernels.index_scores",
            "ds41.kernels.selection",
            "ds41.kernels.hyper_connections",
            "ds41.kernels.router",
            "ds41.kernels.group_tokens",
            "ds41.kernels.grouped_experts",
            "ds41.kernels.engram",
            "ds41.kernels.engram_write",
        ),
    ),
    Area(
        "serving",
        "Serving",
        "The prefix store on disk, pools of windows, and the engine that serves the sessions of many tenants from "
        "them; the same spread over workers.",
        ("13-serving", "14-outgrowing"),
        (
            "ds41.serving",
            "ds41.serving.pools",
            "ds41.serving.pools.recipe: WorkerRecipe",
            "ds41.serving.pools.pool: Pool",
            "ds41.serving.pools.course: Course",
            "ds41.serving.pools.ray_workers: RayCluster, Resources",
            "ds41.serving.endpoint.service: Backend, Service",
            "ds41.serving.endpoint.api_keys",
            "ds41.serving.endpoint.limits",
            "ds41.serving.endpoint.app",
            "ds41.serving.endpoint.server: serve",
        ),
    ),
    Area(
        "simulation",
        "A simulated cluster",
        "A discrete-event model of a serving cluster under a load of agents.",
        ("13-serving", "14-outgrowing"),
        (
            "ds41.serving.simulation",
            "ds41.serving.simulation.break_even",
            "ds41.serving.simulation.lifetimes",
            "ds41.serving.simulation.nodes",
        ),
    ),
    Area(
        "training",
        "Training",
        "Rows of real files and of retrieval tasks, the published recipe scaled down, the run, and what was learnt.",
        ("15-training",),
        (
            "ds41.training.corpus",
            "ds41.training.tasks",
            "ds41.training.stream",
            "ds41.training.recipe",
            "ds41.training.trainer",
            "ds41.training.run_state",
            "ds41.training.distributed",
            "ds41.training.run_log",
            "ds41.training.muon",
            "ds41.training.signals",
            "ds41.training.alignment",
            "ds41.training.evaluation",
            "ds41.training.ablations",
            "ds41.training.draft_evaluation",
            "ds41.training.digits",
            "ds41.training.seeing",
        ),
    ),
    Area(
        "probes",
        "Probes",
        "What could break: each probe measures one failure, with intervals over seeds.",
        ("16-what-breaks",),
        (
            "ds41.probes.estimates",
            "ds41.probes.rounding",
            "ds41.probes.fp4_claims",
            "ds41.probes.selection_prediction",
            "ds41.probes.selection_synthetic",
            "ds41.probes.selection_trained",
            "ds41.probes.forced_selection",
            "ds41.probes.needle_rows",
            "ds41.probes.trained_rows",
            "ds41.probes.replay_inputs",
            "ds41.probes.replay_positions",
            "ds41.probes.replay_probe",
            "ds41.probes.replay_findings",
        ),
    ),
    Area(
        "book",
        "Figures, exercises and errata",
        "What the pages show, the checks of the exercises, the language that both speak, whether a machine is ready "
        "for a workshop, and the article's claims with what became of them.",
        (),
        (
            "ds41.viz",
            "ds41.viz.probe_curves: probe_curves",
            "ds41.viz.live",
            "ds41.exercises",
            "ds41.language",
            "ds41.preflight",
            "ds41.errata",
            "ds41.errata.page",
            "ds41.errata.pool",
        ),
    ),
)
