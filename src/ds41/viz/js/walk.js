// The walk through a decode step: a layer is chosen in the map, by the slider, or by walking; the figure then shows
// what that layer reads and from whom. Texts and numbers come from decode_walk.py, which also draws the first picture.

const PAUSE_MS = 1100;

const track = (bars) => bars.map(([kind, left, width]) => `<i class="ds-${kind}" style="left:${left}%;width:${width}%"></i>`).join("");

function segments(reads) {
  const part = (kind, size) => `<i class="ds-${kind}" style="flex-grow:${size}"></i>`;
  return reads
    .map(([index, main, window]) =>
      `<i style="flex-grow:${index + main + window}">${part("index", index)}${part("main", main)}${part("window", window)}</i>`)
    .join("");
}

function progress(context, layer) {
  const [start, end] = context.ends.slice(layer, layer + 2);
  const [soFar, all] = [context.soFar[layer + 1], context.soFar[context.soFar.length - 1]];
  return (
    `<p>${say`Read so far in this step: <b>${soFar}</b> of ${all}`}</p>` +
    `<i class="ds-here" style="left:${start}%;right:calc(100% - ${end}%)"></i>` +
    `<i class="ds-later" style="left:${end}%"></i>`
  );
}

function mount(root, data) {
  const { cells, focusable } = cellsOf(root, (cell) => { pause(); show(Number(cell.dataset.layer)); });
  const form = root.querySelector("form");
  const slider = form.elements.layer;
  const rows = [...root.querySelectorAll(".ds-row")];
  const caption = root.querySelector("figcaption");
  const playButton = root.querySelector('[data-act="play"]');
  let layer = data.layer;
  let timer = 0;

  function show(next) {
    layer = (next + cells.length) % cells.length;
    const chosen = data.layers[layer];
    const context = data.contexts[form.elements.tokens.value];
    for (const cell of cells) {
      cell.setAttribute("aria-pressed", String(cell === cells[layer]));
      cell.classList.toggle("ds-linked", chosen.linked.includes(Number(cell.dataset.layer)));
    }
    for (const lanes of root.querySelectorAll(".ds-wires")) {
      lanes.innerHTML = lanes.dataset.half === chosen.half ? chosen.wires : "";
    }
    rows.forEach((row, i) => {
      row.firstElementChild.innerHTML = context.titles[chosen.group][i];
      row.lastElementChild.innerHTML = track(data.tracks[chosen.group][i]);
    });
    root.querySelector('[data-out="layer"]').textContent = layer;
    root.querySelector(".ds-bar").innerHTML = segments(context.segments);
    root.querySelector(".ds-progress").innerHTML = progress(context, layer);
    caption.innerHTML = `${chosen.card} ${context.reading[layer]}`;
    slider.value = layer;
    describe();
    focusable(cells[layer]);
  }

  const describe = () => slider.setAttribute("aria-valuetext", data.layers[layer].name);

  function pause() {
    clearInterval(timer);
    timer = 0;
    playButton.textContent = say`Play`;
    caption.setAttribute("aria-live", "polite");
  }

  function play() {
    if (layer === cells.length - 1) show(0);
    playButton.textContent = say`Pause`;
    // A caption that changes every second is not for reading out.
    caption.setAttribute("aria-live", "off");
    timer = setInterval(() => {
      if (root.isConnected && layer < cells.length - 1) show(layer + 1);
      else pause();
    }, PAUSE_MS);
  }

  // Nothing moves by itself for a reader who asked for less motion; Step remains.
  playButton.hidden = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const acts = {
    back: () => { pause(); show(layer - 1); },
    play: () => (timer ? pause() : play()),
    step: () => { pause(); show(layer + 1); },
  };
  for (const button of root.querySelectorAll("[data-act]")) {
    button.addEventListener("click", acts[button.dataset.act]);
  }
  slider.addEventListener("input", () => { pause(); show(Number(slider.value)); });
  form.addEventListener("change", (event) => { if (event.target.name === "tokens") show(layer); });
  form.addEventListener("submit", (event) => event.preventDefault());
  describe();
  focusable(cells[layer]);
}
