// phi(x, xi) and its derivative for the paper's hard functions: a port of src/noisyact/equations.py.
"use strict";

const PAIRS = {
  tanh: { slope: 1, offset: 0, low: -1, high: 1 },
  sigmoid: { slope: 0.25, offset: 0.5, low: 0, high: 1 },
  relu: { slope: 1, offset: 0, low: 0, high: Infinity },
};

const SQRT_2_OVER_PI = Math.sqrt(2 / Math.PI);

function clip(value, pair) {
  return Math.max(pair.low, Math.min(pair.high, value));
}

function within(value, pair) {
  return value >= pair.low && value <= pair.high;
}

// h(x), the hard function, and u(x), its linearisation.
function hardAndLinear(x, pairName) {
  const pair = PAIRS[pairName];
  const u = pair.slope * x + pair.offset;
  return [clip(u, pair), u];
}

// Returns the value and the derivative with respect to x. xi is a standard normal number, or null for the expectation.
// settings: alpha, c, p, sigma and clip, of which each scheme uses some.
function phi(x, xi, scheme, settings, pairName) {
  const pair = PAIRS[pairName];
  const [h, u] = hardAndLinear(x, pairName);
  const open = within(u, pair);
  const delta = h - u;
  const t = Math.tanh(0.5 * settings.p * delta);
  const rate = 0.25 * settings.c * t * (1 - t * t); // d sigma / d (p Delta)
  const throughDelta = open ? 0 : -pair.slope;
  if (scheme === "nani" || scheme === "nanil" || scheme === "nanis") {
    if (xi === null) return [h, open ? pair.slope : 0];
    let sigma = settings.sigma;
    if (scheme === "nanis") sigma = u <= pair.low || u >= pair.high ? settings.sigma : 0;
    if (scheme === "nanil") sigma = 0.25 * settings.c * t * t;
    const v = pair.slope * (x + sigma * xi) + pair.offset;
    const slope = within(v, pair) ? pair.slope : 0;
    const noisy = scheme === "nanil" ? 1 + xi * rate * settings.p * throughDelta : 1;
    return [clip(v, pair), slope * noisy];
  }
  const half = scheme === "nah";
  const epsilon = xi === null ? (half ? SQRT_2_OVER_PI : 0) : half ? Math.abs(xi) : xi;
  const leak = 1 - settings.alpha;
  const direction = (x >= 0 ? 1 : -1) * (leak >= 0 ? -1 : 1);
  const value = h - leak * delta + direction * 0.25 * settings.c * t * t * epsilon;
  if (settings.clip && !within(value, pair)) return [clip(value, pair), 0];
  const derivative =
    leak * pair.slope + (1 - leak) * (open ? pair.slope : 0) + direction * epsilon * rate * settings.p * throughDelta;
  return [value, derivative];
}

if (typeof module !== "undefined") module.exports = { phi };
