// The three small number types and the block formats made of them, bit for bit as in ds41/formats.py.
// All arithmetic is float32: doubles rounded with Math.fround give correctly rounded float32 quotients.

const TYPES = {
  e2m1: { name: "E2M1", bits: 4, sign: 1, exponent: 2, mantissa: 1, bias: 1, max: 6, isNaN: () => false },
  e4m3: { name: "E4M3", bits: 8, sign: 1, exponent: 4, mantissa: 3, bias: 7, max: 448, isNaN: (code) => (code & 0x7f) === 0x7f },
  e8m0: { name: "E8M0", bits: 8, sign: 0, exponent: 8, mantissa: 0, bias: 127, max: 2 ** 127, isNaN: (code) => code === 0xff },
};

// A code taken apart: raw fields, significand and power of two, value.
function fieldsOf(type, code) {
  const magnitude = code & ((1 << (type.exponent + type.mantissa)) - 1);
  const exponent = magnitude >> type.mantissa;
  const mantissa = magnitude & ((1 << type.mantissa) - 1);
  const negative = type.sign === 1 && code >> (type.bits - 1) === 1;
  // E8M0 has no mantissa and no zero, so it has no subnormal numbers either.
  const subnormal = exponent === 0 && type.mantissa > 0;
  const power = (subnormal ? 1 : exponent) - type.bias;
  const significand = (subnormal ? 0 : 1) + mantissa / (1 << type.mantissa);
  const value = type.isNaN(code) ? NaN : (negative ? -1 : 1) * significand * 2 ** power;
  return { negative, exponent, mantissa, subnormal, power, significand, value };
}

const valueOf = (type, code) => fieldsOf(type, code).value;

const FLOAT32_MAX = (2 - 2 ** -23) * 2 ** 127;

function roundHalfEven(x) {
  const down = Math.floor(x);
  const rest = x - down;
  if (rest !== 0.5) return rest < 0.5 ? down : down + 1;
  return down % 2 === 0 ? down : down + 1;
}

const scratch = new DataView(new ArrayBuffer(4));
function float32Bits(x) {
  scratch.setFloat32(0, x);
  return scratch.getUint32(0);
}

// Nearest code, ties to even, saturating. A mantissa that rounds up to the next power of two carries into the
// exponent field by itself, because codes of one sign are in the order of their values.
function nearestCode(type, x) {
  const magnitude = Math.min(Math.abs(x), type.max);
  const exponent = Math.max((float32Bits(magnitude) >>> 23) - 127, 1 - type.bias);
  const quantum = 2 ** (exponent - type.mantissa);
  const code = ((exponent + type.bias - 1) << type.mantissa) + roundHalfEven(magnitude / quantum);
  return code | (float32Bits(x) >>> 31 ? 1 << (type.bits - 1) : 0);
}

function scaleCode(format, amax) {
  const element = TYPES[format.element];
  const floored = Math.fround(Math.max(amax, Math.fround(format.amaxFloor)));
  if (format.scale === "e4m3") return nearestCode(TYPES.e4m3, Math.fround(floored / element.max));
  // The smallest power of two not below: the exponent, one more if any mantissa bit is set.
  const bits = float32Bits(Math.fround(floored * Math.fround(1 / element.max)));
  return (bits >>> 23) + ((bits & 0x7fffff) !== 0 ? 1 : 0);
}

// What a code under a scale reads back as. Only E8M0 scales reach beyond float32, and there reading saturates.
function storedValue(element, code, scale) {
  const product = valueOf(element, code) * scale;
  return Math.fround(Math.min(Math.max(product, -FLOAT32_MAX), FLOAT32_MAX));
}

// One block of float32 values -> what is stored, and what is read back.
function encodeBlock(format, values) {
  const element = TYPES[format.element];
  const amax = values.reduce((largest, x) => Math.max(largest, Math.abs(x)), 0);
  const scaleByte = scaleCode(format, amax);
  const scale = valueOf(TYPES[format.scale], scaleByte);
  const codes = values.map((x) => nearestCode(element, Math.fround(x / scale)));
  const stored = codes.map((code) => storedValue(element, code, scale));
  return { amax, scaleByte, scale, codes, stored, clips: amax > Math.fround(element.max * scale) };
}

const superscript = (power) => String(power).replace(/./g, (mark) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(mark)]);

// A number for people: up to `digits` significant digits, powers of ten only far from one.
function show(x, digits = 4) {
  if (Number.isNaN(x)) return "NaN";
  if (x === 0) return Object.is(x, -0) ? "−0" : "0";
  const [mantissa, power] = x.toExponential(digits - 1).split("e");
  const trimmed = (text) => (text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text).replace("-", "−");
  if (power >= -4 && power < 6) {
    return plain(trimmed(Number(x.toPrecision(digits)).toFixed(Math.max(digits - 1 - power, 0))));
  }
  return `${plain(trimmed(mantissa))} × 10${superscript(Number(power))}`;
}

const binary = (code, width) => code.toString(2).padStart(width, "0");
const hex = (code) => `0x${code.toString(16).toUpperCase().padStart(2, "0")}`;
