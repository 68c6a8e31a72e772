"use strict";
// Gap and drift of each decision of the shown request, on a logarithmic scale.
(() => {
  const box = report.byId("curve");
  const lead = report.byId("curves-lead");
  let chart = null;

  function series(page) {
    const main = page.a ?? page.b;
    const hasDrift = page.margin_drift.length > 0;
    const count = hasDrift ? page.margin_drift.length : main.gaps.length;
    const positions = Array.from({ length: count }, (_, place) => page.prompt_tokens + place);
    const positive = (values) => positions.map((_, place) => (values[place] > 0 ? values[place] : null));
    return { count, hasDrift, positions, gaps: main.gaps, drifts: page.margin_drift, largest: page.logit_drift,
      columns: [positions, positive(main.gaps), ...(hasDrift ? [positive(page.margin_drift), positive(page.logit_drift)] : [])] };
  }

  function draw() {
    chart?.destroy();
    chart = null;
    box.replaceChildren();
    const page = report.page();
    const found = page ? series(page) : null;
    if (!found || found.gaps.length === 0) {
      lead.textContent = "The trace holds no logits: record with level logits.";
      return;
    }
    lead.textContent = words(page, found);
    table(page, found);
    const values = found.columns.slice(1).flat().filter((value) => value !== null);
    if (values.length === 0) return;
    const limits = [Math.min(...values) / 2, Math.max(...values) * 2];
    chart = new uPlot(options(page, found, limits), found.columns, box);
    chart.over.addEventListener("click", () => {
      if (chart.cursor.idx !== null) chooseDecision(page, chart.cursor.idx);
    });
    chart.over.addEventListener("mousemove", (event) => {
      const place = chart.cursor.idx;
      if (place !== null && place !== undefined) report.tip(event, tipText(page, found, place));
    });
    chart.over.addEventListener("mouseleave", report.hideTip);
  }

  // The powers of ten of a logarithmic axis. uPlot's own splits never end where 10 ** exponent is not the nearest number.
  function decades(_, axis, low, high) {
    const found = [];
    for (let exponent = Math.ceil(Math.log10(low) - 1e-9); exponent <= Math.log10(high) + 1e-9; exponent += 1) {
      found.push(Number(`1e${exponent}`));
    }
    return found;
  }

  function words(page, found) {
    const parts = [`Gap: how far the best logit lies above the second. ${found.hasDrift ? "Drift: how far the margin between these two moved from run A to run B. A token can only flip where the drift reaches the gap." : ""}`];
    const zero = found.drifts.filter((value) => value === 0).length;
    if (zero) parts.push(`${zero} of ${found.drifts.length} drifts ${zero === 1 ? "is" : "are"} exactly zero and ${zero === 1 ? "has" : "have"} no point on this scale.`);
    if (found.hasDrift && page.split !== null) {
      const drifting = found.drifts.filter((value, place) => value > 0 && page.prompt_tokens + place < page.split).length;
      if (drifting) parts.push(`Here the drift sat there for ${report.counted(drifting, "decision")} before a gap was small enough.`);
    }
    return parts.join(" ");
  }

  function options(page, found, limits) {
    const shown = (value) => (value === null || value === undefined ? "–" : value.toPrecision(3));
    const line = (label, colour, more) => ({ label, stroke: report.colour(colour), value: (_, value) => shown(value), ...more });
    const dots = (colour, size) => ({ show: true, size, fill: report.colour(colour), stroke: report.colour(colour) });
    return {
      width: report.pageWidth(box), height: 300, padding: [14, 14, 0, 0],
      cursor: { drag: { x: true, y: false } }, legend: { live: false, markers: { width: 0, fill: (self, index) => self.series[index].stroke(self, index) } },
      scales: { x: { time: false }, y: { distr: 3, range: (_, low, high) => (low === null ? limits : [Math.min(low / 2, limits[0]), Math.max(high * 2, limits[1])]) } },
      axes: [
        { label: "position", labelSize: 20, stroke: report.colour("muted"), grid: { stroke: report.colour("line"), width: 1 }, ticks: { stroke: report.colour("line") }, font: "11px system-ui", labelFont: "12px system-ui", incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] },
        { label: "logits, log scale", labelSize: 18, size: 68, stroke: report.colour("muted"), grid: { stroke: report.colour("line"), width: 1, filter: (_, splits) => splits }, ticks: { show: false }, font: "11px system-ui", labelFont: "12px system-ui",
          splits: decades, filter: (_, splits) => splits, values: (_, splits) => splits.map((value) => (value === null ? "" : value >= 0.001 ? String(Number(value.toPrecision(1))) : value.toExponential(0))) },
      ],
      series: [
        { label: "position", value: (_, value) => String(value ?? "–") },
        line(report.isPair ? `gap in ${page.a ? "A" : "B"}` : "gap", "run-a", { width: 1.2, points: dots("run-a", 5), spanGaps: true }),
        ...(found.hasDrift ? [
          line("drift of the margin", "mark", { width: 2, dash: [7, 3], points: dots("mark", 4), spanGaps: true }),
          line("largest drift of a logit", "muted", { width: 1, dash: [2, 3], points: { show: false }, spanGaps: true }),
        ] : []),
      ],
      hooks: { draw: [(drawn) => marks(drawn, page)] },
    };
  }

  function marks(drawn, page) {
    const { ctx } = drawn;
    const ratio = window.devicePixelRatio || 1;
    const { top, height, left, width } = drawn.bbox;
    ctx.save();
    const chosen = report.state.step;
    const place = report.side(page, report.state.run)?.steps.indexOf(chosen) ?? -1;
    if (place >= 0) upright(page.prompt_tokens + place, report.colour("ink"), [2, 2], "");
    if (page.split !== null) upright(page.split, report.colour("accent"), [], "split");
    ctx.restore();

    function upright(position, colour, dash, text) {
      const x = drawn.valToPos(position, "x", true);
      if (x < left || x > left + width + 1) return;
      ctx.strokeStyle = colour;
      ctx.setLineDash(dash.map((one) => one * ratio));
      ctx.lineWidth = 1.5 * ratio;
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      ctx.fillStyle = colour;
      ctx.font = `700 ${12 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = x > left + width - 60 * ratio ? "right" : "left";
      const at = x + (ctx.textAlign === "right" ? -5 : 5) * ratio;
      ctx.setLineDash([]);
      ctx.strokeStyle = report.colour("card");
      ctx.lineWidth = 4 * ratio;
      ctx.strokeText(text, at, top + height / 2);
      ctx.fillText(text, at, top + height / 2);
    }
  }

  function tipText(page, found, place) {
    const main = page.a ?? page.b;
    const lines = [`position ${found.positions[place]}: “${report.oneLine(report.string(main.texts[found.positions[place]]))}”`, `gap ${report.number(found.gaps[place])}`];
    if (found.hasDrift) lines.push(`drift of the margin ${report.number(found.drifts[place])}`, `largest drift ${report.number(found.largest[place])}`);
    return lines.join("\n");
  }

  function chooseDecision(page, place) {
    const run = report.side(page, report.state.run) ? report.state.run : 1 - report.state.run;
    const step = report.side(page, run).steps[place];
    report.chooseToken(page.prompt_tokens + place);
    if (step !== undefined) report.select(run, step);
  }

  function table(page, found) {
    const { element } = report;
    const heads = ["position", "token", "gap", ...(found.hasDrift ? ["drift of the margin", "largest drift"] : [])];
    const main = page.a ?? page.b;
    const rows = found.positions.slice(0, 500).map((position, place) => element("tr", {},
      element("th", { scope: "row" }, String(position)), element("td", {}, report.oneLine(report.string(main.texts[position]))),
      ...[found.gaps[place], ...(found.hasDrift ? [found.drifts[place], found.largest[place]] : [])].map((value) => element("td", {}, report.number(value)))));
    report.byId("curve-table").replaceChildren(element("table", {},
      element("caption", {}, `Request ${page.id}`),
      element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))), element("tbody", {}, ...rows)));
  }

  report.picture("redraw", draw);
  report.picture("request", draw);
  report.picture("select", () => chart?.redraw(false));
})();
