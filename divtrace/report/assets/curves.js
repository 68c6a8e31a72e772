"use strict";
// Gap, gap drift and logit drift of each decision of the shown request, on a logarithmic scale.
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
    legend(page, found);
    table(page, found);
    const values = found.columns.slice(1).flat().filter((value) => value !== null);
    if (values.length === 0) return;
    // Room above the curves for the words at the upright lines.
    const limits = [Math.min(...values) / 2, Math.max(...values) * 30];
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
    const parts = [`Gap: how far the best logit lies above the second. ${found.hasDrift ? "Gap drift: how far that distance moved from run A to run B, here without its sign. The token can only change where the gap drift reaches the gap. Logit drift: the largest move of any one logit." : ""}`];
    const zero = found.drifts.filter((value) => value === 0).length;
    if (zero) parts.push(`${zero} of ${found.drifts.length} gap drifts ${zero === 1 ? "is" : "are"} exactly zero and ${zero === 1 ? "has" : "have"} no point on this scale.`);
    if (found.hasDrift && page.split !== null) {
      const drifting = found.drifts.filter((value, place) => value > 0 && page.prompt_tokens + place < page.split).length;
      if (drifting) parts.push(`Here the gap drift sat there for ${report.counted(drifting, "decision")} before a gap was small enough.`);
    }
    return parts.join(" ");
  }

  // Room right of the split, so that the crossing does not lie on the frame.
  function withRoom(page, found, low, high) {
    const { positions } = found;
    const last = positions[positions.length - 1];
    if (page.split === null || low > positions[0] || high < last) return [low, high];
    const plot = report.pageWidth(box) - 90;
    const room = isNarrow() ? 60 : 135;
    return [low, last + Math.max(1, ((last - low) * room) / Math.max(room, plot - room))];
  }

  function isNarrow() {
    return report.pageWidth(box) < 600;
  }

  // One notation on the whole axis: decimals, or powers where decimals would be long.
  function powers(splits) {
    const isLong = splits.some((value) => value !== null && (value < 1e-6 || value > 1e6));
    return splits.map((value) => {
      if (value === null) return "";
      const power = Math.round(Math.log10(value));
      return isLong ? `1e${power}` : value.toFixed(Math.max(0, -power));
    });
  }

  function legend(page, found) {
    const items = [report.lineSwatch("run-a", [], report.isPair ? `gap in ${page.a ? "A" : "B"}` : "gap", 1.2, 5)];
    if (found.hasDrift) items.push(report.lineSwatch("mark", [7, 3], "gap drift", 2, 4), report.lineSwatch("muted", [2, 3], "logit drift"));
    report.byId("curve-legend").replaceChildren(...items);
  }

  function options(page, found, limits) {
    const shown = (value) => (value === null || value === undefined ? "–" : value.toPrecision(3));
    const line = (label, colour, more) => ({ label, stroke: report.colour(colour), value: (_, value) => shown(value), ...more });
    const dots = (colour, size) => ({ show: true, size, fill: report.colour(colour), stroke: report.colour(colour) });
    return {
      width: report.pageWidth(box), height: 300, padding: [14, 14, 0, 0],
      cursor: { drag: { x: true, y: false } }, legend: { show: false },
      scales: { x: { time: false, range: (_, low, high) => withRoom(page, found, low, high) }, y: { distr: 3, range: (_, low, high) => (low === null ? limits : [Math.min(low / 2, limits[0]), Math.max(high * 2, limits[1])]) } },
      axes: [
        { label: "position", labelSize: 20, stroke: report.colour("muted"), grid: { stroke: report.colour("line"), width: 1 }, ticks: { stroke: report.colour("line") }, font: "11px system-ui", labelFont: "12px system-ui", incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] },
        { label: "logits, log scale", labelSize: 18, size: 68, stroke: report.colour("muted"), grid: { stroke: report.colour("line"), width: 1, filter: (_, splits) => splits }, ticks: { show: false }, font: "11px system-ui", labelFont: "12px system-ui",
          splits: decades, filter: (_, splits) => splits, values: (_, splits) => powers(splits) },
      ],
      series: [
        { label: "position", value: (_, value) => String(value ?? "–") },
        line(report.isPair ? `gap in ${page.a ? "A" : "B"}` : "gap", "run-a", { width: 1.2, points: dots("run-a", 5), spanGaps: true }),
        ...(found.hasDrift ? [
          line("gap drift", "mark", { width: 2, dash: [7, 3], points: dots("mark", 4), spanGaps: true }),
          line("logit drift", "muted", { width: 1, dash: [2, 3], points: { show: false }, spanGaps: true }),
        ] : []),
      ],
      hooks: { draw: [(drawn) => marks(drawn, page, found)] },
    };
  }

  function marks(drawn, page, found) {
    const { ctx } = drawn;
    const ratio = window.devicePixelRatio || 1;
    const { top, height, left, width } = drawn.bbox;
    ctx.save();
    const chosen = report.state.step;
    const place = report.side(page, report.state.run)?.steps.indexOf(chosen) ?? -1;
    const first = found.drifts.findIndex((value, at) => value > 0 || found.largest[at] > 0);
    if (place >= 0 && place !== first && !report.isPrinting()) upright(page.prompt_tokens + place, "ink", [2, 2], [`step ${chosen}`]);
    if (first >= 0) upright(page.prompt_tokens + first, "mark", [2, 2], ["first logit difference"]);
    if (page.split !== null) upright(page.split, "accent", [], ["split", ...crossing(page, found)]);
    ctx.restore();

    function upright(position, colour, dash, lines) {
      const x = drawn.valToPos(position, "x", true);
      if (x < left || x > left + width + 1) return;
      ctx.strokeStyle = report.colour(colour);
      ctx.setLineDash(dash.map((one) => one * ratio));
      ctx.lineWidth = 1.5 * ratio;
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.textBaseline = "top";
      ctx.textAlign = x > left + width - 40 * ratio ? "right" : "left";
      ctx.lineWidth = 4 * ratio;
      ctx.strokeStyle = report.colour("card");
      ctx.fillStyle = report.colour(colour);
      lines.forEach((text, line) => {
        ctx.font = `${line ? 500 : 700} ${12 * ratio}px system-ui, sans-serif`;
        const at = [text, x + (ctx.textAlign === "right" ? -6 : 6) * ratio, top + (4 + 16 * line) * ratio];
        ctx.strokeText(...at);
        ctx.fillText(...at);
      });
    }
  }

  // What makes the split: the gap drift over the gap, as numbers.
  function crossing(page, found) {
    const at = page.split - page.prompt_tokens;
    const [gap, drift] = [found.gaps[at], found.drifts[at]];
    if (!(gap > 0) || !(drift > 0) || isNarrow()) return [];
    return [`gap ${report.number(gap)}`, `gap drift ${report.number(drift)}`];
  }

  function tipText(page, found, place) {
    const main = page.a ?? page.b;
    const lines = [`position ${found.positions[place]}: ${report.quoted(report.string(main.texts[found.positions[place]]))}`, `gap ${report.number(found.gaps[place])}`];
    if (found.hasDrift) lines.push(`gap drift ${report.number(found.drifts[place])}`, `logit drift ${report.number(found.largest[place])}`);
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
    const heads = ["position", "token", "gap", ...(found.hasDrift ? ["gap drift", "logit drift"] : [])];
    const main = page.a ?? page.b;
    const rows = found.positions.slice(0, 500).map((position, place) => element("tr", {},
      element("th", { scope: "row" }, String(position)), element("td", {}, report.quoted(report.string(main.texts[position]))),
      ...[found.gaps[place], ...(found.hasDrift ? [found.drifts[place], found.largest[place]] : [])].map((value) => element("td", {}, report.number(value)))));
    report.byId("curve-table").replaceChildren(element("table", {},
      element("caption", {}, `Request ${page.id}`),
      element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))), element("tbody", {}, ...rows)));
  }

  report.picture("redraw", draw);
  report.picture("request", draw);
  report.picture("select", () => chart?.redraw(false));
})();
