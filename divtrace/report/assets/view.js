"use strict";
// The window of steps that all pictures over steps share, and how steps become pixels.
(() => {
  const { data } = report;
  const longest = Math.max(1, ...data.runs.map((_, run) => report.stepCount(run)));
  const view = { from: 0, to: longest, colourBy: "kind" };
  report.view = view;
  report.gutter = window.innerWidth < 700 ? 76 : 118;
  report.rightMargin = 14;

  report.xScale = (width) => {
    const inner = width - report.gutter - report.rightMargin;
    return { inner, perStep: inner / (view.to - view.from), x: (step) => report.gutter + ((step - view.from) / (view.to - view.from)) * inner };
  };

  report.zoomByWheel = (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1 / 1.3 : 1.3);
  };

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

  // A long run starts where the story is: else origin and flip would share a few pixels.
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
})();
