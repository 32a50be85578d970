"use strict";
// Everything is shown by textContent or as an attribute: no value of the data becomes markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const COLORS = 7; // --c0 to --c6 of page.css
const SYMBOLS = ["circle", "square", "diamond", "cross", "triangle-up", "star", "x"];
const DARK = window.matchMedia("(prefers-color-scheme: dark)");
const charts = []; // {node, draw}: what is drawn in the colours of the moment
let plotlyReady = null;

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes = {}, text = null) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return node;
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The colour of run, split or label number i.
function color(i) { return css(`--c${i % COLORS}`); }

// Plotly reads its texts as markup of its own; escaped, they are shown as they are.
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function clipped(text, most) { return text.length > most ? `${text.slice(0, most - 1)}…` : text; }

// A name in a legend.
function brief(text) { return plain(clipped(String(text), 40)); }

function wrapped(text, width = 60) {
  const lines = [];
  let line = "";
  for (const word of String(text).split(/(?<=\s)/)) {
    if (line && line.length + word.length > width) { lines.push(line); line = ""; }
    line += word;
    while (line.length > width) { lines.push(line.slice(0, width)); line = line.slice(width); }
  }
  return [...lines, line].map(plain).join("<br>");
}

function figure(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
}

function section(id, title, ...lead) {
  const node = el("section", { id, "aria-label": title }, el("h2", {}, title), ...lead);
  document.querySelector("main").append(node);
  document.querySelector("nav").append(el("a", { href: `#${id}` }, title));
  return node;
}

function missing(text) { return el("p", { class: "missing" }, text); }

// A labelled select; options are [value, text]. It is left out where there is nothing to choose.
function chooser(label, options, value, changed) {
  const box = el("select", { "aria-label": label, onchange: () => changed(box.value) });
  for (const [key, text] of options) box.append(el("option", { value: key }, text));
  box.value = value;
  const node = el("label", {}, label, box);
  node.hidden = options.length < 2;
  return node;
}

function table(head, rows, classes = "") {
  const body = rows.map((row) => el("tr", {}, ...row));
  return el("div", { class: "scroll" }, el("table", { class: classes },
    head.length ? el("thead", {}, el("tr", {}, ...head)) : null, el("tbody", {}, ...body)));
}

function cell(text, kind = "") { return el("td", { class: kind }, text); }
function heading(text, kind = "") { return el("th", { class: kind, scope: "col" }, text); }

async function unpack(id) {
  const text = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function loadPlotly() {
  plotlyReady ??= unpack("plotly").then((bytes) => {
    const script = document.createElement("script");
    script.textContent = new TextDecoder().decode(bytes);
    document.head.append(script);
  });
  return plotlyReady;
}

// Draw a chart now and whenever the colours change; `make` returns [traces, layout].
function chart(node, make) {
  const draw = async () => {
    await loadPlotly();
    const [traces, layout] = make();
    const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), automargin: true };
    await window.Plotly.react(node, traces, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: css("--text"), family: getComputedStyle(document.body).fontFamily, size: 13 },
      margin: { l: 60, r: 15, t: 15, b: 50 }, ...layout,
      hoverlabel: { align: "left", namelength: -1, bgcolor: css("--soft"),
        bordercolor: css("--line"), font: { color: css("--text") } },
      xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
    }, { displaylogo: false, responsive: true, displayModeBar: "hover",
      modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] });
  };
  charts.push({ node, draw });
  draw();
  return draw;
}

// One control for a part of the page that is about one run at a time.
function byRun(parent, show) {
  const body = el("div");
  const options = RUNS.map((run, i) => [String(i), run.name]);
  const choose = (i) => { body.replaceChildren(); show(RUNS[i], Number(i), body); };
  parent.append(el("div", { class: "controls" }, chooser("Run", options, "0", choose)), body);
  choose("0");
}
