// Starts a deck: figures are fitted into their slide, and keep their keys to themselves. Lengths are those of a slide
// of 1280 by 720, in which reveal.js then shows everything.
(() => {
  const WIDTHS = [560, 640, 720, 768, 860, 960, 1080, 1200, 1400, 1700, 2100];
  const PLOT = 768;
  const LARGEST = 2;
  const LARGEST_LINES = 1.2;
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
      const picture = content.querySelector(".ds-plots svg.ds-wide, .ds-plots svg:not(.ds-narrow)");
      let best = { size: 0 };
      for (const layout of layouts(content)) {
        for (const width of WIDTHS) {
          lay(box, layout, width);
          // The words of a plot grow with it, those of any other figure with the scale alone.
          const size = scaleOf(box, width) * (picture ? picture.clientWidth / PLOT : 1);
          if (size > best.size * 1.02) best = { size, layout, width };
        }
      }
      lay(box, best.layout, best.width);
      box.dataset.width = best.width;
    }
    const [room, height, width] = [box.clientWidth, box.clientHeight, Number(box.dataset.width)];
    const scale = scaleOf(box, width);
    const across = Math.max(0, room - width * scale) / 2;
    const down = Math.max(0, height - content.offsetHeight * scale) / 3;
    content.style.transform = `translate(${across}px, ${down}px) scale(${scale})`;
    box.dataset.scale = scale.toFixed(3);
  }

  // Under the picture, or beside it: the caption, or the controls.
  function layouts(content) {
    const found = ["under"];
    if (content.querySelector("figcaption")) found.push("caption");
    if (content.querySelector(".ds-body > form.ds-controls:last-of-type")) found.push("controls");
    return found;
  }

  function lay(box, layout, width) {
    box.dataset.layout = layout;
    box.firstElementChild.style.width = `${width}px`;
  }

  function scaleOf(box, width) {
    const content = box.firstElementChild;
    // A table that would scroll needs more.
    const hidden = [...content.querySelectorAll(".ds-scroll")].map((inner) => inner.scrollWidth - inner.clientWidth);
    if (Math.max(0, ...hidden) > 1) return 0;
    const wide = Math.max(width, content.scrollWidth);
    return Math.min(box.clientWidth / wide, box.clientHeight / content.offsetHeight, LARGEST);
  }

  function fitLines(box) {
    const content = box.firstElementChild;
    const tallest = parseFloat(getComputedStyle(box).maxHeight);
    const scale = Math.min(box.clientWidth / content.offsetWidth, tallest / content.offsetHeight, LARGEST_LINES);
    content.style.transform = `scale(${scale})`;
    box.style.height = `${content.offsetHeight * scale}px`;
    box.dataset.scale = scale.toFixed(3);
  }

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
  const inFigure = (target) => target instanceof Element && target.closest(".ds-fig, summary, select, input");
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
    transition: "none",
    backgroundTransition: "none",
    pdfSeparateFragments: false,
    pdfMaxPagesPerSlide: 1,
    keyboardCondition: (event) => !inFigure(event.target),
    plugins: [RevealNotes],
  });
})();
