// A query of a draft block is chosen, and the way of attention. Rows, words and tables come from draft_block.py.

function mount(root, data) {
  const form = root.querySelector("form");
  const rows = [...root.querySelectorAll("[data-query]")];
  const place = root.querySelector(".ds-place");
  const likeliest = root.querySelector(".ds-scroll");

  // What is read out changes only when it says something else.
  const said = new Map();
  function tell(element, html) {
    if (said.get(element) !== html) element.innerHTML = html;
    said.set(element, html);
  }

  function draw() {
    const { query, mode, round = "0" } = Object.fromEntries(new FormData(form));
    rows.forEach((row, number) => {
      row.innerHTML = data.rows[mode][number];
      row.classList.toggle("ds-chosen", row.dataset.query === query);
    });
    tell(root.querySelector("figcaption"), data.words[mode][query - 1]);
    if (!place) return;
    const [words, table] = data.markov[round][query - 1];
    tell(place, words);
    likeliest.innerHTML = table;
  }

  form.addEventListener("input", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  // For a pointer a row of the picture does what its button does.
  for (const row of rows) {
    row.addEventListener("click", () => {
      form.elements.query.value = row.dataset.query;
      draw();
    });
  }
  draw();
}
