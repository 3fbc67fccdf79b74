// Creates the interactive parts of the page: the curves of every section, the playground and zoomable pictures.
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
  const place = document.getElementById("playground");
  place.replaceChildren();
  playground(place);
}

// Folded details that belong to the results are opened for printing, because paper cannot be clicked.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details.printed:not([open])")];
  opened.forEach((details) => (details.open = true));
});
addEventListener("afterprint", () => opened.forEach((details) => (details.open = false)));
document.addEventListener("DOMContentLoaded", fill);
