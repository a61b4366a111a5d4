// The map of the layers: one Tab stop for all cells, arrow keys between them, a slider that does the same, and a
// sentence about the chosen layer.

function mount(root, data) {
  const cells = [...root.querySelectorAll(".ds-cell")];
  const strips = [...root.querySelectorAll(".ds-strip:not(.ds-owns)")].map((strip) => [...strip.querySelectorAll(".ds-cell")]);
  const form = root.querySelector("form");
  const slider = form.elements.layer;
  const caption = root.querySelector("figcaption");
  const overview = caption.innerHTML;
  caption.innerHTML = `${overview} Choose a layer to see what it keeps and what it reads.`;

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

  const describe = () => slider.setAttribute("aria-valuetext", `layer ${slider.value}, ${data.layers[slider.value].mode}`);

  // Of all cells one is in the Tab order.
  function focusable(cell) {
    for (const other of cells) other.tabIndex = other === cell ? 0 : -1;
  }

  function neighbour(cell, key) {
    const row = strips.findIndex((strip) => strip.includes(cell));
    const column = strips[row].indexOf(cell);
    switch (key) {
      case "ArrowRight": return cells[cells.indexOf(cell) + 1];
      case "ArrowLeft": return cells[cells.indexOf(cell) - 1];
      case "ArrowDown": return strips[row + 1]?.[column];
      case "ArrowUp": return strips[row - 1]?.[column];
      case "Home": return strips[row][0];
      case "End": return strips[row][strips[row].length - 1];
      default: return undefined;
    }
  }

  // Buttons answer Enter and Space by themselves.
  for (const cell of cells) {
    cell.addEventListener("click", () => press(cell));
    cell.addEventListener("keydown", (event) => {
      const next = neighbour(cell, event.key);
      if (!next) return;
      event.preventDefault();
      event.stopPropagation();
      focusable(next);
      next.focus();
    });
  }
  slider.addEventListener("input", () => choose(cells[slider.value]));
  form.addEventListener("submit", (event) => event.preventDefault());
  describe();
  focusable(cells[0]);
}
