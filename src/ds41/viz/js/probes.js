// Miss rates by rank. Data and first picture come from probe_curves.py, whose words and numbers these are.

const percent = (thousandths) => `${number(thousandths / 10, 1, 1)} %`;
const between = (low, high) => say`${percent(low)} to ${percent(high)}`;
const signed = (places) => `${places < 0 ? "−" : "+"}${number(Math.abs(places))}`;
// Thousandths of the chart as CSS; they are whole, so one digit is exact.
const part = (thousandths) => `${(thousandths / 10).toFixed(1)}%`;

function mark([, x, missed, low, high], chosen) {
  const left = `left:${part(x)}`;
  const kind = chosen ? " ds-chosen" : "";
  return (
    `<i class="ds-range${kind}" style="${left};top:${part(1000 - high)};height:${part(high - low)}"></i>` +
    `<i class="ds-dot${kind}" style="${left};top:${part(1000 - missed)}"></i>`
  );
}

function chart(data, context, rows, at) {
  const grid = data.shares.map(
    (share) => `<span class="ds-share" style="top:${part(1000 - share)}">${Math.floor(share / 10)} %</span>`);
  const ticks = context.ticks.map(([rank, x]) => {
    const edge = rank === context.topK ? " ds-edge" : "";
    return `<span class="ds-tick${edge}" style="left:${part(x)}">${number(rank)}</span>`;
  });
  const line = rows.map((row) => `${row[1]},${1000 - row[5]}`).join(" ");
  const marks = rows.map((row, place) => mark(row, place === at));
  return (
    `<p class="ds-label">${say`share of needles that are not selected`}</p>` +
    `<div class="ds-chart" aria-hidden="true">${grid.join("")}${ticks.join("")}` +
    '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none">' +
    `<polyline points="${line}"></polyline></svg>${marks.join("")}</div>` +
    `<p class="ds-label ds-below">${say`true rank of the needle, log scale`}</p>`
  );
}

function picture(data, context, rows, at) {
  const [rank, , missed, low, high, predicted] = rows[at];
  const wanted = say`of ${number(context.entries)} entries; the best ${context.topK} are wanted`;
  const cells = [
    [say`true rank`, number(rank), wanted],
    [say`missed`, percent(missed), say`${between(low, high)}, ${context.seeds} queries`],
    [say`predicted`, percent(predicted), say`from the scores and the format`],
  ];
  const cell = ([name, value, note]) => `<div><dt>${name}</dt><dd>${value}</dd><dd class="ds-fine">${note}</dd></div>`;
  return `<dl>${cells.map(cell).join("")}</dl>${chart(data, context, rows, at)}`;
}

function overview(data, needle, rows, at) {
  const [rank, , missed, low, high, predicted, ...shifts] = rows[at];
  const [down, middle, up] = shifts.map(signed);
  const fits = low <= predicted && predicted <= high
    ? say`The predicted ${percent(predicted)} lies inside the interval.`
    : say`The predicted ${percent(predicted)} lies outside the interval.`;
  const places = say`${down}, ${middle} and ${up} places at 5, 50 and 95 % of the queries`;
  return (
    `${say`<b>True rank ${number(rank)}</b>, ${data.words[needle]}: missed in ${percent(missed)} of the queries.`} ` +
    `${fits} ${say`By stored scores its rank is another one: ${places}.`}`
  );
}

function tableBody(rows) {
  return rows.map(([rank, , missed, low, high, predicted, ...shifts]) => {
    const cells = [percent(missed), between(low, high), percent(predicted), shifts.map(signed).join(" / ")];
    return (
      `<tr><th scope="row" class="ds-number">${number(rank)}</th>` +
      `${cells.map((cell) => `<td class="ds-number">${cell}</td>`).join("")}</tr>`
    );
  }).join("");
}

function mount(root, data) {
  const form = root.querySelector("form");
  const field = (name) => form.elements[name];
  let said = root.querySelector("figcaption").innerHTML;

  function draw() {
    const context = data.contexts[field("context").value];
    const needle = field("needle").value;
    const rows = context.curves[field("rounded").value][needle];
    const at = Math.min(Number(field("at").value), rows.length - 1);
    field("at").max = rows.length - 1;
    field("at").value = at;
    field("at").setAttribute("aria-valuetext", say`rank ${number(rows[at][0])}`);
    root.querySelector(".ds-picture").innerHTML = picture(data, context, rows, at);
    root.querySelector("tbody").innerHTML = tableBody(rows);
    // What is read out changes only when it says something else.
    const words = overview(data, needle, rows, at);
    if (said !== words) root.querySelector("figcaption").innerHTML = words;
    said = words;
  }

  form.addEventListener("input", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  draw();
}
