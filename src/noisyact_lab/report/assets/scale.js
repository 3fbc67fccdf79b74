// Axes: scales from values to pixels, ticks, and the formatting of numbers.
"use strict";

// Returns a step of 1, 2 or 5 times a power of ten that divides low to high into about `count` parts.
function niceStep(low, high, count) {
  const raw = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= raw * 0.999);
}

function linearTicks(low, high, count) {
  const step = niceStep(low, high, count);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

// Powers of ten. A short range also has multiples of them, and a long range skips some powers.
function logTicks(low, high, count) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const inside = (v) => v >= low * 0.999 && v <= high * 1.001;
  const every = Math.max(1, Math.ceil((last - first) / count));
  const powers = [];
  for (let e = first; e <= last; e += 1) powers.push(e);
  const some = (multiples) => powers.flatMap((e) => multiples.map((m) => Number((m * 10 ** e).toPrecision(12)))).filter(inside);
  const tens = powers.filter((e) => e % every === 0).map((e) => 10 ** e).filter(inside);
  if (tens.length >= 3) return tens;
  for (const multiples of [[1, 3], [1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]]) if (some(multiples).length >= 3) return some(multiples);
  return linearTicks(low, high, count).filter((v) => v > 0);
}

// A scale from values to pixels. If `nice`, a linear scale ends at ticks. A logarithmic scale skips values <= 0.
function scale(values, from, to, { logarithmic = false, nice = false, count = 5 }) {
  const usable = values.filter((v) => v !== null && Number.isFinite(v) && (!logarithmic || v > 0));
  let low = Infinity;
  let high = -Infinity;
  for (const v of usable) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
  if (usable.length === 0) [low, high] = [1, 10];
  if (low === high) [low, high] = logarithmic ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  if (logarithmic && nice) [low, high] = [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
  if (!logarithmic && nice) {
    const step = niceStep(low, high, count);
    [low, high] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  }
  const share = logarithmic
    ? (v) => (v > 0 ? Math.log(v / low) / Math.log(high / low) : -1)
    : (v) => (v - low) / (high - low);
  const at = (v) => from + Math.max(-3, Math.min(4, share(v))) * (to - from); // limits the pixels of values far outside
  const ticks = (logarithmic ? logTicks : linearTicks)(low, high, count);
  return { at, ticks, bottom: from, top: to, has: (v) => v !== null && v !== undefined && (!logarithmic || v > 0) };
}

// Four significant digits, as in the tables.
function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

// Labels of ticks: k for thousands and M for millions.
function tickText(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(0);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  return String(Number(value.toPrecision(6)));
}
