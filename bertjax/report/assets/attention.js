"use strict";
// Attention: all heads of all layers at a glance, and one head token by token.

const SVG_WIDTH = 420, LINE_HEIGHT = 19, LONGEST_TOKEN = 16;

function showAttention() {
  const part = section("attention", "Attention", el("p", { class: "quiet" },
    "Each small square is one head: rows are the tokens that attend, columns the tokens that are attended to. "
    + "Colour grows with the square root of the weight. Choose a square, then point at a token."));
  byRun(part, (run, number, body) => {
    if (!run.attention) {
      body.append(missing(run.missing.attention ?? run.missing.model ?? run.missing.texts ?? "There is no attention to show."));
      return;
    }
    body.append(el("p", { class: "quiet" }, [`Texts: ${run.text_source}.`, ...run.attention.notes].join(" ")));
    unpack(`weights-${number}`).then((bytes) => new AttentionView(run.attention, bytes, body));
  });
}

class AttentionView {
  constructor(content, bytes, body) {
    Object.assign(this, { content, bytes, text: 0, layer: 0, head: 0 });
    const count = (n, word) => Array.from({ length: n }, (_, i) => [String(i), `${word}${i + 1}`]);
    const texts = content.texts.map((text, i) => [String(i), `${i + 1}: ${text.tokens.slice(1, 9).join(" ").replaceAll(" ##", "")}`]);
    const set = (name) => (value) => { this[name] = Number(value); this.draw(); };
    this.layers = chooser("Layer", count(content.layers, ""), "0", set("layer"));
    this.heads = chooser("Head", count(content.heads, ""), "0", set("head"));
    this.status = el("p", { class: "status", role: "status" });
    this.grid = el("canvas", { role: "img", "aria-label": "Attention of every layer and head" });
    this.map = el("canvas", { role: "img", "aria-label": "Attention of one head" });
    this.lines = el("div", { id: "head-view" });
    this.title = el("h3");
    body.append(
      el("div", { class: "controls" }, chooser("Text", texts, "0", set("text")), this.layers, this.heads),
      el("div", { class: "scroll grid" }, this.grid), this.status, this.title,
      el("div", { class: "pair" }, this.lines, el("div", {}, this.map)));
    this.grid.addEventListener("mousemove", (event) => {
      const place = this.headAt(event);
      if (place) this.status.textContent = `layer ${place[0] + 1}, head ${place[1] + 1}`;
    });
    this.grid.addEventListener("click", (event) => {
      const place = this.headAt(event);
      if (place) { [this.layer, this.head] = place; this.draw(); }
    });
    this.map.addEventListener("mousemove", (event) => this.pointAtMap(event));
    this.map.addEventListener("mouseleave", () => this.pointAt(null));
    new ResizeObserver(() => { if (body.clientWidth !== this.width) { this.width = body.clientWidth; this.draw(); } }).observe(body);
    charts.push({ node: this.grid, draw: () => this.draw() });
    this.body = body;
    this.width = body.clientWidth;
    this.draw();
  }

  get tokens() { return this.content.texts[this.text].tokens; }

  // The weights [S, S] of one head, a byte each.
  weights(layer, head) {
    const size = this.tokens.length ** 2;
    const start = this.content.texts[this.text].start + (layer * this.content.heads + head) * size;
    return this.bytes.subarray(start, start + size);
  }

  draw() {
    this.layers.querySelector("select").value = String(this.layer);
    this.heads.querySelector("select").value = String(this.head);
    this.title.textContent = `Layer ${this.layer + 1}, head ${this.head + 1}`;
    this.drawGrid();
    this.drawMap();
    this.drawLines();
  }

  // One head as a picture of a pixel a weight.
  picture(layer, head) {
    const size = this.tokens.length, weights = this.weights(layer, head);
    const canvas = el("canvas", { width: size, height: size });
    const image = new ImageData(size, size), rgb = css("--weight").split(",").map(Number);
    weights.forEach((weight, i) => { image.data.set([...rgb, Math.round(255 * Math.sqrt(weight / 255))], 4 * i); });
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  canvas(node, width, height) {
    const ratio = window.devicePixelRatio || 1;
    node.width = width * ratio; node.height = height * ratio;
    node.style.width = `${width}px`; node.style.height = `${height}px`;
    const context = node.getContext("2d");
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = css("--quiet");
    return context;
  }

  drawGrid() {
    const { layers, heads } = this.content, left = 28, top = 18, gap = 4;
    this.side = Math.max(22, Math.min(72, Math.floor((this.width - left) / heads) - gap));
    const step = this.step = this.side + gap;
    const context = this.canvas(this.grid, left + heads * step, top + layers * step);
    context.textAlign = "center";
    for (let head = 0; head < heads; head++) context.fillText(String(head + 1), left + head * step + this.side / 2, 12);
    context.textAlign = "right";
    for (let layer = 0; layer < layers; layer++) {
      context.fillStyle = css("--quiet");
      context.fillText(String(layer + 1), left - 8, top + layer * step + this.side / 2 + 4);
      for (let head = 0; head < heads; head++) {
        const x = left + head * step, y = top + layer * step, on = layer === this.layer && head === this.head;
        context.fillStyle = css("--soft");
        context.fillRect(x, y, this.side, this.side);
        context.drawImage(this.picture(layer, head), x, y, this.side, this.side);
        context.strokeStyle = on ? css("--wrong") : css("--line");
        context.lineWidth = on ? 2.5 : 1;
        context.strokeRect(x, y, this.side, this.side);
      }
    }
    this.status.textContent = `rows are layers 1 to ${layers}, columns heads 1 to ${heads}`;
  }

  headAt(event) {
    const layer = Math.floor((event.offsetY - 18) / this.step), head = Math.floor((event.offsetX - 28) / this.step);
    return layer >= 0 && head >= 0 && layer < this.content.layers && head < this.content.heads ? [layer, head] : null;
  }

  drawMap() {
    const size = this.tokens.length, room = Math.min(480, this.width > 830 ? this.width / 2 - 24 : this.width);
    const label = 84;
    this.pixel = Math.max(3, Math.floor((room - label) / size));
    const context = this.canvas(this.map, label + this.pixel * size, label + this.pixel * size);
    context.drawImage(this.picture(this.layer, this.head), label, label, this.pixel * size, this.pixel * size);
    context.strokeStyle = css("--line");
    context.strokeRect(label, label, this.pixel * size, this.pixel * size);
    context.fillStyle = css("--text");
    context.font = `${Math.min(12, this.pixel)}px system-ui, sans-serif`;
    if (this.pixel < 7) return;
    this.tokens.forEach((token, i) => {
      const middle = label + (i + 0.5) * this.pixel;
      context.textAlign = "right";
      context.fillText(clipped(token, 11), label - 4, middle + this.pixel / 4, label - 6);
      context.save();
      context.translate(middle + this.pixel / 4, label - 4);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(clipped(token, 11), 0, 0, label - 6);
      context.restore();
    });
  }

  pointAtMap(event) {
    const [row, column] = [event.offsetY, event.offsetX].map((v) => Math.floor((v - 84) / this.pixel));
    const size = this.tokens.length;
    if (row < 0 || column < 0 || row >= size || column >= size) { this.pointAt(null); return; }
    this.pointAt(row);
    const weight = this.weights(this.layer, this.head)[row * size + column] / 255;
    this.status.textContent = `${this.tokens[row]} → ${this.tokens[column]}: ${weight.toFixed(3)}`;
  }

  // Tokens on both sides with lines between them, as wide as their weight.
  drawLines() {
    const tokens = this.tokens, size = tokens.length, second = this.content.texts[this.text].second;
    const picture = svg("svg", { class: "lines", viewBox: `0 0 ${SVG_WIDTH} ${(size + 1) * LINE_HEIGHT}`, role: "img",
      "aria-label": "Weights between tokens" });
    const left = 130, right = SVG_WIDTH - 175, y = (i) => (i + 1) * LINE_HEIGHT;
    const weights = this.weights(this.layer, this.head);
    this.strokes = svg("g");
    weights.forEach((weight, k) => {
      if (weight < 3) return;
      const i = Math.floor(k / size), j = k % size;
      const line = svg("line", { x1: left, y1: y(i) - 4, x2: right, y2: y(j) - 4, "stroke-width": 1.5, "stroke-opacity": weight / 255 });
      line.dataset.from = i;
      this.strokes.append(line);
    });
    picture.append(this.strokes);
    this.sides = [[], []];
    tokens.forEach((token, i) => {
      const from = svg("g", { class: "token", tabindex: 0, "data-token": i });
      from.append(svg("rect", { x: 0, y: y(i) - 15, width: left - 4, height: LINE_HEIGHT, fill: "transparent" }),
        svg("text", { x: left - 8, y: y(i), "text-anchor": "end" }, clipped(token, LONGEST_TOKEN)), svg("title", {}, token));
      for (const name of ["mouseenter", "focus", "click"]) from.addEventListener(name, () => this.pointAt(i));
      for (const name of ["mouseleave", "blur"]) from.addEventListener(name, () => this.pointAt(null));
      const to = svg("g", { class: "target" });
      to.append(svg("rect", { x: right + 4, y: y(i) - 14, width: 126, height: LINE_HEIGHT - 1, rx: 3, fill: "rgb(var(--weight))", "fill-opacity": 0 }),
        svg("text", { x: right + 8, y: y(i) }, clipped(token, LONGEST_TOKEN)),
        svg("text", { x: SVG_WIDTH - 2, y: y(i), "text-anchor": "end", class: "weight" }, ""));
      picture.append(from, to);
      this.sides[0].push(from); this.sides[1].push(to);
      if (i === second) {
        for (const x of [20, right]) picture.append(svg("line", { x1: x, x2: x + left - 24, y1: y(i) - 15.5, y2: y(i) - 15.5, "stroke-opacity": 0.35 }));
      }
    });
    this.lines.replaceChildren(picture);
  }

  // Show the weights of one token alone, or of all for null.
  pointAt(token) {
    const size = this.tokens.length, weights = this.weights(this.layer, this.head);
    for (const line of this.strokes.children) {
      line.style.display = token === null || Number(line.dataset.from) === token ? "" : "none";
    }
    this.sides[0].forEach((node, i) => node.classList.toggle("on", i === token));
    this.sides[1].forEach((node, j) => {
      const weight = token === null ? 0 : weights[token * size + j] / 255;
      node.querySelector("rect").setAttribute("fill-opacity", (0.6 * weight).toFixed(3));
      node.querySelector(".weight").textContent = token === null ? "" : weight.toFixed(2);
    });
  }
}
