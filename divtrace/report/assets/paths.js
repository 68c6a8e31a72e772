"use strict";
// One strip a site class: which kernel path it took in each step. Shares the timeline's window.
(() => {
  const { data, element } = report;
  const ROW = 17;
  const boxes = data.runs.map((run, number) => {
    const canvas = element("canvas", { role: "img", "aria-label": describe(run, number) });
    report.byId("path-strips").append(element("div", { class: "run" },
      element("h3", {}, report.isPair ? element("span", { class: number ? "tag b" : "tag" }, run.label) : "", ` ${run.name}`),
      element("div", { class: "pane" }, canvas)));
    canvas.addEventListener("click", (event) => {
      const step = stepAt(event, canvas, number);
      if (step !== null) report.select(number, step);
    });
    canvas.addEventListener("mousemove", (event) => {
      const step = stepAt(event, canvas, number);
      const siteClass = classes(run)[Math.floor(event.offsetY / ROW)];
      if (step === null || !siteClass) return report.hideTip();
      const groups = run.plans[run.steps.plan[step]].groups.filter((group) => group.site_class === siteClass);
      return report.tip(event, [`step ${step}, ${siteClass}`, ...groups.map((group) => `${group.path}: ${report.counted(group.sites, "site")}, ${report.counted(group.rows, "row")} (${group.decided_by})`)].join("\n"));
    });
    canvas.addEventListener("mouseleave", report.hideTip);
    return canvas;
  });

  function classes(run) {
    return [...new Set(run.plans.flatMap((plan) => plan.groups.map((group) => group.site_class)))];
  }

  function pathOf(run, plan, siteClass) {
    const groups = run.plans[plan].groups.filter((group) => group.site_class === siteClass);
    return groups.reduce((most, group) => (group.sites > (most?.sites ?? 0) ? group : most), null)?.path ?? "";
  }

  function describe(run, number) {
    const words = classes(run).map((siteClass) => {
      const counts = new Map();
      run.steps.plan.forEach((plan) => {
        const path = pathOf(run, plan, siteClass);
        counts.set(path, (counts.get(path) ?? 0) + 1);
      });
      return `${siteClass}: ${[...counts].map(([path, steps]) => `${path || "none"} in ${report.counted(steps, "step")}`).join(", ")}`;
    });
    return `Paths of ${report.runName(number)}. ${words.join("; ")}.`;
  }

  function stepAt(event, canvas, number) {
    const scale = report.xScale(canvas.clientWidth);
    const step = Math.floor(report.view.from + (event.offsetX - report.gutter) / scale.perStep);
    return event.offsetX < report.gutter || step < 0 || step >= report.stepCount(number) ? null : step;
  }

  function draw(number) {
    const run = data.runs[number];
    const canvas = boxes[number];
    const width = report.pageWidth(canvas.parentElement.parentElement);
    const names = classes(run);
    const context = report.sizeCanvas(canvas, width, names.length * ROW + 4);
    const scale = report.xScale(width);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    names.forEach((siteClass, row) => {
      context.fillStyle = report.colour("muted");
      context.fillText(siteClass, 2, row * ROW + ROW / 2);
      for (const part of report.pathColumns(number, width, (plan) => pathOf(run, plan, siteClass))) {
        const from = Math.max(report.gutter, part.from);
        report.paint(context, report.pathLook(part.path), from, row * ROW + 1.5, Math.max(1, Math.min(part.to, report.gutter + scale.inner) - from), ROW - 3);
      }
    });
    const chosen = report.chosenStep(number);
    if (chosen === null || report.isPrinting() || chosen < report.view.from || chosen >= report.view.to) return;
    context.strokeStyle = report.colour("ink");
    context.lineWidth = 1.5;
    context.strokeRect(scale.x(chosen), 0.5, Math.max(2, scale.perStep), names.length * ROW);
  }

  function drawAll() {
    data.runs.forEach((_, number) => draw(number));
    report.byId("path-legend").replaceChildren(...report.paths.map((path) => report.swatch(report.pathLook(path), path)));
  }

  report.picture("redraw", drawAll);
  report.picture("view", drawAll);
  report.picture("select", drawAll);
})();
