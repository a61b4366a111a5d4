"""Write the still pictures that the repository keeps, and pages of all figures to look at.

python ci/render_figures.py             writes book/_static/ledger.svg
python ci/render_figures.py --check     says whether it is up to date; exit status 1 if not
python ci/render_figures.py --preview   also writes build/figures/*.html, with screenshots if there is a Chromium
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import browser

from ds41 import viz

ROOT = Path(__file__).resolve().parent.parent
STILL = ROOT / "book" / "_static" / "ledger.svg"
PREVIEW = ROOT / "build" / "figures"
FIGURES: dict[str, Callable[[], viz.Diagram]] = {
    "ledger": viz.ledger_explorer,
    "layers": viz.layer_map,
    "bits": viz.bit_explorer,
    "block": viz.block_explorer,
    "generations": viz.generation_bars,
}
# Text column and phone, light and dark.
SCREENS = [("light", 760), ("dark", 760), ("light", 375), ("dark", 375)]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    parser.add_argument("--preview", action="store_true", help="write pages and screenshots to build/figures")
    options = parser.parse_args(argv)
    svg = viz.landing_svg()
    if options.check:
        current = STILL.is_file() and STILL.read_text(encoding="utf-8") == svg
        state = "is up to date" if current else "is out of date: run python ci/render_figures.py"
        print(f"{STILL.relative_to(ROOT)} {state}")
        return 0 if current else 1
    STILL.parent.mkdir(parents=True, exist_ok=True)
    STILL.write_text(svg, encoding="utf-8")
    print(f"wrote {STILL.relative_to(ROOT)}")
    if options.preview:
        pages = {name: make().save(PREVIEW / f"{name}.html") for name, make in FIGURES.items()}
        print(f"wrote {len(pages)} pages to {PREVIEW.relative_to(ROOT)}")
        try:
            _photograph(pages)
        except browser.NoBrowserError as error:
            return browser.without_browser(error, "screenshots of the figures")
    return 0


def _photograph(pages: dict[str, Path]) -> None:
    with browser.chromium() as chromium:
        for theme, width in SCREENS:
            page = chromium.new_page(
                viewport={"width": width, "height": 400}, color_scheme=theme, device_scale_factor=2
            )
            for name, path in pages.items():
                page.goto(path.as_uri())
                page.screenshot(path=PREVIEW / f"{name}-{theme}-{width}.png", full_page=True)
            page.close()
    print(f"wrote {len(pages) * len(SCREENS)} screenshots")


if __name__ == "__main__":
    sys.exit(main())
