"""The memory of the pages: one block of bytes in which every plane is a view.

Source: report section 2.4.4 for the bytes of an entry; the pool is ds41's own.
"""

from __future__ import annotations

import torch

from ds41.cache.allocator import PageAllocator
from ds41.cache.errors import CacheError
from ds41.cache.layout import PAGE_TOKENS, PageLayout, Plane
from ds41.cache.plane import PagedRows
from ds41.cache.storage import RowCodec, Storage, check_storage
from ds41.config import ModelConfig
from ds41.formats import INDEX_KEY, MAIN_KV, Packed


class PagePool(PageAllocator):
    """``pages`` pages of one layout, to be shared by any number of caches.

    Args:
        storage: "packed" is one uint8 tensor ``data`` [pages, layout.nbytes]. "fake" keeps the values that the
            bytes would stand for and "plain" keeps them unrounded, for study; each plane is then a tensor of its own.
        dtype: the type of values that are not packed. Index keys in float16 are held in float32, because their
            power-of-two scales leave its range.

    Pages are not cleared when they are allocated: what they held before stays until it is overwritten.

    Raises:
        CacheError: no positive number of pages, an unknown storage or type, or a bad page size.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        config: ModelConfig,
        pages: int,
        *,
        page_tokens: int = PAGE_TOKENS,
        storage: Storage = "packed",
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> None:
        check_storage(storage, dtype)
        super().__init__(pages)
        self.layout = PageLayout.of(config, page_tokens)
        self.storage = storage
        self.dtype = dtype
        index_dtype = torch.float32 if dtype == torch.float16 else dtype
        main_codec = RowCodec(MAIN_KV, config.head_dim, storage, dtype)
        index_codec = RowCodec(INDEX_KEY, config.index_head_dim, storage, index_dtype)
        self.data: torch.Tensor | None = None
        if storage == "packed":
            self.data = torch.empty(pages, self.layout.nbytes, dtype=torch.uint8, device=device)
        self.device = torch.empty(0, device=device).device
        self._main: dict[int, PagedRows] = {}
        self._index: dict[int, PagedRows] = {}
        for source in self.layout.sources:
            self._main[source.layer] = self._rows(main_codec, source.planes[:2])
            self._index[source.layer] = self._rows(index_codec, source.planes[2:])

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that were allocated for pages."""
        if self.data is not None:
            return self.data.nbytes
        return sum(part.nbytes for rows in self._all_rows() for part in rows.parts)

    def check_fits(
        self,
        config: ModelConfig,
        page_tokens: int | None,
        storage: Storage,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        """Refuse a cache that cannot use these pages; ``page_tokens`` None takes them as they are.

        Raises:
            CacheError: another page size or layout, storage, device or (where values are held) type.
        """
        wanted = PageLayout.of(config, self.layout.page_tokens if page_tokens is None else page_tokens)
        pairs = [
            ("page_tokens", self.layout.page_tokens, wanted.page_tokens),
            ("storage", self.storage, storage),
            ("device", self.device, torch.empty(0, device=device).device),
        ]
        if self.storage != "packed":
            pairs.append(("dtype", self.dtype, dtype))
        for name, has, asked in pairs:
            if has != asked:
                raise CacheError(f"the pool's {name} is {has}; the cache asks for {asked}")
        if self.layout != wanted:
            owners = ", ".join(str(source.layer) for source in self.layout.sources)
            raise CacheError(
                f"the pool's pages are those of another configuration: {self.layout.nbytes} bytes, owners {owners}, "
                f"head_dim {self.layout.head_dim}; this one's have {wanted.nbytes} bytes"
            )

    def main_plane(self, layer: int) -> Packed | torch.Tensor:
        """Main entries of ``layer``: Packed of [pages, entries, bytes] where packed, else [pages, entries, channels].

        The tensors are views, so writing to them writes to the pages.
        """
        return self.main_rows(layer).view

    def index_plane(self, layer: int) -> Packed | torch.Tensor:
        """Index keys of ``layer``, in the form of :meth:`main_plane`."""
        return self.index_rows(layer).view

    def main_rows(self, layer: int) -> PagedRows:
        """Main entries of ``layer``, to be written and gathered by page and place.

        Raises:
            CacheError: the layer owns no global KV.
        """
        return self._main[self.layout.source(layer).layer]

    def index_rows(self, layer: int) -> PagedRows:
        """Index keys of ``layer``, likewise."""
        return self._index[self.layout.source(layer).layer]

    def read_page(self, page: int) -> torch.Tensor:
        """A copy of the bytes of one page: uint8 [layout.nbytes], the unit that travels and is stored.

        Raises:
            CacheError: the pool is not packed, or the page is free.
        """
        return self._bytes(page, "read")[page].clone()

    def write_page(self, page: int, data: torch.Tensor) -> None:
        """Fill one page with the bytes of another, as :meth:`read_page` gives them.

        Raises:
            CacheError: the pool is not packed, the page is free, or ``data`` is no page of this layout.
        """
        memory = self._bytes(page, "written")
        if data.dtype != torch.uint8 or tuple(data.shape) != (self.layout.nbytes,):
            raise CacheError(
                f"data is {data.dtype} {list(data.shape)}; expected torch.uint8 [{self.layout.nbytes}], "
                f"the bytes of {self.layout.page_tokens} tokens"
            )
        memory[page].copy_(data)

    def copy_page(self, source: int, target: int) -> None:
        """Overwrite page ``target`` with what page ``source`` holds."""
        if self.data is not None:
            self.data[target].copy_(self.data[source])
            return
        for rows in self._all_rows():
            rows.copy_page(source, target)

    def _rows(self, codec: RowCodec, planes: tuple[Plane, ...]) -> PagedRows:
        if self.data is None:
            parts = (
                torch.empty(self.pages, planes[0].entries, width, dtype=dtype, device=self.device)
                for width, dtype in codec.parts
            )
        else:
            parts = (
                self.data[:, plane.offset : plane.end].unflatten(1, (plane.entries, plane.row_bytes))
                for plane in planes
            )
        return PagedRows(codec, tuple(parts))

    def _all_rows(self) -> tuple[PagedRows, ...]:
        return (*self._main.values(), *self._index.values())

    def _bytes(self, page: int, what: str) -> torch.Tensor:
        if self.data is None:
            raise CacheError(f"storage is {self.storage!r}: only packed pages have bytes to be {what}")
        self._require_live(page, what)
        return self.data
