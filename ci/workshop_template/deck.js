// Starts a deck: figures are fitted into their slide, and keep their keys to themselves.
(() => {
  const WIDTHS = [560, 640, 720, 768, 860, 960, 1080, 1200];
  const LARGEST = 2;
  const slides = document.querySelector(".reveal .slides");

  // The width at which the content can be shown largest, and by how much.
  function fit(box) {
    const [room, height] = [box.clientWidth, box.clientHeight];
    const content = box.firstElementChild;
    if (!room || !height) return;
    const figure = box.classList.contains("figure");
    let best = { scale: 0 };
    for (const width of figure ? WIDTHS : [room]) {
      content.style.width = `${width}px`;
      const wide = Math.max(width, content.scrollWidth);
      const scale = Math.min(room / wide, height / content.offsetHeight, figure ? LARGEST : 1);
      if (scale > best.scale + 0.01) best = { scale, width };
    }
    content.style.width = `${best.width}px`;
    content.style.transform = `scale(${best.scale})`;
    // What is not scaled to the full width stands in the middle.
    content.style.marginInlineStart = figure ? `${Math.max(0, (room - best.width * best.scale) / 2)}px` : "";
    box.dataset.scale = best.scale.toFixed(3);
    box.style.setProperty("--taken", `${Math.ceil(content.offsetHeight * best.scale)}px`);
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
