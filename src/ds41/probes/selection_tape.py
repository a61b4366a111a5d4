"""Every layer's selection of one pass, kept to be made again in others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ds41.attention import Selection
from ds41.model import Model


class SelectionTape:
    """Each layer's selection of one pass: first recorded, then played back in others over the same ids."""

    def __init__(self, model: Model) -> None:
        self._indexers = {
            plan.index: model.layers[plan.index].attn.indexer for plan in model.config.layers if plan.owns_selection
        }
        self.selections: dict[int, Selection] = {}

    @contextmanager
    def record(self) -> Iterator[None]:
        """Within it, each forward pass overwrites the tape."""

        def keep(layer: int, made: Selection) -> Selection:
            self.selections[layer] = made
            return made

        with self._hooked(keep):
            yield

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Within it, layers select what is on the tape.

        Raises:
            ValueError, in the pass: nothing is recorded, or the pass has another number of tokens.
        """

        def put_back(layer: int, made: Selection) -> Selection:
            kept = self.selections.get(layer)
            if kept is None or kept.entries.shape != made.entries.shape:
                found = "none" if kept is None else list(kept.entries.shape)
                raise ValueError(f"layer {layer} selects {list(made.entries.shape)}; the tape holds {found}")
            return kept

        with self._hooked(put_back):
            yield

    @contextmanager
    def _hooked(self, change: Callable[[int, Selection], Selection]) -> Iterator[None]:
        hooks = [
            indexer.register_forward_hook(lambda _module, _given, made, layer=layer: change(layer, made))
            for layer, indexer in self._indexers.items()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
