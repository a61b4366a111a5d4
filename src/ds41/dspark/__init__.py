"""DSpark: drafting several tokens in one pass of three layers, and verifying them in one pass of the model."""

from ds41.dspark.drafter import BlockMemory, Drafter, Drafts, block_choice
from ds41.dspark.loading import load_drafter

__all__ = ["BlockMemory", "Drafter", "Drafts", "block_choice", "load_drafter"]
