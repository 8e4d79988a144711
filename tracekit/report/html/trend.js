// The page of trend: the step, its parts and ranks over the time of the recording.
const {trend} = data, {title} = trend;
const over = (id, series, scale) => lines(id, {x: trend.times, series, scale, title, names: trend.names});
const levels = trend.levels.map(l => ({y: [l.ms, l.ms], x: [trend.times[l.from], trend.times[l.to]], fill: ["ink"], width: 2, bare: true}));
if (trend.drift) levels.push({y: trend.drift, x: [trend.times[0], trend.times[trend.times.length - 1]], fill: ["ink"], width: 2, bare: true});
over("trend-step", [...levels, {name: "step", y: trend.step, fill: ["soft"], dots: true}], trend.scales.step);
over("trend-parts", trend.parts.map(part => ({name: part.name, y: part.ms, fill: part.fill})), trend.scales.parts);
legend("trend-parts", trend.parts.map(part => [part.name, part.fill]));
if (by("trend-ranks")) {
  over("trend-ranks", trend.ranks.map(r => ({name: "rank " + r.rank, y: r.beyond, fill: [r.slower ? "culprit" : "soft"], width: r.slower ? 2.5 : 0.8})).reverse(), trend.scales.ranks);
  legend("trend-ranks", [["gets slower than its peers", ["culprit"]], ["does not", ["soft"]]]);
}
root.dataset.drawn = "true";
