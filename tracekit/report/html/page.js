"use strict";
// Draws what the data block holds. Texts reach the charts through `shown`, because Plotly reads some tags in them.
const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const marked = new Set(data.named || []);
const state = {what: null, fold: null, group: null, print: false};
const MANY_BARS = 60, MOST_ROWS = 600, LONGEST_NAME = 40, MOST_NUMBERED = 512;

const by = id => document.getElementById(id);
const shown = text => {
  const whole = String(text);
  const cut = whole.length > LONGEST_NAME ? whole.slice(0, LONGEST_NAME - 1) + "…" : whole;
  return cut.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
};

function theme() {
  const night = dark.matches && !state.print;
  return night
    ? {ink: "#e4e7eb", line: "#3a424a", middle: "#2a3036", low: "#5aa9f0", high: "#ff9d45", rest: "#8b96a1",
       own: ["#6ba4dc", "#59636d", "#8fd6c0", "#c9a227", "#39414a", "#aab4be"], axes: [["#ffb066", "#a06b38"], ["#d99bd0", "#83587d"], ["#8fd0a6", "#4a8060"],
              ["#e6d06a", "#8d7f3d"], ["#f08a8a", "#964f4f"], ["#6fd3d8", "#3c8387"], ["#b9a3f5", "#6a5b9c"]]}
    : {ink: "#1b1f24", line: "#d5dae0", middle: "#f2f2f2", low: "#1565a8", high: "#c85a00", rest: "#7a8590",
       own: ["#4c86bf", "#b4bcc5", "#5aa58e", "#c9a227", "#dde2e7", "#6b747d"], axes: [["#e07b1a", "#f3bf8a"], ["#a35a99", "#d7b3d2"], ["#3f8f5f", "#a8d3b8"],
              ["#b29a1e", "#e3d68e"], ["#c04848", "#e8b0b0"], ["#1f8f96", "#a3d6d9"], ["#6c55b8", "#c7bdea"]]};
}

function layout(extra) {
  const t = theme();
  const axis = {gridcolor: t.line, zerolinecolor: t.line, linecolor: t.line, automargin: true};
  const result = {paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: t.ink, family: "system-ui, sans-serif", size: 12},
    margin: {l: 10, r: 10, t: 10, b: 10}, hoverlabel: {align: "left"}, ...extra};
  result.xaxis = {...axis, ...extra.xaxis};
  result.yaxis = {...axis, ...extra.yaxis};
  return result;
}

const draw = (where, traces, extra) =>
  Plotly.react(where, traces, layout(extra), {displayModeBar: false, responsive: true});

// Names and colours above a chart, as text that wraps; a click hides or shows what has that name.
function legend(where, entries) {
  const chart = by(where);
  if (chart.previousElementSibling?.className !== "legend") chart.before(document.createElement("div"));
  const box = chart.previousElementSibling;
  box.className = "legend";
  box.replaceChildren(...entries.map(([name, colour], n) => {
    const entry = document.createElement("button"), patch = document.createElement("i");
    entry.type = "button";
    patch.style.background = colour;
    entry.append(patch, String(name).slice(0, LONGEST_NAME));
    entry.addEventListener("click", () => {
      const off = entry.classList.toggle("off");
      Plotly.restyle(where, {visible: !off}, [n]);
    });
    return entry;
  }));
}

// Rows of a fold: ranks with the same key, in the order of the key.
function keysOf(fold) {
  if (fold === "rank") return data.ranks.map(r => [r]);
  if (fold === "host") return data.hosts.map(h => [h === null ? "host unknown" : h]);
  return data.ranks.map((_, i) => fold.split(" × ").map(axis => data.places[axis][i]));
}

function label(fold, key) {
  if (fold === "rank") return "rank " + key[0];
  if (fold === "host") return shown(key[0]);
  return fold.split(" × ").map((axis, i) => axis + " " + (key[i] < 0 ? "?" : key[i])).join(", ");
}

function compare(a, b) {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i] < b[i] ? -1 : 1;
  return 0;
}

function groups(fold, within) {
  const keys = keysOf(fold), found = new Map();
  for (const i of within) {
    const name = keys[i].join("\u0000");
    if (!found.has(name)) found.set(name, {key: keys[i], members: []});
    found.get(name).members.push(i);
  }
  const sorted = [...found.values()].sort((a, b) => compare(a.key, b.key));
  for (const g of sorted) {
    const named = g.members.filter(i => marked.has(data.ranks[i])).length;
    g.label = label(fold, g.key) + (named ? " ◀" : "");
  }
  return sorted;
}

function folds() {
  const axes = Object.keys(data.places), hosts = new Set(data.hosts);
  const pairs = axes.flatMap((a, i) => axes.slice(i + 1).map(b => a + " × " + b));
  return ["rank", ...(hosts.size > 1 ? ["host"] : []), ...pairs, ...axes];
}

function firstFold() {
  const all = data.ranks.map((_, i) => i);
  const sizes = folds().map(f => [f, new Set(keysOf(f).map(k => k.join("\u0000"))).size]);
  const fit = sizes.filter(s => s[1] <= MOST_ROWS).sort((a, b) => b[1] - a[1]);
  return all.length <= MOST_ROWS || !fit.length ? "rank" : fit[0][0];
}

const within = () => state.group ? state.group.members : data.ranks.map((_, i) => i);

function largest(rows, members) {
  return data.steps.map((_, s) => {
    let best = null;
    for (const i of members) {
      const v = rows[i][s];
      if (v !== null && (best === null || v > best)) best = v;
    }
    return best;
  });
}

function height(rows, each, least, most) { return Math.min(Math.max(rows * each + 70, least), most); }

function drawMap() {
  const t = theme(), rows = groups(state.fold, within()), values = data.maps[state.what];
  const z = rows.map(g => largest(values, g.members));
  let end = 0, low = 0;
  for (const row of z) for (const v of row) if (v !== null) { end = Math.max(end, v); low = Math.min(low, v); }
  const reach = Math.max(end, -low, 1e-3);
  const scale = low < 0 ? [[0, t.low], [0.5, t.middle], [1, t.high]] : [[0, t.middle], [1, t.high]];
  draw("map", [{type: "heatmap", z, x: data.steps.map(s => "step " + s), y: rows.map(g => g.label),
    customdata: rows.map(g => data.steps.map(() => g.members.length)),
    colorscale: scale, zmin: low < 0 ? -reach : 0, zmax: reach, hoverongaps: false, xgap: rows.length > 200 ? 0 : 1,
    ygap: rows.length > 200 ? 0 : 1, colorbar: {title: {text: "ms"}, thickness: 12, outlinewidth: 0},
    hovertemplate: "%{y}, %{x}: %{z:.2f} ms<br>%{customdata} ranks<extra></extra>"}],
    {height: height(rows.length, 18, 180, 640),
     xaxis: {type: "category", showgrid: false}, yaxis: {type: "category", autorange: "reversed", showgrid: false}});
  by("shown").textContent = rows.length + " rows, " + within().length + " ranks";
  by("back").hidden = !state.group;
  by("map").removeAllListeners("plotly_click");
  by("map").on("plotly_click", event => open(rows[event.points[0].pointIndex[0]]));
}

function open(group) {
  if (state.fold === "rank" || !group) return;
  state.group = group;
  state.fold = "rank";
  by("fold").value = "rank";
  drawFolded();
}

function mean(values, members) {
  let sum = 0, count = 0;
  for (const i of members) if (values[i] !== null) { sum += values[i]; count++; }
  return count ? sum / count : null;
}

// Own time has two colours; each axis has a hue, strong for waits and pale for transfers.
function colours() {
  const t = theme(), kinds = Object.keys(data.parts);
  for (const row of data.timeline ? data.timeline.rows : []) if (!kinds.includes(row.kind)) kinds.push(row.kind);
  const axisOf = kind => kind.split(" on ")[1];
  const axes = [...new Set(kinds.map(axisOf).filter(Boolean))];
  const own = kinds.filter(kind => !axisOf(kind));
  return new Map(kinds.map(kind => [kind, axisOf(kind)
    ? t.axes[axes.indexOf(axisOf(kind)) % t.axes.length][kind.startsWith("waits") ? 0 : 1]
    : t.own[own.indexOf(kind) % t.own.length]]));
}

function drawParts() {
  const rows = groups(state.fold, within()), many = rows.length > MANY_BARS, colour = colours();
  const names = rows.map(g => g.label);
  const traces = Object.entries(data.parts).map(([kind, values]) => {
    const spent = rows.map(g => mean(values, g.members));
    return many
      ? {type: "scatter", mode: "lines", stackgroup: "step", name: kind, x: names, y: spent,
         line: {width: 0}, fillcolor: colour.get(kind), hovertemplate: "%{x}: %{y:.2f} ms<extra>" + kind + "</extra>"}
      : {type: "bar", orientation: "h", name: kind, x: spent, y: names,
         marker: {color: colour.get(kind)}, hovertemplate: "%{y}: %{x:.2f} ms<extra>" + kind + "</extra>"};
  });
  legend("parts", Object.keys(data.parts).map(kind => [kind, colour.get(kind)]));
  draw("parts", traces, many
    ? {height: 420, showlegend: false,
       xaxis: {type: "category", nticks: 12}, yaxis: {title: {text: "ms a step"}}}
    : {height: height(rows.length, 20, 240, 1400), barmode: "stack", showlegend: false,
       xaxis: {title: {text: "ms a step"}}, yaxis: {type: "category", autorange: "reversed"}});
}

function drawLevels() {
  const t = theme();
  const places = document.querySelectorAll("#levels .chart");
  data.levels.forEach((level, n) => {
    const colour = level.indices.map(i => i === level.chosen ? t.high : t.rest);
    const traces = level.indices.map((index, i) => {
      const [least, lower, median, upper, most] = level.spread[i];
      return {type: "box", x: [level.axis + " " + index], q1: [lower], median: [median], q3: [upper],
        lowerfence: [least], upperfence: [most], line: {color: colour[i], width: 1.5}, name: level.axis + " " + index};
    });
    draw(places[n], traces, {height: 240, showlegend: false,
      xaxis: {type: "category"}, yaxis: {title: {text: "ms"}, zeroline: true}});
  });
}

function drawTimeline() {
  const t = theme(), line = data.timeline, colour = colours();
  const name = rank => "rank " + rank + (marked.has(rank) ? " ◀" : "");
  const kinds = [...colour.keys()].filter(kind => line.rows.some(row => row.kind === kind));
  const traces = kinds.map(kind => {
    const rows = line.rows.filter(row => row.kind === kind);
    return {type: "bar", orientation: "h", name: kind, marker: {color: colour.get(kind), line: {width: 0}},
      base: rows.flatMap(row => row.begin), x: rows.flatMap(row => row.length),
      y: rows.flatMap(row => row.begin.map(() => name(row.rank))),
      hovertemplate: "%{y}, from %{base:.2f} ms: %{x:.2f} ms<extra>" + kind + "</extra>"};
  });
  legend("timeline", kinds.map(kind => [kind, colour.get(kind)]));
  draw("timeline", traces, {height: height(line.ranks.length, 34, 200, 520), barmode: "overlay", bargap: 0.25,
    showlegend: false, dragmode: "zoom",
    xaxis: {title: {text: "ms since the step began"}},
    yaxis: {type: "category", autorange: "reversed", fixedrange: true, categoryorder: "array",
            categoryarray: line.ranks.map(name), tickcolor: t.line}});
}

// Ranks as a field: outer axes downwards, inner ones to the right, split so that it is nearest to a square.
function field(mesh) {
  const axes = Object.keys(mesh.places), sizes = axes.map(a => new Set(mesh.places[a]).size);
  const count = list => list.reduce((product, n) => product * n, 1);
  let split = 0, best = Infinity;
  for (let i = 0; i <= axes.length; i++) {
    const uneven = Math.abs(Math.log(count(sizes.slice(0, i)) / count(sizes.slice(i))));
    if (uneven < best) { best = uneven; split = i; }
  }
  const keys = list => mesh.ranks.map((_, r) => list.map(a => mesh.places[a][r]));
  const name = list => key => list.map((a, i) => a + " " + key[i]).join(", ");
  if (axes.length) return [keys(axes.slice(0, split)), name(axes.slice(0, split)), keys(axes.slice(split)), name(axes.slice(split))];
  const width = Math.ceil(Math.sqrt(mesh.ranks.length)), place = f => mesh.ranks.map((_, i) => [f(i)]);
  return [place(i => Math.floor(i / width)), key => "from " + mesh.ranks[key[0] * width], place(i => i % width), key => "+" + key[0]];
}

function drawMesh() {
  const t = theme(), mesh = data.mesh, [rows, rowName, columns, columnName] = field(mesh);
  const ends = keys => [...new Map(keys.map(k => [k.join(), k])).values()].sort(compare);
  const ys = ends(rows), xs = ends(columns), few = mesh.ranks.length <= MOST_NUMBERED;
  const colours = {"culprit": t.high, "waits": t.low, "does not wait": t.rest, "no dump": t.middle};
  const states = Object.keys(colours).filter(s => mesh.states.includes(s));
  const empty = value => ys.map(() => xs.map(() => value));
  const z = empty(null), told = empty(""), numbers = empty("");
  const yAt = new Map(ys.map((k, i) => [k.join(), i])), xAt = new Map(xs.map((k, i) => [k.join(), i]));
  mesh.ranks.forEach((rank, i) => {
    const y = yAt.get(rows[i].join()), x = xAt.get(columns[i].join());
    z[y][x] = states.indexOf(mesh.states[i]);
    numbers[y][x] = String(rank);
    told[y][x] = "rank " + rank + (mesh.hosts[i] === null ? "" : " on " + shown(mesh.hosts[i])) + ": " + mesh.states[i]
      + (mesh.done[i] ? "<br>completed " + shown(mesh.done[i]) : "");
  });
  const scale = states.flatMap((s, i) => [[i / states.length, colours[s]], [(i + 1) / states.length, colours[s]]]);
  const gap = ys.length > 64 ? 0 : 2;
  draw("mesh", [{type: "heatmap", z, customdata: told, text: numbers, texttemplate: few ? "%{text}" : "", x: xs.map(columnName),
    y: ys.map(rowName), colorscale: scale, zmin: -0.5, zmax: states.length - 0.5, showscale: false, xgap: gap, ygap: gap,
    hovertemplate: "%{customdata}<br>%{y}, %{x}<extra></extra>"}],
    {height: height(ys.length, 30, 160, 640), xaxis: {type: "category", showgrid: false},
     yaxis: {type: "category", autorange: "reversed", showgrid: false}});
  legend("mesh", states.map(s => [s, colours[s]]));
  for (const entry of by("mesh").previousElementSibling.children) entry.disabled = true;
}

// What each question would save, ms a step; the line reaches over its interval.
function drawSaved() {
  const t = theme(), rows = data.saved;
  draw("saved", [{type: "bar", orientation: "h", x: rows.map(r => r.lost), y: rows.map(r => shown(r.question)),
    marker: {color: rows.map(r => r.proven ? t.high : t.rest)},
    error_x: {type: "data", symmetric: false, array: rows.map(r => r.high - r.lost), arrayminus: rows.map(r => r.lost - r.low),
              color: t.ink, thickness: 1.2},
    hovertemplate: "%{y}: %{x:.2f} ms<extra></extra>"}],
    {height: height(rows.length, 30, 160, 1400), showlegend: false, xaxis: {title: {text: "ms a step"}},
     yaxis: {type: "category", autorange: "reversed"}});
}

// What takes longer (to the right) or shorter in the second run, ms a step.
function drawChanges() {
  const t = theme();
  const colour = r => !r.proven ? t.rest : r.change > 0 ? t.high : t.low;
  for (const [kind, rows] of Object.entries(data.changes)) draw(kind, [{type: "bar", orientation: "h",
    x: rows.map(r => r.change), y: rows.map((_, i) => i), marker: {color: rows.map(colour)},
    customdata: rows.map(r => [shown(r.what), r.before, r.after]),
    hovertemplate: "%{customdata[0]}: %{customdata[1]:.2f} → %{customdata[2]:.2f} ms<extra></extra>"}],
    {height: height(rows.length, 24, 150, 700), showlegend: false, bargap: 0.3, xaxis: {title: {text: "change, ms a step"}, zeroline: true},
     yaxis: {autorange: "reversed", tickmode: "array", tickvals: rows.map((_, i) => i), ticktext: rows.map(r => shown(r.what)), showgrid: false, zeroline: false}});
}

// The step, its parts and ranks over the hours of the recording.
function drawTrend() {
  const t = theme(), d = data.trend, x = d.hours, low = Math.min(...d.step), high = Math.max(...d.step);
  const hours = {title: {text: "hours after the first " + d.unit}}, told = "%{text}: %{y:.2f} ms<extra></extra>";
  const lines = d.levels.map(l => ({type: "scatter", mode: "lines", x: [x[l.from], x[l.to]], y: [l.ms, l.ms],
    line: {color: t.high, width: 2}, hovertemplate: "level %{y:.2f} ms<extra></extra>"}));
  if (d.drift !== null) {
    const middle = [...d.step].sort((a, b) => a - b)[d.step.length >> 1];
    lines.push({type: "scatter", mode: "lines", x: [x[0], x[x.length - 1]], y: [middle - d.drift / 2, middle + d.drift / 2],
      line: {color: t.high, width: 2}, hoverinfo: "skip"});
  }
  draw("trend-step", [{type: "scatter", mode: "markers", x, y: d.step, text: d.names, marker: {color: t.low, size: 7},
    hovertemplate: told}, ...lines], {height: 300, showlegend: false, xaxis: hours,
    yaxis: {title: {text: "ms a step"}, range: [low - 0.2 * (high - low) - 0.02 * high, high + 0.2 * (high - low) + 0.02 * high]}});
  const hues = [...t.own, ...t.axes.flat()], parts = Object.entries(d.parts);
  draw("trend-parts", parts.map(([name, y], i) => ({type: "scatter", mode: "lines+markers", x, y, name: shown(name), text: d.names,
    line: {color: hues[i % hues.length]}, hovertemplate: told})), {height: 320, showlegend: false, xaxis: hours, yaxis: {title: {text: "ms a step"}}});
  legend("trend-parts", parts.map(([name], i) => [name, hues[i % hues.length]]));
  if (by("trend-ranks")) draw("trend-ranks", d.ranks.map(r => ({type: "scatter", mode: "lines", x, y: r.beyond, text: d.names,
    line: {color: r.slower ? t.high : t.rest, width: r.slower ? 2.5 : 1}, opacity: r.slower ? 1 : 0.5,
    hovertemplate: "rank " + r.rank + ", " + told})).reverse(), {height: 320, showlegend: false, xaxis: hours,
    yaxis: {title: {text: "ms beyond the peers"}, zeroline: true}});
}

function drawFolded() { drawMap(); drawParts(); }

function drawAll() {
  if (data.maps) drawFolded();
  if (data.levels) drawLevels();
  if (data.timeline) drawTimeline();
  if (data.mesh) drawMesh();
  if (data.saved) drawSaved();
  if (data.changes) drawChanges();
  if (data.trend) drawTrend();
}

function fill(select, names, chosen, changed) {
  for (const name of names) select.add(new Option(name, name, false, name === chosen));
  select.addEventListener("change", () => changed(select.value));
}

function control() {
  state.what = Object.keys(data.maps)[0];
  state.fold = firstFold();
  fill(by("what"), Object.keys(data.maps), state.what, value => { state.what = value; drawMap(); });
  fill(by("fold"), folds(), state.fold, value => { state.fold = value; drawFolded(); });
  by("back").addEventListener("click", () => {
    state.group = null;
    state.fold = by("fold").value = firstFold();
    drawFolded();
  });
  by("controls").hidden = false;
  by("controls").addEventListener("submit", event => event.preventDefault());
}

if (data.maps) control();
drawAll();
dark.addEventListener("change", drawAll);
addEventListener("beforeprint", () => {
  state.print = true;
  for (const part of document.querySelectorAll("details")) part.open = true;
  drawAll();
});
addEventListener("afterprint", () => { state.print = false; drawAll(); });
document.documentElement.dataset.drawn = "true";
