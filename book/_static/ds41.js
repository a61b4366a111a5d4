// What scrolls can be reached and moved with the keyboard. Measuring lays out what is out of sight, so a box is measured
// when the reader is a screen away from it.
(() => {
  const boxes = [
    "pre, .pst-scrollable-table-container",
    ".bd-article :is(div.math, mjx-container[display], .cell_output .output, dl.py table)",
  ].join();
  const inline = ".bd-article span.math mjx-container";
  const all = () => [...document.querySelectorAll(`${boxes},${inline}`)];

  // Each returns the change that follows from it: reading and writing in turn would lay out the page each time.
  function tooWide(formula) {
    const room = formula.closest("p, li, td, dd, figcaption, .bd-article").clientWidth;
    const wide = formula.firstElementChild.getBoundingClientRect().width > room;
    return () => formula.classList.toggle("ds-wide", wide);
  }

  function scrolls(box) {
    const { overflowX, overflowY } = getComputedStyle(box);
    const can = (way) => way === "auto" || way === "scroll";
    const moves =
      (box.scrollWidth > box.clientWidth + 1 && can(overflowX)) ||
      (box.scrollHeight > box.clientHeight + 1 && can(overflowY));
    return () => {
      if (moves) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    };
  }

  function measure(elements) {
    const formulas = elements.filter((element) => element.matches(inline));
    for (const change of formulas.map(tooWide)) change();
    for (const change of elements.map(scrolls)) change();
  }

  const near = new IntersectionObserver(
    (entries) => {
      const elements = entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target);
      for (const element of elements) near.unobserve(element);
      measure(elements);
    },
    { rootMargin: "100% 0px" },
  );

  let pending;
  const watch = () => {
    near.disconnect();
    for (const element of all()) near.observe(element);
  };
  const later = () => {
    clearTimeout(pending);
    pending = setTimeout(watch, 100);
  };
  for (const change of ["load", "resize", "ds41:math"]) addEventListener(change, later);
  addEventListener("beforeprint", () => measure(all()));
  // Figures and explorers change what they show.
  new MutationObserver(later).observe(document.getElementById("main-content"), { subtree: true, childList: true });
})();

// Formulas. MathJax is 300 KB and busies a phone for a second, so it comes when a formula is near, or with the
// reader's first move; then it draws one formula at a time, the nearest first, and leaves room between them.
(() => {
  const page = document.documentElement.dataset;
  const source = document.currentScript.dataset.mathjax;
  const formulas = [...document.querySelectorAll(".math")];
  if (!source || !formulas.length) return;
  const moves = ["scroll", "pointerdown", "keydown", "beforeprint"];
  const pause = () => new Promise((resume) => setTimeout(resume));

  async function draw() {
    await MathJax.startup.promise;
    const distance = new Map(formulas.map((formula) => [formula, Math.abs(formula.getBoundingClientRect().top)]));
    for (const formula of formulas.sort((one, other) => distance.get(one) - distance.get(other))) {
      await MathJax.typesetPromise([formula]);
      await pause();
    }
    page.math = "drawn";
    dispatchEvent(new Event("ds41:math"));
  }

  function start() {
    near.disconnect();
    for (const move of moves) removeEventListener(move, start);
    window.MathJax = { ...window.MathJax, startup: { typeset: false } };
    const script = document.createElement("script");
    script.src = source;
    script.addEventListener("load", draw);
    document.head.append(script);
  }

  const near = new IntersectionObserver(
    (seen) => {
      if (seen.some((entry) => entry.isIntersecting)) start();
    },
    { rootMargin: "50% 0px" },
  );
  for (const formula of formulas) near.observe(formula);
  for (const move of moves) addEventListener(move, start, { passive: true });
})();

// Paper is white.
(() => {
  const page = document.documentElement.dataset;
  let theme;
  addEventListener("beforeprint", (event) => {
    if (event.isTrusted) [theme, page.theme] = [page.theme, "light"];
  });
  addEventListener("afterprint", () => {
    if (theme) page.theme = theme;
  });
})();
