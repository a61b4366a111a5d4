// The Engram hash on a text. The arithmetic comes from ngrams.js, the first picture from engram_explorer.py.

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" };
const escaped = (text) => text.replace(/[&<>"']/g, (sign) => ESCAPES[sign]);

function glyphOf(data, byte) {
  if (byte in data.glyphs) return data.glyphs[byte];
  return byte > 0x20 && byte < 0x7f ? String.fromCharCode(byte) : byte.toString(16).toUpperCase().padStart(2, "0");
}

const barsView = (order) => (order ? `<span class="ds-shared">${"<i></i>".repeat(order - 1)}</span>` : "");

function tokensView(data, hash, bytes, ids, chosen) {
  const size = hash.multipliers.length;
  const ours = windowAt(ids, chosen, size);
  const chips = bytes.map((byte, place) => {
    const back = chosen - place;
    const shared = back === 0 ? 0 : sharedOrder(hash, ours, windowAt(ids, place, size));
    const inside = back > 0 && back < size ? " ds-inside" : "";
    const glyph = glyphOf(data, byte);
    const name = shared
      ? say`Token ${place}: ${glyph}, ends in the same ${shared}-gram`
      : say`Token ${place}: ${glyph}`;
    return (
      `<button type="button" class="ds-token${inside}" data-token="${place}" aria-pressed="${back === 0}" ` +
      `tabindex="${back === 0 ? 0 : -1}" aria-label="${escaped(name)}">${escaped(glyph)}${barsView(shared)}</button>`
    );
  });
  return chips.join("");
}

function factorsView(data, hash, bytes, chosen, ids, products) {
  const seen = masked(ids, hash.pad);
  const rows = products.map((product, back) => {
    const byte = bytes[chosen - back];
    const hidden = ids[back] === DEAD;
    const glyph = hidden ? "–" : escaped(glyphOf(data, byte));
    const numbers = `${hidden ? say`pad` : data.firstByte + byte} → ${seen[back]}`;
    return (
      `<p><span class="ds-label">${data.back[back]}</span><b>${glyph}</b><span class="ds-ids">${numbers}</span>` +
      `<span class="ds-times">× ${grouped(hash.multipliers[back])}</span>` +
      `<span class="ds-product">= ${grouped(product)}</span></p>`
    );
  });
  return rows.join("");
}

function ordersView(hash, hashes, rows) {
  const orders = rows.map((found, order) => {
    const heads = found.map((row, head) => {
      const at = ((100 * (row - hash.offsets[order][head])) / hash.primes[order][head]).toFixed(2);
      return `<span class="ds-head"><i style="left:${at}%"></i><span>${grouped(row)}</span></span>`;
    });
    return (
      `<p><b>${say`${order + 2}-gram`}</b> <span class="ds-label">${say`xor of ${order + 2} products`}</span> ` +
      `<span class="ds-hash">${grouped(hashes[order])}</span></p><div class="ds-heads">${heads.join("")}</div>`
    );
  });
  return orders.join("");
}

function captionOf(data, hash, bytes, chosen, ids) {
  const columns = hash.primes.flat().length;
  const wrong = wrongThroughDoubles(hash, ids);
  const glyph = escaped(glyphOf(data, bytes[chosen]));
  const [rows, size] = [grouped(hash.rows), grouped(columns * hash.rowBytes)];
  const reads = say`<b>Token ${chosen}, ${glyph}</b>, reads ${columns} of ${rows} rows, ${size} bytes.`;
  const text = `${reads} ${wrong ? say`Through doubles it would read ${wrong} other rows.` : data.allExact}`;
  if (!ids.includes(DEAD)) return text;
  return `${text} ${say`The text begins within the window, so the pad token’s id stands in for what is missing.`}`;
}

function tableBody(hash, rows) {
  const lines = rows.flatMap((found, order) =>
    found.map((row, head) => {
      const numbers = [head, hash.primes[order][head], row - hash.offsets[order][head], row].map(grouped);
      const cells = numbers.map((n) => `<td class="ds-number">${n}</td>`);
      return `<tr><th scope="row">${say`${order + 2}-gram`}</th>${cells.join("")}</tr>`;
    }),
  );
  return lines.join("");
}

function mount(root, data) {
  const form = root.querySelector("form");
  const field = form.elements.text;
  const encoder = new TextEncoder();
  const state = { bytes: [], token: data.token };
  const part = (name) => root.querySelector(name);

  function read() {
    state.bytes = [...encoder.encode(field.value)].slice(0, data.longest);
  }

  function draw() {
    const { bytes, token } = state;
    const empty = bytes.length === 0;
    for (const name of [".ds-factors", ".ds-orders", ".ds-table", ".ds-key"]) part(name).hidden = empty;
    if (empty) {
      part(".ds-tokens").innerHTML = "";
      part("figcaption").textContent = say`No token, no rows. Type a letter.`;
      return;
    }
    const hash = data.hashes[form.elements.hash.value];
    const ids = bytes.map((byte) => data.tokenMap[data.firstByte + byte]);
    const seen = windowAt(ids, token, hash.multipliers.length);
    const { products, hashes, rows } = hashWindow(hash, seen);
    part(".ds-tokens").innerHTML = tokensView(data, hash, bytes, ids, token);
    part(".ds-factors").innerHTML = factorsView(data, hash, bytes, token, seen, products);
    part(".ds-orders").innerHTML = ordersView(hash, hashes, rows);
    part("figcaption").innerHTML = captionOf(data, hash, bytes, token, seen);
    part("tbody").innerHTML = tableBody(hash, rows);
  }

  // The tokens are drawn anew, so the chosen one gets the focus back.
  function moveTo(token) {
    state.token = token;
    draw();
    part(`[data-token="${token}"]`).focus();
  }

  root.addEventListener("click", (event) => {
    const chip = event.target.closest(".ds-token");
    if (chip) moveTo(Number(chip.dataset.token));
  });
  root.addEventListener("keydown", (event) => {
    const last = state.bytes.length - 1;
    const next = { ArrowLeft: state.token - 1, ArrowRight: state.token + 1, Home: 0, End: last }[event.key];
    if (!event.target.closest(".ds-token") || next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    if (next >= 0 && next <= last) moveTo(next);
  });
  // The token before the caret is the one that was typed last.
  field.addEventListener("input", () => {
    read();
    const before = encoder.encode(field.value.slice(0, field.selectionStart)).length;
    state.token = Math.min(Math.max(before - 1, 0), state.bytes.length - 1);
    draw();
  });
  form.addEventListener("change", (event) => event.target.name === "hash" && draw());
  form.addEventListener("submit", (event) => event.preventDefault());
  read();
  draw();
}
