"""What the book's pages show: interactive figures, plots in one style, and the palette behind both.

Interactive figures are objects with ``_repr_html_`` that need no kernel once they are on the page; plots are drawn
with matplotlib and turned by :func:`show` into figures that follow the page's theme.
"""

from ds41.viz import live
from ds41.viz.bit_explorer import bit_explorer
from ds41.viz.block_explorer import block_explorer
from ds41.viz.byte_bars import Bar, byte_bars, generation_bars
from ds41.viz.decode_walk import decode_walk
from ds41.viz.diagram import Diagram
from ds41.viz.draft_block import MarkovStep, draft_block
from ds41.viz.draft_schedule import draft_schedule
from ds41.viz.draft_trace import markov_rounds
from ds41.viz.engram_explorer import engram_explorer
from ds41.viz.image_sizes import image_sizes
from ds41.viz.landing_picture import landing_svg
from ds41.viz.layer_map import layer_map
from ds41.viz.ledger_explorer import ledger_explorer
from ds41.viz.page_walk import page_walk
from ds41.viz.palette import PALETTE, contrast
from ds41.viz.plot import Plot, show
from ds41.viz.prefill_map import prefill_map
from ds41.viz.replay_timeline import replay_timeline
from ds41.viz.route_explorer import route_explorer
from ds41.viz.serving_day import serving_day
from ds41.viz.serving_map import serving_map
from ds41.viz.serving_trace import journey_of
from ds41.viz.stack_map import inference_stack
from ds41.viz.style import bytes_axis, colour, context_axis, label_line, marks, readable_bytes, use_style
from ds41.viz.sweep_walk import sweep_walk
from ds41.viz.tables import summary_row, table

__all__ = [
    "PALETTE",
    "Bar",
    "Diagram",
    "MarkovStep",
    "Plot",
    "bit_explorer",
    "block_explorer",
    "byte_bars",
    "bytes_axis",
    "colour",
    "context_axis",
    "contrast",
    "decode_walk",
    "draft_block",
    "draft_schedule",
    "engram_explorer",
    "generation_bars",
    "image_sizes",
    "inference_stack",
    "journey_of",
    "label_line",
    "landing_svg",
    "layer_map",
    "ledger_explorer",
    "live",
    "markov_rounds",
    "marks",
    "page_walk",
    "prefill_map",
    "readable_bytes",
    "replay_timeline",
    "route_explorer",
    "serving_day",
    "serving_map",
    "show",
    "summary_row",
    "sweep_walk",
    "table",
    "use_style",
]
