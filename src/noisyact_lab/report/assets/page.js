// Creates the interactive parts of the page: the curves of every section, the playground, zoomable pictures, the place in
// the contents, and every table as CSV.
"use strict";

function fill() {
  const data = JSON.parse(document.getElementById("data").textContent);
  document.querySelectorAll("[data-curves]").forEach((place) => {
    const section = data[Number(place.dataset.curves)];
    place.replaceChildren();
    if (section.arms.length === 0) html(place, "p", { class: "muted" }, "No run has recorded an evaluation yet.");
    else curves(place, section);
  });
  document.querySelectorAll("button.zoom").forEach((button) =>
    button.addEventListener("click", () => {
      const large = button.closest("figure").classList.toggle("large");
      button.setAttribute("aria-pressed", String(large));
    }),
  );
  document.querySelectorAll("main table").forEach(offerCsv);
  markThePlace(document.querySelector("nav"));
  const place = document.getElementById("playground");
  place.replaceChildren();
  playground(place);
}

// A button below a table that saves what it shows. The whole numbers are in the sections' own links.
function offerCsv(table) {
  const quoted = (text) => (/^[=+@\t\r]|^-(?![\d.]|$)/.test(text) ? `'${text}` : text).replaceAll('"', '""');
  const line = (row) => [...row.cells].filter((cell) => !cell.matches(".plot")).map((cell) => `"${quoted(cell.textContent.trim())}"`).join(",");
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "csv", textContent: "this table as CSV" });
  button.addEventListener("click", () => {
    const text = [...table.rows].map(line).join("\r\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`\ufeff${text}\r\n`], { type: "text/csv" }));
    link.download = `${table.closest("section").id}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  (table.closest(".wide") ?? table).after(button);
}

// Marks the section that is read, and keeps its link in view. On a narrow screen the contents begin folded.
function markThePlace(nav) {
  const links = new Map([...nav.querySelectorAll("a")].map((a) => [a.hash.slice(1), a]));
  const narrow = matchMedia("(max-width: 76rem)");
  if (narrow.matches) nav.querySelector("details").open = false;
  const sections = [...document.querySelectorAll("main > section")].filter((section) => links.has(section.id));
  let current = null;
  function mark() {
    const reached = sections.filter((section) => section.getBoundingClientRect().top < innerHeight / 3);
    const link = reached.length ? links.get(reached.at(-1).id) : null;
    if (link === current) return;
    current?.removeAttribute("aria-current");
    link?.setAttribute("aria-current", "true");
    current = link;
    if (!link || narrow.matches) return;
    const [box, place] = [nav.getBoundingClientRect(), link.getBoundingClientRect()];
    if (place.top < box.top || place.bottom > box.bottom) nav.scrollTop += place.top - box.top - box.height / 2;
  }
  addEventListener("scroll", mark, { passive: true });
  mark();
}

// Folded details that belong to the results are opened for printing, because paper cannot be clicked.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details.printed:not([open])")];
  opened.forEach((details) => (details.open = true));
});
addEventListener("afterprint", () => opened.forEach((details) => (details.open = false)));
document.addEventListener("DOMContentLoaded", fill);
