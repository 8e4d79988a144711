"use strict";
// What all pages draw with. Colours are names of the style (`culprit`), texts go into text nodes only.
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement, SVG = "http://www.w3.org/2000/svg";
const FEW_BARS = 60, ROW = 22, LEAST_LABEL = 14, TALLEST = 640, LONGEST_NAME = 60;
const by = id => document.getElementById(id);
const pen = document.createElement("canvas").getContext("2d");
const drawings = new Map();
let current = null;

const cut = text => { const s = String(text); return s.length > LONGEST_NAME ? s.slice(0, LONGEST_NAME - 1) + "…" : s; };
const ms = v => v === null || v === undefined ? "unknown" : (Math.abs(v) >= 100 ? v.toFixed(1) : v.toFixed(2)) + " ms";
const many = (n, what) => n + " " + what + (n === 1 ? "" : "s");
const clamp = (v, low, high) => Math.min(Math.max(v, low), high);

function node(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A fill for SVG: one colour, or stripes of several, defined once a page.
function paint(fill) {
  if (fill.length === 1) return "var(--" + fill[0] + ")";
  const id = "stripes-" + fill.join("-");
  if (!by(id)) {
    if (!by("stripes")) document.body.append(node("svg", {id: "stripes", width: 0, height: 0, style: "position:absolute", "aria-hidden": true}));
    by("stripes").append(node("pattern", {id, width: 3 * fill.length, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"},
      ...fill.map((name, i) => node("rect", {x: 3 * i, width: 3, height: 8, style: "fill:var(--" + name + ")"}))));
  }
  return "url(#" + id + ")";
}

// A colour for a canvas, as [red, green, blue].
const colours = new Map();
function rgb(name) {
  if (!colours.has(name)) {
    const text = getComputedStyle(root).getPropertyValue("--" + name).trim();
    colours.set(name, [1, 3, 5].map(i => parseInt(text.slice(i, i + 2), 16)));
  }
  return colours.get(name);
}
const css = parts => "rgb(" + parts.map(Math.round).join() + ")";
const mix = (a, b, share) => a.map((v, i) => v + (b[i] - v) * share);

// How strong a value is on its scale, 0 to 1: faint up to the threshold, with a step at it.
function strength(value, scale) {
  const size = Math.abs(value), end = Math.max(scale.high, -scale.low);
  if (scale.pale && size < scale.pale) return 0.22 * size / scale.pale;
  const first = scale.pale ? 0.45 : 0;
  return end > scale.pale ? first + (1 - first) * clamp((size - scale.pale) / (end - scale.pale), 0, 1) : first;
}

function width(text) { pen.font = "12px system-ui, sans-serif"; return pen.measureText(text).width; }
function fitted(text, room) {
  if (width(text) <= room) return text;
  let end = text.length;
  while (end > 1 && width(text.slice(0, end) + "…") > room) end--;
  return text.slice(0, end) + "…";
}
function longest(labels) {
  let most = 0;
  for (const label of labels) most = Math.max(most, label.length);
  return labels.filter(label => label.length > most - 4).slice(0, 200);
}
const widest = labels => Math.max(...longest(labels).map(width), 10);
const margin = (labels, whole) => Math.min(widest(labels) + 10, 0.38 * whole);

function ticks(low, high, most) {
  const raw = (high - low) / Math.max(most, 1), power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= raw) || power;
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) found.push(Math.abs(v) < step * 1e-6 ? 0 : v);
  return found;
}
const tick = v => String(+v.toPrecision(6));

// Draw into a box now, and again when it has another width, colours or paper.
function draw(id, make) {
  const box = typeof id === "string" ? by(id) : id;
  if (!drawings.has(box)) new ResizeObserver(() => {
    const drawn = drawings.get(box);
    if (drawn && box.clientWidth && box.clientWidth !== drawn.width) redraw(box);
  }).observe(box);
  drawings.set(box, {...drawings.get(box), make, width: 0});
  redraw(box);
}
function redraw(box) {
  const drawn = drawings.get(box), focused = box.contains(document.activeElement);
  drawn.width = box.clientWidth || 600;
  current = drawn;
  colours.clear();
  const made = drawn.make(drawn.width);
  made.setAttribute("aria-label", box.dataset.label || "");
  made.setAttribute("role", "img");
  box.replaceChildren(made);
  if (focused) made.focus({preventScroll: true});
}
const redrawAll = () => { for (const box of drawings.keys()) redraw(box); };

// What the mouse and the keys do in a chart: `rows` × `columns(row)` spots, the words of each, and what opens it. The
// spot stays chosen when the chart is drawn again.
const hide = () => { by("tip").hidden = true; };
function steer(target, {rows, columns, find, place, tooltip, open}) {
  const kept = current;
  const show = spot => {
    kept.at = spot;
    if (!spot) return hide();
    const box = target.getBoundingClientRect(), tip = by("tip"), [x, y] = place(...spot);
    tip.textContent = tooltip(...spot);
    tip.hidden = false;
    const left = box.left + scrollX + x + 12, room = scrollX + root.clientWidth - tip.offsetWidth - 4;
    tip.style.left = clamp(left, scrollX + 4, Math.max(room, scrollX + 4)) + "px";
    tip.style.top = box.top + scrollY + y + 12 + "px";
  };
  const spotOf = event => { const box = target.getBoundingClientRect(); return find(event.clientX - box.left, event.clientY - box.top); };
  target.tabIndex = 0;
  target.addEventListener("pointermove", event => show(spotOf(event)));
  target.addEventListener("pointerleave", hide);
  target.addEventListener("blur", hide);
  target.addEventListener("click", event => { const spot = spotOf(event); if (spot && open) open(...spot); });
  target.addEventListener("keydown", event => {
    const move = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (event.key === "Escape") return hide();
    if ((event.key === "Enter" || event.key === " ") && kept.at && open) { event.preventDefault(); return open(...kept.at); }
    if (!move || !rows) return;
    event.preventDefault();
    const [r, c] = kept.at ? [kept.at[0] + move[0], kept.at[1] + move[1]] : [0, 0], row = clamp(r, 0, rows - 1);
    show([row, clamp(c, 0, Math.max(columns(row) - 1, 0))]);
  });
}

// Names and patches above a chart; with `changed` a press hides or shows what has that name.
function legend(id, entries, hidden, changed) {
  const chart = by(id);
  if (chart.previousElementSibling?.className !== "legend") chart.before(document.createElement("div"));
  const box = chart.previousElementSibling;
  box.className = "legend";
  box.replaceChildren(...entries.map(([name, fill]) => {
    const entry = document.createElement(changed ? "button" : "span"), patch = node("svg", {class: "patch", viewBox: "0 0 9 9"});
    patch.append(node("rect", {width: 9, height: 9, style: "fill:" + paint(fill)}));
    entry.append(patch, cut(name));
    if (changed) {
      entry.type = "button";
      entry.setAttribute("aria-pressed", !hidden.has(name));
      entry.addEventListener("click", () => {
        hidden.has(name) ? hidden.delete(name) : hidden.add(name);
        entry.setAttribute("aria-pressed", !hidden.has(name));
        changed();
      });
    }
    return entry;
  }));
}

function axisBelow(svg, {left, right, top, bottom, low, high, title}) {
  const x = v => left + (v - low) / (high - low || 1) * (right - left);
  for (const v of ticks(low, high, (right - left) / 90)) {
    svg.append(node("line", {class: v === 0 && low < 0 ? "zero" : "grid", x1: x(v), x2: x(v), y1: top, y2: bottom}),
      node("text", {x: x(v), y: bottom + 15, "text-anchor": "middle"}, tick(v)));
  }
  svg.append(node("text", {x: (left + right) / 2, y: bottom + 32, "text-anchor": "middle"}, title));
  return x;
}
function axisLeft(svg, {left, right, top, bottom, low, high}) {
  const y = v => bottom - (v - low) / (high - low || 1) * (bottom - top);
  for (const v of ticks(low, high, (bottom - top) / 40)) {
    svg.append(node("line", {class: v === 0 && low < 0 ? "zero" : "grid", x1: left, x2: right, y1: y(v), y2: y(v)}),
      node("text", {x: left - 6, y: y(v) + 4, "text-anchor": "end"}, tick(v)));
  }
  return y;
}
const area = (x, y, w, h) => "M" + x.toFixed(2) + " " + y.toFixed(2) + "h" + w.toFixed(2) + "v" + h.toFixed(2) + "h" + (-w).toFixed(2) + "z";

// A grid of coloured cells on a canvas: a map of ranks, or ranks by step. Rows that are too many share a line of pixels,
// which shows the heaviest of them. cell(row, column): null where nothing was recorded, else {weight, colour()}.
function grid(id, {rows, columns, cell, tooltip, open, outlined, number, gapAfter = () => false, rowHeight = ROW}) {
  draw(id, whole => {
    const left = margin(rows, whole), lines = Math.min(rows.length, TALLEST), share = Math.ceil(rows.length / lines);
    const shown = Math.ceil(rows.length / share), each = clamp(Math.floor(TALLEST / shown), 1, rowHeight);
    const gaps = rows.map((_, r) => gapAfter(r)), extra = each >= 6 ? 4 : 0, top = Math.max(2, 8 - each / 2);
    const ys = [];
    let y = top;
    for (let i = 0; i < shown; i++) { ys.push(y); y += each + (share === 1 && gaps[i] ? extra : 0); }
    const bottom = y, high = bottom + 24, w = (whole - left - 4) / columns.length;
    const canvas = document.createElement("canvas"), dots = Math.max(window.devicePixelRatio || 1, 1), brush = canvas.getContext("2d");
    canvas.width = Math.round(whole * dots); canvas.height = Math.round(high * dots); canvas.style.aspectRatio = whole + "/" + high;
    brush.scale(dots, dots);
    brush.font = "12px system-ui, sans-serif";
    const hatch = css(rgb("soft")), ink = css(rgb("ink")), page = rgb("page");
    const best = Array.from({length: shown}, () => new Array(columns.length).fill(null));
    const spot = (i, c) => {
      let found = [i * share, c], heaviest = -1;
      for (let r = i * share; r < Math.min((i + 1) * share, rows.length); r++) {
        const one = cell(r, c);
        if (one && one.weight > heaviest) { heaviest = one.weight; found = [r, c]; }
      }
      return found;
    };
    const gap = each >= 6 && w >= 4 ? 1 : 0;
    for (let i = 0; i < shown; i++) for (let c = 0; c < columns.length; c++) {
      const [r] = best[i][c] = spot(i, c), one = cell(r, c), x = left + c * w, fy = ys[i];
      if (one) {
        brush.fillStyle = css(one.colour());
        brush.fillRect(x, fy, w - gap, each - gap);
      } else if (one === null) {
        brush.fillStyle = css(page); brush.fillRect(x, fy, w - gap, each - gap);
        brush.save(); brush.beginPath(); brush.rect(x, fy, w - gap, each - gap); brush.clip(); brush.strokeStyle = hatch; brush.lineWidth = 1;
        for (let d = x - each; d < x + w; d += 6) { brush.beginPath(); brush.moveTo(d, fy + each); brush.lineTo(d + each, fy); brush.stroke(); }
        brush.restore();
      }
      const text = number ? number(r, c) : "";
      if (text && each >= 12 && w > brush.measureText(text).width + 2) {
        const tone = one ? one.colour() : page;
        brush.fillStyle = 0.299 * tone[0] + 0.587 * tone[1] + 0.114 * tone[2] > 140 ? "#111" : "#fff";
        brush.textAlign = "center"; brush.fillText(text, x + w / 2, fy + each / 2 + 4);
      }
    }
    if (outlined) for (let i = 0; i < shown; i++) for (let c = 0; c < columns.length; c++) {
      if (!outlined(...best[i][c])) continue;
      brush.strokeStyle = ink; brush.lineWidth = each >= 6 ? 2 : 1;
      brush.strokeRect(left + c * w, ys[i], Math.max(w - gap, 1), Math.max(each - gap, 1));
    }
    brush.fillStyle = ink; brush.textAlign = "right";
    const every = Math.ceil(LEAST_LABEL / each);
    for (let i = 0; i < shown; i += every) brush.fillText(fitted(rows[i * share], left - 8), left - 6, ys[i] + each / 2 + 4);
    brush.textAlign = "center";
    const apart = Math.ceil(Math.min(widest(columns) + 8, 90) / w);
    let last = -Infinity;
    for (let c = 0; c < columns.length; c += apart) {
      const room = Math.max(w * apart - 4, 30), half = Math.min(room, width(columns[c])) / 2, x = clamp(left + (c + 0.5) * w, left + half, whole - 4 - half);
      if (x - half < last + 4) continue;
      brush.fillText(fitted(columns[c], room), x, bottom + 15);
      last = x + half;
    }
    const rowAt = py => { let i = ys.length - 1; while (i >= 0 && ys[i] > py) i--; return py < bottom ? i : -1; };
    steer(canvas, {rows: shown, columns: () => columns.length,
      find: (px, py) => { const i = rowAt(py), c = Math.floor((px - left) / w); return i >= 0 && c >= 0 && c < columns.length ? [i, c] : null; },
      place: (i, c) => [left + (c + 0.5) * w, ys[i] + each / 2],
      tooltip: (i, c) => tooltip(...best[i][c], share), open: open && ((i, c) => open(...best[i][c]))});
    return canvas;
  });
}

// Bars of parts, one on the other: lying while they are few, else standing, ranks beside ranks. A row without values
// was not recorded: it is hatched, and no colour runs across it.
function stacked(id, {rows, kinds, end, title}) {
  const hidden = drawings.get(by(id))?.hidden || new Set();
  const seen = () => kinds.filter(kind => !hidden.has(kind.name));
  const sum = row => seen().reduce((total, kind) => total + (kind.values[row] || 0), 0);
  const missing = row => kinds.every(kind => kind.values[row] === null);
  const tooltip = row => rows[row] + (missing(row) ? ": not recorded" : ": " + ms(sum(row)) + "\n"
    + seen().filter(kind => kind.values[row]).map(kind => cut(kind.name) + " " + ms(kind.values[row])).join("\n"));
  const paths = (svg, make, gaps) => {
    for (const kind of kinds) if (!hidden.has(kind.name)) svg.append(node("path", {d: make(kind), style: "fill:" + paint(kind.fill), "data-kind": kind.name}));
    svg.append(node("path", {d: gaps, style: "fill:" + paint(["soft", "page"]), class: "missing"}));
  };
  const below = (kind, row) => { let at = 0; for (const k of seen()) { if (k === kind) break; at += k.values[row] || 0; } return at; };
  function lying(whole) {
    const left = margin(rows, whole), right = whole - 12, each = clamp(Math.floor(TALLEST / rows.length), 8, ROW), bottom = rows.length * each + 2;
    const svg = node("svg", {viewBox: "0 0 " + whole + " " + (bottom + 38)});
    const x = axisBelow(svg, {left, right, top: 0, bottom, low: 0, high: end, title});
    paths(svg, kind => rows.map((_, r) => kind.values[r] ? area(x(below(kind, r)), r * each + 1, x(kind.values[r]) - left, each - 2) : "").join(""),
      rows.map((_, r) => missing(r) ? area(left, r * each + 1, right - left, each - 2) : "").join(""));
    const every = Math.ceil(LEAST_LABEL / each);
    for (let r = 0; r < rows.length; r += every) svg.append(node("text", {x: left - 6, y: (r + 0.5) * each + 4, "text-anchor": "end"}, fitted(rows[r], left - 8)));
    steer(svg, {rows: rows.length, columns: () => 1, find: (px, py) => py < bottom && px > left - 200 ? [clamp(Math.floor(py / each), 0, rows.length - 1), 0] : null,
      place: row => [left + 20, (row + 0.5) * each], tooltip});
    return svg;
  }
  function standing(whole) {
    const left = 56, right = whole - 8, top = 6, bottom = 340, svg = node("svg", {viewBox: "0 0 " + whole + " " + (bottom + 24)});
    const y = axisLeft(svg, {left, right, top, bottom, low: 0, high: end});
    const share = Math.max(1, Math.ceil(rows.length / (right - left))), shown = Math.ceil(rows.length / share), w = (right - left) / shown;
    const longest = i => { let best = i * share; for (let r = best; r < Math.min((i + 1) * share, rows.length); r++) if (!missing(r) && (missing(best) || sum(r) > sum(best))) best = r; return best; };
    const bars = Array.from({length: shown}, (_, i) => longest(i)), gap = w > 4 ? 1 : 0;
    paths(svg, kind => bars.map((r, i) => kind.values[r] ? area(left + i * w, y(below(kind, r) + kind.values[r]), w - gap, y(0) - y(kind.values[r])) : "").join(""),
      bars.map((r, i) => missing(r) ? area(left + i * w, top, w - gap, bottom - top) : "").join(""));
    const apart = Math.ceil((widest(rows) + 16) / w);
    let last = -Infinity;
    for (let i = 0; i < shown; i += apart) {
      const half = width(rows[bars[i]]) / 2, x = clamp(left + (i + 0.5) * w, left + half, right - half);
      if (x - half < last + 4) continue;
      svg.append(node("text", {x, y: bottom + 16, "text-anchor": "middle"}, rows[bars[i]]));
      last = x + half;
    }
    steer(svg, {rows: 1, columns: () => shown, find: px => px >= left && px < right ? [0, clamp(Math.floor((px - left) / w), 0, shown - 1)] : null,
      place: (_, i) => [left + (i + 0.5) * w, top + 40], tooltip: (_, i) => tooltip(bars[i])});
    return svg;
  }
  draw(id, whole => rows.length <= FEW_BARS ? lying(whole) : standing(whole));
  drawings.get(by(id)).hidden = hidden;
  legend(id, kinds.map(kind => [kind.name, kind.fill]), hidden, () => redraw(by(id)));
}

// Bars to both sides of 0 with the interval of each, the threshold as broken lines, and the figure at the end.
function bars(id, {rows, scale, title}) {
  draw(id, whole => {
    const names = rows.map(row => cut(row.what)), left = margin(names, whole), figures = rows.map(row => row.words);
    const room = Math.min(Math.max(...figures.map(width), 0) + 14, 0.36 * whole), right = whole - room, each = ROW + 2, bottom = rows.length * each + 2;
    const svg = node("svg", {viewBox: "0 0 " + whole + " " + (bottom + 38)}), x = axisBelow(svg, {left, right, top: 0, bottom, low: scale.low, high: scale.high, title});
    for (const limit of [scale.pale, -scale.pale]) if (scale.pale && limit >= scale.low) svg.append(node("line", {class: "limit", x1: x(limit), x2: x(limit), y1: 0, y2: bottom}));
    rows.forEach((row, r) => {
      const from = x(Math.min(0, row.value)), to = x(Math.max(0, row.value)), y = r * each + 4, middle = y + (each - 8) / 2;
      svg.append(node("rect", {x: from, y, width: Math.max(to - from, 1), height: each - 8, style: "fill:" + paint(row.fill) + (row.faint ? ";opacity:.3" : "") + (row.fill.length > 1 ? ";stroke:var(--" + row.fill[0] + ")" : "")}));
      if (row.low !== undefined) svg.append(node("path", {d: "M" + x(row.low) + " " + middle + "H" + x(row.high) + "M" + x(row.low) + " " + (middle - 4) + "v8M" + x(row.high) + " " + (middle - 4) + "v8",
        style: "fill:none;stroke:var(--ink);stroke-width:1.3"}));
      svg.append(node("text", {x: left - 6, y: middle + 4, "text-anchor": "end"}, fitted(names[r], left - 8)),
        node("text", {x: right + 6, y: middle + 4}, fitted(row.words, room - 8)));
    });
    steer(svg, {rows: rows.length, columns: () => 1, find: (_, py) => py < bottom ? [clamp(Math.floor(py / each), 0, rows.length - 1), 0] : null,
      place: row => [clamp(x(rows[row].value), left, right), (row + 0.5) * each], tooltip: row => rows[row].tooltip});
    return svg;
  });
}

// Lines over `x`; a value that is not known interrupts its line.
function lines(id, {x: xs, series, scale, title, names}) {
  draw(id, whole => {
    const left = 64, right = whole - 24, top = 8, bottom = 260, svg = node("svg", {viewBox: "0 0 " + whole + " " + (bottom + 38)});
    const low = xs[0], high = xs[xs.length - 1] > low ? xs[xs.length - 1] : low + 1, x = axisBelow(svg, {left, right, top, bottom, low, high, title});
    const y = axisLeft(svg, {left, right, top, bottom, low: scale.low, high: scale.high});
    for (const one of series) {
      let path = "", pen_down = false;
      one.y.forEach((v, i) => { if (v === null) pen_down = false; else { path += (pen_down ? "L" : "M") + x((one.x || xs)[i]).toFixed(1) + " " + y(v).toFixed(1); pen_down = true; } });
      if (!one.dots) svg.append(node("path", {d: path, style: "fill:none;stroke:var(--" + one.fill[0] + ");stroke-width:" + (one.width || 1.5) + (one.fill.length > 1 ? ";stroke-dasharray:6 3" : "")}));
      if (one.dots || xs.length <= FEW_BARS) one.y.forEach((v, i) => { if (v !== null && !one.bare) svg.append(node("circle", {cx: x((one.x || xs)[i]), cy: y(v), r: one.dots ? 3.5 : 2, style: "fill:var(--" + one.fill[0] + ")"})); });
    }
    const nearest = px => { let best = 0; xs.forEach((v, i) => { if (Math.abs(x(v) - px) < Math.abs(x(xs[best]) - px)) best = i; }); return best; };
    const tooltip = i => names[i] + "\n" + series.filter(one => one.name && one.y[i] !== null && one.y[i] !== undefined).slice(0, 12).map(one => cut(one.name) + " " + ms(one.y[i])).join("\n");
    steer(svg, {rows: 1, columns: () => xs.length, find: px => px >= left - 5 ? [0, nearest(px)] : null, place: (_, i) => [x(xs[i]), top + 20], tooltip: (_, i) => tooltip(i)});
    return svg;
  });
}

// The script of the page names what it draws; it comes after this one.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
addEventListener("beforeprint", () => {
  root.classList.add("paper");
  for (const part of document.querySelectorAll("details")) part.open = true;
  redrawAll();
});
addEventListener("afterprint", () => { root.classList.remove("paper"); redrawAll(); });
