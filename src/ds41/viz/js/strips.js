// The cells of a figure's strips as one Tab stop, with arrow keys between them.

function cellsOf(root, press) {
  const strips = [...root.querySelectorAll(".ds-strip:not(.ds-owns)")].map((strip) => [...strip.querySelectorAll(".ds-cell")]);
  const cells = strips.flat();

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
  focusable(cells[0]);
  return { cells, focusable };
}
