"use strict";
// Draws the charts of a report from the JSON in the page, as SVG, in the width that there is.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const many = data.runs.length > 1;
  const height = 230, top = 10, bottom = 26;
  let byTime = false;

  const space = document.getElementById("space").namespaceURI;  // of SVG
  const make = (name, attributes, parent, text) => {
    const element = document.createElementNS(space, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  };
  const html = (name, parent, className, text) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    parent.appendChild(element);
    return element;
  };
  const colour = (i) => `var(--c${i % 8})`;

  // Text of numbers: four digits that count, thousands as k, M, G.
  const short = (v) => {
    const size = Math.abs(v);
    if (v === 0) return "0";
    for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (size >= unit && size < 1e12) return Number((v / unit).toPrecision(4)) + name;
    }
    return size < 1e-3 || size >= 1e12 ? v.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e") : String(Number(v.toPrecision(4)));
  };
  const duration = (s) => {
    if (s < 60) return Number(s.toPrecision(3)) + " s";
    const two = (n) => String(Math.floor(n)).padStart(2, "0");
    return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)} min` : `${Math.floor(s / 3600)}:${two((s % 3600) / 60)} h`;
  };
  const valueText = (chart, v) => v === null ? "not finite" : chart.percent ? Number((100 * v).toPrecision(4)) + "%" : short(v);

  // Round numbers between two others: multiples of 1, 2 or 5 times a power of ten; with `whole`, no fractions.
  const ticks = (low, high, most, whole) => {
    const span = high - low || Math.abs(high) || 1, power = 10 ** Math.floor(Math.log10(span / most));
    let step = [1, 2, 5, 10].map((m) => m * power).find((s) => span / s <= most) || 10 * power;
    if (whole) step = Math.max(step, 1);
    const list = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && list.length < 50; ++i) {
      list.push(Number((i * step).toPrecision(12)));
    }
    return list;
  };
  const logTicks = (low, high) => {
    const list = [], from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
    const every = Math.ceil((to - from) / 6), steps = to - from <= 2 ? [1, 2, 5] : to - from <= 3 ? [1, 3] : [1];
    for (let e = from; e <= to; e += every) {
      for (const m of steps) {
        const v = Number((m * 10 ** e).toPrecision(6));
        if (v >= low * 0.999 && v <= high * 1.001) list.push(v);
      }
    }
    return list.length > 1 ? list : ticks(low, high, 5).filter((v) => v > 0);
  };

  // The seconds of a run at a step, between those that the page holds.
  const position = (list, x) => {
    let a = 0, b = list.length - 1;
    while (b - a > 1) { const m = (a + b) >> 1; if (list[m] <= x) a = m; else b = m; }
    return a;
  };
  const xOf = (line, step) => {
    if (!byTime) return step;
    const { x, y } = data.runs[line.run].time;
    if (x.length < 2) return x.length ? y[0] : step;
    const i = position(x, step), share = (step - x[i]) / (x[i + 1] - x[i] || 1);
    return y[i] + (y[i + 1] - y[i]) * Math.min(Math.max(share, 0), 1);
  };

  function draw(chart) {
    const lines = chart.lines, plot = chart.plot, log = chart.log;
    let xLow = Infinity, xHigh = -Infinity, low = Infinity, high = -Infinity, any = false;
    for (const line of lines) {
      line.at = line.x.map((step) => xOf(line, step));
      for (let i = 0; i < line.x.length; ++i) {
        xLow = Math.min(xLow, line.at[i]); xHigh = Math.max(xHigh, line.at[i]);
        const y = line.y[i];
        if (y === null || (log && y <= 0)) continue;
        any = true; low = Math.min(low, y); high = Math.max(high, y);
      }
    }
    plot.replaceChildren();
    const width = Math.max(plot.clientWidth, 120);
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
      "aria-label": any ? `${chart.title}, from ${valueText(chart, low)} to ${valueText(chart, high)}` : chart.title }, plot);
    chart.view = null;
    if (!any) {
      make("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, svg, "nothing to show yet");
      return;
    }
    if (low === high) { const pad = log ? 0 : Math.abs(low) * 0.1 || 1; low -= pad; high += pad; }
    if (log && low === high) { low /= 2; high *= 2; }
    if (xLow > 0 && xLow < 0.05 * xHigh) xLow = 0;
    if (xLow === xHigh) { xLow -= 0.5; xHigh += 0.5; }
    if (!log) { const pad = (high - low) * 0.04; low = low >= 0 && low - pad < 0 ? 0 : low - pad; high += pad; }
    const marks = log ? logTicks(low, high) : ticks(low, high, 5);
    const texts = marks.map((v) => valueText(chart, v));
    const left = 12 + 7 * Math.max(...texts.map((t) => t.length), 2), right = width - 8, down = height - bottom;
    const scale = log ? Math.log10 : (v) => v;
    const px = (x) => left + (x - xLow) / (xHigh - xLow) * (right - left);
    const py = (y) => down - (scale(y) - scale(low)) / (scale(high) - scale(low)) * (down - top);
    marks.forEach((v, i) => {
      make("line", { x1: left, x2: right, y1: py(v), y2: py(v), class: "grid" }, svg);
      make("text", { x: left - 8, y: py(v) + 4, "text-anchor": "end" }, svg, texts[i]);
    });
    make("line", { x1: left, x2: right, y1: down, y2: down, class: "axis" }, svg);
    let lastEnd = -Infinity;
    for (const v of ticks(xLow, xHigh, Math.max(2, Math.floor((right - left) / 64)), !byTime)) {
      const first = lastEnd === -Infinity, text = byTime ? duration(v) : first ? `step ${short(v)}` : short(v), half = 3.5 * text.length;
      const at = Math.min(Math.max(px(v), first ? half - 4 : left), width - half);
      if (at - half < lastEnd + 8) continue;
      lastEnd = at + half;
      make("text", { x: at, y: height - 6, "text-anchor": "middle" }, svg, text);
    }
    const shown = (y) => y !== null && !(log && y <= 0);
    for (const line of lines) {
      let path = "", pen = false;
      for (let i = 0; i < line.x.length; ++i) {
        if (!shown(line.y[i])) { pen = false; continue; }
        const alone = !pen && !(i + 1 < line.x.length && shown(line.y[i + 1]));
        path += `${pen ? "L" : "M"}${px(line.at[i]).toFixed(1)} ${py(line.y[i]).toFixed(1)}`;
        if (alone) path += "h0.01";
        pen = true;
      }
      const dashed = many && line.kind === "eval" && lines.some((l) => l.run === line.run && l.kind !== "eval");
      make("path", { d: path, class: line.kind + (dashed ? " dashed" : ""), stroke: colour(line.colour), "stroke-linecap": "round" }, svg);
      if (line.kind === "eval" && line.x.length <= 60) {
        line.x.forEach((x, i) => {
          if (shown(line.y[i])) make("circle", { cx: px(line.at[i]), cy: py(line.y[i]), r: 2.5, fill: colour(line.colour) }, svg);
        });
      }
      if (line.kind === "mean") continue;  // its gaps are those of the values themselves
      line.y.forEach((y, i) => {
        if (y !== null) return;
        const x = px(line.at[i]);
        make("title", {}, make("path", { d: `M${x - 4} ${top}h8l-4 7z`, class: "bad" }, svg), "not finite");
      });
    }
    chart.view = { svg, px, py, left, right, down, width, shown, xLow, xHigh };
  }

  function hover(chart, event) {
    const view = chart.view;
    leave(chart);
    if (!view) return;
    const box = view.svg.getBoundingClientRect();
    const x = view.xLow + (event.clientX - box.left - view.left) / (view.right - view.left) * (view.xHigh - view.xLow);
    let nearest = null;
    const found = [];
    for (const line of chart.lines) {
      if (line.at.length === 0) continue;
      let i = position(line.at, x);
      if (i + 1 < line.at.length && Math.abs(line.at[i + 1] - x) < Math.abs(line.at[i] - x)) ++i;
      found.push([line, i]);
      if (nearest === null || Math.abs(line.at[i] - x) < Math.abs(nearest - x)) nearest = line.at[i];
    }
    if (nearest === null) return;
    chart.cross = make("g", {}, view.svg);
    make("line", { x1: view.px(nearest), x2: view.px(nearest), y1: top, y2: view.down, class: "cross" }, chart.cross);
    const tip = chart.tip = html("div", chart.element, "tip");
    html("div", tip, "soft", byTime ? `after ${duration(nearest)}` : `step ${Math.round(nearest)}`);
    const table = html("table", tip);
    for (const [line, i] of found) {
      if (view.shown(line.y[i])) {
        make("circle", { cx: view.px(line.at[i]), cy: view.py(line.y[i]), r: 3.5, fill: colour(line.colour) }, chart.cross);
      }
      const row = html("tr", table), key = html("td", row);
      key.style.color = colour(line.colour);
      key.textContent = line.kind === "raw" ? line.name + " (one step)" : line.name;
      html("td", row, "", valueText(chart, line.y[i]));
    }
    const where = chart.element.getBoundingClientRect(), at = box.left - where.left + view.px(nearest);
    const flip = at > where.width / 2;
    tip.style.top = box.top - where.top + top + "px";
    tip.style[flip ? "right" : "left"] = (flip ? where.width - at : at) + 12 + "px";
  }
  function leave(chart) {
    for (const part of ["cross", "tip"]) { if (chart[part]) chart[part].remove(); chart[part] = null; }
  }

  const area = document.getElementById("charts");
  for (const chart of data.charts) {
    chart.element = html("section", area, "chart");
    const header = html("header", chart.element);
    html("h3", header, "", chart.title);
    const keys = html("div", header, "keys");
    if (!many) {
      for (const line of chart.lines) {
        if (line.kind === "raw" && chart.lines.length > 1) continue;
        if (chart.lines.length === 1) continue;
        const key = html("span", keys, "key");
        key.style.color = colour(line.colour);
        html("i", key);
        html("b", key, "", line.name);
      }
    } else if (chart.lines.some((l) => l.kind === "eval") && chart.lines.some((l) => l.kind !== "eval")) {
      html("span", keys, "", "dashed: evaluation");
    }
    if (chart.lines.every((line) => line.y.every((y) => y === null || y > 0))) {
      const button = html("button", header, "", "log");
      button.title = "logarithmic scale";
      button.setAttribute("aria-pressed", chart.log);
      button.onclick = () => { chart.log = !chart.log; button.setAttribute("aria-pressed", chart.log); draw(chart); };
    } else {
      chart.log = false;
    }
    chart.plot = html("div", chart.element, "plot");
    chart.plot.onpointermove = chart.plot.onpointerdown = (event) => hover(chart, event);
    chart.plot.onpointerleave = () => leave(chart);
  }
  const all = () => data.charts.forEach((chart) => { leave(chart); draw(chart); });
  const axis = document.getElementById("axis");
  if (data.runs.every((run) => run.time.x.length > 1)) {
    axis.hidden = false;
    axis.onclick = () => { byTime = !byTime; axis.setAttribute("aria-pressed", byTime); all(); };
  }
  let drawn = 0;
  const fit = () => {
    if (area.clientWidth === drawn) return;
    drawn = area.clientWidth;
    all();
  };
  fit();
  new ResizeObserver(fit).observe(area);
})();
