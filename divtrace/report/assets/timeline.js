"use strict";
// Requests by steps for each run, under the curve of packed rows. All runs share one window of steps.
(() => {
  const { data, view, gutter: GUTTER } = report;
  const HEADER = 30;
  const AXIS = 20;

  const panes = data.runs.map((run, number) => makePane(run, number));

  function makePane(run, number) {
    const title = report.element("h3", {},
      report.isPair ? report.element("span", { class: number ? "tag b" : "tag" }, run.label) : "", ` ${run.name} `,
      report.element("small", { class: "note" }));
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
    grid.addEventListener("wheel", report.zoomByWheel, { passive: false });
    return { plot, canvas, grid, note: title.querySelector("small"), width: 0, rows: [] };
  }

  function stepAt(x, number) {
    const scale = report.xScale(panes[number].width);
    const step = Math.floor(view.from + (x - GUTTER) / scale.perStep);
    return x < GUTTER || step < 0 || step >= report.stepCount(number) ? null : step;
  }

  function rowHeight(rows) {
    return Math.max(4, Math.min(22, Math.floor(430 / Math.max(1, rows.length))));
  }

  // Requests that have a segment in the window, and the shown one: the others would be empty lines.
  function shownRequests(run, number) {
    const { bars } = run;
    const shown = new Set();
    for (let bar = 0; bar < bars.step.length; bar++) {
      if (bars.step[bar] < view.to && bars.step[bar] + bars.steps[bar] > view.from) shown.add(bars.request[bar]);
    }
    const own = report.page() && report.side(report.page(), number);
    if (own) shown.add(own.number);
    return shown.size ? [...shown].sort((left, right) => left - right) : run.requests.map((_, request) => request);
  }

  function hover(event, number) {
    const run = data.runs[number];
    const step = stepAt(event.offsetX, number);
    if (step === null) return report.hideTip();
    const { rows: shown } = panes[number];
    const request = shown[Math.floor((event.offsetY - HEADER) / rowHeight(shown))] ?? -1;
    const rows = run.steps.packed_rows[step];
    const lines = [`step ${step}: ${report.counted(rows, "row")}, ${run.steps.head_rows[step]} of them with logits`, `kernel: ${report.mainPath(number, step) || "none"}`];
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

  function draw(number) {
    const run = data.runs[number];
    const pane = panes[number];
    pane.width = report.pageWidth(pane.grid.parentElement);
    pane.rows = shownRequests(run, number);
    const height = rowHeight(pane.rows);
    const total = HEADER + pane.rows.length * height + AXIS;
    const context = report.sizeCanvas(pane.canvas, pane.width, total);
    const scale = report.xScale(pane.width);
    const rowOf = new Map(pane.rows.map((request, row) => [request, row]));
    const top = (request) => HEADER + (rowOf.get(request) ?? 0) * height;
    const place = { run, number, height, scale, top, rowOf, header: HEADER, total: total - AXIS, width: pane.width };
    const all = report.counted(run.requests.length, "request");
    pane.note.textContent = `${run.ending}, ${pane.rows.length < run.requests.length ? `${pane.rows.length} of ${all} in these steps` : all}`;
    labels(context, place, pane.rows);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, scale.inner + report.rightMargin, total);
    context.clip();
    report.drawChosen(context, place, false);
    const columns = view.colourBy === "path" ? report.pathColumns(number, pane.width, (plan) => run.plans[plan].main) : null;
    for (const kind of [1, 2, 0, 3, 4, 5, 6, 7]) drawBars(context, place, kind, columns);
    report.drawMarks(context, place);
    context.restore();
    axis(context, number, scale, total);
  }

  function labels(context, { run, number, height, width }, rows) {
    const page = report.page();
    const chosen = page && report.side(page, number) ? report.side(page, number).number : -1;
    context.textBaseline = "middle";
    context.fillStyle = report.colour("soft");
    for (let row = 0; row < rows.length; row += 2) context.fillRect(0, HEADER + row * height, width, height);
    rows.forEach((request, row) => {
      const y = HEADER + row * height;
      if (height < 11 && request !== chosen) return;
      context.fillStyle = report.colour(request === chosen ? "ink" : "muted");
      context.font = `${request === chosen ? "700 " : ""}${Math.min(13, Math.max(11, height - 3))}px system-ui, sans-serif`;
      context.fillText(fit(context, run.requests[request], GUTTER - 12), 2, y + height / 2);
    });
  }

  function fit(context, text, width) {
    if (context.measureText(text).width <= width) return text;
    let short = text;
    while (short && context.measureText(`${short}…`).width > width) short = short.slice(0, -1);
    return `${short}…`;
  }

  function drawBars(context, { run, height, scale, top }, kind, columns) {
    const { bars } = run;
    const look = report.kindLook(run.kinds[kind]);
    for (let bar = 0; bar < bars.kind.length; bar++) {
      if (bars.kind[bar] !== kind || bars.step[bar] >= view.to || bars.step[bar] + bars.steps[bar] <= view.from) continue;
      const x = Math.max(GUTTER - 2, scale.x(bars.step[bar]));
      const end = Math.min(GUTTER + scale.inner, scale.x(bars.step[bar] + bars.steps[bar]));
      const y = top(bars.request[bar]);
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
    return `${report.counted(data.runs[run].steps.packed_rows[step], "packed row")}, ${report.mainPath(run, step) || "no kernel"}, ${words.join(", ") || "no segment"}`;
  };

  function legend() {
    const box = report.byId("legend");
    const used = new Set(data.runs.flatMap((run) => [...new Set(run.bars.kind)].map((kind) => run.kinds[kind])));
    const mains = new Set(data.runs.flatMap((run) => run.plans.map((plan) => plan.main)));
    const looks = view.colourBy === "kind"
      ? [...used].map((kind) => report.swatch(report.kindLook(kind), kind))
      : report.paths.filter((path) => mains.has(path)).map((path) => report.swatch(report.pathLook(path), path));
    const limits = [...new Set(data.runs.map((run) => run.threshold))].filter((limit) => limit !== null);
    const thresholds = limits.map((limit) => report.lineSwatch("mark", [6, 4], `threshold: more than ${report.counted(limit, "row")}`));
    const kinds = new Set(data.runs.flatMap((run) => run.events.kind.map(report.string)));
    const events = [["admitted", "▷ admitted"], ["finished", "■ ended"], ["preempted", "✕ preempted"]].filter(([kind]) => kind !== "preempted" || kinds.has(kind));
    const story = data.focus?.origins.length ? ["◆ origin", ...(data.focus.origins.length > 1 ? ["◇ other origins"] : []), "┼ steps of carriers", "★ split"] : [];
    box.replaceChildren(...looks, ...thresholds, ...[...events.map(([, text]) => text), ...story].map((text) => report.element("span", {}, text)));
  }

  function drawAll() {
    data.runs.forEach((_, number) => {
      report.drawRowCurve(number, panes[number].plot);
      draw(number);
      tell(number);
    });
    legend();
  }

  report.picture("redraw", drawAll);
  report.picture("view", drawAll);
  report.picture("request", () => data.runs.forEach((_, number) => draw(number)));
  report.picture("select", () => {
    data.runs.forEach((_, number) => {
      report.markRowCurve(number);
      draw(number);
      tell(number);
    });
  });
})();
