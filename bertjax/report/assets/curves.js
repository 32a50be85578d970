"use strict";
// Curves of every metric, runs over one another.

const UNITS = [
  [/squared_error$/, "squared error"], [/(^|_)loss$/, "nats"], [/accuracy|f1|precision|recall|match/, ""],
  [/tokens_per_second/, "tokens / s"], [/examples_per_second/, "examples / s"],
];

function axisTitle(metric) {
  // The loss of a regression is its squared error.
  if (metric === "loss" && metricNames().includes("squared_error")) return "loss (squared error)";
  const unit = (UNITS.find(([pattern]) => pattern.test(metric)) ?? [null, ""])[1];
  return unit ? `${metric} (${unit})` : metric;
}

function metricNames() {
  const names = new Set();
  for (const run of RUNS) {
    for (const split of Object.values(run.splits)) {
      for (const [name, values] of Object.entries(split.metrics)) {
        if (values.some((value) => value !== null)) names.add(name);
      }
    }
  }
  return [...names].sort((a, b) => (b === "loss") - (a === "loss"));
}

// Every curve of a metric, with the colour and the line that it has in all charts.
function curvesOf(metric) {
  const found = [];
  RUNS.forEach((run, i) => {
    const splits = Object.keys(run.splits);
    splits.forEach((split, j) => {
      const values = run.splits[split].metrics[metric];
      if (!values || values.every((value) => value === null)) return;
      const kept = run.splits[split].steps.map((step, k) => [step, values[k]])
        .filter(([, value]) => value !== null);
      found.push({
        name: RUNS.length > 1 ? `${run.name}: ${split}` : split,
        color: RUNS.length > 1 ? i : j,
        dash: ["solid", "dash", "dot", "dashdot"][(RUNS.length > 1 ? j : 0) % 4],
        train: split === "train", x: kept.map((p) => p[0]), y: kept.map((p) => p[1]),
      });
    });
  });
  return found;
}

// Exponential moving average, corrected for its start at zero.
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

function spark(metric) {
  const picture = svg("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" });
  const curves = curvesOf(metric);
  const xs = curves.flatMap((c) => c.x), ys = curves.flatMap((c) => c.y);
  const range = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  const [x0, x1] = range(xs), [y0, y1] = range(ys);
  for (const curve of curves) {
    const points = curve.x.map((x, i) => [
      2 + 96 * (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5), 28 - 26 * (y1 > y0 ? (curve.y[i] - y0) / (y1 - y0) : 0.5),
    ]);
    if (points.length === 1) points.push([points[0][0] + 2, points[0][1]]);
    picture.append(svg("polyline", {
      points: points.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" "), fill: "none",
      stroke: `var(--c${curve.color % COLORS})`, "stroke-width": 1.5, "vector-effect": "non-scaling-stroke",
      "stroke-dasharray": { solid: "none", dash: "5 3", dot: "1.5 3", dashdot: "6 3 1.5 3" }[curve.dash],
    }));
  }
  return picture;
}

function showCurves() {
  const part = section("curves", "Curves");
  const names = metricNames();
  if (!names.length) { part.append(missing("No run has written figures yet.")); return; }
  const state = { metric: names[0], scale: "linear", smoothing: 0 };
  const node = el("div", { class: "chart", id: "curve-chart" });
  const note = el("p", { class: "quiet" });
  const buttons = new Map();
  const picker = chooser("Metric", names.map((name) => [name, name]), state.metric, (v) => set("metric", v));
  const value = el("output", {}, "0");
  const slider = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, "aria-label": "Smoothing",
    oninput: () => { value.textContent = slider.value; set("smoothing", Number(slider.value)); } });
  part.append(
    el("div", { class: "controls" }, picker,
      chooser("Scale", [["linear", "linear"], ["log", "logarithmic"]], "linear", (v) => set("scale", v)),
      el("label", {}, "Smoothing of training", slider, value)),
    node, note);
  const sparks = el("div", { class: "sparks" });
  for (const name of names) {
    const button = el("button", { class: "spark", type: "button", onclick: () => set("metric", name) }, name, spark(name));
    buttons.set(name, button);
    sparks.append(button);
  }
  part.append(el("h3", {}, "All metrics"), sparks);
  const redraw = chart(node, () => [tracesOf(state), {
    xaxis: { title: { text: "step (updates of the parameters)" }, rangemode: "tozero" },
    yaxis: { title: { text: plain(axisTitle(state.metric)) }, type: state.scale },
    hovermode: "x unified", legend: { orientation: "h", y: 1.12, x: 0 }, showlegend: true,
  }]);
  function set(name, chosen) {
    state[name] = chosen;
    picker.querySelector("select").value = state.metric;
    for (const [metric, button] of buttons) button.setAttribute("aria-pressed", String(metric === state.metric));
    const hidden = curvesOf(state.metric).flatMap((c) => c.y).filter((v) => v <= 0).length;
    note.textContent = state.scale === "log" && hidden
      ? `${hidden} values are not positive and cannot stand on a logarithmic scale.` : "";
    redraw();
  }
  set("metric", state.metric);
}

function tracesOf({ metric, smoothing }) {
  const traces = [];
  for (const curve of curvesOf(metric)) {
    const smooth = curve.train && smoothing > 0;
    const base = { x: curve.x, name: brief(curve.name), legendgroup: curve.name, type: "scatter",
      line: { color: color(curve.color), width: curve.train ? 1.6 : 2.2, dash: curve.dash },
      mode: curve.x.length < 60 && !curve.train || curve.x.length < 3 ? "lines+markers" : "lines" };
    if (smooth) traces.push({ ...base, y: curve.y, opacity: 0.25, showlegend: false, hoverinfo: "skip" });
    traces.push({ ...base, y: smooth ? smoothed(curve.y, smoothing) : curve.y, hovertemplate: "%{y:.5g}" });
  }
  return traces;
}
