// The theme settles on light or dark only when the page is drawn; settling it here spares readers a flash.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  if (!["light", "dark"].includes(root.dataset.theme)) root.dataset.theme = dark ? "dark" : "light";
})();

// What scrolls sideways can be reached and moved with the keyboard. The theme sees to code and outputs only.
(() => {
  const boxes = ".bd-article :is(div.math, mjx-container[display], .pst-scrollable-table-container, .cell_output .output)";
  const inline = ".bd-article span.math mjx-container";

  const mark = () => {
    for (const formula of document.querySelectorAll(inline)) {
      formula.classList.remove("ds-wide");
      const room = formula.closest("p, li, td, dd, figcaption, .bd-article").clientWidth;
      formula.classList.toggle("ds-wide", formula.firstElementChild.getBoundingClientRect().width > room);
    }
    for (const box of document.querySelectorAll(`${boxes}, ${inline}`)) {
      const scrolls = box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX === "auto";
      if (scrolls) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };

  let pending;
  const later = () => {
    clearTimeout(pending);
    pending = setTimeout(mark, 100);
  };
  addEventListener("resize", later);
  addEventListener("load", () => {
    mark();
    window.MathJax?.startup?.promise?.then(mark);
  });
})();
