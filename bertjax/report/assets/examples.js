"use strict";
// Examples with their predictions.

function mark(right) {
  if (right === null) return cell("");
  return cell(right ? "✓ right" : "✗ wrong", right ? "right" : "wrong");
}

function percent(value) { return value === null ? "" : `${(100 * value).toFixed(1)} %`; }

function showExamples() {
  const part = section("examples", "Examples");
  byRun(part, (run, i, body) => {
    if (run.missing.asked) body.append(missing(run.missing.asked));
    if (run.asked.length) {
      body.append(el("h3", {}, "Texts of the command line"), predictionTable(run.asked, true));
    }
    if (run.examples === null) {
      body.append(missing(run.missing.examples ?? run.missing.model ?? run.missing.texts ?? "There are no examples."));
    } else if (run.examples.kind === "masks") showMasks(run, body);
    else {
      if (run.missing.texts) body.append(missing(`The texts cannot be shown: ${run.missing.texts}`));
      showPredictions(run.examples.splits, body);
    }
  });
}

function showMasks(run, body) {
  body.append(el("p", { class: "quiet" },
    `${run.examples.rows.length} of ${run.examples.total} texts: ${run.text_source}. Each number is a masked word; `
    + "below it the word that stood there and the model's five guesses with their probabilities."));
  for (const row of run.examples.rows) {
    const line = el("p");
    row.parts.forEach((text, i) => {
      line.append(text);
      if (i < row.masks.length) line.append(el("span", { class: "blank" }, String(i + 1)));
    });
    const list = el("ol");
    for (const mask of row.masks) {
      const item = el("li");
      if (mask.original !== null) {
        item.append(el("span", { class: mask.right ? "right" : "wrong" }, `${mask.right ? "✓" : "✗"} ${mask.original}`), " ← ");
      }
      item.append(mask.guesses.map((g) => `${g.token} ${percent(g.probability)}`).join(" · "));
      list.append(item);
    }
    body.append(el("div", { class: "masked" }, line, list));
  }
}

function showPredictions(splits, body) {
  const holder = el("div");
  const state = { split: 0, filter: "all" };
  const draw = () => {
    const split = splits[state.split];
    const rows = split.rows.filter((row) => state.filter === "all" || row.right === (state.filter === "right"));
    const counted = split.labelled
      ? `${split.wrong.toLocaleString("en")} of ${split.labelled.toLocaleString("en")} labelled examples are wrong. ` : "";
    const order = split.labelled ? ", the wrong ones first, the surest or gravest before the others" : "";
    holder.replaceChildren(el("p", { class: "quiet" },
      `${counted}${rows.length.toLocaleString("en")} of ${split.total.toLocaleString("en")} examples are listed${order}.`
      + (split.damaged ? ` ${split.damaged} lines could not be read.` : "")));
    if (split.confusion) holder.append(confusion(split.confusion));
    if (!rows.length) holder.append(el("p", {}, "None of the listed examples is of this kind."));
    else holder.append(predictionTable(rows, split.labelled === 0));
  };
  body.append(el("div", { class: "controls" },
    chooser("Split", splits.map((split, i) => [String(i), split.split]), "0", (v) => { state.split = Number(v); draw(); }),
    chooser("Show", [["all", "all"], ["wrong", "wrong ones"], ["right", "right ones"]], "all", (v) => { state.filter = v; draw(); })),
  holder);
  draw();
}

function predictionTable(rows, unlabelled) {
  if (rows[0].words) return taggedTable(rows);
  const sure = rows.some((row) => row.probability !== null);
  const texts = rows.some((row) => row.text !== null);
  const heads = [unlabelled ? null : "", texts ? "text" : null, unlabelled ? null : "label", "prediction", sure ? "probability" : null];
  const body = rows.map((row) => [
    unlabelled ? null : mark(row.right),
    texts ? el("td", { class: "text" }, row.text ?? "", row.pair ? el("div", { class: "quiet" }, row.pair) : null) : null,
    unlabelled ? null : cell(figure(row.label)), cell(figure(row.prediction)),
    sure ? cell(percent(row.probability), "number") : null,
  ].filter(Boolean));
  const kinds = { probability: "number" };
  const result = table(heads.filter((h) => h !== null).map((h) => heading(h, kinds[h] ?? "")), body, "long");
  result.classList.add("tall");
  return result;
}

function taggedTable(rows) {
  const body = rows.map((row) => {
    const line = el("div", { class: "words" });
    for (const word of row.words) {
      const wrong = word.right === false;
      const tag = wrong ? `${word.prediction}, not ${word.label}` : word.prediction === "O" ? "" : word.prediction;
      line.append(el("span", { class: wrong ? "word wrong" : "word" }, word.word, el("small", {}, tag)));
    }
    if (row.left_out) line.append(el("span", { class: "quiet" }, `and ${row.left_out} more words`));
    return [mark(row.right), el("td", { class: "text" }, line)];
  });
  const result = table([heading(""), heading("words with their predicted labels")], body, "long");
  result.classList.add("tall");
  return result;
}

function confusion({ labels, counts }) {
  const body = counts.map((row, i) => {
    const total = Math.max(1, row.reduce((a, b) => a + b, 0));
    return [el("th", { scope: "row" }, labels[i]), ...row.map((count) => {
      const node = cell(count.toLocaleString("en"));
      node.style.backgroundColor = `rgba(${css("--weight")}, ${(0.55 * count / total).toFixed(3)})`;
      return node;
    })];
  });
  return el("div", {}, el("h3", {}, "Confusion matrix"),
    el("p", { class: "quiet" }, "A row for each label, a column for each prediction; the shade is the share of the row."),
    table([heading("label \\ prediction"), ...labels.map((label) => heading(label))], body, "confusion"));
}
