"use strict";
// Draws everything once and says when it is done, so that a test can time it.
(() => {
  const { data } = report;
  if (data.runs.every((_, run) => report.stepCount(run) === 0)) report.byId("inspector").hidden = true;
  report.on("select", () => report.keepInView(report.state.step));
  report.showFirstView();
  if (data.requests.length) report.showRequest(0);
  const first = data.focus?.origins.find((mark) => mark.is_cause) ?? data.focus?.origins[0];
  report.select(report.state.run, first?.step_b ?? 0);
  report.isStarted = true;
  report.applyTheme();
  document.documentElement.dataset.drawnMs = String(Math.round(performance.now()));
})();
