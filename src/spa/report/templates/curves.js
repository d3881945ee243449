// After theatre.js, whose make() it uses: the smoothing of curves by an exponential moving average; the measured curve stays as a thin line

function smooth(plot, weight) {
  for (const old of plot.querySelectorAll(".raw")) old.remove();
  plot.classList.toggle("smoothed", weight > 0);
  for (const line of plot.querySelectorAll("polyline")) {
    const raw = line.dataset.raw || line.getAttribute("points");
    line.dataset.raw = raw;
    let mean = null;
    line.setAttribute("points", raw.split(" ").map((pair) => pair.split(",").map(Number)).map(([x, y]) => {
      mean = mean === null ? y : weight * mean + (1 - weight) * y;
      return `${x},${mean.toFixed(1)}`;
    }).join(" "));
    if (weight && !line.matches(".seed")) line.after(make("polyline", { class: "raw", points: raw, fill: "none", stroke: line.getAttribute("stroke") }));
  }
}

for (const slider of document.querySelectorAll("[data-smoothing]")) {
  if (!slider.closest("section").querySelector(".charts polyline")) continue;
  slider.closest("[hidden]").hidden = false;
  slider.addEventListener("input", () => {
    const weight = Number(slider.value);
    slider.closest("p").querySelector("output").textContent = weight ? weight.toFixed(2) : "off";
    slider.closest("section").querySelectorAll(".charts .plot").forEach((plot) => smooth(plot, weight));
  });
}
