// One layer's experts and the batch that goes through them. Choices and first picture come from route_explorer.py.

const inTokens = (count) => (count === 1 ? say`${count} token` : say`${count} tokens`);

// Tokens of the batch for each expert; the busiest is the first of those with the most.
function loadOf(data, state) {
  const load = new Array(data.experts).fill(0);
  for (const route of data.batches[state.inputs].experts.slice(0, state.batch)) {
    for (const expert of route) load[expert] += 1;
  }
  const most = Math.max(...load);
  return { load, most, busiest: load.indexOf(most), read: load.filter((count) => count).length };
}

// In expectation, if tokens choose evenly and each for itself.
const evenCount = (data, batch) => data.experts * (1 - (1 - data.chosen / data.experts) ** batch);

function readoutsView(data, state, { read }) {
  const bytes = read * data.expertBytes;
  const [even, alone] = [evenCount(data, state.batch), (data.chosen * data.expertBytes) / 1e6];
  return (
    `<div><dt>${say`experts read`}</dt><dd>${say`${read} <small>of ${data.experts}</small>`}</dd>` +
    `<dd class="ds-fine">${say`even choices would read ${show(even, 3)}`}</dd></div>` +
    `<div><dt>${say`bytes of them, this layer`}</dt><dd>${show(bytes / 1e9, 3)} <small>GB</small></dd>` +
    `<dd class="ds-fine">${read} × ${number(data.expertBytes)}</dd></div>` +
    `<div><dt>${say`for each token`}</dt><dd>${show(bytes / state.batch / 1e6, 3)} <small>MB</small></dd>` +
    `<dd class="ds-fine">${say`${show(alone, 3)} MB for one alone`}</dd></div>`
  );
}

function shareView(data, state, { read }) {
  const share = (count) => `calc(100% * ${count} / ${data.experts})`;
  return (
    `<i class="ds-length" style="width:${share(read)}"></i>` +
    `<i class="ds-even" style="left:${share(evenCount(data, state.batch).toFixed(2))}"></i>`
  );
}

function batchText(data, state, { most, busiest }) {
  const last = data.experts - 1;
  return (
    `${say`${inTokens(state.batch)}, ${data.chosen * state.batch} choices.`} ` +
    say`Experts 0 to ${last}, row by row; the busiest, ${busiest}, serves ${inTokens(most)}.`
  );
}

function expertsView(data, state, { load, most }) {
  const route = state.token === null ? [] : data.batches[state.inputs].experts[state.token];
  const slots = load.map((count, expert) => {
    const fill = count ? `<i class="ds-fill" style="height:calc(100% * ${count} / ${most})"></i>` : "";
    return `<i class="ds-slot${route.includes(expert) ? " ds-route" : ""}">${fill}</i>`;
  });
  return slots.join("");
}

function captionOf(data, state) {
  const { token } = state;
  const routed = data.batches[state.inputs];
  if (token === null) return say`Choose a token to see the experts that it goes to.`;
  const weights = routed.weights[token];
  const route = routed.experts[token].map((expert, rank) => `<b>${expert}</b> (${show(weights[rank], 3)})`).join(", ");
  const topic = routed.topics[token];
  let goes = say`<b>Token ${token}</b> goes to experts ${route}.`;
  if (topic !== null) {
    const alike = routed.topics.filter((other) => other === topic).length;
    goes = alike > 1
      ? say`<b>Token ${token}</b>, one of ${alike} of topic ${topic + 1}, goes to experts ${route}.`
      : say`<b>Token ${token}</b>, the only one of topic ${topic + 1}, goes to experts ${route}.`;
  }
  const sum = show(weights.reduce((total, weight) => total + weight, 0), 3);
  return `${goes} ${say`The weights in brackets sum to ${sum}.`}`;
}

function tableBody(data, { load }) {
  const tally = [];
  for (const count of load) tally[count] = (tally[count] ?? 0) + 1;
  const rows = tally.map(
    (experts, tokens) => `<tr><th scope="row" class="ds-number">${tokens}</th><td class="ds-number">${experts}</td></tr>`,
  );
  return rows.join("");
}

function mount(root, data) {
  const form = root.querySelector("form");
  const slider = form.elements.batch;
  const caption = root.querySelector("figcaption");
  const state = { ...data.first };
  const { cells, focusable } = cellsOf(root, press);

  // A token beyond the batch joins it, with all before it; a second press on the marked one unmarks it.
  function press(cell) {
    const token = Number(cell.dataset.token);
    state.token = token === state.token ? null : token;
    state.batch = Math.max(state.batch, token + 1);
    slider.value = state.batch;
    focusable(cell);
    draw();
  }

  function draw() {
    const counted = loadOf(data, state);
    root.querySelector(".ds-readouts dl").innerHTML = readoutsView(data, state, counted);
    root.querySelector(".ds-share").innerHTML = shareView(data, state, counted);
    root.querySelector(".ds-batch").innerHTML = batchText(data, state, counted);
    root.querySelector(".ds-experts").innerHTML = expertsView(data, state, counted);
    root.querySelector("tbody").innerHTML = tableBody(data, counted);
    const read = counted.read === 1 ? say`${counted.read} expert read` : say`${counted.read} experts read`;
    slider.setAttribute("aria-valuetext", `${inTokens(state.batch)}, ${read}`);
    for (const cell of cells) drawToken(cell);
    // The caption is read out when it changes, and a move of the slider alone does not change it.
    const text = captionOf(data, state);
    if (text !== root.dataset.caption) caption.innerHTML = text;
    root.dataset.caption = text;
  }

  function drawToken(cell) {
    const token = Number(cell.dataset.token);
    const topic = data.batches[state.inputs].topics[token];
    const within = token < state.batch;
    cell.className = within ? "ds-cell ds-in" : "ds-cell";
    cell.setAttribute("aria-pressed", String(token === state.token));
    const label = topic === null ? say`Token ${token}` : say`Token ${token}, topic ${topic + 1}`;
    cell.setAttribute("aria-label", within ? say`${label}, in the batch` : label);
    cell.textContent = topic === null ? "" : topic + 1;
  }

  form.addEventListener("input", (event) => {
    if (event.target === slider) state.batch = Number(slider.value);
    else state.inputs = event.target.value;
    if (state.token >= state.batch) state.token = null;
    draw();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  draw();
}
