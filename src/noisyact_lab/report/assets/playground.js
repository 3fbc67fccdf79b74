// The playground: phi and its derivative for a scheme, a hard function and settings, with drawn noise.
"use strict";

const SCHEMES = {
  nan: { uses: ["alpha", "c", "p", "clip"], text: "NAN, normal noise at the output: φ = α h + (1 − α) u + d σ ξ" },
  nah: { uses: ["alpha", "c", "p", "clip"], text: "NAH, half-normal noise at the output: φ = α h + (1 − α) u + d σ |ξ|" },
  nani: { uses: ["sigma"], text: "NANI, noise of fixed strength at the input: φ = h(x + σ ξ)" },
  nanil: { uses: ["c", "p"], text: "NANIL, noise of learned strength at the input: φ = h(x + σ(x) ξ)" },
  nanis: { uses: ["sigma"], text: "NANIS, noise at the input of saturated units only: φ = h(x + σ ξ) where h is saturated, else h(x)" },
};
const SIGMA = "; σ = c (sigmoid(p Δ) − ½)², Δ = h − u";
const SLIDERS = {
  alpha: { letter: "α", low: 0.5, high: 1.5, step: 0.01, value: 1.15 },
  c: { letter: "c", low: 0, high: 30, step: 0.1, value: 2 },
  p: { letter: "p", low: -3, high: 3, step: 0.05, value: 1 },
  sigma: { letter: "σ", low: 0, high: 2, step: 0.01, value: 0.25 },
};
const DRAWS = { sample: "", mean: "; trained with the mean over ξ", centred: "; trained without the noise’s mean" };
const HARD = { tanh: "hard tanh", sigmoid: "hard sigmoid", relu: "ReLU" };

function standardNormal() {
  return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
}

function playground(parent) {
  const settings = { clip: false };
  const choices = { scheme: "nah", pair: "tanh", draw: "sample" };
  const form = html(parent, "form", { class: "controls", "aria-label": "settings of the playground" });
  form.addEventListener("submit", (event) => event.preventDefault());
  const fields = {};

  const choice = (name, title, names) => {
    const label = html(form, "label", { class: "choice" });
    html(label, "span", {}, title);
    const select = html(label, "select", { name });
    for (const [value, text] of Object.entries(names)) html(select, "option", { value }, text);
    select.value = choices[name];
    select.addEventListener("change", () => { choices[name] = select.value; draw(); });
    return select;
  };
  choice("scheme", "scheme", Object.fromEntries(Object.keys(SCHEMES).map((name) => [name, name.toUpperCase()])));
  choice("pair", "function", HARD);
  const drawn = choice("draw", "draw", { sample: "sample", mean: "mean", centred: "centred" });
  for (const [name, { letter, low, high, step, value }] of Object.entries(SLIDERS)) {
    settings[name] = value;
    const label = html(form, "label", { class: "slider" });
    html(label, "span", {}, letter === name ? name : `${letter} ${name}`);
    const limits = { min: low, max: high, step, value };
    const slider = html(label, "input", { type: "range", name, ...limits });
    const number = html(label, "input", { type: "number", "aria-label": `${name} as a number`, ...limits });
    fields[name] = [slider, number];
    for (const [input, other] of [[slider, number], [number, slider]]) {
      input.addEventListener("input", () => {
        if (input.value === "" || !Number.isFinite(Number(input.value))) return;
        settings[name] = Math.max(low, Math.min(high, Number(input.value)));
        other.value = settings[name];
        draw();
      });
    }
  }
  const label = html(form, "label", { class: "tick" });
  fields.clip = [html(label, "input", { type: "checkbox", name: "clip" })];
  html(label, "span", {}, "clip to the range of h");
  fields.clip[0].addEventListener("change", () => { settings.clip = fields.clip[0].checked; draw(); });
  const again = html(form, "button", { type: "button", name: "again" }, "draw the noise again");
  again.addEventListener("click", () => { drawNoise(); draw(); });

  const formula = html(parent, "p", { class: "formula", "aria-live": "polite" });
  const legend = html(parent, "div", { class: "legend key", "aria-hidden": "true" });
  for (const [style, text] of [["arm c5", "samples"], ["arm c1", "expectation of the noise"], ["arm c2 d1", "h"], ["arm c6 d2", "u"]]) {
    const item = html(legend, "span", { class: style });
    html(item, "i", { class: "swatch" });
    html(item, "span", {}, text);
  }
  const view = { hidden: new Set(), logX: false, logY: false, runs: false };
  const grid = html(parent, "div", { class: "multiples two" });
  const xs = Array.from({ length: 161 }, (_, i) => (i - 80) / 20); // -4 to 4
  let noise = [];
  function drawNoise() {
    noise = Array.from({ length: 6 * xs.length }, standardNormal);
  }

  function seriesFor(which) {
    const at = (x, xi) => phi(x, xi, choices.scheme, settings, choices.pair)[which];
    const many = noise.map((_, i) => xs[i % xs.length]);
    const hard = (x) => (which === 0 ? hardAndLinear(x, choices.pair)[0] : phi(x, null, "nani", { ...settings, draw: "sample" }, choices.pair)[1]);
    const line = (title, f, style) => ({ title, key: title, kind: "line", style, x: xs, y: xs.map(f) });
    const found = [
      { title: "samples", key: "samples", kind: "dots", style: "arm c5", x: many, y: many.map((x, i) => at(x, noise[i])) },
      line(which === 0 ? "h" : "h′", hard, "arm c2 d1"),
      line("expectation of the noise", (x) => at(x, null), "arm c1"),
    ];
    if (which === 0) found.splice(1, 0, { ...line("u", (x) => hardAndLinear(x, choices.pair)[1], "arm c6 d2") });
    return found;
  }

  function draw() {
    const { uses, text } = SCHEMES[choices.scheme];
    const centres = uses.includes("alpha"); // noise at the input has mean 0
    drawn.options[2].disabled = !centres;
    if (!centres && choices.draw === "centred") drawn.value = choices.draw = "sample";
    settings.draw = choices.draw;
    for (const [name, inputs] of Object.entries(fields)) for (const input of inputs) input.disabled = !uses.includes(name);
    const values = uses.filter((name) => name !== "clip").map((name) => `${SLIDERS[name].letter} = ${settings[name]}`);
    const clipped = uses.includes("clip") && settings.clip ? ", clipped" : "";
    formula.textContent = `${text}${uses.includes("c") ? SIGMA : ""}. Here: ${HARD[choices.pair]}, ${values.join(", ")}${clipped}${DRAWS[choices.draw]}.`;
    charts.forEach((c, which) => c.replace(seriesFor(which)));
  }
  drawNoise();
  const charts = ["φ(x, ξ)", "derivative with respect to x"].map((title, which) =>
    chart(grid, { xLabel: "x", yLabel: title, title, height: 260, view, series: seriesFor(which) }),
  );
  draw();
}
