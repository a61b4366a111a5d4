// A prompt behind a hit. Data and first picture come from replay_timeline.py, whose words and numbers these are.

const KINDS = { next: say`next`, again: say`fed again`, new: say`new` };

function resume({ window }, { prompt, found, windows, short }) {
  const about = { prompt, window, found };
  if (windows === "gone" || !found) {
    const hit = short === "recompute" && found <= window ? 0 : found;
    const start = Math.max(0, hit - window);
    const tail = Math.max(start, prompt - window);
    return { ...about, hit, start, tail, sees: [start, tail] };
  }
  const start = windows === "all" ? found : Math.max(0, Math.min(found, prompt - window));
  const tail = Math.max(start, prompt - window);
  return { ...about, hit: found, start, tail, sees: [0, windows === "all" && tail === start ? 0 : tail] };
}

const begin = (shown, group) => (group ? shown.tail : shown.start);
const first = (shown, group) => shown.sees[group === 2 ? 1 : 0];

function reach(shown, group, query) {
  if (query < begin(shown, group)) return null;
  return [Math.max(first(shown, group), query - shown.window + 1, 0), query + 1];
}

function clipped(shown, group) {
  const from = first(shown, group);
  if (from === 0) return 0;
  return Math.max(0, Math.min(shown.prompt, from + shown.window - 1) - begin(shown, group));
}

const tokenLayers = ({ source, layers }, { prompt, start, tail }) =>
  source * (prompt - start) + (layers - source) * (prompt - tail);

function readouts(data, shown) {
  const cold = tokenLayers(data, resume(data, { prompt: shown.prompt, found: 0, windows: "gone", short: "recompute" }));
  const spent = tokenLayers(data, shown);
  const tenths = Math.floor((2000 * spent + cold) / (2 * cold));
  const written = data.ratios.reduce(
    (sum, ratio) => sum + Math.floor(shown.prompt / ratio) - Math.floor(shown.hit / ratio), 0);
  const cells = [
    [say`tokens fed again`, number(shown.hit - shown.start), say`and ${number(shown.prompt - shown.hit)} new`],
    [say`entries written`, number(written), say`for the new tokens only`],
    [say`tokens × layers run`, number(spent), say`${number(tenths / 10, 1, 1)} % of a cold one`],
  ];
  const cell = ([name, value, note]) => `<div><dt>${name}</dt><dd>${value}</dd><dd class="ds-fine">${note}</dd></div>`;
  return `<dl>${cells.map(cell).join("")}</dl>`;
}

function segment(kind, from, end, prompt) {
  if (from >= end) return "";
  return (
    `<i class="ds-${kind}" style="left:calc(100% * ${from} / ${prompt + 1});` +
    `width:calc(100% * ${end - from} / ${prompt + 1})"></i>`
  );
}

const lane = (label, name, inside) => `<p class="ds-label">${label}</p><div class="ds-lane ${name}">${inside}</div>`;

function lanes(data, shown, query) {
  const { prompt, hit } = shown;
  const pages = segment("read", 0, hit, prompt) + segment("main", hit, prompt, prompt);
  const halves = data.groups.map((name, group) => {
    const from = begin(shown, group);
    const runs = segment("replay", from, hit, prompt) + segment("run", Math.max(from, hit), prompt, prompt);
    const seen = reach(shown, group, query);
    const label = group ? say`decoder, ${name}` : say`encoder, ${name}`;
    return lane(label, "ds-half", runs + (seen ? segment("window", ...seen, prompt) : ""));
  });
  const line = hit ? `<span class="ds-line" style="left:calc(100% * ${hit} / ${prompt + 1})"></span>` : "";
  const axis = [say`token 0`, say`hit at ${number(hit)}`, say`next: ${number(prompt)}`];
  return (
    `<div class="ds-tokens" aria-hidden="true">${lane(say`global KV: read and written`, "ds-pages", pages)}` +
    `${halves.join("")}${line}</div>` +
    `<p class="ds-axis" aria-hidden="true">${axis.map((mark) => `<span>${mark}</span>`).join("")}</p>`
  );
}

function overview(shown) {
  const { prompt, found, hit, start, tail, sees } = shown;
  if (found && !hit) {
    const computed = say`the prompt is computed from token 0, as if nothing had been stored, to the same bytes`;
    const saved = say`All its tokens would have to run again, so nothing would be saved: ${computed}.`;
    return `${say`<b>Hit of ${number(found)} passed over.</b>`} ${saved}`;
  }
  if (!hit) {
    const [all, last] = [number(prompt), number(prompt - tail)];
    const run = say`All ${all} tokens run through the encoder, the last ${last} through the decoder.`;
    return `${say`<b>No hit.</b>`} ${run}`;
  }
  if (sees[0] === 0 && start > 0) {
    const again = start < hit
      ? say`Tokens ${number(start)} to ${number(hit - 1)} are fed again for the decoder's sake.`
      : say`Nothing is fed again.`;
    return (
      `${say`<b>Hit of ${number(hit)}, windows kept.</b>`} ${again} ` +
      say`The encoder goes on as if it had never stopped, and what it stores is what it would have stored.`
    );
  }
  const gone = say`<b>Hit of ${number(hit)}, windows gone.</b>`;
  if (start === 0) {
    const whole = say`Nothing before it is missing, so its windows are what they were.`;
    return `${gone} ${say`The whole prefix is fed again.`} ${whole}`;
  }
  return (
    `${gone} ${say`Tokens ${number(start)} to ${number(hit - 1)} are fed again.`} ` +
    say`The first ${clipped(shown, 0)} of all tokens fed see less than their window.`
  );
}

// What a group of layers sees of a token; `layers` is its name, `one` whether it is a single layer.
function seenWords(layers, one, seen, full) {
  if (!seen) return one ? say`${layers} does not run on it.` : say`${layers} do not run on it.`;
  const [count, from] = [seen[1] - seen[0], number(seen[0])];
  if (count === full) {
    return one
      ? say`${layers} sees all ${full} rows, from position ${from}.`
      : say`${layers} see all ${full} rows, from position ${from}.`;
  }
  return one
    ? say`${layers} sees ${count} of ${full} rows, from position ${from}.`
    : say`${layers} see ${count} of ${full} rows, from position ${from}.`;
}

function queryWords(data, shown, query) {
  if (query < shown.start) {
    return (
      `${say`<b>Token ${number(query)}</b> is not fed.`} ` +
      say`Its entries are read from the store; its window rows stay missing.`
    );
  }
  const kind = query === shown.prompt ? "next" : query < shown.hit ? "again" : "new";
  const sizes = [data.source, 1, data.layers - data.source - 1];
  const full = Math.min(shown.window, query + 1);
  const parts = data.groups.map((name, group) => {
    const layers = name[0].toUpperCase() + name.slice(1);
    return seenWords(layers, sizes[group] === 1, reach(shown, group, query), full);
  });
  return `${say`<b>Token ${number(query)}</b>, ${KINDS[kind]}.`} ${parts.join(" ")}`;
}

function tableBody(data, shown) {
  return data.groups.map((name, group) => {
    const from = begin(shown, group);
    const counts = [Math.max(0, shown.hit - from), shown.prompt - Math.max(from, shown.hit), clipped(shown, group)];
    return (
      `<tr><th scope="row">${name}</th><td>${number(from)}–${number(shown.prompt - 1)}</td>` +
      `${counts.map((count) => `<td class="ds-number">${number(count)}</td>`).join("")}</tr>`
    );
  }).join("");
}

function mount(root, data) {
  const form = root.querySelector("form");
  const field = (name) => form.elements[name];
  const part = (name) => root.querySelector(name);
  const between = (value, last) => Math.min(Math.max(Math.floor(Number(value)) || 0, 0), last);
  let drawn = Number(field("prompt").value);

  // What is read out changes only when it says something else.
  function tell(name, html) {
    if (root.dataset[name] !== html) part(name === "overview" ? "figcaption" : ".ds-query").innerHTML = html;
    root.dataset[name] = html;
  }

  function draw() {
    const prompt = Number(field("prompt").value);
    const found = between(field("hit").value, prompt - 1);
    // A query after the prompt stays after the prompt.
    const last = Number(field("query").value) === drawn;
    const query = last ? prompt : between(field("query").value, prompt);
    for (const [name, most] of [["slider", prompt - 1], ["hit", prompt - 1], ["query", prompt]]) field(name).max = most;
    field("query").value = query;
    drawn = prompt;
    const shown = resume(data, { prompt, found, windows: field("windows").value, short: field("short").value });
    part(".ds-picture").innerHTML = readouts(data, shown) + lanes(data, shown, query);
    part("tbody").innerHTML = tableBody(data, shown);
    tell("overview", overview(shown));
    tell("words", queryWords(data, shown, query));
    field("slider").value = found;
    field("slider").setAttribute("aria-valuetext", say`${number(found)} of ${number(prompt)} tokens`);
    field("query").setAttribute("aria-valuetext", query === prompt ? say`the next token` : say`token ${number(query)}`);
  }

  // Slider and field show one number; the one being moved leads.
  form.addEventListener("input", (event) => {
    if (event.target === field("slider")) field("hit").value = field("slider").value;
    draw();
  });
  // What was typed may be empty or out of range; it is put right when it is left.
  form.addEventListener("change", (event) => {
    if (event.target === field("hit")) field("hit").value = field("slider").value;
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  // For a pointer the lanes do what the slider does.
  part(".ds-picture").addEventListener("click", (event) => {
    const lanes = event.target.closest(".ds-tokens");
    if (!lanes) return;
    const box = lanes.getBoundingClientRect();
    field("hit").value = between(((event.clientX - box.left) / box.width) * (drawn + 1), drawn - 1);
    draw();
  });
  draw();
}
