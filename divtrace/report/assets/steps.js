"use strict";
// Look-ups in the columns of a run: the batch of a step, the step of a position. Bars are sorted by request and step.
(() => {
  const firstBars = report.data.runs.map((run) => {
    const starts = new Map();
    run.bars.request.forEach((request, bar) => {
      if (!starts.has(request)) starts.set(request, bar);
    });
    return starts;
  });

  function segment(run, bar, step) {
    const { bars, kinds, requests } = report.data.runs[run];
    const rows = bars.rows[bar];
    return {
      request: bars.request[bar],
      name: requests[bars.request[bar]],
      kind: kinds[bars.kind[bar]] ?? "other",
      position: bars.is_exact ? bars.position[bar] + (step - bars.step[bar]) * rows : null,
      rows: bars.is_exact || bars.steps[bar] === 1 ? rows : null,
      logits: bars.logits[bar],
      cached: bars.cached[bar],
      proposed: bars.proposed[bar],
    };
  }

  report.batch = (run, step) => {
    const { bars } = report.data.runs[run];
    const found = [];
    for (let bar = 0; bar < bars.step.length; bar++) {
      if (step >= bars.step[bar] && step < bars.step[bar] + bars.steps[bar]) found.push(segment(run, bar, step));
    }
    return found;
  };

  report.barsOf = function* (run, request) {
    const { bars } = report.data.runs[run];
    for (let bar = firstBars[run].get(request) ?? bars.request.length; bars.request[bar] === request; bar++) yield bar;
  };

  // The last position that a request computed in a step, null where it has no rows there.
  report.positionAt = (run, request, step) => {
    const { bars } = report.data.runs[run];
    for (const bar of report.barsOf(run, request)) {
      const into = step - bars.step[bar];
      if (into >= 0 && into < bars.steps[bar]) return bars.position[bar] + (into + 1) * bars.rows[bar] - 1;
    }
    return null;
  };

  // The last step that computed a position of a request: a recomputed or rejected row counts as computed again.
  report.stepOf = (run, request, position) => {
    const { bars } = report.data.runs[run];
    let found = null;
    for (const bar of report.barsOf(run, request)) {
      const into = Math.floor((position - bars.position[bar]) / bars.rows[bar]);
      if (into >= 0 && into < bars.steps[bar]) found = bars.step[bar] + into;
    }
    return found;
  };

  report.stepCount = (run) => report.data.runs[run].steps.packed_rows.length;
  report.mainPath = (run, step) => {
    const { steps, plans } = report.data.runs[run];
    return plans[steps.plan[step]]?.main ?? "";
  };
})();
