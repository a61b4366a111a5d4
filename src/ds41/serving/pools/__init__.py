"""Vision encoder, prefill and decode as pools of workers that scale apart and hand over pages and windows.

Source: report section 3.2 (disaggregation of encoder, prefill and decode).
"""
