// Pages over ranks: the map of the mesh, ranks by step, the parts of the step, the descent, one time line.
const MOST_ROWS = 600, MOST_NUMBERED = 512, WIDEST_MAP = 256, BESIDE = 8;
const marked = new Set(data.named || []);
const axes = Object.keys(data.places);
const state = {what: 0, fold: null, group: null, folded: new Set(), chosen: null, view: null};
const everyRank = data.ranks.map((_, i) => i);
const hostOf = i => data.hosts.of[i] < 0 ? null : data.hosts.names[data.hosts.of[i]];
const placeOf = i => axes.map(axis => axis + " " + (data.places[axis][i] < 0 ? "?" : data.places[axis][i])).join(", ");
const nameOf = i => "rank " + data.ranks[i] + (hostOf(i) === null ? "" : " on " + cut(hostOf(i))) + (axes.length ? " (" + placeOf(i) + ")" : "");
const compare = (a, b) => { for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i] < b[i] ? -1 : 1; return 0; };
const product = sizes => sizes.reduce((all, n) => all * n, 1);

// The colour and the weight of a value: what weighs more is shown where several share a cell.
function valued(value, what) {
  if (value === null || value === undefined) return null;
  return {weight: value - what.scale.low, colour: () => mix(rgb("panel"), rgb(value < 0 ? "less" : what.colour), strength(value, what.scale))};
}

// ---- the map of the mesh
const STATES = {"culprit": ["culprit"], "waits": ["victim"], "does not wait": ["panel"], "no dump": ["soft", "page"], "read": ["panel"], "no trace": ["soft", "page"]};
const HEAVY = ["read", "does not wait", "no trace", "no dump", "waits", "culprit"];
function ofRank(i) {
  if (!data.states) return valued(data.what[state.what].means[i], data.what[state.what]);
  const of = data.states[i];
  return STATES[of].length > 1 ? null : {weight: HEAVY.indexOf(of), colour: () => rgb(STATES[of][0])};
}
function aboutRank(i) {
  if (data.states) return data.states[i] + (data.done?.[i] ? "\ncompleted " + cut(data.done[i]) : "");
  const what = data.what[state.what], v = what.means[i];
  return v === null ? "no trace" : what.name + ": " + ms(v) + " a step";
}

// Rows and columns of the map: outer axes downwards, inner ones to the right, as near to a square as they go.
function layout() {
  const shown = axes.filter(axis => !state.folded.has(axis)), sizes = shown.map(a => new Set(data.places[a]).size);
  let split = 0, best = Infinity;
  for (let i = 0; i <= shown.length; i++) {
    const uneven = Math.abs(Math.log(product(sizes.slice(0, i)) / product(sizes.slice(i))));
    if (uneven < best) { best = uneven; split = i; }
  }
  const label = (key, from, to) => shown.slice(from, to).map((a, i) => a + " " + (key[from + i] < 0 ? "?" : key[from + i])).join(", ");
  const cells = new Map();
  for (const i of everyRank) {
    const key = axes.length ? shown.map(a => data.places[a][i]) : [data.ranks[i]];
    const name = key.join();
    if (!cells.has(name)) cells.set(name, {key, members: []});
    cells.get(name).members.push(i);
  }
  const sorted = [...cells.values()].sort((a, b) => compare(a.key, b.key));
  const unique = (from, to) => [...new Map(sorted.map(cell => [cell.key.slice(from, to).join(), cell.key])).values()].sort((a, b) => compare(a.slice(from, to), b.slice(from, to)));
  const rowKeys = unique(0, split), columnKeys = unique(split, shown.length);
  if (!axes.length || rowKeys.length > WIDEST_MAP || columnKeys.length > WIDEST_MAP) {
    const w = Math.ceil(Math.sqrt(sorted.length)), h = Math.ceil(sorted.length / w);
    return {rows: Array.from({length: h}, (_, r) => "from " + (axes.length ? label(sorted[r * w].key, 0, shown.length) : "rank " + data.ranks[sorted[r * w].members[0]])),
      columns: Array.from({length: w}, (_, c) => "+" + c), at: (r, c) => sorted[r * w + c]?.members || [], gapAfter: () => false};
  }
  const at = new Map(sorted.map(cell => [cell.key.join(), cell.members]));
  return {rows: rowKeys.map(key => label(key, 0, split) || "all"), columns: columnKeys.map(key => label(key, split, shown.length) || "all"),
    at: (r, c) => at.get([...rowKeys[r].slice(0, split), ...columnKeys[c].slice(split)].join()) || [],
    gapAfter: r => split > 1 && r + 1 < rowKeys.length && rowKeys[r][0] !== rowKeys[r + 1][0]};
}
function drawMesh() {
  const map = layout();
  const heaviest = members => {
    let best = members[0], weight = -Infinity;
    for (const i of members) { const one = ofRank(i); if (one && one.weight > weight) { weight = one.weight; best = i; } }
    return best;
  };
  const head = map.rows.map((_, r) => map.columns.map((_, c) => heaviest(map.at(r, c))));
  grid("mesh", {rows: map.rows, columns: map.columns, gapAfter: map.gapAfter, rowHeight: 26,
    cell: (r, c) => head[r][c] === undefined ? undefined : ofRank(head[r][c]),
    outlined: (r, c) => map.at(r, c).some(i => marked.has(data.ranks[i]) || i === state.chosen),
    number: (r, c) => map.at(r, c).length === 1 && data.ranks.length <= MOST_NUMBERED ? String(data.ranks[head[r][c]]) : "",
    tooltip: (r, c) => { const members = map.at(r, c), i = head[r][c];
      return i === undefined ? "no rank" : (members.length > 1 ? many(members.length, "rank") + ", strongest: " : "") + nameOf(i) + "\n" + aboutRank(i); },
    open: (r, c) => { if (head[r][c] !== undefined) choose(head[r][c]); }});
}
function foldButtons() {
  const box = by("axes");
  box.replaceChildren(...axes.map(axis => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = axis + " " + new Set(data.places[axis]).size;
    button.setAttribute("aria-pressed", !state.folded.has(axis));
    button.addEventListener("click", () => {
      state.folded.has(axis) ? state.folded.delete(axis) : state.folded.add(axis);
      button.setAttribute("aria-pressed", !state.folded.has(axis));
      drawMesh();
    });
    return button;
  }));
}
function choose(i) {
  state.chosen = i;
  if (by("chosen")) by("chosen").textContent = nameOf(i) + ": " + aboutRank(i).replace("\n", ", ");
  drawMesh();
  if (data.timeline) drawTimeline();
}

// The scale of the colours, with the threshold at which they become strong.
function drawScale() {
  const what = data.what[state.what], {low, high, pale} = what.scale, parts = 60;
  draw("scale", whole => {
    const wide = Math.min(whole - 24, 420), svg = node("svg", {viewBox: "0 0 " + whole + " 34"}), x = v => 20 + (v - low) / (high - low || 1) * (wide - 40);
    for (let i = 0; i < parts; i++) {
      const v = low + (i + 0.5) / parts * (high - low);
      svg.append(node("rect", {x: x(low) + i * (wide - 40) / parts, width: (wide - 40) / parts + 0.5, height: 12, style: "fill:" + css(valued(v, what).colour())}));
    }
    const named = [low, ...(low < 0 ? [0] : []), ...(pale && pale < high ? [pale] : []), high];
    let last = -Infinity;
    for (const v of named) if (x(v) - last > 30 || v === high) {
      if (v === high && x(v) - last <= 30) svg.lastChild.remove();
      svg.append(node("text", {x: x(v), y: 28, "text-anchor": "middle"}, String(Math.round(v))));
      last = x(v);
    }
    svg.append(node("text", {x: wide - 12, y: 11}, "ms"));
    return svg;
  });
}

// ---- ranks by step, folded
function keysOf(fold) {
  if (fold === "rank") return data.ranks.map(r => [r]);
  if (fold === "host") return everyRank.map(i => [hostOf(i) === null ? "host unknown" : hostOf(i)]);
  return everyRank.map(i => fold.split(" × ").map(axis => data.places[axis][i]));
}
function labelOf(fold, key) {
  if (fold === "rank") return "rank " + key[0];
  if (fold === "host") return cut(key[0]);
  return fold.split(" × ").map((axis, i) => axis + " " + (key[i] < 0 ? "?" : key[i])).join(", ");
}
function groups(fold, within) {
  const keys = keysOf(fold), found = new Map();
  for (const i of within) {
    const name = keys[i].join("\u0000");
    if (!found.has(name)) found.set(name, {key: keys[i], members: []});
    found.get(name).members.push(i);
  }
  const sorted = [...found.values()].sort((a, b) => compare(a.key, b.key));
  for (const g of sorted) g.label = labelOf(fold, g.key) + (g.members.some(i => marked.has(data.ranks[i])) ? " ◀" : "");
  return sorted;
}
function folds() {
  const pairs = axes.flatMap((a, i) => axes.slice(i + 1).map(b => a + " × " + b));
  return ["rank", ...(data.hosts.names.length > 1 ? ["host"] : []), ...pairs, ...axes];
}
function firstFold() {
  if (data.ranks.length <= MOST_ROWS) return "rank";
  const sizes = folds().map(f => [f, new Set(keysOf(f).map(k => k.join("\u0000"))).size]).filter(s => s[1] <= MOST_ROWS);
  return sizes.length ? sizes.sort((a, b) => b[1] - a[1])[0][0] : "rank";
}
const within = () => state.group ? state.group.members : everyRank;
function drawSteps() {
  const rows = groups(state.fold, within()), what = data.what[state.what], unit = what.unit;
  const largest = rows.map(g => data.steps.map((_, s) => {
    let best = null;
    for (const i of g.members) { const v = what.cells[i][s]; if (v !== null && (best === null || v > best)) best = v; }
    return best === null ? null : best * unit;
  }));
  grid("steps", {rows: rows.map(g => g.label), columns: data.steps.map(s => "step " + s),
    cell: (r, c) => valued(largest[r][c], what),
    tooltip: (r, c, share) => rows[r].label + ", step " + data.steps[c] + ": " + (largest[r][c] === null ? "not recorded" : ms(largest[r][c])) + "\n"
      + (share > 1 ? "the most of " + share + " rows" : many(rows[r].members.length, "rank")),
    open: r => { if (state.fold !== "rank") { state.group = rows[r]; state.fold = by("fold").value = "rank"; drawFolded(); } else choose(rows[r].members[0]); }});
  by("shown").textContent = many(rows.length, "row") + ", " + many(within().length, "rank");
  by("back").hidden = !state.group;
}
function mean(values, members) {
  let sum = 0, count = 0;
  for (const i of members) if (values[i] !== null) { sum += values[i]; count++; }
  return count ? sum / count : null;
}
function drawParts() {
  const rows = groups(state.fold, within());
  stacked("parts", {rows: rows.map(g => g.label), end: data.whole, title: "ms a step",
    kinds: data.parts.map(kind => ({name: kind.name, fill: kind.fill, values: rows.map(g => mean(kind.values, g.members))}))});
}
const drawFolded = () => { drawSteps(); drawParts(); };

// ---- the descent: boxes of one scale, with the threshold
function drawLevels() {
  document.querySelectorAll("#levels .chart").forEach((box, n) => {
    const level = data.levels[n], {low, high, pale} = data.level_scale;
    draw(box, whole => {
      const left = 52, right = whole - 4, top = 6, bottom = 200, svg = node("svg", {viewBox: "0 0 " + whole + " 224"});
      const y = axisLeft(svg, {left, right, top, bottom, low, high}), w = (right - left) / level.indices.length;
      for (const limit of [pale, -pale]) if (limit >= low) svg.append(node("line", {class: "limit", x1: left, x2: right, y1: y(limit), y2: y(limit)}));
      const apart = Math.ceil(44 / w), at = level.indices.indexOf(level.chosen);
      level.indices.forEach((index, i) => {
        const [least, lower, median, upper, most] = level.spread[i], x = left + (i + 0.5) * w, half = Math.min(w * 0.3, 30);
        const tone = index === level.chosen ? "culprit" : "soft";
        svg.append(node("path", {d: "M" + x + " " + y(least) + "V" + y(most) + area(x - half, y(upper), 2 * half, Math.max(y(lower) - y(upper), 1)) + "M" + (x - half) + " " + y(median) + "h" + 2 * half,
          style: "fill:var(--" + tone + ");fill-opacity:.3;stroke:var(--" + tone + ");stroke-width:1.5"}));
        if (i === at || i % apart === 0 && (at < 0 || Math.abs(i - at) >= apart)) svg.append(node("text", {x, y: bottom + 16, "text-anchor": "middle"}, level.axis + " " + index));
      });
      steer(svg, {rows: 1, columns: () => level.indices.length, find: px => px >= left ? [0, clamp(Math.floor((px - left) / w), 0, level.indices.length - 1)] : null,
        place: (_, i) => [left + (i + 0.5) * w, top + 20],
        tooltip: (_, i) => level.axis + " " + level.indices[i] + ": median " + ms(level.spread[i][2]) + ", " + ms(level.spread[i][0]) + " to " + ms(level.spread[i][4])});
      return svg;
    });
  });
}

// ---- one step of a rank beside its peers
function besideOf(rank) {
  const held = data.timeline.ranks, at = new Map(data.ranks.map((r, i) => [r, i])), me = at.get(rank);
  const apart = r => axes.filter(axis => data.places[axis][at.get(r)] !== data.places[axis][me]).length;
  const stage = r => !data.places.pp || data.places.pp[at.get(r)] === data.places.pp[me];
  const peers = held.filter(r => r !== rank && stage(r)).sort((a, b) => apart(a) - apart(b) || a - b);
  return [rank, ...peers].slice(0, BESIDE);
}
function drawTimeline() {
  const line = data.timeline, first = line.ranks.slice(0, line.shown), wanted = state.chosen === null ? null : data.ranks[state.chosen];
  const held = wanted === null || line.ranks.includes(wanted), ranks = wanted === null || !held ? first : wanted === first[0] ? first : besideOf(wanted);
  const label = rank => "rank " + rank + (marked.has(rank) ? " ◀" : "");
  by("beside").textContent = (held ? "" : "The page holds no time line of rank " + wanted + ". ") + "Rank " + ranks[0] + " beside " + (ranks.length > 1 ? "ranks of its stage." : "no other rank of its stage.");
  state.view ||= [line.begin, line.end];
  const kinds = [...new Set(line.rows.map(row => row.kind))].sort((a, b) => Object.keys(line.fills).indexOf(a) - Object.keys(line.fills).indexOf(b));
  const hidden = drawings.get(by("timeline"))?.hidden || new Set();
  draw("timeline", whole => {
    const names = ranks.map(label), left = margin(names, whole), right = whole - 12, each = 34, bottom = ranks.length * each + 2, [low, high] = state.view;
    const svg = node("svg", {viewBox: "0 0 " + whole + " " + (bottom + 38)}), x = axisBelow(svg, {left, right, top: 0, bottom, low, high, title: "ms since the step began"});
    const stretches = ranks.map(() => []);
    for (const row of line.rows) {
      const r = ranks.indexOf(row.rank);
      if (r < 0 || hidden.has(row.kind)) continue;
      let path = "";
      row.begin.forEach((begin, i) => {
        const end = begin + row.length[i];
        if (end < low || begin > high) return;
        stretches[r].push([begin, end, row.kind]);
        const from = Math.max(x(begin), left), to = Math.min(x(end), right);
        path += area(from, r * each + 4, Math.max(to - from, 0.3), each - 8);
      });
      svg.append(node("path", {d: path, style: "fill:" + paint(line.fills[row.kind]), "data-kind": row.kind}));
    }
    for (const found of stretches) found.sort((a, b) => a[0] - b[0]);
    names.forEach((name, r) => svg.append(node("text", {x: left - 6, y: (r + 0.5) * each + 4, "text-anchor": "end"}, fitted(name, left - 8))));
    let pressed = null;
    const time = event => low + (event.clientX - svg.getBoundingClientRect().left - left) / (right - left) * (high - low);
    svg.addEventListener("pointerdown", event => { pressed = time(event); });
    svg.addEventListener("pointerup", event => {
      const [a, b] = [pressed ?? low, time(event)].sort((p, q) => p - q);
      pressed = null;
      if (b - a > (high - low) / 50) look(a, b);
    });
    steer(svg, {rows: ranks.length, columns: r => stretches[r].length,
      find: (px, py) => { const r = Math.floor(py / each), t = low + (px - left) / (right - left) * (high - low);
        const i = r >= 0 && r < ranks.length ? stretches[r].findIndex(([b, e]) => b <= t && t < e) : -1; return i < 0 ? null : [r, i]; },
      place: (r, i) => [clamp(x((stretches[r][i]?.[0] ?? low)), left, right), (r + 0.5) * each],
      tooltip: (r, i) => { const s = stretches[r][i]; return names[r] + (s ? ": " + cut(s[2]) + "\n" + ms(s[1] - s[0]) + ", from " + ms(s[0]) : ""); }});
    return svg;
  });
  drawings.get(by("timeline")).hidden = hidden;
  legend("timeline", kinds.map(kind => [kind, line.fills[kind]]), hidden, () => redraw(by("timeline")));
}
function look(low, high) {
  const {begin, end} = data.timeline, long = clamp(high - low, (end - begin) / 2000, end - begin), from = clamp(low, begin, end - long);
  state.view = [from, from + long];
  drawTimeline();
}
function lookButtons() {
  const move = (shift, factor) => () => {
    const [low, high] = state.view, middle = (low + high) / 2 + shift * (high - low), half = (high - low) / 2 * factor;
    look(middle - half, middle + half);
  };
  for (const [id, act] of [["earlier", move(-0.5, 1)], ["later", move(0.5, 1)], ["closer", move(0, 0.5)], ["wider", move(0, 2)],
    ["whole", () => look(data.timeline.begin, data.timeline.end)]]) by(id).addEventListener("click", act);
}

// ---- what this page has
function fill(select, names, chosen, changed) {
  names.forEach(([value, name]) => select.add(new Option(cut(name), value, false, value === chosen)));
  select.addEventListener("change", () => changed(select.value));
}
const drawWhat = () => { drawMesh(); drawScale(); drawSteps(); };
if (by("axes")) foldButtons();
if (by("mesh") && !data.what) {
  drawMesh();
  legend("mesh", Object.keys(STATES).filter(s => data.states.includes(s)).map(s => [s, STATES[s]]));
}
if (data.what) {
  state.fold = firstFold();
  fill(by("what"), data.what.map((w, i) => [String(i), w.name]), "0", value => { state.what = +value; drawWhat(); });
  fill(by("fold"), folds().map(f => [f, f]), state.fold, value => { state.fold = value; drawFolded(); });
  by("back").addEventListener("click", () => { state.group = null; state.fold = by("fold").value = firstFold(); drawFolded(); });
  for (const form of document.querySelectorAll("form.controls")) form.addEventListener("submit", event => event.preventDefault());
  drawWhat();
  drawParts();
}
if (data.levels?.length) drawLevels();
if (data.timeline) { lookButtons(); drawTimeline(); }
root.dataset.drawn = "true";
