"use strict";
// The one chosen step and the one shown request. Everything else listens: "select" and "request".
(() => {
  const { data } = report;
  const state = { run: data.runs.length - 1, step: 0, request: 0 };
  report.state = state;
  report.page = () => data.requests[state.request] ?? null;

  // The step of the other run that computed the same position of the shown request.
  report.counterpart = () => {
    const page = report.page();
    const other = 1 - state.run;
    if (!report.isPair || !page?.a || !page?.b) return null;
    const position = report.positionAt(state.run, report.side(page, state.run).number, state.step);
    if (position === null) return null;
    const isShared = page.split === null || position < page.split;
    return isShared ? report.stepOf(other, report.side(page, other).number, position) : null;
  };

  // Chosen step of a run: the selection itself, or its counterpart.
  report.chosenStep = (run) => (run === state.run ? state.step : report.counterpart());

  report.select = (run, step) => {
    const last = report.stepCount(run) - 1;
    if (last < 0) return;
    state.run = run;
    state.step = Math.min(Math.max(step, 0), last);
    report.emit("select");
  };

  report.showRequest = (request) => {
    state.request = request;
    report.emit("request");
  };

  report.jump = (where) => {
    const { focus } = data;
    if (!focus) return;
    const steps = where === "origin" ? focus.origins.find((mark) => mark.is_cause) ?? focus.origins[0] : focus;
    const step = state.run === 0 ? steps?.step_a : steps?.step_b;
    if (step !== null && step !== undefined) report.select(state.run, step);
  };

  report.moveKeys = (event, run) => {
    const last = report.stepCount(run) - 1;
    const now = report.chosenStep(run) ?? 0;
    const far = Math.max(10, Math.round(last / 20));
    const targets = {
      ArrowLeft: now - 1, ArrowRight: now + 1, ArrowDown: now - 1, ArrowUp: now + 1,
      PageDown: now - far, PageUp: now + far, Home: 0, End: last,
    };
    if (!(event.key in targets) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    report.select(run, targets[event.key]);
  };

  const tip = report.byId("tip");
  report.tip = (event, text) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
    const below = event.clientY + 18;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${below + box.height > window.innerHeight ? event.clientY - box.height - 10 : below}px`;
  };
  report.hideTip = () => {
    tip.hidden = true;
  };
  window.addEventListener("scroll", report.hideTip, { passive: true });
})();
