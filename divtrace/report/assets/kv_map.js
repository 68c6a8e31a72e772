"use strict";
// Layer by position: equal bits, other bits, and how far the largest element of a row moved.
(() => {
  const { kv, focus } = report.data;
  if (!kv) return;
  const GUTTER = 64;
  const TOP = 26;
  const BOTTOM = 22;
  const bytes = Uint8Array.from(atob(kv.cells), (character) => character.charCodeAt(0));
  const columns = bytes.length / kv.layers;
  const box = report.byId("kv-map");
  const canvas = report.element("canvas", { role: "img", "aria-label": describe() });
  const scaleBox = report.element("p", { class: "legend" });
  box.append(report.element("div", { class: "pane" }, canvas), scaleBox);
  let cellWidth = 1;
  let cellHeight = 1;

  const page = report.data.requests[0];
  report.byId("kv-lead").textContent = `K and V of request ${page?.id ?? ""} that the decisions up to ${focus?.flipped ? "the flip" : "the end"} read. ${describe()} Darker or brighter: the largest element of a row moved further.`;

  function describe() {
    const differing = kv.differing_rows === 0 ? "all are equal bit for bit" : `${kv.differing_rows} differ in at least one layer`;
    return `${report.counted(kv.compared_rows, "row")} compared in ${report.counted(kv.layers, "layer")}: ${differing}.`;
  }

  function shade(value) {
    const low = channels(report.colour("shade-low"));
    const high = channels(report.colour("shade-high"));
    const part = Math.max(0, (value - 3) / 252);
    return `rgb(${low.map((channel, index) => Math.round(channel + (high[index] - channel) * part)).join(",")})`;
  }

  function channels(hex) {
    return [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
  }

  function draw() {
    const width = report.pageWidth(box);
    cellWidth = (width - GUTTER - 12) / columns;
    cellHeight = Math.max(3, Math.min(16, 260 / kv.layers));
    const height = TOP + kv.layers * cellHeight + BOTTOM;
    const context = report.sizeCanvas(canvas, width, height);
    const looks = Array.from({ length: 256 }, (_, value) => (value >= 3 ? shade(value) : null));
    const equal = report.colour("equal");
    const other = shade(3);
    for (let column = 0; column < columns; column++) {
      for (let layer = 0; layer < kv.layers; layer++) {
        const value = bytes[column * kv.layers + layer];
        if (value === 0) continue;
        context.fillStyle = value === 1 ? equal : value === 2 ? other : looks[value];
        const inset = cellWidth > 4 ? 0.6 : 0;
        context.fillRect(GUTTER + column * cellWidth, TOP + layer * cellHeight, Math.max(cellWidth - inset, 0.6), cellHeight - (cellHeight > 4 ? 0.6 : 0));
      }
    }
    frame(context, width, height);
    marks(context);
    chosen(context);
    legend();
  }

  function frame(context, width, height) {
    context.fillStyle = report.colour("muted");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (let layer = 0; layer < kv.layers; layer += Math.max(1, Math.ceil(16 / cellHeight))) context.fillText(`layer ${layer}`, 2, TOP + (layer + 0.5) * cellHeight);
    const every = Math.max(1, Math.ceil(60 / cellWidth / 10) * 10) * kv.bin_positions;
    for (let position = 0; position < kv.positions; position += every) context.fillText(String(position), GUTTER + (position / kv.bin_positions) * cellWidth, height - 9);
    context.fillText("position", 2, height - 9);
  }

  function marks(context) {
    context.font = "700 11px system-ui, sans-serif";
    const x = (position) => GUTTER + (position / kv.bin_positions) * cellWidth;
    const prompt = page ? Math.min(page.prompt_tokens, kv.positions) : 0;
    context.fillStyle = report.colour("muted");
    context.fillRect(x(0), TOP - 5, x(prompt) - x(0) - 2, 3);
    if (x(prompt) - x(0) > 50) context.fillText("prompt", x(0), TOP - 15);
    if (!focus) return;
    context.fillStyle = report.colour("ink");
    for (const [first, last] of focus.carriers) context.fillRect(x(first), TOP - 5, Math.max(2, x(last + 1) - x(first)), 3);
    const middle = focus.carriers.length ? focus.carriers[0][0] : null;
    context.fillStyle = report.colour("mark");
    const own = focus.origins.filter((mark) => mark.layer < kv.layers).flatMap((mark) => mark.positions);
    for (const [first, last] of own) context.fillRect(x(first), TOP - 8, Math.max(3, x(last + 1) - x(first)), 6);
    if (own.length) {
      const left = x(own[0][0]);
      context.fillText("◆ origin", left, TOP - 17);
      const after = left + context.measureText("◆ origin  ").width;
      context.fillStyle = report.colour("ink");
      if (middle !== null) context.fillText("carriers", Math.max(after, x(middle)), TOP - 17);
    }
  }

  function chosen(context) {
    const number = report.state.run;
    const step = report.chosenStep(number);
    const steps = number === 0 ? kv.steps_a : kv.steps_b;
    if (report.state.request !== 0 || step === null) return;
    context.strokeStyle = report.colour("ink");
    context.lineWidth = 1.5;
    const first = steps.indexOf(step);
    if (first >= 0) context.strokeRect(GUTTER + first * cellWidth, TOP, Math.max(2, (steps.lastIndexOf(step) - first + 1) * cellWidth), kv.layers * cellHeight);
  }

  function legend() {
    const items = [swatch(report.colour("equal"), "equal bit for bit")];
    if (bytes.includes(2)) items.push(swatch(shade(3), "other bits, same largest element"));
    if (kv.largest !== null) items.push(swatch(shade(3), `moved by ${kv.smallest.toPrecision(2)}`), swatch(shade(130), "…"), swatch(shade(255), kv.largest.toPrecision(2)));
    scaleBox.replaceChildren(...items);
  }

  function swatch(colour, text) {
    return report.swatch({ colour, pattern: "solid" }, text);
  }

  function cellAt(event) {
    const column = Math.floor((event.offsetX - GUTTER) / cellWidth);
    const layer = Math.floor((event.offsetY - TOP) / cellHeight);
    return column < 0 || column >= columns || layer < 0 || layer >= kv.layers ? null : { column, layer };
  }

  canvas.addEventListener("mousemove", (event) => {
    const cell = cellAt(event);
    if (!cell) return report.hideTip();
    const position = cell.column * kv.bin_positions;
    const value = bytes[cell.column * kv.layers + cell.layer];
    const moved = value >= 3 && kv.largest !== null ? kv.smallest * (kv.largest / kv.smallest) ** ((value - 3) / 252) : 0;
    const state = value === 0 ? "not recorded in both runs" : value === 1 ? "equal bit for bit" : value === 2 ? "other bits, same largest element" : `largest element moved by about ${moved.toPrecision(2)}`;
    const text = page?.a ? `“${report.oneLine(report.string(page.a.texts[position]))}”` : "";
    return report.tip(event, `position ${position} ${text}\nlayer ${cell.layer}: ${state}\nwritten in step ${kv.steps_a[cell.column]} of A, ${kv.steps_b[cell.column]} of B`);
  });
  canvas.addEventListener("mouseleave", report.hideTip);
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (!cell) return;
    const { run } = report.state;
    const step = (run === 0 ? kv.steps_a : kv.steps_b)[cell.column];
    if (report.state.request !== 0) report.showRequest(0);
    if (step >= 0) report.select(run, step);
  });
  report.picture("redraw", draw);
  report.picture("request", draw);
  report.picture("select", draw);
})();
