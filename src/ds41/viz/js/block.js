// One block on its way into storage. The encoder comes from codec.js, the first picture from block_explorer.py.

const LEVELS = [-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6];

function stepsView(block, scaleName) {
  const steps = [
    [say`largest value`, show(block.amax)],
    ["÷ 6", show(Math.fround(block.amax / 6))],
    [say`scale, ${scaleName}`, `${show(block.scale, 6)} <small>${hex(block.scaleByte)}</small>`],
    [say`largest level, 6 × scale`, show(6 * block.scale)],
  ];
  return steps.map(([name, value]) => `<div><dt>${name}</dt><dd>${value}</dd></div>`).join("");
}

const spoken = (channel, x, read, code) =>
  say`Channel ${channel}: ${show(x)}, code ${binary(code, 4)}, read back ${show(read)}`;

function plotView(values, block, chosen, limit) {
  const at = (value) => `${(50 + (50 * value) / limit).toFixed(3)}%`;
  const levels = LEVELS.map((level) => `<i class="ds-level" style="bottom:${at(level * block.scale)}"></i>`);
  const labels = [-6, -3, 0, 3, 6].map((level) => {
    const value = level * block.scale;
    return `<span class="ds-level-name" style="bottom:${at(value)}">${show(value, 3)}</span>`;
  });
  const columns = values.map((x, channel) => {
    const read = block.stored[channel];
    const [low, high] = x < read ? [x, read] : [read, x];
    // The stem is the error.
    const clipped = Math.abs(x) > 6 * block.scale;
    return (
      `<button type="button" class="ds-channel" data-channel="${channel}" aria-pressed="${channel === chosen}" ` +
      `tabindex="${channel === chosen ? 0 : -1}" aria-label="${spoken(channel, x, read, block.codes[channel])}">` +
      `<i class="ds-stem" style="bottom:${at(low)};height:${((50 * (high - low)) / limit).toFixed(3)}%"></i>` +
      `<i class="ds-given${clipped ? " ds-clipped" : ""}" style="bottom:${at(x)}"></i><i class="ds-read" style="bottom:${at(read)}"></i></button>`
    );
  });
  return (
    `<div class="ds-axis">${labels.join("")}</div><div class="ds-columns" role="group" aria-label="${say`Channels`}">` +
    `${levels.join("")}${columns.join("")}</div>`
  );
}

function captionOf(values, block, channel) {
  const x = values[channel];
  const read = block.stored[channel];
  const code = block.codes[channel];
  const miss = read === x ? say`exact` : say`${show(Math.abs(read - x), 2)} off`;
  const scaled = `${show(x)} ÷ ${show(block.scale, 6)} = ${show(Math.fround(x / block.scale))}`;
  const nearest = say`nearest level ${show(valueOf(TYPES.e2m1, code))}, code <code>${binary(code, 4)}</code>`;
  const text = say`<b>Channel ${channel}</b>: ${scaled}, ${nearest}; read back as <b>${show(read)}</b>, ${miss}.`;
  if (!block.clips) return text;
  const loss = plain((100 * (1 - (6 * block.scale) / block.amax)).toFixed(1));
  const why = 6 * block.scale < 2688
    ? say`<b>This block clips</b>: the scale was rounded down, and its largest value loses ${loss} %.`
    : say`<b>This block clips</b>: no scale is larger, and its largest value loses ${loss} %.`;
  return `${text} ${why}`;
}

function tableBody(values, block) {
  const rows = values.map((x, channel) => {
    const cells = [show(x), binary(block.codes[channel], 4), show(block.stored[channel]), show(block.stored[channel] - x, 2)];
    return `<tr><th scope="row">${channel}</th>${cells.map((cell) => `<td class="ds-number">${cell}</td>`).join("")}</tr>`;
  });
  return rows.join("");
}

function mount(root, data) {
  const form = root.querySelector("form");
  const field = (name) => form.elements[name];
  const state = { values: [], channel: 0, sample: 0, limit: 1 };
  const format = () => data.formats[field("format").value];
  const reach = (block) => data.margin * Math.max(block.amax, 6 * block.scale);

  // A new block sets the plot's range; while its values are moved the range holds, and only grows where it must.
  function load() {
    const { samples } = data.presets[field("format").value][field("preset").value];
    state.values = samples[state.sample % samples.length].slice();
    state.limit = reach(encodeBlock(format(), state.values));
    root.querySelector('[data-act="sample"]').hidden = samples.length < 2;
    field("slider").max = state.limit.toPrecision(6);
    field("slider").min = -field("slider").max;
    field("channel").max = state.values.length - 1;
    choose(0);
  }

  function choose(channel) {
    state.channel = channel;
    field("channel").value = channel;
    root.querySelector('[data-out="which"]').textContent = say`Value of channel ${channel}`;
    for (const name of ["slider", "value"]) field(name).value = Number(state.values[channel].toPrecision(6));
    draw();
  }

  function draw() {
    const { values, channel } = state;
    const block = encodeBlock(format(), values);
    const limit = Math.max(state.limit, Math.max(block.amax, 6 * block.scale) * 1.02);
    root.querySelector(".ds-steps dl").innerHTML = stepsView(block, data.scaleNames[format().scale]);
    root.querySelector(".ds-plot").innerHTML = plotView(values, block, channel, limit);
    root.querySelector("figcaption").innerHTML = captionOf(values, block, channel);
    root.querySelector("tbody").innerHTML = tableBody(values, block);
  }

  // The columns are drawn anew, so the chosen one gets the focus back.
  function moveTo(channel) {
    choose(channel);
    root.querySelector(`[data-channel="${channel}"]`).focus();
  }

  root.addEventListener("click", (event) => {
    const column = event.target.closest(".ds-channel");
    if (column) moveTo(Number(column.dataset.channel));
    if (event.target.closest('[data-act="sample"]')) { state.sample += 1; load(); }
  });
  root.addEventListener("keydown", (event) => {
    const column = event.target.closest(".ds-channel");
    const last = state.values.length - 1;
    const next = { ArrowLeft: state.channel - 1, ArrowRight: state.channel + 1, Home: 0, End: last }[event.key];
    if (!column || next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    if (next >= 0 && next <= last) moveTo(next);
  });
  form.addEventListener("input", (event) => {
    const { name, value } = event.target;
    if (name === "format" || name === "preset") { state.sample = 0; load(); return; }
    if (name === "channel") { choose(Number(value)); return; }
    const x = Math.fround(Number(value));
    // Half-typed numbers and those beyond float32 change nothing.
    if (value === "" || !Number.isFinite(x)) return;
    state.values[state.channel] = x;
    field(name === "slider" ? "value" : "slider").value = Number(x.toPrecision(6));
    draw();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  load();
}
