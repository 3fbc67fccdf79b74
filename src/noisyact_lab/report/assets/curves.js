// The learning curves of a section: a legend that shows and hides arms, the headline metric, and the other metrics.
"use strict";

const styleOf = (index) => `arm c${index % 8} d${Math.floor(index / 8) % 3}`;

// The mean of an arm with its band, and thin lines for its runs. Finished runs are shown only on request.
function seriesOf(arm, metric) {
  const style = styleOf(arm.index);
  const mean = { ...arm.mean[metric], title: arm.title, key: arm.index, kind: "line", style, banded: arm.banded };
  const runs = arm.runs.filter((run) => metric in run.lines).map((run) => ({
    ...run.lines[metric], title: `${arm.title}, seed ${run.seed} (${run.status})`, key: arm.index, kind: "run", style,
    end: run.status === "finished" ? null : run.status,
  }));
  return [mean, ...runs].filter((s) => s.x.length > 0);
}

function contextOf(arm, metric) {
  return { ...arm.mean[metric], low: null, title: arm.title, key: "context", kind: "context", style: "" };
}

function curves(parent, section) {
  const view = { hidden: new Set(), logX: section.logX, logY: false, runs: false };
  let together = true;
  let charts = [];
  const redraw = () => charts.forEach((c) => c.draw());

  const bar = html(parent, "div", { class: "bar" });
  const legend = html(bar, "div", { class: "legend", role: "group", "aria-label": "arms to show" });
  const buttons = section.arms.map((arm) => {
    const button = html(legend, "button", { type: "button", "aria-pressed": "true", class: styleOf(arm.index) });
    html(button, "i", { class: "swatch" });
    html(button, "span", {}, arm.title);
    button.addEventListener("click", () => {
      show(arm.index, button, view.hidden.has(arm.index));
      build();
    });
    return button;
  });
  function show(index, button, visible) {
    if (visible) view.hidden.delete(index);
    else view.hidden.add(index);
    button.setAttribute("aria-pressed", String(visible));
  }
  const controls = html(bar, "div", { class: "controls" });
  for (const [name, visible] of [["all", true], ["none", false]]) {
    const button = html(controls, "button", { type: "button" }, name);
    button.addEventListener("click", () => {
      section.arms.forEach((arm, i) => show(arm.index, buttons[i], visible));
      build();
    });
  }
  const toggle = (text, name, act, on = false) => {
    const label = html(controls, "label");
    const box = html(label, "input", { type: "checkbox", name });
    box.checked = on;
    html(label, "span", {}, text);
    box.addEventListener("change", () => act(box.checked));
  };
  toggle("log y axis", "log-y", (on) => { view.logY = on; redraw(); });
  toggle("log x axis", "log-x", (on) => { view.logX = on; redraw(); }, view.logX);
  toggle("every run", "runs", (on) => { view.runs = on; redraw(); });
  toggle("one panel per arm", "panels", (on) => { together = !on; build(); });

  const place = html(parent, "div");
  const modules = Object.keys(section.noise);
  let shownModule = modules[0];

  // Saturation, sigma and |p| of one nonlinearity: a model may have dozens of them.
  function noise() {
    if (modules.length === 0) return;
    const label = html(place, "label", { class: "module" });
    html(label, "span", {}, "Saturation and noise of ");
    const select = html(label, "select", { name: "module" });
    for (const name of modules) html(select, "option", { value: name }, name);
    select.value = shownModule;
    const grid = html(place, "div", { class: "multiples" });
    const before = charts.length;
    const draw = () => {
      shownModule = select.value;
      grid.replaceChildren();
      charts.length = before;
      for (const metric of section.noise[shownModule]) {
        const series = section.arms.flatMap((arm) => seriesOf(arm, metric));
        const yLabel = metric.split(": ").at(-1);
        const title = `${shownModule}: ${yLabel}`; // on paper there is no selection to read it from
        charts.push(chart(grid, { xLabel: "update", view, yLabel, title, height: 200, series }));
      }
    };
    select.addEventListener("change", draw);
    draw();
  }
  const [headline, ...others] = section.metrics;
  const words = (metric) => metric.replaceAll("_", " ");

  function build() {
    place.replaceChildren();
    const common = { xLabel: "update", view };
    if (together) {
      const all = (metric) => section.arms.flatMap((arm) => seriesOf(arm, metric));
      charts = [chart(place, { ...common, yLabel: headline, title: words(headline), series: all(headline) })];
      const grid = html(place, "div", { class: "multiples" });
      for (const metric of others) {
        charts.push(chart(grid, { ...common, yLabel: metric, title: words(metric), height: 200, series: all(metric) }));
      }
      noise();
      return;
    }
    html(place, "h4", {}, `${words(headline)}; grey: the other arms`);
    const grid = html(place, "div", { class: "multiples" });
    // All panels have the same axis, so that they can be compared.
    const shown = section.arms.filter((arm) => !view.hidden.has(arm.index));
    const fixed = shown.flatMap((arm) => arm.runs.filter((r) => r.status === "finished").flatMap((r) => r.lines[headline].y));
    charts = shown.map((arm) =>
      chart(grid, {
        ...common, yLabel: headline, title: arm.title, height: 200, fixed,
        series: [...shown.filter((other) => other !== arm).map((other) => contextOf(other, headline)), ...seriesOf(arm, headline)],
      }),
    );
  }
  build();
}
