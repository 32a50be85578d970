"use strict";
// A map of sentence vectors and their cosines, and the order of the page.

const FEW = 40; // texts whose numbers are written on the map: all of them are in the matrix

function showVectors() {
  const part = section("vectors", "Sentence vectors", el("p", { class: "quiet" },
    "The vector of a text is the mean of the last layer over its tokens."));
  byRun(part, (run, number, body) => {
    if (!run.vectors) {
      body.append(missing(run.missing.vectors ?? run.missing.model ?? run.missing.texts ?? "There are no vectors to show."));
      return;
    }
    body.append(el("p", { class: "quiet" }, [`Texts: ${run.text_source}.`, ...run.vectors.notes].join(" ")));
    const map = el("div"), matrix = el("div");
    body.append(el("div", { class: "pair" }, map, matrix));
    if (run.vectors.x) drawMap(run.vectors, map);
    drawMatrix(run.vectors, matrix);
  });
}

function drawMap(content, body) {
  const counts = new Map();
  content.labels.forEach((label) => counts.set(label, (counts.get(label) ?? 0) + 1));
  const kinds = COLORS * 2, shown = [...counts.keys()].slice(0, kinds);
  const traces = shown.map((label, i) => ({ label, i, of: content.labels.flatMap((l, k) => l === label ? [k] : []) }));
  const rest = content.labels.flatMap((l, k) => shown.includes(l) ? [] : [k]);
  if (rest.length) traces.push({ label: `${counts.size - shown.length} more labels`, i: -1, of: rest });
  const node = el("div", { class: "chart", id: "map-chart" });
  body.append(el("h3", {}, "Map (t-SNE)"),
    el("p", { class: "quiet" }, `Near texts have like vectors; distances far apart mean little. Perplexity ${figure(content.perplexity)}.`), node);
  chart(node, () => [traces.map(({ label, i, of }) => ({
    type: "scatter", mode: content.texts.length <= FEW ? "markers+text" : "markers", name: brief(label || "texts"), x: of.map((k) => content.x[k]), y: of.map((k) => content.y[k]),
    text: of.map((k) => String(content.matrix.indexOf(k) + 1)), textposition: "top center",
    customdata: of.map((k) => wrapped(content.texts[k])), hovertemplate: "%{customdata}<extra>%{fullData.name}</extra>",
    marker: { size: 8, opacity: 0.85, color: i < 0 ? css("--quiet") : color(i),
      symbol: SYMBOLS[(Math.max(i, 0) + Math.floor(Math.max(i, 0) / COLORS)) % SYMBOLS.length] },
  })), {
    xaxis: { title: { text: "t-SNE 1 (no unit)" }, showticklabels: false, zeroline: false },
    yaxis: { title: { text: "t-SNE 2 (no unit)" }, showticklabels: false, zeroline: false },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, showlegend: counts.size > 1, margin: { l: 40, r: 10, t: 10, b: 40 },
  }]);
}

function drawMatrix(content, body) {
  const node = el("div", { class: "chart", id: "cosine-chart" }), kept = content.matrix;
  const sorted = new Set(content.labels).size > 1 ? ", in the order of their labels" : "";
  body.append(el("h3", {}, "Cosines"), el("p", { class: "quiet" },
    `Of ${kept.length} of ${content.texts.length} texts${sorted}. Point at a square to read its two texts.`), node);
  const list = el("ol", {}, ...kept.map((k) => el("li", {}, content.texts[k])));
  body.append(el("details", {}, el("summary", {}, "The texts by number"), list));
  const texts = kept.map((k) => wrapped(content.texts[k]));
  const places = kept.map((_, i) => i + 1);
  chart(node, () => [[{
    type: "heatmap", x: places, y: places, z: content.cosines, colorscale: "Cividis", zmax: 1,
    zmin: Math.min(...content.cosines.flat()), colorbar: { title: { text: "cosine" }, thickness: 12, outlinewidth: 0 },
    customdata: texts.map((a) => texts.map((b) => [a, b])),
    hovertemplate: "%{customdata[0]}<br>– and –<br>%{customdata[1]}<br><b>cosine %{z:.3f}</b><extra></extra>",
  }], {
    xaxis: { title: { text: "text" }, constrain: "domain", showgrid: false, zeroline: false },
    yaxis: { title: { text: "text" }, autorange: "reversed", scaleanchor: "x", constrain: "domain", showgrid: false, zeroline: false },
    margin: { l: 50, r: 10, t: 10, b: 45 },
  }]);
}

showOverview();
showCurves();
showFigures();
showData();
showConfig();
showExamples();
showAttention();
showVectors();
DARK.addEventListener("change", () => {
  for (const { node, draw } of charts) if (node.isConnected) draw();
});
