"""DSpark: drafting several tokens in one pass of three layers, and verifying them in one pass of the model."""

from ds41.dspark.block_memory import BlockMemory, block_choice
from ds41.dspark.calibration import Calibration, expected_calibration_error, fit_calibration, reliability
from ds41.dspark.decoding import DraftCounts, Drafting, Draw, Proposal, propose, settle, speculate
from ds41.dspark.drafter import Drafter, Drafts
from ds41.dspark.loading import load_drafter
from ds41.dspark.schedule import Always, Never, Optimum, Policy, Threshold, admit, drafting_pays, survival
from ds41.dspark.throughput_curve import ThroughputCurve
from ds41.dspark.verification import Verified, verify

__all__ = [
    "Always",
    "BlockMemory",
    "Calibration",
    "DraftCounts",
    "Drafter",
    "Drafting",
    "Drafts",
    "Draw",
    "Never",
    "Optimum",
    "Policy",
    "Proposal",
    "Threshold",
    "ThroughputCurve",
    "Verified",
    "admit",
    "block_choice",
    "drafting_pays",
    "expected_calibration_error",
    "fit_calibration",
    "load_drafter",
    "propose",
    "reliability",
    "settle",
    "speculate",
    "survival",
    "verify",
]
