// The ledger's formula, and the figure that shows it. Data and first picture come from ledger_explorer.py.

const whole = (value) => number(Math.round(value));

// Global KV of one sequence: an owner keeps one record for each full group of `ratio` tokens.
function countBytes(data, plan, tokens) {
  const main = data.main[plan.main];
  const index = data.index[plan.index];
  const owners = data.layers
    .filter((layer) => layer.owns || plan.sharing === "off")
    .map((layer) => ({ layer: layer.layer, ratio: plan.ratios === "one" ? 1 : layer.ratio }));
  const sum = (size) => owners.reduce((total, owner) => total + size(owner), 0);
  return {
    owners,
    main,
    index,
    entries: sum((owner) => 1 / owner.ratio),
    perToken: sum((owner) => (main + index) / owner.ratio),
    total: sum((owner) => Math.floor(tokens / owner.ratio) * (main + index)),
  };
}

// 933,232,640 -> "933", "MB": three digits where there are more than three.
function readable(bytes) {
  const units = [say`bytes`, "kB", "MB", "GB", "TB"];
  let step = 0;
  while (bytes >= 1000 * 1000 ** step && step < 4) step += 1;
  const value = bytes / 1000 ** step;
  const digits = step === 0 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return [number(value, digits, digits), units[step]];
}

const escapeText = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// Owners that share one label: each its own where they are few, else neighbours of one ratio together.
function labelRuns(owners) {
  if (owners.length <= 8) return owners.map((owner) => [owner]);
  const runs = [];
  for (const owner of owners) {
    const last = runs[runs.length - 1];
    if (last && last[0].ratio === owner.ratio) last.push(owner);
    else runs.push([owner]);
  }
  return runs;
}

function pageView(ledger) {
  const record = ledger.main + ledger.index;
  const labels = labelRuns(ledger.owners).map((run) => {
    const size = record / run[0].ratio;
    const [{ layer: first }, { layer: last }] = [run[0], run[run.length - 1]];
    const name = run.length === 1 ? say`layer ${first}` : say`layers ${first}–${last}`;
    const count = run.length === 1 ? "" : `${run.length} × `;
    return `<span style="flex-grow:${size * run.length}">${name}<br><b>${count}${number(size)} B</b></span>`;
  });
  const cells = ledger.owners.map(
    (owner) =>
      `<i style="flex-grow:${record / owner.ratio}"><i class="ds-main" style="flex-grow:${ledger.main}"></i>` +
      `<i class="ds-index" style="flex-grow:${ledger.index}"></i></i>`,
  );
  const main = say`main KV <b>${number(ledger.entries * ledger.main)} B</b>`;
  const index = say`index keys <b>${number(ledger.entries * ledger.index)} B</b>`;
  return (
    `<p class="ds-split"><span><i class="ds-swatch ds-main"></i>${main}</span>` +
    `<span><i class="ds-swatch ds-index"></i>${index}</span></p>` +
    `<div class="ds-owners" aria-hidden="true">${labels.join("")}</div>` +
    `<div class="ds-bar" aria-hidden="true">${cells.join("")}</div>`
  );
}

// This plan, the published one and another model, all lengths to one scale; a wedge ties the page above to its
// true length.
function scaleView(data, ledger, published, other, tokens) {
  const rows = [{ name: say`This plan`, ...ledger, own: true }];
  if (published.perToken !== ledger.perToken) rows.push({ name: say`As published`, ...published });
  const otherTotal = other.planes.reduce((sum, [size, ratio]) => sum + size * Math.floor(tokens / ratio), 0);
  rows.push({ name: `${other.name}, ${other.precision}`, perToken: other.perToken, total: otherTotal });
  const longest = Math.max(...rows.map((row) => row.perToken));
  const share = (part, all) => `${((100 * part) / all).toFixed(3)}%`;
  const parts =
    `<i class="ds-main" style="width:${share(ledger.main, ledger.main + ledger.index)}"></i>` +
    `<i class="ds-index" style="flex:1"></i>`;
  const lines = rows.map((row) => {
    const ratio = row.perToken / ledger.perToken;
    const times = ratio < 1 ? say`1/${significant(1 / ratio)} of this plan` : say`${significant(ratio)} times this plan`;
    return (
      `<li><span class="ds-length${row.own ? " ds-own" : ""}" style="width:${share(row.perToken, longest)}">${row.own ? parts : ""}</span>` +
      `<span>${escapeText(row.name)}</span> <b>${whole(row.perToken)} B</b> ` +
      `<small>${sessionsText(data, row.total)}${row.own ? "" : ` · ${times}`}</small></li>`
    );
  });
  return (
    `<svg class="ds-zoom" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">` +
    `<path d="M0 0H100L${share(ledger.perToken, longest).slice(0, -1)} 10H0Z"></path></svg><ul>${lines.join("")}</ul>`
  );
}

// Before its first full group a sequence keeps nothing, and any number of sessions fits.
function sessionsText(data, bytes) {
  const count = Math.floor(data.pool / bytes);
  if (bytes === 0) return say`nothing kept yet`;
  return count === 1 ? say`${whole(count)} session` : say`${whole(count)} sessions`;
}

// Three significant digits, without an exponent.
const significant = (value) => number(Number(value.toPrecision(3)), 6);

function captionText(ledger) {
  const ratios = [...new Set(ledger.owners.map((owner) => owner.ratio))].sort((a, b) => b - a);
  const terms = ratios.map((ratio) => {
    const count = ledger.owners.filter((owner) => owner.ratio === ratio).length;
    return `${count} × ${ratio === 1 ? "1" : `1/${ratio}`}`;
  });
  const [sum, entries] = [terms.join(" + "), number(ledger.entries)];
  const [main, index] = [say`${whole(ledger.main)} B of main KV`, say`${ledger.index} B of index key`];
  const bytes = `${entries} × ${whole(ledger.main + ledger.index)} = ${say`<b>${number(ledger.perToken)} bytes</b>`}`;
  return say`${sum} = ${entries} entries a token, each ${main} and ${index}: ${bytes}.`;
}

function windowText({ layers, tokens, bytes }, perToken) {
  const windows = say`${layers} windows of ${tokens} tokens`;
  const [kept, compared] = [number(perToken), whole(bytes / perToken)];
  return (
    `${say`Once a session, whatever its length: ${windows}, <b>${whole(bytes)} B</b>.`} ` +
    say`Not part of the ${kept}; as much as ${compared} tokens of it.`
  );
}

function tableBody(ledger) {
  const row = (name, ratio, entries) => {
    const numbers = [ledger.main, ledger.index, ledger.main + ledger.index].map((size) => number(size * entries));
    const cells = [ratio, ...numbers].map((cell) => `<td class="ds-number">${cell}</td>`);
    return `<tr><th scope="row">${name}</th>${cells.join("")}</tr>`;
  };
  const rows = ledger.owners.map((owner) => row(say`layer ${owner.layer}`, owner.ratio, 1 / owner.ratio));
  return rows.join("") + row(say`all`, "", ledger.entries);
}

function mount(root, data) {
  const form = root.querySelector("form");
  const field = (name) => form.elements[name];
  const out = (name) => root.querySelector(`[data-out="${name}"]`);

  const inTokens = (count) => (count === 1 ? say`${whole(count)} token` : say`${whole(count)} tokens`);
  // What was typed may be empty, broken, or out of range.
  const context = () => Math.min(Math.max(Math.floor(Number(field("tokens").value)) || 1, 1), data.tokens);

  function draw() {
    const plan = Object.fromEntries(new FormData(form));
    const tokens = context();
    const ledger = countBytes(data, plan, tokens);
    const published = countBytes(data, data.published, tokens);
    const system = data.systems.find((one) => one.key === plan.compare);
    const [value, unit] = readable(ledger.total);
    const sessions = (bytes) => whole(Math.floor(data.pool / bytes));

    out("token").innerHTML = say`${number(ledger.perToken)} <small>bytes</small>`;
    out("context").textContent = inTokens(tokens);
    out("total").innerHTML = `${value} <small>${unit}</small>`;
    out("exact").textContent = say`exactly ${whole(ledger.total)} bytes`;
    out("sessions").textContent = ledger.total ? sessions(ledger.total) : "–";
    out("with-window").textContent = say`${sessions(ledger.total + data.window.bytes)} with their windows`;
    root.querySelector(".ds-page-view").innerHTML = pageView(ledger);
    root.querySelector(".ds-scale-view").innerHTML = scaleView(data, ledger, published, system, tokens);
    root.querySelector(".ds-window").innerHTML =
      `<i class="ds-swatch ds-ring"></i>${windowText(data.window, ledger.perToken)}`;
    root.querySelector("tbody").innerHTML = tableBody(ledger);
    // The caption is read out when it changes, so it changes only when the plan does.
    const caption = captionText(ledger);
    if (caption !== root.dataset.caption) root.querySelector("figcaption").innerHTML = caption;
    root.dataset.caption = caption;
  }

  // Slider and field show one number; the one being moved leads.
  form.addEventListener("input", (event) => {
    if (event.target === field("slider")) field("tokens").value = Math.round(2 ** field("slider").value);
    if (event.target === field("tokens")) field("slider").value = Math.log2(context());
    describe();
    draw();
  });
  // A reset restores the fields only after its event.
  form.addEventListener("reset", () => setTimeout(() => { describe(); draw(); }));
  form.addEventListener("submit", (event) => event.preventDefault());
  const describe = () => field("slider").setAttribute("aria-valuetext", inTokens(context()));
  describe();
  draw();
}
