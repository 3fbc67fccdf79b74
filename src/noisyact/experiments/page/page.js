// Fills the page from its data: tables and curves of the experiments, and the playground. All text goes in as text.
"use strict";

function interval(arm) {
  if (arm.mean === null) return "–";
  return arm.low === null ? short(arm.mean) : `${short(arm.mean)} [${short(arm.low)}, ${short(arm.high)}]`;
}

function runsOf(arm) {
  const parts = [`${arm.finished} finished`];
  if (arm.diverged) parts.push(`${arm.diverged} diverged`);
  if (arm.partial) parts.push(`${arm.partial} unfinished`);
  return parts.join(", ");
}

function armTable(parent, experiment) {
  const table = html(html(parent, "div", { class: "wide" }), "table");
  const head = html(html(table, "thead"), "tr");
  for (const title of ["arm", "paper", `ours, ${experiment.unit}`, "runs"]) html(head, "th", {}, title);
  const body = html(table, "tbody");
  for (const arm of experiment.arms) {
    const row = html(body, "tr", arm.diverged || arm.partial ? { class: "incomplete" } : {});
    html(row, "td", {}, arm.title);
    html(row, "td", {}, arm.paper === null ? "–" : short(arm.paper));
    html(row, "td", {}, interval(arm));
    html(row, "td", {}, runsOf(arm));
  }
}

// The mean over the seeds at each update that all of them have, and each seed faintly.
function curvesOf(experiment, metric) {
  const lines = [];
  for (const arm of experiment.arms) {
    const curves = arm.runs.map((run) => run.curve.filter((point) => point[metric] !== undefined));
    const sums = new Map();
    for (const curve of curves) {
      if (curves.length > 1) {
        lines.push({ title: arm.title, faint: true, points: curve.map((p) => [p.update, p[metric]]) });
      }
      for (const point of curve) {
        const [sum, count] = sums.get(point.update) ?? [0, 0];
        sums.set(point.update, [sum + point[metric], count + 1]);
      }
    }
    const full = [...sums].filter(([, [, count]]) => count === curves.length);
    lines.push({ title: arm.title, points: full.map(([x, [sum, count]]) => [x, sum / count]).sort((a, b) => a[0] - b[0]) });
  }
  return lines;
}

function experimentSection(parent, experiment) {
  const section = html(parent, "section");
  html(section, "h2", {}, `${experiment.title} (${experiment.preset})`);
  html(section, "p", {}, `Reproduces: ${experiment.reproduces}.`);
  html(section, "p", {}, `What counts as agreeing, stated before the runs: ${experiment.agreement}`);
  armTable(section, experiment);
  for (const metric of experiment.metrics) {
    html(section, "h3", {}, metric);
    chart(section, curvesOf(experiment, metric), { xLabel: "updates", yLabel: metric });
  }
}

function normal() {
  return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
}

function playground(parent) {
  const settings = { alpha: 1.15, c: 0.5, p: 1, sigma: 0.25 };
  const choices = { scheme: "nah", pair: "tanh" };
  const form = html(parent, "form", { class: "controls" });
  const limits = { alpha: [0.5, 1.5, 0.01], c: [0, 30, 0.1], p: [-3, 3, 0.05], sigma: [0, 1, 0.01] };
  for (const [name, values] of [["scheme", ["nan", "nah", "nani", "nanil", "nanis"]], ["pair", ["tanh", "sigmoid"]]]) {
    const label = html(form, "label", {}, `${name} `);
    const select = html(label, "select", { name });
    for (const value of values) html(select, "option", value === choices[name] ? { selected: "" } : {}, value);
    select.addEventListener("change", () => { choices[name] = select.value; draw(); });
  }
  for (const [name, [low, high, step]] of Object.entries(limits)) {
    const label = html(form, "label", {}, `${name} `);
    const slider = html(label, "input", { type: "range", name, min: low, max: high, step, value: settings[name] });
    const shown = html(label, "output", {}, String(settings[name]));
    slider.addEventListener("input", () => {
      settings[name] = Number(slider.value);
      shown.textContent = slider.value;
      draw();
    });
  }
  const draws = Array.from({ length: 12 }, () => Array.from({ length: 161 }, normal));
  const places = [html(parent, "div"), html(parent, "div")];

  function draw() {
    ["phi(x)", "its derivative"].forEach((yLabel, which) => {
      const xs = Array.from({ length: 161 }, (_, i) => -8 + i / 10);
      const at = (x, xi) => phi(x, xi, choices.scheme, settings, choices.pair)[which];
      const lines = draws.map((row) => ({ title: "samples", faint: true, points: xs.map((x, i) => [x, at(x, row[i])]) }));
      lines.push({ title: "expectation of the noise", points: xs.map((x) => [x, at(x, null)]) });
      places[which].replaceChildren();
      chart(places[which], lines, { xLabel: "x", yLabel, height: 260, logChoice: false });
    });
  }
  draw();
}

function fill() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.getElementById("experiments");
  for (const experiment of data.experiments) experimentSection(main, experiment);
  if (data.experiments.length === 0) html(main, "p", {}, "No runs were found.");
  playground(document.getElementById("playground"));
}

document.addEventListener("DOMContentLoaded", fill);
