(function () {
  "use strict";
  var figures = JSON.parse(document.getElementById("charts").textContent);
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var narrow = window.matchMedia("(max-width: 620px)");

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // Data and titles come from the figure, colours and type from the page.
  function themed(figure) {
    var layout = JSON.parse(JSON.stringify(figure.layout));
    var ink = color("--soft"), line = color("--line");
    layout.font = { family: "system-ui, sans-serif", size: 12, color: ink };
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.margin = { l: 52, r: 12, t: 12, b: 40 };
    layout.showlegend = true;
    layout.legend = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" };
    layout.hovermode = figure.data[0].type === "bar" ? "closest" : "x unified";
    layout.hoverlabel = { bgcolor: color("--card"), bordercolor: line, font: { color: color("--ink") } };
    layout.bargap = 0.35;
    ["xaxis", "yaxis"].forEach(function (name) {
      layout[name] = Object.assign({ automargin: true, zeroline: false, linecolor: line, gridcolor: line }, layout[name]);
    });
    layout.xaxis.showgrid = false;
    return layout;
  }

  function draw(element) {
    var figure = figures[element.dataset.chart];
    if (!figure || element.offsetParent === null) { return; }
    Plotly.react(element, figure.data, themed(figure), {
      responsive: true, displaylogo: false, displayModeBar: narrow.matches ? false : "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]
    });
  }

  function drawAll(root) {
    root.querySelectorAll(".plot").forEach(draw);
  }

  // A chart in a closed fold has no width: it is drawn when the fold opens.
  document.querySelectorAll("details").forEach(function (fold) {
    fold.addEventListener("toggle", function () { if (fold.open) { drawAll(fold); } });
  });
  dark.addEventListener("change", function () { drawAll(document); });
  drawAll(document);
}());
