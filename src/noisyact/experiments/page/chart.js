// A line chart in SVG: hover for values, buttons to show and hide lines, a logarithmic axis on request.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f", "#000000"];

function element(parent, name, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  parent.appendChild(node);
  return node;
}

function html(parent, name, attributes = {}, text = null) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  parent.appendChild(node);
  return node;
}

function ticks(low, high, logarithmic) {
  if (logarithmic) {
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) found.push(10 ** e);
    return found.filter((v) => v >= low * 0.999 && v <= high * 1.001);
  }
  const raw = (high - low || 1) / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) found.push(Number(v.toPrecision(12)));
  return found;
}

function short(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}

// lines: [{title, colour?, points: [[x, y], ...], faint?: true}]; faint lines have no button and no hover.
function chart(parent, lines, { xLabel, yLabel, width = 720, height = 360, logChoice = true }) {
  const box = html(parent, "div", { class: "chart" });
  const legend = html(box, "div", { class: "legend" });
  const svg = element(box, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${yLabel} by ${xLabel}` });
  const tip = html(box, "div", { class: "tip" });
  const hidden = new Set();
  let logarithmic = false;
  const titles = [...new Set(lines.map((line) => line.title))];
  const colourOf = (title) => COLOURS[titles.indexOf(title) % COLOURS.length];
  for (const title of titles) {
    const button = html(legend, "button", { type: "button", "aria-pressed": "true" });
    html(button, "span", { class: "swatch", style: `background:${colourOf(title)}` });
    html(button, "span", {}, title);
    button.addEventListener("click", () => {
      if (hidden.has(title)) hidden.delete(title);
      else hidden.add(title);
      button.setAttribute("aria-pressed", String(!hidden.has(title)));
      draw();
    });
  }
  if (logChoice) {
    const label = html(legend, "label");
    const choice = html(label, "input", { type: "checkbox" });
    html(label, "span", {}, "log axis");
    choice.addEventListener("change", () => {
      logarithmic = choice.checked;
      draw();
    });
  }

  const margin = { left: 58, right: 12, top: 10, bottom: 42 };
  let places = [];

  function draw() {
    svg.replaceChildren();
    places = [];
    const shown = lines.filter((line) => !hidden.has(line.title));
    const points = shown.flatMap((line) => line.points).filter(([, y]) => y !== null && (!logarithmic || y > 0));
    if (points.length === 0) {
      element(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "nothing to show");
      return;
    }
    const xs = points.map(([x]) => x);
    const ys = points.map(([, y]) => y);
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
    let [y0, y1] = [Math.min(...ys), Math.max(...ys)];
    if (y0 === y1) [y0, y1] = logarithmic ? [y0 / 2, y1 * 2] : [y0 - 0.5, y1 + 0.5];
    const toX = (x) => margin.left + ((x - x0) / (x1 - x0 || 1)) * (width - margin.left - margin.right);
    const share = (y) =>
      logarithmic ? (Math.log(y) - Math.log(y0)) / (Math.log(y1) - Math.log(y0)) : (y - y0) / (y1 - y0);
    const toY = (y) => height - margin.bottom - share(y) * (height - margin.top - margin.bottom);
    for (const v of ticks(y0, y1, logarithmic)) {
      element(svg, "line", { x1: margin.left, x2: width - margin.right, y1: toY(v), y2: toY(v), class: "grid" });
      element(svg, "text", { x: margin.left - 6, y: toY(v) + 4, "text-anchor": "end" }, short(v));
    }
    for (const v of ticks(x0, x1, false)) {
      element(svg, "text", { x: toX(v), y: height - margin.bottom + 18, "text-anchor": "middle" }, short(v));
    }
    element(svg, "text", { x: width / 2, y: height - 6, "text-anchor": "middle" }, xLabel);
    element(svg, "text", { x: 14, y: height / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${height / 2})` }, yLabel);
    for (const line of shown) {
      const usable = line.points.filter(([, y]) => y !== null && (!logarithmic || y > 0));
      const path = usable.map(([x, y], i) => `${i ? "L" : "M"}${toX(x).toFixed(1)} ${toY(y).toFixed(1)}`).join("");
      element(svg, "path", { d: path, stroke: colourOf(line.title), class: line.faint ? "line faint" : "line" });
      if (!line.faint) for (const [x, y] of usable) places.push([toX(x), toY(y), line.title, x, y]);
    }
  }

  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const x = ((event.clientX - frame.left) / frame.width) * width;
    const y = ((event.clientY - frame.top) / frame.height) * height;
    let best = null;
    for (const place of places) {
      const distance = (place[0] - x) ** 2 + (place[1] - y) ** 2;
      if (best === null || distance < best[0]) best = [distance, place];
    }
    if (best === null || best[0] > 1600) {
      tip.textContent = "";
      return;
    }
    const [, , title, atX, atY] = best[1];
    tip.textContent = `${title}: ${short(atY)} at ${short(atX)}`;
  });
  svg.addEventListener("pointerleave", () => (tip.textContent = ""));
  draw();
  return { box, redraw: (newLines) => { lines = newLines; draw(); } };
}
