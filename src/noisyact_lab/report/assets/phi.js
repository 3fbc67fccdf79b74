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

// The normal distribution, by a series without cancellation. Beyond 8.5 it is 1 in every digit.
function normal(z) {
  const x = Math.abs(z) * Math.SQRT1_2;
  let [term, sum] = [x, x];
  for (let n = 1; x < 6 && term > 1e-17 * sum; n++) sum += term *= (2 * x * x) / (2 * n + 1);
  const erf = x < 6 ? (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum : 1;
  return 0.5 + Math.sign(z) * 0.5 * erf;
}

function density(z) {
  return Math.exp(-0.5 * z * z) / Math.sqrt(2 * Math.PI);
}

// h smoothed at a limit, z = (u - limit) / s: what it adds in units of s, and the normal distribution and density at z.
function edge(u, limit, s) {
  if (!Number.isFinite(limit)) return [0, limit < 0 ? 1 : 0, 0];
  const z = (u - limit) / s;
  return [density(z) - Math.abs(z) * normal(-Math.abs(z)), normal(z), density(z)];
}

// E[h(x + sigma xi)] and its derivatives by x and by sigma.
function smoothed(u, sigma, pair) {
  if (!(sigma > 0)) return [clip(u, pair), within(u, pair) ? pair.slope : 0, 0];
  const s = pair.slope * sigma;
  const [low, high] = [edge(u, pair.low, s), edge(u, pair.high, s)];
  return [clip(u, pair) + s * (low[0] - high[0]), pair.slope * (low[1] - high[1]), pair.slope * (low[2] - high[2])];
}

// Returns the value and the derivative with respect to x. xi is a standard normal number, or null for the expectation.
// settings: alpha, c, p, sigma, clip and draw ("sample", "mean" or "centred"), of which each scheme uses some.
function phi(x, xi, scheme, settings, pairName) {
  const pair = PAIRS[pairName];
  const [h, u] = hardAndLinear(x, pairName);
  const open = within(u, pair);
  const delta = h - u;
  const t = Math.tanh(0.5 * settings.p * delta);
  const rate = 0.25 * settings.c * t * (1 - t * t); // d sigma / d (p Delta)
  const throughDelta = open ? 0 : -pair.slope;
  if (scheme === "nani" || scheme === "nanil" || scheme === "nanis") {
    let sigma = settings.sigma;
    if (scheme === "nanis") sigma = u <= pair.low || u >= pair.high ? settings.sigma : 0;
    if (scheme === "nanil") sigma = 0.25 * settings.c * t * t;
    if (settings.draw === "mean") {
      const [mean, byX, bySigma] = smoothed(u, sigma, pair);
      return [mean, byX + (scheme === "nanil" ? bySigma * rate * settings.p * throughDelta : 0)];
    }
    if (xi === null) return [h, open ? pair.slope : 0];
    const v = pair.slope * (x + sigma * xi) + pair.offset;
    const slope = within(v, pair) ? pair.slope : 0;
    const noisy = scheme === "nanil" ? 1 + xi * rate * settings.p * throughDelta : 1;
    return [clip(v, pair), slope * noisy];
  }
  const half = scheme === "nah";
  const mean = half ? SQRT_2_OVER_PI : 0;
  const drawn = xi === null || settings.draw === "mean" ? mean : half ? Math.abs(xi) : xi;
  const epsilon = settings.draw === "centred" ? drawn - mean : drawn;
  const leak = 1 - settings.alpha;
  const direction = (x >= 0 ? 1 : -1) * (leak >= 0 ? -1 : 1);
  const value = h - leak * delta + direction * 0.25 * settings.c * t * t * epsilon;
  if (settings.clip && !within(value, pair)) return [clip(value, pair), 0];
  const derivative =
    leak * pair.slope + (1 - leak) * (open ? pair.slope : 0) + direction * epsilon * rate * settings.p * throughDelta;
  return [value, derivative];
}

if (typeof module !== "undefined") module.exports = { phi };
