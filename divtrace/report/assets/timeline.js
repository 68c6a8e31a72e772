"use strict";
// Requests by steps for each run, under the curve of packed rows. All runs share one window of steps.
(() => {
  const { data } = report;
  const GUTTER = 118;
  const RIGHT = 14;
  const HEADER = 30;
  const AXIS = 20;
  const PLOT_HEIGHT = 118;
  const longest = Math.max(1, ...data.runs.map((_, run) => report.stepCount(run)));
  const view = { from: 0, to: longest, colourBy: "kind" };
  report.view = view;
  report.gutter = GUTTER;

  const panes = data.runs.map((run, number) => makePane(run, number));

  function makePane(run, number) {
    const title = report.element("h3", {},
      report.isPair ? report.element("span", { class: number ? "tag b" : "tag" }, run.label) : "", ` ${run.name} `,
      report.element("small", { class: "note" }, `${run.ending}, ${report.counted(run.requests.length, "request")}`));
    const plot = report.element("div", { class: "pane plot" });
    const canvas = report.element("canvas", { "aria-hidden": "true" });
    const grid = report.element("div", {
      class: "pane grid", tabindex: "0", role: "slider", "aria-label": `Steps of ${report.runName(number)}`,
      "aria-valuemin": "0", "aria-valuemax": String(Math.max(0, report.stepCount(number) - 1)), "aria-valuenow": "0",
    }, canvas);
    const box = report.element("div", { class: "run" }, title, plot, grid);
    report.byId("timelines").append(box);
    grid.addEventListener("keydown", (event) => report.moveKeys(event, number));
    grid.addEventListener("click", (event) => {
      const step = stepAt(event.offsetX, number);
      if (step !== null) report.select(number, step);
    });
    grid.addEventListener("mousemove", (event) => hover(event, number));
    grid.addEventListener("mouseleave", report.hideTip);
    grid.addEventListener("wheel", wheel, { passive: false });
    return { plot, canvas, grid, chart: null, width: 0 };
  }

  report.xScale = (width) => {
    const inner = width - GUTTER - RIGHT;
    return { inner, perStep: inner / (view.to - view.from), x: (step) => GUTTER + ((step - view.from) / (view.to - view.from)) * inner };
  };

  function stepAt(x, number) {
    const scale = report.xScale(panes[number].width);
    const step = Math.floor(view.from + (x - GUTTER) / scale.perStep);
    return x < GUTTER || step < 0 || step >= report.stepCount(number) ? null : step;
  }

  function rowHeight(run) {
    return Math.max(4, Math.min(22, Math.floor(430 / Math.max(1, run.requests.length))));
  }

  function hover(event, number) {
    const run = data.runs[number];
    const step = stepAt(event.offsetX, number);
    if (step === null) return report.hideTip();
    const request = Math.floor((event.offsetY - HEADER) / rowHeight(run));
    const rows = run.steps.packed_rows[step];
    const lines = [`step ${step}: ${report.counted(rows, "packed row")}, ${run.steps.head_rows[step]} at the head`, `path: ${report.mainPath(number, step) || "none"}`];
    const segment = report.batch(number, step).find((one) => one.request === request);
    if (segment) {
      const size = segment.rows === null ? "" : ` ${report.counted(segment.rows, "row")} from position ${segment.position}`;
      lines.unshift(`${segment.name}: ${segment.kind}${size}`);
    }
    for (let event = 0; event < run.events.step.length; event++) {
      if (run.events.step[event] !== step || run.events.request[event] !== request) continue;
      lines.push(`${report.string(run.events.kind[event])} (${report.string(run.events.detail[event])})`);
    }
    report.tip(event, lines.join("\n"));
  }

  function wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1 / 1.3 : 1.3);
  }

  function zoom(factor) {
    const chosen = report.chosenStep(report.state.run) ?? 0;
    const isInside = chosen >= view.from && chosen < view.to;
    const middle = isInside ? chosen + 0.5 : (view.from + view.to) / 2;
    const span = Math.min(longest, Math.max(8, (view.to - view.from) * factor));
    const from = Math.min(Math.max(0, middle - span * ((middle - view.from) / (view.to - view.from))), longest - span);
    show(from, from + span);
  }

  function show(from, to) {
    view.from = Math.max(0, from);
    view.to = Math.max(view.from + 1, to);
    report.emit("view");
  }

  // First and last step of the story in both runs, null without one.
  function storySpan() {
    const { focus } = data;
    if (!focus || focus.origins.length === 0) return null;
    const steps = [focus.step_a, focus.step_b, ...focus.origins.flatMap((mark) => [mark.step_a, mark.step_b])].filter((step) => step !== null);
    return { first: Math.min(...steps), last: Math.max(...steps) };
  }

  function showStory() {
    const span = storySpan();
    if (!span) return;
    const margin = Math.max(4, (span.last - span.first) * 0.15);
    show(Math.max(0, span.first - margin), Math.min(longest, span.last + 1 + margin));
  }

  // A long run starts where the story is: else cause and flip would share a few pixels.
  report.showFirstView = () => {
    const span = storySpan();
    report.byId("zoom-story").hidden = !span;
    if (span && (span.last - span.first) * 6 < longest && longest > 200) showStory();
  };

  report.keepInView = (step) => {
    if (step === null || (step >= view.from && step + 1 <= view.to)) return;
    const span = view.to - view.from;
    const from = Math.min(Math.max(0, step - span / 2), Math.max(0, longest - span));
    show(from, from + span);
  };

  // Main path of every pixel column: of its step with the most rows. As runs of [first x, last x, path].
  report.pathColumns = (number, width, pick) => {
    const { steps } = data.runs[number];
    const scale = report.xScale(width);
    const runs = [];
    const first = Math.max(0, Math.floor(view.from));
    const last = Math.min(report.stepCount(number), Math.ceil(view.to));
    for (let step = first; step < last;) {
      let next = step + 1;
      let largest = step;
      while (next < last && scale.x(next) < scale.x(step) + 1) {
        if (steps.packed_rows[next] > steps.packed_rows[largest]) largest = next;
        next++;
      }
      const path = pick(steps.plan[largest]);
      const previous = runs[runs.length - 1];
      if (previous && previous.path === path) previous.to = scale.x(next);
      else runs.push({ from: scale.x(step), to: scale.x(next), path });
      step = next;
    }
    return runs;
  };

  function draw(number) {
    const run = data.runs[number];
    const pane = panes[number];
    pane.width = report.pageWidth(pane.grid.parentElement);
    const height = rowHeight(run);
    const total = HEADER + run.requests.length * height + AXIS;
    const context = report.sizeCanvas(pane.canvas, pane.width, total);
    const scale = report.xScale(pane.width);
    labels(context, run, number, height, pane.width);
    const place = { run, number, height, scale, header: HEADER, total: total - AXIS, width: pane.width };
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, scale.inner + RIGHT, total);
    context.clip();
    report.drawChosen(context, place, false);
    const columns = view.colourBy === "path" ? report.pathColumns(number, pane.width, (plan) => run.plans[plan].main) : null;
    for (const kind of [1, 2, 0, 3, 4, 5, 6, 7]) drawBars(context, run, kind, height, scale, columns);
    report.drawMarks(context, place);
    context.restore();
    axis(context, number, scale, total);
  }

  function labels(context, run, number, height, width) {
    const page = report.page();
    const chosen = page && report.side(page, number) ? report.side(page, number).number : -1;
    context.textBaseline = "middle";
    context.fillStyle = report.colour("soft");
    for (let row = 0; row < run.requests.length; row += 2) context.fillRect(0, HEADER + row * height, width, height);
    run.requests.forEach((name, row) => {
      const y = HEADER + row * height;
      if (height < 11 && row !== chosen) return;
      context.fillStyle = report.colour(row === chosen ? "ink" : "muted");
      context.font = `${row === chosen ? "700 " : ""}${Math.min(13, Math.max(11, height - 3))}px system-ui, sans-serif`;
      context.fillText(fit(context, name, GUTTER - 12), 2, y + height / 2);
    });
  }

  function fit(context, text, width) {
    if (context.measureText(text).width <= width) return text;
    let short = text;
    while (short && context.measureText(`${short}…`).width > width) short = short.slice(0, -1);
    return `${short}…`;
  }

  function drawBars(context, run, kind, height, scale, columns) {
    const { bars } = run;
    const look = report.kindLook(run.kinds[kind]);
    for (let bar = 0; bar < bars.kind.length; bar++) {
      if (bars.kind[bar] !== kind || bars.step[bar] >= view.to || bars.step[bar] + bars.steps[bar] <= view.from) continue;
      const x = Math.max(GUTTER - 2, scale.x(bars.step[bar]));
      const end = Math.min(GUTTER + scale.inner, scale.x(bars.step[bar] + bars.steps[bar]));
      const y = HEADER + bars.request[bar] * height;
      const inset = height > 8 ? 1.5 : 0.5;
      if (columns) byPath(context, columns, look.pattern === "thin", x, end, y + inset, height - 2 * inset);
      else report.paint(context, look, x, y + inset, Math.max(1.5, end - x - (scale.perStep > 4 ? 0.8 : 0)), height - 2 * inset);
    }
  }

  function byPath(context, columns, isThin, x, end, y, height) {
    const inset = isThin ? height * 0.22 : 0;
    let low = 0;
    let high = columns.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (columns[middle].to <= x) low = middle + 1;
      else high = middle;
    }
    for (let column = low; column < columns.length && columns[column].from < end; column++) {
      const from = Math.max(x, columns[column].from);
      const width = Math.max(1.5, Math.min(end, columns[column].to) - from);
      report.paint(context, report.pathLook(columns[column].path), from, y + inset, width, height - 2 * inset);
    }
  }

  function axis(context, number, scale, total) {
    context.fillStyle = report.colour("muted");
    context.strokeStyle = report.colour("line");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "alphabetic";
    context.fillText("step", 2, total - 5);
    const every = niceStep((view.to - view.from) / Math.max(2, scale.inner / 85));
    context.textAlign = "center";
    for (let step = Math.ceil(view.from / every) * every; step < view.to; step += every) {
      const x = scale.x(step + (scale.perStep > 6 ? 0.5 : 0));
      context.fillText(step.toLocaleString("en"), x, total - 5);
    }
    context.textAlign = "start";
  }

  function niceStep(least) {
    let size = 1;
    while (size < least) {
      for (const factor of [2, 5, 10]) {
        if (size * factor >= least) return size * factor;
      }
      size *= 10;
    }
    return size;
  }

  function drawPlot(number) {
    const pane = panes[number];
    const { steps, threshold } = data.runs[number];
    if (pane.chart) pane.chart.destroy();
    const width = report.pageWidth(pane.plot.parentElement);
    const xs = steps.packed_rows.map((_, step) => step);
    xs.push(xs.length);
    const rows = steps.packed_rows.map((value) => Math.max(value, 0.5));
    rows.push(rows[rows.length - 1] ?? null);
    const most = Math.max(2, threshold ?? 0, ...steps.packed_rows.slice(0, 100000).reduce((top, value) => [Math.max(top[0], value)], [1]));
    pane.chart = new uPlot({
      width, height: PLOT_HEIGHT, padding: [12, RIGHT, 2, 0], legend: { show: false },
      cursor: { y: false, drag: { x: true, y: false, setScale: false }, points: { show: false } },
      scales: { x: { time: false, range: () => [view.from, view.to] }, y: { distr: 3, log: 2, range: () => [0.8, most * 1.3] } },
      axes: [
        { show: false },
        { size: GUTTER - 18, label: "packed rows", labelSize: 18, stroke: report.colour("muted"), grid: { stroke: report.colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", labelFont: "12px system-ui",
          splits: () => rowTicks(most), filter: (_, splits) => splits, values: (_, splits) => splits.map((value) => (value === null ? "" : String(value))) },
      ],
      series: [{}, { stroke: report.colour(number ? "run-b" : "run-a"), width: 1.5, fill: `${report.colour(number ? "run-b" : "run-a")}22`, fillTo: 0.8, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
      hooks: { draw: [(chart) => plotMarks(chart, number)] },
    }, [xs, rows], pane.plot);
    pane.chart.over.addEventListener("click", () => {
      const step = Math.floor(pane.chart.posToVal(pane.chart.cursor.left, "x"));
      if (step >= 0 && step < report.stepCount(number)) report.select(number, step);
    });
    pane.chart.over.addEventListener("mousemove", (event) => {
      const step = Math.floor(pane.chart.posToVal(pane.chart.cursor.left, "x"));
      if (step < 0 || step >= report.stepCount(number)) return report.hideTip();
      return report.tip(event, `step ${step}: ${report.counted(steps.packed_rows[step], "packed row")}\npath: ${report.mainPath(number, step) || "none"}\n${steps.running[step]} running, ${steps.waiting[step]} waiting`);
    });
    pane.chart.over.addEventListener("mouseleave", report.hideTip);
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
    if (chosen !== null) {
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
      ctx.fillStyle = report.colour("mark");
      ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "right";
      ctx.setLineDash([]);
      ctx.strokeStyle = report.colour("card");
      ctx.lineWidth = 4 * ratio;
      const words = `threshold: more than ${report.counted(threshold, "row")}`;
      ctx.strokeText(words, left + width - 4 * ratio, y - 5 * ratio);
      ctx.fillText(words, left + width - 4 * ratio, y - 5 * ratio);
    }
    ctx.restore();
  }

  function tell(number) {
    const step = report.chosenStep(number);
    const { grid } = panes[number];
    grid.setAttribute("aria-valuenow", String(step ?? 0));
    grid.setAttribute("aria-valuetext", step === null ? "no step" : `step ${step}: ${report.batchWords(number, step)}`);
  }

  report.batchWords = (run, step) => {
    const segments = report.batch(run, step);
    const words = segments.slice(0, 6).map((one) => `${one.name} ${one.kind}${one.rows === null ? "" : ` ${one.rows}`}`);
    if (segments.length > 6) words.push(`${segments.length - 6} more`);
    return `${report.counted(data.runs[run].steps.packed_rows[step], "packed row")}, ${report.mainPath(run, step) || "no path"}, ${words.join(", ") || "no segment"}`;
  };

  function legend() {
    const box = report.byId("legend");
    const used = new Set(data.runs.flatMap((run) => [...new Set(run.bars.kind)].map((kind) => run.kinds[kind])));
    const mains = new Set(data.runs.flatMap((run) => run.plans.map((plan) => plan.main)));
    const looks = view.colourBy === "kind"
      ? [...used].map((kind) => report.swatch(report.kindLook(kind), kind))
      : report.paths.filter((path) => mains.has(path)).map((path) => report.swatch(report.pathLook(path), path));
    const marks = ["▷ admitted", "■ ended", "✕ preempted"].map((text) => report.element("span", {}, text));
    box.replaceChildren(...looks, ...marks);
  }

  function drawAll() {
    data.runs.forEach((_, number) => {
      drawPlot(number);
      draw(number);
      tell(number);
    });
    legend();
  }

  for (const radio of document.querySelectorAll('input[name="colour"]')) {
    radio.addEventListener("change", () => {
      view.colourBy = radio.value;
      report.emit("view");
    });
  }
  report.byId("zoom-in").addEventListener("click", () => zoom(1 / 1.6));
  report.byId("zoom-out").addEventListener("click", () => zoom(1.6));
  report.byId("zoom-fit").addEventListener("click", () => show(0, longest));
  report.byId("zoom-story").addEventListener("click", showStory);
  report.on("redraw", drawAll);
  report.on("view", drawAll);
  report.on("request", () => data.runs.forEach((_, number) => draw(number)));
  report.on("select", () => {
    data.runs.forEach((_, number) => {
      panes[number].chart?.redraw(false);
      draw(number);
      tell(number);
    });
  });
})();
