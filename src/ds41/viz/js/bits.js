// Bits that can be switched. The number types come from codec.js, the first picture from bit_explorer.py.

const OPERANDS = { element: say`element`, scale: say`scale` };
const FIELDS = { sign: say`sign`, exponent: say`exponent`, mantissa: say`mantissa` };

function readingOf(type, code) {
  const { negative, subnormal, power, significand, value } = fieldsOf(type, code);
  if (Number.isNaN(value)) return say`not a number`;
  const sign = type.sign ? (negative ? "−" : "+") : "";
  const factor = type.mantissa ? `${plain(significand)} × ` : "";
  const reading = `${sign}${factor}2${superscript(power)}`;
  return subnormal ? say`${reading} (no hidden one)` : reading;
}

function operandView(role, label, type, code) {
  const text = binary(code, type.bits);
  let bit = type.bits;
  const groups = [["sign", type.sign], ["exponent", type.exponent], ["mantissa", type.mantissa]]
    .filter(([, width]) => width > 0)
    .map(([name, width]) => {
      let buttons = "";
      for (let i = 0; i < width; i += 1) {
        const digit = text[type.bits - bit];
        bit -= 1;
        const label = say`${OPERANDS[role]} ${FIELDS[name]}, bit ${bit}: ${digit}`;
        buttons +=
          `<button type="button" class="ds-bit" data-role="${role}" data-bit="${bit}" ` +
          `aria-pressed="${digit === "1"}" aria-label="${label}">${digit}</button>`;
      }
      return `<span class="ds-bit-field"><span>${buttons}</span><small>${FIELDS[name]}</small></span>`;
    });
  return (
    `<p class="ds-label">${label}, ${type.name}</p><div class="ds-bits-row">${groups.join("")}</div>` +
    `<p class="ds-reading">${readingOf(type, code)} = <b>${show(valueOf(type, code), 6)}</b></p>`
  );
}

// All finite codes of a type, ascending by value; minus zero stands where zero stands.
function orderedCodes(type) {
  const codes = [];
  for (let code = 0; code < 1 << type.bits; code += 1) {
    const minusZero = type.sign === 1 && code === 1 << (type.bits - 1);
    if (!type.isNaN(code) && !minusZero) codes.push(code);
  }
  return codes.sort((a, b) => valueOf(type, a) - valueOf(type, b));
}

const placeOf = (type, order, code) => order.findIndex((other) => valueOf(type, other) === valueOf(type, code));

// All of E2M1; of larger types the codes nearest to the chosen one.
function shownCodes(type, code, reach) {
  const order = orderedCodes(type);
  if (order.length <= 16) return order;
  if (type.isNaN(code)) return [];
  const first = Math.min(Math.max(placeOf(type, order, code) - reach, 0), order.length - 2 * reach - 1);
  return order.slice(first, first + 2 * reach + 1);
}

function lineView(type, code, scale, reach) {
  const codes = shownCodes(type, code, reach);
  if (!codes.length || Number.isNaN(scale)) {
    return `<span class="ds-nothing">${say`not a number: nothing to place on a line`}</span>`;
  }
  const low = valueOf(type, codes[0]);
  const high = valueOf(type, codes[codes.length - 1]);
  const marks = codes.map((other, place) => {
    const value = valueOf(type, other);
    const here = value === valueOf(type, code);
    // The levels of E2M1 crowd around zero: half steps go without a number, and on a narrow page one and two.
    const all = codes.length === 15;
    const named = !all || (Number.isInteger(value) && Math.abs(value) !== 3);
    const roomy = all ? [1, 2].includes(Math.abs(value)) : place % 2 === 1;
    const text = here || named ? `<span>${show(value * scale, 3)}</span>` : "";
    const classes = `ds-tick${here ? " ds-here" : roomy ? " ds-roomy" : ""}`;
    return `<i class="${classes}" style="left:${((100 * (value - low)) / (high - low)).toFixed(3)}%">${text}</i>`;
  });
  return `<i class="ds-axis"></i>${marks.join("")}`;
}

function captionOf(element, scales, code, scaleByte) {
  const value = valueOf(element, code);
  const factor = valueOf(scales, scaleByte);
  const [bits, byte] = [binary(code, element.bits), hex(scaleByte)];
  const head = say`Code <code>${bits}</code> under scale byte <code>${byte}</code>`;
  if (Number.isNaN(value) || Number.isNaN(factor)) return say`${head} is not a number; the encoder never writes it.`;
  const text = say`${head} stores ${show(value, 6)} × ${show(factor, 6)} = <b>${show(value * factor, 6)}</b>.`;
  if (factor <= 0) return `${text} ${say`The encoder writes no scale that is zero or negative.`}`;
  const order = orderedCodes(element);
  const here = placeOf(element, order, code);
  const [below, above] = [here - 1, here + 1].map((i) => (i in order ? show(valueOf(element, order[i]) * factor) : null));
  if (below && above) return `${text} ${say`Its neighbours under this scale are ${below} and ${above}.`}`;
  if (below) return `${text} ${say`It is the largest under this scale; its neighbour is ${below}.`}`;
  return `${text} ${say`It is the smallest under this scale; its neighbour is ${above}.`}`;
}

function mount(root, data) {
  const state = { element: data.code, scale: data.scale };
  const form = root.querySelector("form");
  const chosen = () => data.formats[form.elements.format.value];
  const types = () => ({ element: TYPES[chosen().element], scale: TYPES[chosen().scale] });

  function draw() {
    const { element, scale } = types();
    const labels = { element: OPERANDS.element, scale: say`scale of ${chosen().block} elements` };
    for (const role of ["element", "scale"]) {
      root.querySelector(`[data-operand="${role}"]`).innerHTML = operandView(role, labels[role], types()[role], state[role]);
    }
    const factor = valueOf(scale, state.scale);
    root.querySelector(".ds-product b").innerHTML = show(valueOf(element, state.element) * factor, 6);
    root.querySelector(".ds-line").innerHTML = lineView(element, state.element, factor, data.reach);
    root.querySelector("figcaption").innerHTML = captionOf(element, scale, state.element, state.scale);
  }

  // The buttons are drawn anew, so the one in use gets the focus back.
  function redrawAt(button) {
    const { role, bit } = button.dataset;
    draw();
    root.querySelector(`[data-role="${role}"][data-bit="${bit}"]`)?.focus();
  }

  root.addEventListener("click", (event) => {
    const button = event.target.closest(".ds-bit");
    if (!button) return;
    state[button.dataset.role] ^= 1 << Number(button.dataset.bit);
    redrawAt(button);
  });

  // Up and down walk along the number line, left and right between the bits.
  root.addEventListener("keydown", (event) => {
    const button = event.target.closest(".ds-bit");
    const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    const side = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!button || !(step || side)) return;
    event.preventDefault();
    event.stopPropagation();
    if (side) {
      const bits = [...root.querySelectorAll(".ds-bit")];
      bits[bits.indexOf(button) + side]?.focus();
      return;
    }
    const { role } = button.dataset;
    const type = types()[role];
    const order = orderedCodes(type);
    const next = type.isNaN(state[role]) ? order.length - 1 : placeOf(type, order, state[role]) + step;
    if (next in order) state[role] = order[next];
    redrawAt(button);
  });

  // Another format may have fewer element bits, and byte 0 of an E4M3 scale would be 2^-127 in E8M0: start from one.
  form.addEventListener("change", () => {
    const { element, scale } = types();
    state.element = nearestCode(element, 3);
    state.scale = scale.bias << scale.mantissa;
    draw();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  draw();
}
