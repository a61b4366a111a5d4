"""Probes of what could break: each a function that measures, with intervals over seeds."""
