// The map of the layers: one Tab stop for all cells, arrow keys between them, a slider that does the same, and a
// sentence about the chosen layer.

function mount(root, data) {
  const { cells, focusable } = cellsOf(root, press);
  const form = root.querySelector("form");
  const slider = form.elements.layer;
  const caption = root.querySelector("figcaption");
  const overview = caption.innerHTML;
  caption.innerHTML = `${overview} ${say`Choose a layer to see what it keeps and what it reads.`}`;

  // A second press on the chosen cell goes back to the overview.
  function press(cell) {
    choose(cell, cell.getAttribute("aria-pressed") === "true");
  }

  function choose(cell, again = false) {
    const layer = Number(cell.dataset.layer);
    const linked = again ? [] : data.layers[layer].linked;
    for (const other of cells) {
      other.setAttribute("aria-pressed", String(other === cell && !again));
      other.classList.toggle("ds-linked", linked.includes(Number(other.dataset.layer)));
    }
    for (const bar of root.querySelectorAll(".ds-owned")) {
      const owner = Number(bar.dataset.owner);
      bar.classList.toggle("ds-dim", !again && owner !== layer && !linked.includes(owner));
    }
    caption.innerHTML = again ? overview : data.layers[layer].text;
    slider.value = layer;
    describe();
    focusable(cell);
  }

  function describe() {
    slider.setAttribute("aria-valuetext", say`layer ${slider.value}, ${data.layers[slider.value].mode}`);
  }

  slider.addEventListener("input", () => choose(cells[slider.value]));
  form.addEventListener("submit", (event) => event.preventDefault());
  describe();
}
