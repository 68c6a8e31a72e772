"use strict";
// Packed rows of each step, with the threshold drawn in, above the requests of a run.
(() => {
  const { data, view } = report;
  const PLOT_HEIGHT = 118;
  const charts = data.runs.map(() => null);

  report.drawRowCurve = (number, box) => {
    const { steps, threshold } = data.runs[number];
    charts[number]?.destroy();
    const width = report.pageWidth(box.parentElement);
    const xs = steps.packed_rows.map((_, step) => step);
    xs.push(xs.length);
    const rows = steps.packed_rows.map((value) => Math.max(value, 0.5));
    rows.push(rows[rows.length - 1] ?? null);
    const most = steps.packed_rows.reduce((top, value) => Math.max(top, value), Math.max(2, threshold ?? 0));
    const colour = report.colour(number ? "run-b" : "run-a");
    const chart = new uPlot({
      width, height: PLOT_HEIGHT, padding: [12, report.rightMargin, 2, 0], legend: { show: false },
      cursor: { y: false, drag: { x: true, y: false, setScale: false }, points: { show: false } },
      scales: { x: { time: false, range: () => [view.from, view.to] }, y: { distr: 3, log: 2, range: () => [0.8, most * 1.3] } },
      axes: [
        { show: false },
        { size: report.gutter - 18, label: "rows", labelSize: 18, stroke: report.colour("muted"), grid: { stroke: report.colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", labelFont: "12px system-ui",
          splits: () => rowTicks(most), filter: (_, splits) => splits, values: (_, splits) => splits.map((value) => (value === null ? "" : String(value))) },
      ],
      series: [{}, { stroke: colour, width: 1.5, fill: `${colour}22`, fillTo: 0.8, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
      hooks: { draw: [(drawn) => plotMarks(drawn, number)] },
    }, [xs, rows], box);
    charts[number] = chart;
    listen(chart, number);
  };

  report.markRowCurve = (number) => charts[number]?.redraw(false);

  function listen(chart, number) {
    const { steps } = data.runs[number];
    const stepUnder = () => {
      const step = Math.floor(chart.posToVal(chart.cursor.left, "x"));
      return step >= 0 && step < report.stepCount(number) ? step : null;
    };
    chart.over.addEventListener("click", () => {
      const step = stepUnder();
      if (step !== null) report.select(number, step);
    });
    chart.over.addEventListener("mousemove", (event) => {
      const step = stepUnder();
      if (step === null) return report.hideTip();
      return report.tip(event, `step ${step}: ${report.counted(steps.packed_rows[step], "row")}\nkernel: ${report.mainPath(number, step) || "none"}\n${steps.running[step]} running, ${steps.waiting[step]} waiting`);
    });
    chart.over.addEventListener("mouseleave", report.hideTip);
  }

  function rowTicks(most) {
    const ticks = [];
    for (let value = 1; value <= most * 1.3; value *= most > 64 ? 8 : 4) ticks.push(value);
    return ticks;
  }

  function plotMarks(chart, number) {
    const { ctx } = chart;
    const ratio = window.devicePixelRatio || 1;
    const { left, top, width, height } = chart.bbox;
    ctx.save();
    const chosen = report.chosenStep(number);
    if (chosen !== null && !report.isPrinting()) {
      ctx.fillStyle = `${report.colour("select")}66`;
      const from = chart.valToPos(chosen, "x", true);
      ctx.fillRect(Math.max(left, from), top, Math.max(2 * ratio, chart.valToPos(chosen + 1, "x", true) - from), height);
    }
    const { threshold } = data.runs[number];
    if (threshold !== null) {
      const y = chart.valToPos(threshold + 0.5, "y", true);
      ctx.setLineDash([6 * ratio, 4 * ratio]);
      ctx.strokeStyle = report.colour("mark");
      ctx.lineWidth = 1.5 * ratio;
      ctx.beginPath();
      ctx.moveTo(left, y);
      ctx.lineTo(left + width, y);
      ctx.stroke();
    }
    ctx.restore();
  }
})();
