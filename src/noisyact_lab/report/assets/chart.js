// An SVG chart that fills the width of its parent: lines with bands, and dots. Pointer or arrow keys show the values.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
let clips = 0;
let current = null; // the chart that shows values: its box, and a function that hides them

document.addEventListener("pointerdown", (event) => {
  if (current && !current.box.contains(event.target)) current.hide();
});

function svgElement(parent, name, attributes = {}, text = null) {
  return filled(parent, document.createElementNS(SVG, name), attributes, text);
}

function html(parent, name, attributes = {}, text = null) {
  return filled(parent, document.createElement(name), attributes, text);
}

function filled(parent, node, attributes, text) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text; // never as markup
  parent.appendChild(node);
  return node;
}

// series: [{title, key, kind, x, y, low?, high?, banded?, style, end?}], including the hidden ones.
//   kind: "line" shows its values, and a band from low to high if banded; "run" is a thin line, "context" a grey one;
//   "dots" are points. style: the CSS class for colour and dashes. end: "diverged" or "partial" marks the last point.
// view: {hidden: Set of keys, logX, logY, runs}, shared by charts that show and hide series together.
function chart(parent, { xLabel, yLabel, title = "", height = 320, view, series, fixed = null }) {
  const box = html(parent, "div", { class: "chart" });
  if (title) html(box, "h4", {}, title);
  const svg = svgElement(box, "svg", {
    tabindex: "0", role: "img", "aria-label": `${title || yLabel} by ${xLabel}. Use the arrow keys to read values.`,
  });
  const tip = html(box, "div", { class: "tip", role: "status" });
  tip.hidden = true;
  const clip = `clip-${clips++}`;
  let width = 0;
  let frame = null; // scales and marks of the last drawing, for the pointer

  function draw() {
    width = Math.max(220, Math.round(box.clientWidth) || 640);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    hide();
    const shown = series.filter((s) => !view.hidden.has(s.key) && (s.kind !== "run" || view.runs || s.end));
    const margin = { left: 46, right: 18, top: 8, bottom: 38 };
    const inner = { width: width - margin.left - margin.right, height: height - margin.top - margin.bottom };
    // Diverged and unfinished runs do not determine the axis, unless there are no other runs.
    const steady = shown.filter((s) => !s.end);
    const counted = steady.some((s) => s.y.length) ? steady : shown;
    const pick = (name) => counted.flatMap((s) => s[name]);
    const x = scale(shown.flatMap((s) => s.x), margin.left, margin.left + inner.width, {
      logarithmic: view.logX, count: Math.max(2, Math.floor(inner.width / 65)),
    });
    const y = scale(fixed ? [...pick("y"), ...fixed] : pick("y"), margin.top + inner.height, margin.top, {
      logarithmic: view.logY, nice: true, count: Math.max(3, Math.floor(inner.height / 45)),
    });
    for (const v of y.ticks) {
      svgElement(svg, "line", { x1: margin.left, x2: width - margin.right, y1: y.at(v), y2: y.at(v), class: "grid" });
      svgElement(svg, "text", { x: margin.left - 7, y: y.at(v) + 4, class: "tick y" }, tickText(v));
    }
    const base = margin.top + inner.height;
    svgElement(svg, "line", { x1: margin.left, x2: width - margin.right, y1: base, y2: base, class: "axis" });
    for (const v of x.ticks) {
      svgElement(svg, "line", { x1: x.at(v), x2: x.at(v), y1: base, y2: base + 4, class: "axis" });
      svgElement(svg, "text", { x: x.at(v), y: base + 16, class: "tick x" }, tickText(v));
    }
    svgElement(svg, "text", { x: margin.left + inner.width / 2, y: height - 4, class: "label" }, xLabel);
    const defs = svgElement(svg, "clipPath", { id: clip });
    svgElement(defs, "rect", { x: margin.left, y: margin.top - 4, width: inner.width + 6, height: inner.height + 8 });
    const plot = svgElement(svg, "g", { "clip-path": `url(#${clip})` });
    for (const kind of ["context", "dots", "run", "line"]) {
      for (const s of shown) if (s.kind === kind) drawOne(plot, s, x, y);
    }
    if (!shown.some((s) => s.y.some(y.has))) {
      svgElement(svg, "text", { x: width / 2, y: height / 2, class: "label" }, "nothing to show");
    }
    const valued = shown.filter((s) => s.kind === "line" || (s.kind === "run" && s.end));
    const xs = [...new Set(valued.flatMap((s) => s.x))].sort((a, b) => a - b);
    frame = { x, y, xs, valued, margin, base, marks: svgElement(svg, "g", { class: "marks" }), at: -1 };
  }

  function drawOne(plot, s, x, y) {
    const place = (i, values) => `${x.at(s.x[i]).toFixed(1)} ${y.at(values[i]).toFixed(1)}`;
    const known = [...s.x.keys()].filter((i) => y.has(s.y[i]) && x.has(s.x[i]));
    if (known.length === 0) return;
    if (s.kind === "dots") {
      svgElement(plot, "path", { class: `dots ${s.style}`, d: known.map((i) => `M${place(i, s.y)}h0`).join("") });
      return;
    }
    const banded = s.banded ? known.filter((i) => s.low[i] !== null) : [];
    if (banded.length > 1) {
      const up = banded.map((i) => place(i, s.high));
      const down = banded.map((i) => place(i, s.low)).reverse();
      svgElement(plot, "path", { class: `band ${s.style}`, d: `M${[...up, ...down].join("L")}Z` });
    }
    const path = `M${known.map((i) => place(i, s.y)).join("L")}${known.length === 1 ? "h0" : ""}`;
    const line = svgElement(plot, "path", { class: `${s.kind} ${s.style}`, d: path, "data-key": s.key });
    line.dataset.title = s.title;
    if (!s.end) return;
    const last = known[known.length - 1];
    const [cx, cy] = [x.at(s.x[last]), Math.max(y.top, Math.min(y.bottom, y.at(s.y[last])))]; // visible even if the line left the chart
    const cross = `M${cx - 4} ${cy - 4}l8 8m0 -8l-8 8`;
    if (s.end === "diverged") svgElement(plot, "path", { class: `end ${s.style}`, d: cross });
    else svgElement(plot, "circle", { class: `end ${s.style}`, cx, cy, r: 4 });
  }

  // Shows the values at the x with this index.
  function show(index) {
    if (!frame || frame.xs.length === 0) return;
    const { x, y, xs, valued, margin, base, marks } = frame;
    frame.at = Math.max(0, Math.min(xs.length - 1, index));
    const at = xs[frame.at];
    marks.replaceChildren();
    svgElement(marks, "line", { x1: x.at(at), x2: x.at(at), y1: margin.top, y2: base, class: "hair" });
    tip.replaceChildren();
    html(tip, "b", {}, `${xLabel} ${short(at)}`);
    const rows = valued.map((s) => [s, s.x.indexOf(at)]).filter(([s, i]) => i >= 0 && y.has(s.y[i]));
    rows.sort(([s, i], [r, j]) => r.y[j] - s.y[i]);
    for (const [s, i] of rows) {
      svgElement(marks, "circle", { cx: x.at(at), cy: y.at(s.y[i]), r: 3.5, class: `mark ${s.style}` });
      const row = html(tip, "span", { class: `value ${s.style}` });
      html(row, "i", { class: "swatch" });
      html(row, "span", {}, `${s.title} `);
      const ends = s.low && s.low[i] !== null ? ` [${short(s.low[i])}, ${short(s.high[i])}]` : "";
      html(row, "span", { class: "figure" }, short(s.y[i]) + ends);
    }
    tip.hidden = false;
    if (current && current.box !== box) current.hide();
    current = { box, hide };
    // The values go beside the line, on the side with more room, or below the chart if it is narrow.
    const wide = box.clientWidth > 520;
    const left = (x.at(at) / width) * box.clientWidth;
    const toLeft = wide && left > box.clientWidth / 2;
    tip.style.left = toLeft ? "auto" : wide ? `${left + 12}px` : "0";
    tip.style.right = toLeft ? `${box.clientWidth - left + 12}px` : wide ? "auto" : "0";
    tip.style.top = wide ? `${svg.getBoundingClientRect().top - box.getBoundingClientRect().top + 8}px` : "100%";
  }

  function hide() {
    tip.hidden = true;
    if (frame) frame.marks.replaceChildren();
    if (current && current.box === box) current = null;
  }

  function hover(event) {
    if (!frame) return;
    const place = svg.getBoundingClientRect();
    const at = ((event.clientX - place.left) / place.width) * width;
    let best = 0;
    frame.xs.forEach((v, i) => {
      if (Math.abs(frame.x.at(v) - at) < Math.abs(frame.x.at(frame.xs[best]) - at)) best = i;
    });
    show(best);
  }

  svg.addEventListener("pointermove", hover);
  svg.addEventListener("pointerdown", hover);
  // A touch leaves at the end of a tap, so its values stay until the next tap elsewhere or until the page is scrolled.
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  svg.addEventListener("pointercancel", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const to = { ArrowRight: frame.at + 1, ArrowLeft: frame.at - 1, Home: 0, End: Infinity }[event.key];
    if (event.key === "Escape") hide();
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  });
  new ResizeObserver(() => {
    if (Math.round(box.clientWidth) !== width && box.clientWidth > 0) draw();
  }).observe(box);
  draw();
  return { box, draw, replace: (newSeries) => { series = newSeries; draw(); } };
}
