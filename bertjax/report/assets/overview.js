"use strict";
// Runs, their last figures, their data and their configs.

function runHeads() { return RUNS.length > 1 ? RUNS.map((run) => heading(run.name, "number")) : []; }

function showOverview() {
  document.getElementById("subtitle").textContent = RUNS.map((run) => run.name).join(", ");
  document.title = `${RUNS.map((run) => run.name).join(", ")} – bertjax report`;
  const part = section("overview", RUNS.length > 1 ? "Runs" : "Run");
  part.append(table(["run", "task", "state", "folder"].map((text) => heading(text)), RUNS.map((run) => [
    cell(run.name), cell(run.task), cell(run.state), cell(run.path)])));
  for (const run of RUNS) {
    for (const note of run.notes) {
      part.append(el("p", { class: "quiet" }, RUNS.length > 1 ? `${run.name}: ${note}` : note));
    }
  }
}

function showFigures() {
  const part = section("figures", "Figures");
  const splits = [...new Set(RUNS.flatMap((run) => Object.keys(run.figures)))];
  if (!splits.length) { part.append(missing("There are no figures yet.")); return; }
  const ended = RUNS.filter((run) => run.state.startsWith("finished")).length;
  part.append(el("p", { class: "quiet" }, ended === RUNS.length
    ? "Final figures, of the checkpoint that the run ended with."
    : "Final figures where a run has finished, else the latest ones of each split."));
  for (const split of splits) {
    const names = [...new Set(RUNS.flatMap((run) => Object.keys(run.figures[split] ?? {})))];
    part.append(el("h3", {}, split), table(
      RUNS.length > 1 ? [heading(""), ...runHeads()] : [],
      names.map((name) => [cell(name, "key"), ...RUNS.map((run) => cell(figure((run.figures[split] ?? {})[name]), "number"))])));
  }
  for (const run of RUNS.filter((one) => one.summary)) {
    const title = RUNS.length > 1 ? `What ${run.name} printed at its end` : "What the run printed at its end";
    part.append(el("details", {}, el("summary", {}, title), el("pre", {}, run.summary)));
  }
}

function showData() {
  const part = section("data", "Data");
  byRun(part, (run, i, body) => {
    if (!run.data) {
      body.append(missing(run.task === "pretrain"
        ? "There is no data report (data_report.json): the prepared corpus is not where the run read it."
        : "There is no data report: one is made when a corpus is prepared for pretraining."));
      return;
    }
    for (const remark of run.data.remarks) body.append(el("p", { class: "missing" }, remark));
    body.append(table([], run.data.rows.map(([name, text]) => [cell(name, "key"), cell(text)])));
    if (!run.data.bars) return;
    const node = el("div", { class: "chart low" });
    body.append(el("h3", {}, "Sentence lengths"), node);
    chart(node, () => [[{ type: "bar", x: run.data.bars.names.map(plain), y: run.data.bars.counts,
      marker: { color: color(0) }, hovertemplate: "%{x} tokens: %{y:,}<extra></extra>" }],
    { xaxis: { title: { text: "tokens in a sentence" }, type: "category" }, yaxis: { title: { text: "sentences" } } }]);
  });
}

function showConfig() {
  const part = section("config", "Config");
  const keys = [...new Set(RUNS.flatMap((run) => Object.keys(run.config)))].sort();
  const text = (run, key) => key in run.config ? JSON.stringify(run.config[key]) : "–";
  const rows = (some) => some.map((key) => [cell(key, "key"), ...RUNS.map((run) => cell(text(run, key)))]);
  const heads = () => [heading("key"), ...RUNS.map((run) => heading(RUNS.length > 1 ? run.name : "value"))];
  if (RUNS.length > 1) {
    const differing = keys.filter((key) => new Set(RUNS.map((run) => text(run, key))).size > 1);
    part.append(el("h3", {}, "Differences"), differing.length
      ? table(heads(), rows(differing)) : el("p", {}, "The configs are the same."));
  }
  const all = el("details", {}, el("summary", {}, `All ${keys.length} keys`));
  const body = table(heads(), rows(keys));
  body.classList.add("tall");
  all.append(body);
  part.append(all);
}
