"use strict";
// What is drawn over the bars: the chosen step, events, and the arrow from the origin over its carriers to the split.
(() => {
  const { data } = report;

  report.drawMarks = (context, place) => {
    report.drawChosen(context, place, true);
    events(context, place);
    story(context, place);
  };

  // The chosen step: a light column behind the bars, an outline over them.
  report.drawChosen = (context, { number, scale, header, total }, isOutline) => {
    const step = report.chosenStep(number);
    if (step === null || report.isPrinting()) return;
    const width = Math.max(2, scale.perStep);
    if (!isOutline) {
      context.fillStyle = report.colour("select");
      context.fillRect(scale.x(step), header, width, total - header);
      return;
    }
    context.strokeStyle = report.colour("ink");
    context.lineWidth = 1.5;
    if (width >= 5) {
      context.strokeRect(scale.x(step), header - 1, width, total - header);
      return;
    }
    context.beginPath();
    context.moveTo(scale.x(step) + width / 2, header - 1);
    context.lineTo(scale.x(step) + width / 2, total);
    context.stroke();
  };

  function events(context, { run, height, scale, top, rowOf }) {
    const size = Math.min(5, height / 2 - 1);
    run.events.step.forEach((step, event) => {
      const x = scale.x(step);
      const kind = report.string(run.events.kind[event]);
      if (x < report.gutter - 8 || !rowOf.has(run.events.request[event]) || (height < 8 && kind !== "preempted")) return;
      const y = top(run.events.request[event]) + height / 2;
      context.fillStyle = report.colour("ink");
      context.strokeStyle = report.colour("ink");
      context.lineWidth = 1.5;
      context.beginPath();
      if (kind === "admitted") {
        context.moveTo(x + 1, y - size);
        context.lineTo(x + 1 + size, y);
        context.lineTo(x + 1, y + size);
        context.closePath();
        context.stroke();
      } else if (kind === "preempted") {
        context.moveTo(x, y - size);
        context.lineTo(x + 2 * size, y + size);
        context.moveTo(x + 2 * size, y - size);
        context.lineTo(x, y + size);
        context.stroke();
      } else {
        context.fillRect(scale.x(step + 1) - size, y - size * 0.8, size, size * 1.6);
      }
    });
  }

  function story(context, place) {
    const { focus } = data;
    if (!focus || focus.origins.length === 0) return;
    const { number, scale, height, top } = place;
    const rowMiddle = (of) => top(of) + height / 2;
    const middle = (step) => scale.x(step + 0.5);
    const flip = number === 0 ? focus.step_a : focus.step_b;
    const request = report.side(data.requests[focus.request], number)?.number ?? 0;
    const lane = 20;
    const origins = focus.origins.map((mark) => ({ ...mark, step: number === 0 ? mark.step_a : mark.step_b, request: number === 0 ? mark.request_a : mark.request_b }));
    const first = origins.find((mark) => mark.is_cause) ?? origins[0];
    const isHere = first.run === number || !report.isPair;
    const isOneStep = flip === first.step;
    guide(context, middle(first.step), lane, rowMiddle(first.request));
    if (isHere) {
      if (flip !== null && !isOneStep) arrow(context, middle(first.step), middle(flip), lane);
      carriers(context, place, request, lane);
      for (const mark of origins) if (mark !== first) diamond(context, middle(mark.step), lane, 3.5, mark.is_cause);
      diamond(context, middle(first.step), lane, 6, true);
      diamond(context, middle(first.step), rowMiddle(first.request), 6, true);
    }
    const words = isHere ? originWords(first, isOneStep) : `step ${first.step}: ${sameRows(number, first)}${isOneStep ? ", and the split" : ""}`;
    const from = label(context, words, middle(first.step), 9, report.colour(isHere ? "mark" : "muted"), -Infinity, place);
    if (flip === null) return;
    guide(context, middle(flip), lane, rowMiddle(request));
    star(context, middle(flip), lane);
    star(context, middle(flip), rowMiddle(request));
    if (!isOneStep) label(context, `${focus.flipped ? "split" : "decision"}, step ${flip}`, middle(flip), 9, report.colour("accent"), from, place);
  }

  // In the other run: the same rows of that request, and who else was in its batch.
  function sameRows(number, first) {
    const others = report.batch(number, first.step).filter((one) => one.request !== first.request).length;
    const name = data.runs[number].requests[first.request].slice(0, 24);
    return `the same rows of ${name}, ${others ? `with ${report.counted(others, "other")}` : "alone"}`;
  }

  function originWords(first, isOneStep) {
    const who = first.joined.length === 1 ? `${first.joined[0].slice(0, 24)} joins here` : first.joined.length ? `${first.joined.length} requests join here` : "origin";
    return `${who}, step ${first.step}${isOneStep ? ", and the split" : ""}`;
  }

  function arrow(context, from, to, y) {
    const ahead = to > from ? 1 : -1;
    context.strokeStyle = report.colour("ink");
    context.fillStyle = report.colour("ink");
    context.lineWidth = 1.6;
    context.beginPath();
    context.moveTo(from, y);
    context.lineTo(to - ahead * 9, y);
    context.stroke();
    context.beginPath();
    context.moveTo(to - ahead * 7, y);
    context.lineTo(to - ahead * 14, y - 4);
    context.lineTo(to - ahead * 14, y + 4);
    context.fill();
  }

  // Steps that computed carrier rows: ticks on the arrow.
  function carriers(context, { number, scale }, request, y) {
    context.strokeStyle = report.colour("ink");
    context.lineWidth = 1;
    context.beginPath();
    let previous = -Infinity;
    for (const [first, last] of data.focus.carriers) {
      for (let position = first; position <= Math.min(last, first + 20000); position++) {
        const step = report.stepOf(number, request, position);
        const x = step === null ? previous : scale.x(step + 0.5);
        if (x - previous < 3) continue;
        previous = x;
        context.moveTo(x, y - 3);
        context.lineTo(x, y + 3);
      }
    }
    context.stroke();
  }

  function guide(context, x, from, to) {
    context.save();
    context.strokeStyle = report.colour("muted");
    context.setLineDash([2, 3]);
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, from);
    context.lineTo(x, to);
    context.stroke();
    context.restore();
  }

  function diamond(context, x, y, size, isFilled) {
    context.beginPath();
    context.moveTo(x, y - size);
    context.lineTo(x + size, y);
    context.lineTo(x, y + size);
    context.lineTo(x - size, y);
    context.closePath();
    fill(context, report.colour(isFilled ? "mark" : "card"));
    if (isFilled) return;
    context.lineWidth = 1.2;
    context.strokeStyle = report.colour("mark");
    context.stroke();
  }

  function star(context, x, y) {
    context.beginPath();
    for (let corner = 0; corner < 10; corner++) {
      const radius = corner % 2 ? 3 : 7;
      const angle = (Math.PI / 5) * corner - Math.PI / 2;
      context.lineTo(x + radius * Math.cos(angle), y + radius * Math.sin(angle));
    }
    context.closePath();
    fill(context, report.colour("accent"));
  }

  function fill(context, colour) {
    context.lineWidth = 2.5;
    context.strokeStyle = report.colour("card");
    context.stroke();
    context.fillStyle = colour;
    context.fill();
  }

  // Text centred at x but inside the picture and right of `after`, left out where it has no room; returns where it ends.
  function label(context, text, x, y, colour, after, { width }) {
    context.font = "700 11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const size = context.measureText(text).width;
    const least = Math.max(report.gutter + 2, after + 10);
    const left = Math.max(least, Math.min(x - size / 2, width - size - 4));
    if (left + size > width) return after;
    context.lineWidth = 3;
    context.strokeStyle = report.colour("card");
    context.strokeText(text, left, y - 2);
    context.fillStyle = colour;
    context.fillText(text, left, y - 2);
    return left + size;
  }
})();
