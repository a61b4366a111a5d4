// The grid of layers and tokens. Data and first picture come from prefill_map.py, whose words and numbers these are.

const NAMES = { full: say`Full`, bounded: say`Bounded`, exact: say`Exact tail`, next: say`Next token` };
const HALVES = { encoder: say`encoder`, decoder: say`decoder` };
const inTokens = (count) => (count === 1 ? say`${number(count)} token` : say`${number(count)} tokens`);

// For each layer: the first prompt token that it attends for, the entries that it has written, and whether tokens
// saw less than their whole window.
function rowsOf(data, { way, tokens, window }) {
  const last = data.layers.length - 1;
  const written = tokens + (way === "next" ? 1 : 0);
  return data.layers.map((layer, index) => {
    let begin = 0;
    if (way === "next") begin = tokens;
    else if (way !== "full" && index >= data.source) {
      begin = Math.max(0, tokens - (way === "bounded" ? window : 1 + (last - index) * (window - 1)));
    }
    return {
      ...layer,
      index,
      begin,
      entries: layer.owns ? Math.floor(written / layer.ratio) : 0,
      clipped: way === "bounded" && begin > 0 && index > data.source,
    };
  });
}

const tokenLayers = (rows, { way, tokens }) =>
  way === "next" ? rows.length : rows.reduce((sum, row) => sum + tokens - row.begin, 0);

function percent(part, total) {
  const tenths = Math.floor((2000 * part + total) / (2 * total));
  return `${number(tenths / 10, 1, 1)} %`;
}

function readouts(rows, view) {
  const run = tokenLayers(rows, view);
  const share =
    view.way === "next" ? say`for one token` : say`${percent(run, view.tokens * rows.length)} of a full prefill`;
  const entries = rows.reduce((sum, row) => sum + row.entries, 0);
  return (
    `<dl><div><dt>${say`tokens × layers run`}</dt><dd>${number(run)}</dd><dd class="ds-fine">${share}</dd></div>` +
    `<div><dt>${say`global entries then kept`}</dt><dd>${number(entries)}</dd></div></dl>`
  );
}

function segment(kind, begin, end, shown) {
  const left = Math.max(0, begin - (end - shown));
  return `<i class="ds-${kind}" style="left:calc(100% * ${left} / ${shown});right:0"></i>`;
}

function rowView(row, { way, tokens, layer }, shown) {
  let prompt = row.begin < tokens ? segment(row.clipped ? "replay" : "run", row.begin, tokens, shown) : "";
  if (row.owns) prompt += segment("main", 0, tokens, shown);
  let following = way === "next" ? '<i class="ds-run"></i>' : "";
  if (following && row.owns && (tokens + 1) % row.ratio === 0) following += '<i class="ds-main"></i>';
  const chosen = row.index === layer ? " ds-chosen" : "";
  return `<div class="ds-row${chosen}" data-layer="${row.index}"><span>${prompt}</span><span>${following}</span></div>`;
}

function grid(data, rows, view) {
  const { tokens, window } = view;
  const shown = Math.min(tokens, data.shown);
  const kept = segment("window", Math.max(0, tokens - window), tokens, shown);
  const halves = ["encoder", "decoder"].map((half) => {
    const inside = rows.filter((row) => row.half === half);
    const cells = inside.map((row) => rowView(row, view, shown)).join("");
    const [{ index: bottom }, { index: top }] = [inside[0], inside[inside.length - 1]];
    return (
      `<p class="ds-label">${say`${HALVES[half]}, layers ${bottom}–${top}`}</p>` +
      `<div class="ds-rows" aria-hidden="true">${cells}<div class="ds-over"><span>${kept}</span></div></div>`
    );
  });
  const first = shown === tokens ? say`token 0` : say`… ${number(tokens - shown)} more like these`;
  const axis = `<span>${first}</span><span>${say`token ${number(tokens - 1)}`}</span><span>${say`next`}</span>`;
  return `${halves.join("")}<p class="ds-axis" aria-hidden="true">${axis}</p>`;
}

function overview(data, rows, view) {
  const { way, tokens, window } = view;
  const source = rows[data.source];
  const run = tokenLayers(rows, view);
  const full = tokens * rows.length;
  const name = `<b>${NAMES[way]}.</b>`;
  if (way === "next") {
    const owners = rows.filter((row) => row.owns).length;
    const reads = say`reads the entries of ${owners} of them and the windows of all`;
    return `${name} ${say`It runs through all ${rows.length} layers, ${reads}, and needs nothing else of the prompt.`}`;
  }
  if (run === full) {
    const words = `${name} ${say`All ${rows.length} layers run on all ${inTokens(tokens)}.`}`;
    return way === "full" ? words : `${words} ${say`The prompt is short enough for that.`}`;
  }
  const cost = say`${number(run)} of ${number(full)}, ${percent(run, full)}`;
  if (way === "bounded") {
    const writes = say`Layer ${source.index} writes its entries for all ${number(tokens)} tokens`;
    return (
      `${name} ${say`${writes} and goes on with the last ${window}, as do the layers above it: ${cost}.`} ` +
      say`The windows above it begin there, so the result is an approximation.`
    );
  }
  const [rest, all] = [number(tokens - source.begin), number(tokens)];
  const runs = source.begin === 0
    ? say`layer ${source.index} runs on all of ${all}`
    : say`layer ${source.index} runs on the last ${rest} of ${all}`;
  const back = window - 1;
  const reach = say`The last token reaches ${back} tokens further back with every layer below it, so ${runs}: ${cost}.`;
  return `${name} ${reach} ${say`The result is that of a full prefill.`}`;
}

function writesWords({ owns, ratio, begin }, next) {
  if (!owns) return say`Writes nothing that grows.`;
  if (begin && !next) {
    return ratio === 1
      ? say`Writes an entry for every token all the same.`
      : say`Writes an entry for every ${ratio} tokens all the same.`;
  }
  return ratio === 1 ? say`Writes an entry for every token.` : say`Writes an entry for every ${ratio} tokens.`;
}

function layerWords(row, { way, tokens, window }) {
  const next = way === "next";
  const kept = tokens - row.begin;
  let runs = say`Runs on the last ${number(kept)} of ${inTokens(tokens)}.`;
  if (next) runs = say`Runs on the next token.`;
  else if (row.begin === 0) runs = say`Runs on all ${inTokens(tokens)}.`;
  else if (kept === 1) runs = say`Runs on the last of ${inTokens(tokens)}.`;
  let holds = say`Its window holds the last ${Math.min(tokens + (next ? 1 : 0), window)}.`;
  if (row.clipped) holds = say`Its window holds the last ${window}, which saw less than they would have.`;
  const name = say`<b>Layer ${row.index}</b>, ${HALVES[row.half]}, ${row.mode}.`;
  return `${name} ${runs} ${writesWords(row, next)} ${holds}`;
}

function tableBody(rows, { way, tokens, window }) {
  const runs = [];
  for (const row of rows) {
    const last = runs[runs.length - 1];
    const same = last && ["half", "begin", "entries", "clipped"].every((key) => last[0][key] === row[key]);
    if (same) last.push(row);
    else runs.push([row]);
  }
  const held = Math.min(tokens + (way === "next" ? 1 : 0), window);
  return runs.map((run) => {
    const [row] = run;
    const name = run.length === 1 ? row.index : `${row.index}–${run[run.length - 1].index}`;
    const on = way === "next" ? say`the next` : number(tokens - row.begin);
    const windows = row.clipped ? say`${held}, clipped` : held;
    return (
      `<tr><th scope="row">${name}</th><td>${HALVES[row.half]}</td><td class="ds-number">${on}</td>` +
      `<td class="ds-number">${number(row.entries)}</td><td>${windows}</td></tr>`
    );
  }).join("");
}

function mount(root, data) {
  const form = root.querySelector("form");
  const field = (name) => form.elements[name];
  const part = (name) => root.querySelector(name);
  const steps = Math.log2(data.limit);
  // What was typed may be empty, broken, or out of range.
  const typed = () => Math.min(Math.max(Math.floor(Number(field("tokens").value)) || 1, 1), data.limit);

  // What is read out changes only when it says something else.
  function tell(name, html) {
    if (root.dataset[name] !== html) part(name === "overview" ? "figcaption" : ".ds-chosen-layer").innerHTML = html;
    root.dataset[name] = html;
  }

  function draw() {
    const [window, layer] = ["window", "layer"].map((name) => Number(field(name).value));
    const view = { way: field("way").value, tokens: typed(), window, layer };
    const rows = rowsOf(data, view);
    part(".ds-picture").innerHTML = readouts(rows, view) + grid(data, rows, view);
    part("tbody").innerHTML = tableBody(rows, view);
    tell("overview", overview(data, rows, view));
    tell("words", layerWords(rows[layer], view));
    field("slider").setAttribute("aria-valuetext", inTokens(view.tokens));
    field("layer").setAttribute("aria-valuetext", say`layer ${layer}, ${HALVES[rows[layer].half]}`);
  }

  // Slider and field show one number; the one being moved leads.
  form.addEventListener("input", (event) => {
    if (event.target === field("slider")) field("tokens").value = Math.round(2 ** ((field("slider").value * steps) / 1000));
    if (event.target === field("tokens")) field("slider").value = (1000 * Math.log2(typed())) / steps;
    draw();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  // For a pointer the grid does what the slider does.
  part(".ds-picture").addEventListener("click", (event) => {
    const row = event.target.closest("[data-layer]");
    if (!row) return;
    field("layer").value = row.dataset.layer;
    draw();
  });
  draw();
}
