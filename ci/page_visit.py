"""A built page open in headless Chromium, as one reader sees it; collects what goes wrong meanwhile."""

from __future__ import annotations

DESKTOP = 1280
HEIGHT = 900
# Checks look at the whole page, also at what readers' browsers lay out only when it comes near.
WHOLE = """
addEventListener("DOMContentLoaded", () => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(".bd-article div.cell { content-visibility: visible !important; }");
  document.adoptedStyleSheets.push(sheet);
});
"""
# The page measures what scrolls when the reader is near, or prints.
NEAR = 'dispatchEvent(new Event("beforeprint"))'


class Visit:
    """One page in one theme; a context manager, which closes it.

    Args:
        site: the address that everything must come from.
        address: the page within the site.
        status: the answer that the page itself must have.
        offline: with the network off, for pages in a folder.
        leads_to: what is there once the page has sent its reader on.
    """

    def __init__(
        self,
        chromium,
        site: str,
        address: str,
        theme: str = "light",
        *,
        status: int = 200,
        offline: bool = False,
        leads_to: str = "",
    ) -> None:
        self.faults: list[str] = []
        self._site, self._address, self._status = site, f"{site}/{address}", status
        self._leads_on = bool(leads_to)
        self.context = chromium.new_context(
            color_scheme=theme,
            viewport={"width": DESKTOP, "height": HEIGHT},
            reduced_motion="reduce",
            offline=offline,
        )
        self.context.route("**/*", self._route)
        self.page = self.context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"page error: {error.message}"))
        self.page.on("response", self._response)
        self.page.on("requestfailed", self._failed)
        self.page.add_init_script(WHOLE)
        self.page.goto(self._address, wait_until="load")
        if leads_to:
            self.page.wait_for_selector(leads_to)
            self.page.wait_for_load_state("load")
        shown = self.page.evaluate("document.documentElement.dataset.theme")
        if shown != theme:
            self.faults.append(f"shows the theme {shown!r} to a reader who prefers {theme}")

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def resize(self, width: int) -> None:
        self.page.set_viewport_size({"width": width, "height": HEIGHT})

    def come_near(self) -> None:
        """Have the page do what it does when a reader comes near, everywhere at once."""
        self.page.evaluate(NEAR)

    def _route(self, route) -> None:
        if route.request.url.startswith((f"{self._site}/", "data:", "blob:")):
            route.continue_()
        else:
            self.faults.append(f"asks another host: {route.request.url}")
            route.abort()

    def _console(self, message) -> None:
        # Chromium reports an expected answer of 404 for the page itself as an error, too.
        expected = self._status >= 400 and message.location.get("url") == self._address
        if message.type == "error" and not expected:
            self.faults.append(f"console error: {message.text}")

    def _failed(self, request) -> None:
        # A page that sends its reader on may leave before its icon has come.
        if self._leads_on and request.failure == "net::ERR_ABORTED" and request.url.endswith(".svg"):
            return
        if request.url.startswith(self._site):
            self.faults.append(f"request failed, {request.failure}: {request.url.removeprefix(self._site)}")

    def _response(self, response) -> None:
        if response.url == self._address and response.status != self._status:
            self.faults.append(f"answers with {response.status}, not {self._status}")
        elif response.url != self._address and response.status >= 400:
            self.faults.append(f"request failed with {response.status}: {response.url.removeprefix(self._site)}")
