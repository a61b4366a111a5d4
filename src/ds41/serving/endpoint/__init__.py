"""The pools behind OpenAI's HTTP interface: keys, bounds, streams, and an end without lost answers.

A request goes through these, in this order: ``server`` (connections), ``app`` (paths), ``api_keys`` (whose it is),
``gate`` (how many run), ``bodies`` and ``fields`` (what it says), ``prompts`` (its ids and pictures), the backend,
``reader`` (tokens without a thread), ``text`` (whole characters and stop strings), ``replies`` (JSON or events).
"""
