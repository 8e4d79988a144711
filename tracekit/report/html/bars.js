// Pages of whatif and diff: bars to both sides of 0, one chart for each list.
for (const [id, chart] of Object.entries(data.bars)) bars(id, chart);
root.dataset.drawn = "true";
