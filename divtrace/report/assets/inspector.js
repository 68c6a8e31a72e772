"use strict";
// The bar at the bottom: the chosen step, its batch in both runs, and a slider for keyboards and screen readers.
(() => {
  const { data, element } = report;
  const slider = report.byId("step-slider");
  const body = report.byId("inspector-body");
  const fold = report.byId("inspector-fold");
  const MOST_CHIPS = 40;

  function batch(run) {
    const step = report.chosenStep(run);
    const label = report.isPair ? element("span", { class: run ? "tag b" : "tag" }, data.runs[run].label) : "";
    if (step === null) {
      return element("div", { class: "batch" }, element("p", {}, label, " no step of this run computed the same rows of the shown request"));
    }
    const { steps } = data.runs[run];
    const segments = report.batch(run, step);
    const chips = segments.slice(0, MOST_CHIPS).map((one) => chip(run, one));
    if (segments.length > MOST_CHIPS) chips.push(element("li", { class: "chip" }, `${segments.length - MOST_CHIPS} more`));
    return element("div", { class: "batch", tabindex: "0", role: "region", "aria-label": `Batch of ${report.runName(run)}` },
      element("p", {}, label, ` step ${step}: ${report.counted(steps.packed_rows[step], "row")}, ${steps.head_rows[step]} of them with logits, ${report.mainPath(run, step) || "no kernel"}`),
      element("ul", { class: "chips" }, ...chips));
  }

  function chip(run, one) {
    const page = report.page();
    const isFocus = page && report.side(page, run)?.number === one.request;
    const size = one.rows === null ? "" : ` ${report.counted(one.rows, "row")}, position ${one.position}${one.rows > 1 ? `–${one.position + one.rows - 1}` : ""}`;
    const drafts = one.proposed ? `, ${one.proposed} proposed` : "";
    const cached = one.cached ? `, ${one.cached} from cache` : "";
    return element("li", { class: `chip ${one.kind}${isFocus ? " focus" : ""}` }, `${one.name} ${one.kind}${size}${drafts}${cached}`);
  }

  function draw() {
    const { run, step } = report.state;
    slider.max = String(Math.max(0, report.stepCount(run) - 1));
    slider.value = String(step);
    slider.setAttribute("aria-valuetext", report.stepCount(run) ? `step ${step}: ${report.batchWords(run, step)}` : "no step");
    report.byId("inspector-title").textContent = `Step ${step}`;
    report.byId("inspector-run").textContent = report.isPair ? `of run ${data.runs[run].label}` : `of ${report.stepCount(run)}`;
    body.replaceChildren(...data.runs.map((_, number) => batch(number)));
  }

  slider.addEventListener("input", () => report.select(report.state.run, Number(slider.value)));
  report.byId("step-back").addEventListener("click", () => report.select(report.state.run, report.state.step - 1));
  report.byId("step-on").addEventListener("click", () => report.select(report.state.run, report.state.step + 1));
  // One line until a step is chosen; who folds the batches away keeps them away.
  let isFoldedAway = false;

  function unfold(isOpen) {
    body.hidden = !isOpen;
    fold.textContent = isOpen ? "Hide batches" : "Show batches";
    fold.setAttribute("aria-expanded", String(isOpen));
  }

  fold.addEventListener("click", () => {
    isFoldedAway = !body.hidden;
    unfold(body.hidden);
  });
  for (const button of document.querySelectorAll("[data-jump]")) {
    button.hidden = !data.focus || data.focus.origins.length === 0;
    button.addEventListener("click", () => {
      report.jump(button.dataset.jump);
      if (!button.closest("#inspector")) report.byId("timeline").scrollIntoView({ block: "start" });
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.target === document.body && (event.key === "ArrowLeft" || event.key === "ArrowRight")) report.moveKeys(event, report.state.run);
  });
  report.picture("select", draw);
  report.picture("select", () => isFoldedAway || unfold(true));
  // At the end of the page until a step is chosen or the timeline is in sight: it would cover what is read first.
  const bar = report.byId("inspector");
  const wake = () => bar.classList.remove("resting");
  bar.classList.add("resting");
  report.on("select", () => report.isStarted && wake());
  new IntersectionObserver(([seen]) => seen.isIntersecting && wake()).observe(report.byId("timeline"));
  report.picture("request", draw);
  report.picture("redraw", draw);
})();
