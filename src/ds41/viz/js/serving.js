// Steps through the journeys of requests. Labels and sentences come from serving_map.py, which also draws the map; the
// facts of a step stand in the table, a row for each journey as a whole and one for each of its steps.

function mount(root, data) {
  const [which, walk] = root.querySelectorAll("form");
  const slider = walk.elements.step;
  const boxes = [...root.querySelectorAll("[data-box]")];
  const edges = [...root.querySelectorAll("[data-edge]")];
  const rows = [...root.querySelectorAll("tbody tr")];
  const firstRow = [0];
  for (const { steps } of data.journeys) firstRow.push(firstRow[firstRow.length - 1] + 1 + steps.length);

  function words(row, opening) {
    const facts = [say`travels`, say`computed`, say`stays`].map((name, i) =>
      `<div><dt>${name}</dt><dd>${row.cells[3 + i].innerHTML.split("; ").join("<br>")}</dd></div>`);
    return `<p>${opening}</p><dl>${facts.join("")}</dl>`;
  }

  function show(step) {
    const journey = Number(which.elements.journey.value);
    const { overview, held, steps } = data.journeys[journey];
    const at = Math.min(Math.max(step, 0), steps.length);
    const now = at ? steps[at - 1] : { box: "", edges: {} };
    const row = rows[firstRow[journey] + at];
    const name = row.cells[2];
    // Of each tier the last word that there was on it; before the first step, as it is at the end.
    const holding = Object.assign({}, held, ...steps.slice(0, at || steps.length).map((step) => step.held));
    for (const box of boxes) {
      const { box: place } = box.dataset;
      box.classList.toggle("ds-now", place === now.box);
      box.classList.toggle("ds-lost", place === now.box && Boolean(now.fault));
      const [amount, stays] = box.querySelectorAll(".ds-held, .ds-stays");
      if (amount) [amount.textContent, stays.textContent] = holding[place] ?? ["–", ""];
    }
    for (const edge of edges) {
      const used = steps.some((step) => edge.dataset.edge in step.edges);
      const [amount, what, kind = "neutral"] = now.edges[edge.dataset.edge] ?? ["", "", ""];
      const lines = edge.querySelectorAll("text");
      edge.toggleAttribute("hidden", !used);
      edge.classList.toggle("ds-now", Boolean(kind));
      edge.classList.toggle("ds-later", Boolean(at && !kind));
      if (kind) edge.dataset.kind = kind;
      else delete edge.dataset.kind;
      [lines[0].textContent, lines[1].textContent] = [amount, what];
    }
    // What travels lies over what does not.
    for (const edge of edges) if (edge.classList.contains("ds-now")) boxes[0].before(edge);
    slider.max = steps.length;
    slider.value = at;
    const spoken = at ? say`${at} of ${steps.length}, ${name.textContent}` : name.textContent;
    slider.setAttribute("aria-valuetext", spoken);
    const heading = say`<b>Step ${at} of ${steps.length}: ${name.innerHTML}.</b>`;
    const opening = at ? `${heading} ${data.texts[now.text]}` : overview;
    root.querySelector("figcaption").innerHTML = words(row, opening);
  }

  const acts = { back: -1, next: 1 };
  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act]");
    if (button) show(Number(slider.value) + acts[button.dataset.act]);
  });
  slider.addEventListener("input", () => show(Number(slider.value)));
  which.addEventListener("change", () => show(0));
  for (const form of [which, walk]) form.addEventListener("submit", (event) => event.preventDefault());
  show(0);
}
