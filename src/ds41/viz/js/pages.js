// One key of a query at a time: where it is found and what its bytes become. Keys, addresses and running sums come
// from page_walk.py; page_views.py draws the first picture with the same words.

const KINDS = { window: say`window row`, main: say`main entry`, none: say`no entry` };
const SHOWN_BYTES = 4;

function keyOf(data, state, at = state.key) {
  const [kind, token, page, place, codes, scales, first, firstScales] = data.walks[state.query].keys[at];
  return { kind, token, page, place, codes, scales, first, firstScales, entry: kind === "main" ? Math.floor(token / data.page.ratio) : -1 };
}

function tileOf(data, state) {
  const tile = Math.floor(state.key / data.tile);
  const numbers = [...Array(data.tile).keys()].map((i) => tile * data.tile + i);
  const keys = numbers.map((number) => keyOf(data, state, number)).filter(({ kind }) => kind !== "none");
  const pages = [...new Set(keys.filter(({ kind }) => kind === "main").map(({ page }) => page))].sort((a, b) => a - b);
  return { tile, split: Math.floor(tile / data.part), keys, pages };
}

const cellClass = (data, state, number) =>
  `ds-cell ds-${keyOf(data, state, number).kind}-key` +
  (Math.floor(number / data.tile) === Math.floor(state.key / data.tile) ? " ds-now" : "");

function cellLabel(data, state, at) {
  const { kind, token } = keyOf(data, state, at);
  const tile = Math.floor(at / data.tile);
  return kind === "none" ? say`Tile ${tile}, ${KINDS[kind]}` : say`Tile ${tile}, ${KINDS[kind]}, token ${token}`;
}

function indexView(data, state) {
  const { kind, token, place, entry } = keyOf(data, state);
  const column = state.key - data.windowTiles * data.tile;
  const code = `<code>${kind === "window" ? `choice[${state.key}] = ${place}` : `selected[${column}] = ${entry}`}</code>`;
  if (kind === "window") return say`${code}, the slot of token ${token} in the ring`;
  return kind === "none" ? say`${code}, nothing more to select` : say`${code}, an entry of layer ${data.layer}`;
}

function tableView(data, state) {
  const walk = data.walks[state.query];
  const { kind, page, entry } = keyOf(data, state);
  const column = kind === "main" ? Math.floor(entry / data.page.entries) : -1;
  const cells = walk.table
    .map((held, i) => `<i class="ds-entry${i === column ? " ds-hit-box" : ""}">${held < 0 ? "–" : held}</i>`)
    .join("");
  const strip =
    `<small>${say`Row ${walk.sequence} of the page table:`}</small>` +
    `<span class="ds-entries" aria-hidden="true">${cells}</span>`;
  if (kind === "window") return `${say`A ring needs no page table.`}${strip}`;
  if (kind === "none") return `${say`The mask stands for page -1: nothing is loaded.`}${strip}`;
  return `<code>page_table[${walk.sequence}, ${entry} // ${data.page.entries}] = ${page}</code>${strip}`;
}

const mark = (at, of) => `<i class="ds-at" style="left:calc(100% * ${at} / ${of})"></i>`;

function addressView(data, state) {
  const walk = data.walks[state.query];
  const { kind, page, place, codes } = keyOf(data, state);
  if (kind === "none") return say`No address.`;
  const width = data.records[kind][0];
  if (kind === "window") {
    const slot = place - walk.sequence * data.slots;
    return (
      `<code>${place} × ${width} = ${number(codes)}</code>` +
      `<small>${say`This sequence’s ring of ${data.slots} slots:`}</small>` +
      `<span class="ds-bar ds-slots" aria-hidden="true">${mark(slot, data.slots)}</span>`
    );
  }
  const boxed = (other) => (other === page ? " ds-hit-box" : walk.table.includes(other) ? " ds-own" : "");
  const cells = [...Array(data.pool).keys()].map((other) => `<i class="ds-entry${boxed(other)}">${other}</i>`).join("");
  const parts = planesOf(data).map(([size, kind]) => `<i class="ds-${kind}" style="flex-grow:${size}"></i>`).join("");
  const marks = ["codes", "scales"].map((plane, i) => mark(data.page[plane] + place * data.records.main[i], data.page.bytes));
  const begin = `${page} × ${number(data.page.bytes)} + ${number(data.page.codes)}`;
  return (
    `<code>${begin} + ${place} × ${width} = ${number(codes)}</code>` +
    `<small>${say`The pool; framed pages are this sequence’s:`}</small>` +
    `<span class="ds-entries" aria-hidden="true">${cells}</span>` +
    `<small>${say`The page, to scale; marks at codes and scales of row ${place}:`}</small>` +
    `<span class="ds-bar" aria-hidden="true">${parts}${marks.join("")}</span>`
  );
}

// Codes and scales of one layer lie side by side and are drawn as one.
function planesOf(data) {
  const planes = [];
  for (const [size, kind, layer] of data.page.planes) {
    const last = planes[planes.length - 1];
    if (last && last[1] === kind && last[2] === layer) last[0] += size;
    else planes.push([size, kind, layer]);
  }
  return planes;
}

const hexOf = (byte) => byte.toString(16).toUpperCase().padStart(2, "0");

function loadsView(data, state) {
  const { kind, first } = keyOf(data, state);
  if (kind === "none") return say`No loads; the lanes of this key hold zeros.`;
  const [codes, scales] = data.records[kind].map((size) => Math.ceil(size / data.load));
  const boxes =
    [...Array(codes).keys()].map((i) => `<i class="ds-load${i === 0 ? " ds-hit-box" : ""}"></i>`).join("") +
    '<i class="ds-load ds-scale"></i>'.repeat(scales);
  const text = say`${codes} × ${data.load} bytes of codes, ${scales} × ${data.load} of scales. The first load:`;
  const bytes = `<code class="ds-hex">${first.map(hexOf).join(" ")}</code>`;
  return `<span class="ds-loads" aria-hidden="true">${boxes}</span>${text} ${bytes}`;
}

function decodedView({ kind, first, firstScales }) {
  if (kind === "none") return `<p>${say`No key: its weight is 0.`}</p>`;
  const [element, scale] = kind === "main" ? [TYPES.e2m1, TYPES.e4m3] : [TYPES.e4m3, TYPES.e8m0];
  const factor = valueOf(scale, firstScales[0]);
  const cells = first.slice(0, SHOWN_BYTES).map((byte) => {
    const codes = kind === "main" ? [byte & 15, byte >> 4] : [byte];
    const bits = codes.map((code) => binary(code, element.bits)).join(" ");
    const values = series(codes.map((code) => show(valueOf(element, code) * factor, 3)));
    return `<li><code>${bits}</code><b>${values}</b></li>`;
  });
  const byte = hexOf(firstScales[0]);
  const head = say`Scale byte <code>${byte}</code> (${scale.name}) is ${show(factor, 4)}; codes and values:`;
  return `<p>${head}</p><ul class="ds-decoded">${cells.join("")}</ul>`;
}

function registersView(data, state) {
  const { tile } = tileOf(data, state);
  const [largest, total, ...sums] = data.walks[state.query].running[tile];
  const [most, sum] = [show(largest, 4), show(total, 4)];
  const values = series([...sums.map((value) => show(value, 3)), "…"]);
  const kept = say`After tile ${tile}, head 0: maximum <b>${most}</b>, sum <b>${sum}</b>, accumulator <b>${values}</b>`;
  return `${decodedView(keyOf(data, state))}<p>${kept}</p>`;
}

function captionOf(data, state) {
  const walk = data.walks[state.query];
  const { tile, split, keys, pages } = tileOf(data, state);
  let what = say`${keys.length} rows of the ring`;
  if (!keys.length) what = say`none of its places holds an entry, so the tile changes nothing`;
  else if (pages.length > 1) what = say`${keys.length} entries from pages ${pages.join(", ")}`;
  else if (pages.length) {
    what = keys.length === 1 ? say`an entry from page ${pages[0]}` : say`${keys.length} entries from page ${pages[0]}`;
  }
  const text = say`<b>Tile ${tile}, split ${split}</b>: ${what}.`;
  if (tile === walk.running.length - 1) {
    const values = series([...walk.output.map((value) => show(value, 3)), "…"]);
    return `${text} ${say`The last program is done too; the combine adds the sink and writes <b>${values}</b>`}`;
  }
  if (tile % data.part === data.part - 1) {
    return `${text} ${say`The program is done: maximum, sum and accumulator go to memory, for the combine.`}`;
  }
  return `${text} ${say`Nothing is written to memory yet.`}`;
}

function mount(root, data) {
  const form = root.querySelector("form");
  const caption = root.querySelector("figcaption");
  const state = { ...data.first };
  const { cells, focusable } = cellsOf(root, (cell) => { state.key = Number(cell.dataset.key); focusable(cell); draw(); });
  const views = { index: indexView, table: tableView, address: addressView, loads: loadsView, registers: registersView };

  function draw() {
    for (const [name, view] of Object.entries(views)) root.querySelector(`[data-out=${name}]`).innerHTML = view(data, state);
    cells.forEach((cell, number) => {
      const { kind, token } = keyOf(data, state, number);
      cell.className = cellClass(data, state, number);
      cell.textContent = kind === "none" ? "" : token;
      cell.setAttribute("aria-pressed", String(number === state.key));
      cell.setAttribute("aria-label", cellLabel(data, state, number));
    });
    // The caption is about the tile, so it stays, unread, while keys of one tile are looked at.
    const text = captionOf(data, state);
    if (text !== root.dataset.caption) caption.innerHTML = text;
    root.dataset.caption = text;
  }

  function walkTo(tile) {
    state.key = Math.min(Math.max(tile, 0), cells.length / data.tile - 1) * data.tile;
    focusable(cells[state.key]);
    draw();
  }

  const acts = { back: -1, next: 1 };
  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act]");
    if (button) walkTo(Math.floor(state.key / data.tile) + acts[button.dataset.act]);
  });
  form.addEventListener("change", (event) => { state.query = Number(event.target.value); draw(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  focusable(cells[state.key]);
  draw();
}
