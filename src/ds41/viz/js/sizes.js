// Plans of image sizes. Rules, words and first picture are those of vision/sizes.py and viz/image_sizes.py.
// All arithmetic is that of doubles, in the order of the library: another order may cost a side one patch.

const DELIMITERS = 2;
const LONGEST_SIDE = 2 ** 31 - 1;

const grouped = (value) => number(value, 20);
const sizeText = ([width, height]) => `${grouped(width)} × ${grouped(height)}`;
const unitsOver = (length, unit) => Math.ceil(length / unit);
const spanOf = (across, down) => down * (across + 1) + DELIMITERS;

// Patches across and down of the largest grid of this shape whose span fits.
function largestGrid(width, height, vision) {
  const { ratio, patch } = vision;
  const room = vision.mostTokens - DELIMITERS;
  const shape = height / width;
  const across = Math.sqrt(room / shape + 0.25) - 0.5;
  const down = shape * across;
  if (across < 1) return [ratio, Math.floor(room / 2) * ratio];
  if (down < 1) return [(room - 1) * ratio, ratio];
  const unit = patch * ratio;
  const scale = Math.min((Math.floor(across) * unit) / width, (Math.floor(down) * unit) / height);
  return [Math.max(1, Math.floor((width * scale) / patch)), Math.max(1, Math.floor((height * scale) / patch))];
}

// The plan of an image, or { refused } with the reason.
function planImage(vision, width, height) {
  const given = say`image of width ${plain(width)} and height ${plain(height)}`;
  const bad = [width, height].findIndex((side) => !Number.isInteger(side) || side < 1 || side > LONGEST_SIDE);
  if (bad >= 0) {
    const wrong = bad ? say`height is ${plain(height)}` : say`width is ${plain(width)}`;
    return { refused: say`${given}: ${wrong}; expected an integer from 1 to ${LONGEST_SIDE}` };
  }
  const { patch, ratio } = vision;
  let [across, down] = [width, height];
  const capped = vision.mostWide !== null && across > down * vision.mostWide;
  if (capped) across = Math.max(1, Math.trunc(down * vision.mostWide));
  const enlarged = across * down < vision.leastPixels;
  if (enlarged) {
    const scale = Math.sqrt(vision.leastPixels / (across * down));
    [across, down] = [Math.trunc(across * scale), Math.trunc(down * scale)];
  }
  const unit = patch * ratio;
  const reduced = spanOf(unitsOver(across, unit), unitsOver(down, unit)) > vision.mostTokens;
  const patches = reduced ? largestGrid(across, down, vision) : [unitsOver(across, patch), unitsOver(down, patch)];
  const tokens = patches.map((count) => unitsOver(count, ratio));
  const fitted = patches.map((count) => count * patch);
  // Of a half nothing is left: the library rounds to the nearest even number.
  if (!capped && Math.min((width / height) * fitted[1], (height / width) * fitted[0]) <= 0.5) {
    const resized = say`resized into ${fitted[0]} x ${fitted[1]} pixels its short side would be 0`;
    return { refused: say`${given}: ${resized}; expected a less extreme ratio of the sides` };
  }
  return {
    given: [width, height], enough: [across, down], fitted, patches, tokens, span: spanOf(...tokens), enlarged, reduced, capped,
  };
}

function steps({ vision, bytesPerToken }, plan) {
  const { patch, ratio } = vision;
  const least = grouped(vision.leastPixels);
  const enough = plan.enlarged ? say`enlarged to about ${least}` : say`at least ${least}`;
  const ruling = plan.capped ? say`squeezed to ${vision.mostWideText} : 1; ${enough}` : enough;
  const cells = [
    [say`given`, sizeText(plan.given), say`pixels`],
    [say`enough pixels`, sizeText(plan.enough), ruling],
    [
      say`whole patches`, sizeText(plan.fitted),
      plan.reduced ? say`shrunk until the span fits` : say`rounded up to whole patches`,
    ],
    [say`patches`, sizeText(plan.patches), say`of ${patch} × ${patch} pixels`],
    [say`tokens`, sizeText(plan.tokens), say`of ${ratio} × ${ratio} patches`],
    [
      say`global KV`, `${grouped(Math.floor(plan.span * bytesPerToken + 0.5))} B`,
      `${grouped(plan.span)} × ${grouped(bytesPerToken)} B`,
    ],
  ];
  const cell = ([name, value, note]) => `<div><dt>${name}</dt><dd>${value}</dd><dd class="ds-fine">${note}</dd></div>`;
  return `<dl>${cells.map(cell).join("")}</dl>`;
}

const legend = (entries) =>
  `<ul class="ds-legend" aria-hidden="true">` +
  `${entries.map(([kind, name]) => `<li><i class="ds-key ds-${kind}"></i>${name}</li>`).join("")}</ul>`;

function outlines(plan) {
  const sizes = ["fitted", "enough", "given"];
  const [widest, tallest] = [0, 1].map((side) => Math.max(...sizes.map((name) => plan[name][side])));
  const rect = (name) => `<rect class="ds-${name}" width="${plan[name][0]}" height="${plan[name][1]}"></rect>`;
  const names = [["given", say`given`], ["enough", say`enough pixels`], ["fitted", say`whole patches`]];
  return (
    `<div class="ds-part"><svg class="ds-outlines" viewBox="0 0 ${widest} ${tallest}" ` +
    `preserveAspectRatio="xMinYMin" aria-hidden="true">${sizes.map(rect).join("")}</svg>` +
    `${legend(names)}</div>`
  );
}

function tokensView({ mostLines }, { tokens: [across, down] }) {
  let lines = "";
  if (Math.max(across, down) <= mostLines) {
    for (let column = 2; column <= across; column += 1) lines += `M${column} 0V${down}`;
    for (let row = 1; row < down; row += 1) lines += `M1 ${row}H${across + 2}`;
  }
  const names = [["image", say`image token`], ["newline", say`newline`], ["end", "START, END"]];
  return (
    `<div class="ds-part"><svg class="ds-tokens" viewBox="0 0 ${across + 3} ${down}" ` +
    'preserveAspectRatio="xMinYMin" aria-hidden="true">' +
    `<rect class="ds-end" width="1" height="1"></rect><rect class="ds-image" x="1" width="${across}" ` +
    `height="${down}"></rect><rect class="ds-newline" x="${across + 1}" width="1" height="${down}"></rect>` +
    `<rect class="ds-end" x="${across + 2}" y="${down - 1}" width="1" height="1"></rect><path d="${lines}"></path></svg>` +
    `${legend(names)}</div>`
  );
}

function limit({ vision }, { span, tokens: [across, down] }) {
  const newlines = down === 1 ? say`${grouped(down)} newline` : say`${grouped(down)} newlines`;
  const parts = say`${grouped(across * down)} of the image, ${newlines}, ${DELIMITERS} delimiters`;
  return (
    `<p class="ds-span">${say`<b>${grouped(span)}</b> of ${grouped(vision.mostTokens)} tokens: ${parts}`}</p>` +
    '<div class="ds-limit" aria-hidden="true"><i class="ds-length" ' +
    `style="width:calc(100% * ${span} / ${vision.mostTokens})"></i></div>`
  );
}

const picture = (data, plan) => steps(data, plan) + outlines(plan) + tokensView(data, plan) + limit(data, plan);

function overview({ vision }, plan) {
  const [across, down] = plan.tokens;
  const [size, most, width] = [sizeText(plan.given), grouped(vision.mostTokens), grouped(across)];
  const rows = down === 1 ? say`${grouped(down)} row of ${width}` : say`${grouped(down)} rows of ${width}`;
  const takes = say`<b>An image of ${size} pixels takes ${grouped(plan.span)} tokens</b>`;
  const words = [say`${takes}, ${rows}, a newline after each, and two delimiters.`];
  if (plan.capped) words.push(say`It is wider than ${vision.mostWideText} times its height and is squeezed.`);
  if (plan.enlarged) words.push(say`It has fewer than ${grouped(vision.leastPixels)} pixels and is enlarged.`);
  if (plan.reduced) words.push(say`Rounded up, its span would exceed ${most} tokens, so it shrinks.`);
  return words.join(" ");
}

function mount(root, data) {
  const form = root.querySelector("form");
  const { width, height } = form.elements;

  // An empty field is a size half typed; Number() makes it 0, which is refused like any other.
  function draw() {
    const plan = planImage(data.vision, Number(width.value), Number(height.value));
    root.querySelector(".ds-picture").hidden = Boolean(plan.refused);
    if (!plan.refused) root.querySelector(".ds-picture").innerHTML = picture(data, plan);
    root.querySelector("figcaption").innerHTML = plan.refused
      ? say`<b>The model cannot take it:</b> ${plan.refused}.`
      : overview(data, plan);
  }

  form.addEventListener("input", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("click", ({ target }) => {
    const button = target.closest("[data-width]");
    if (!button) return;
    [width.value, height.value] = [button.dataset.width, button.dataset.height];
    draw();
  });
  draw();
}
