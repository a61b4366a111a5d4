// Starts a deck: figures are fitted into their slide, and keep their keys to themselves. Lengths are those of a slide
// of 1280 by 720, in which reveal.js then shows everything.
(() => {
  const WIDTHS = [560, 640, 720, 768, 860, 960, 1080, 1200, 1400, 1700, 2100];
  const PLOT = 768;
  // Pixels of the book's page that a unit of a plot takes.
  const UNIT = PLOT / 460.8;
  const BESIDE = [".ds-body > form.ds-controls", ".ds-body > :is(.ds-legend, .ds-key)", "figcaption"];
  const LARGEST = 2;
  const CAPTIONS = 1.1;
  // Nobody reads what is smaller: such a figure scrolls, except in print.
  const TOO_SMALL = 0.62;
  const LARGEST_LINES = 1.2;
  const WRAPS = 0.8;
  // Cells of tables that are shorter, in letters, do not wrap.
  const SHORT = 18;
  const slides = document.querySelector(".reveal .slides");

  function fit(box) {
    if (!box.clientWidth || !box.clientHeight) return;
    box.classList.contains("figure") ? fitFigure(box) : fitLines(box);
  }

  // The layout and the width in which the figure can be shown largest. They stay once they are chosen: a figure
  // that a hand is on does not jump.
  function fitFigure(box) {
    const content = box.firstElementChild;
    if (!box.dataset.width) {
      box.dataset.layout = "";
      const picture = content.querySelector(".ds-plots svg.ds-wide, .ds-plots svg:not(.ds-narrow)");
      let best = { size: 0, layout: "", width: PLOT };
      for (const layout of layouts(content)) {
        for (const width of WIDTHS) {
          lay(box, layout, width);
          // The words of a plot grow with it, those of any other figure, and of any caption, with the scale alone.
          const scale = scaleOf(box, width);
          const grown = picture && picture.clientWidth / picture.viewBox.baseVal.width / UNIT;
          const size = picture ? (scale < CAPTIONS ? 0 : scale * grown) : scale;
          if (size > best.size * 1.02) best = { size, layout, width };
        }
      }
      if (best.size < TOO_SMALL && !Reveal.isPrintView()) best = { ...shortest(box), scrolls: true };
      lay(box, best.layout, best.width);
      box.dataset.width = best.width;
      box.classList.toggle("scrolls", Boolean(best.scrolls));
      if (best.scrolls) box.tabIndex = 0;
    }
    if (box.classList.contains("scrolls")) {
      content.style.transform = "";
      box.dataset.scale = 1;
      return;
    }
    const [room, height, width] = [box.clientWidth, box.clientHeight, Number(box.dataset.width)];
    const scale = scaleOf(box, width);
    const across = Math.max(0, room - width * scale) / 2;
    const down = Math.max(0, height - content.offsetHeight * scale) / 3;
    content.style.transform = `translate(${across}px, ${down}px) scale(${scale})`;
    box.dataset.scale = scale.toFixed(3);
  }

  // The layout at full width that leaves least to scroll.
  function shortest(box) {
    const width = Math.floor(box.clientWidth) - 24;
    let best = { tall: Infinity };
    for (const layout of layouts(box.firstElementChild)) {
      lay(box, layout, width);
      const tall = box.firstElementChild.offsetHeight;
      if (tall < best.tall) best = { tall, layout, width };
    }
    return best;
  }

  // What stands beside the picture and not under it.
  function layouts(content) {
    const there = BESIDE.filter((part) => content.querySelector(part));
    const found = there.map((_, i) => there.slice(i).join());
    return ["", ...found, ...there.slice(0, 1), ...there.slice(0, 2).slice(1)].filter((a, i, all) => all.indexOf(a) === i);
  }

  // A label that is longer in another language may reach beyond its plot, which would cut it off.
  function widen(plot) {
    const room = plot.getBoundingClientRect();
    if (!room.width || "whole" in plot.dataset) return;
    const words = [...plot.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
    const left = Math.min(room.left, ...words.map((box) => box.left));
    const right = Math.max(room.right, ...words.map((box) => box.right));
    const view = plot.viewBox.baseVal;
    const unit = view.width / room.width;
    const start = view.x - (room.left - left) * unit;
    plot.setAttribute("viewBox", `${start} ${view.y} ${(right - left) * unit} ${view.height}`);
    plot.dataset.whole = "";
  }

  function lay(box, layout, width) {
    box.firstElementChild.style.width = `${width}px`;
    for (const plot of box.querySelectorAll(".ds-plots svg")) widen(plot);
    if (box.dataset.layout === layout) return;
    const figure = box.querySelector(".ds-fig");
    const side = figure.querySelector(":scope > .side");
    for (const part of [...(side?.children ?? [])]) homes.get(part).replaceWith(part);
    side?.remove();
    if (layout) {
      const parts = [...figure.querySelectorAll(layout)];
      for (const part of parts) {
        homes.set(part, document.createComment(""));
        part.replaceWith(homes.get(part));
      }
      const made = Object.assign(document.createElement("div"), { className: "side" });
      made.append(...parts);
      figure.append(made);
    }
    box.dataset.layout = layout;
  }

  function scaleOf(box, width) {
    const content = box.firstElementChild;
    // A table that would scroll needs more.
    const hidden = [...content.querySelectorAll(".ds-scroll")].map((inner) => inner.scrollWidth - inner.clientWidth);
    if (Math.max(0, ...hidden) > 1) return 0;
    const wide = Math.max(width, content.scrollWidth);
    return Math.min(box.clientWidth / wide, box.clientHeight / content.offsetHeight, LARGEST);
  }

  // The height that the other parts of the slide leave.
  function leftFor(box) {
    const slide = box.closest(".slide");
    const sum = (element, ...names) =>
      names.reduce((total, name) => total + parseFloat(getComputedStyle(element)[name]), 0);
    let left = slide.clientHeight - sum(slide, "paddingTop", "paddingBottom");
    for (const part of slide.children)
      left -= sum(part, "marginTop", "marginBottom") + (part === box ? 0 : part.offsetHeight);
    return left;
  }

  function fitLines(box) {
    const content = box.firstElementChild;
    // A result that would become small wraps its lines; code never does.
    if (!box.classList.contains("code") && content.offsetWidth * WRAPS > box.clientWidth) {
      content.style.width = `${box.clientWidth}px`;
      content.style.whiteSpace = "pre-wrap";
    }
    const tallest = Math.min(parseFloat(getComputedStyle(box).maxHeight), leftFor(box));
    const scale = Math.min(box.clientWidth / content.offsetWidth, tallest / content.offsetHeight, LARGEST_LINES);
    content.style.transform = `scale(${scale})`;
    box.style.height = `${content.offsetHeight * scale}px`;
    box.dataset.scale = scale.toFixed(3);
  }

  const homes = new WeakMap();
  const sizes = new WeakMap();
  const observer = new ResizeObserver((entries) => requestAnimationFrame(() => {
    for (const { target } of entries) {
      const box = target.closest(".fit");
      const size = `${box.clientWidth} ${box.clientHeight} ${target.offsetWidth} ${target.offsetHeight}`;
      if (sizes.get(target) === size) continue;
      fit(box);
      sizes.set(target, `${box.clientWidth} ${box.clientHeight} ${target.offsetWidth} ${target.offsetHeight}`);
    }
  }));

  function start() {
    document.body.classList.remove("loading");
    for (const cell of slides.querySelectorAll(".ds-grid :is(th, td)"))
      if (cell.textContent.length <= SHORT) cell.style.whiteSpace = "nowrap";
    for (const box of slides.querySelectorAll(".fit")) {
      fit(box);
      observer.observe(box.firstElementChild);
    }
  }

  // Keys that a figure's controls take are not the deck's; Escape leaves the figure.
  const inFigure = (target) => target instanceof Element && target.closest(".ds-fig, .scrolls");
  const keys = document.querySelector(".keys");
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && inFigure(event.target)) {
      event.target.blur();
      event.stopImmediatePropagation();
    }
  }, true);
  document.addEventListener("focusin", (event) => { keys.hidden = !inFigure(event.target); });
  document.addEventListener("focusout", () => { keys.hidden = true; });

  Reveal.on("ready", start);
  Reveal.on("pdf-ready", start);
  Reveal.on("slidechanged", () => { if (inFigure(document.activeElement)) document.activeElement.blur(); });
  Reveal.initialize({
    width: 1280,
    height: 720,
    margin: 0,
    center: false,
    hash: true,
    slideNumber: "c/t",
    controlsLayout: "edges",
    controlsTutorial: false,
    transition: "none",
    backgroundTransition: "none",
    pdfSeparateFragments: false,
    pdfMaxPagesPerSlide: 1,
    keyboardCondition: (event) => !inFigure(event.target),
    plugins: [RevealNotes, RevealZoom],
  });
})();
