"use strict";
// Layer by position: equal bits, other bits, and how far the largest element of a row moved.
(() => {
  const { kv, focus } = report.data;
  if (!kv) return;
  const GUTTER = 64;
  const TOP = 14;
  const RIGHT = focus?.flipped ? 58 : 12;
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

  // Rows of layer 0 are made from the token alone, so that a carrier's are equal there: say it where it is seen.
  function firstLayer() {
    const places = (focus?.carriers ?? []).flatMap(([first, last]) => [first, last]).map((position) => Math.floor(position / kv.bin_positions));
    const isSeen = places.length > 0 && places.every((column) => column < columns && bytes[column * kv.layers] === 1);
    return isSeen ? " Carriers are equal in layer 0, which is made from the token alone." : "";
  }

  function lead() {
    const further = report.isDark() ? "The brighter" : "The darker";
    const scale = kv.largest === null ? "" : ` ${further}, the larger the K/V drift: how far the largest element of a row moved.`;
    report.byId("kv-lead").textContent = `K and V of request ${page?.id ?? ""} that the decisions up to ${focus?.flipped ? "the split" : "the end"} read. ${describe()}${scale}${firstLayer()}`;
  }

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
    cellWidth = (width - GUTTER - RIGHT) / columns;
    cellHeight = Math.max(3, Math.min(16, 260 / kv.layers));
    const height = TOP + kv.layers * cellHeight + BOTTOM;
    const context = report.sizeCanvas(canvas, width, height);
    const looks = Array.from({ length: 256 }, (_, value) => (value >= 3 ? shade(value) : null));
    const equal = report.colour("equal");
    const other = report.colour("other-bits");
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
    lead();
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

  // Lines above the map (prompt, carriers, origins; the legend names them) and the split at its right end.
  function marks(context) {
    const x = (position) => GUTTER + (position / kv.bin_positions) * cellWidth;
    const prompt = page ? Math.min(page.prompt_tokens, kv.positions) : 0;
    context.fillStyle = report.colour("muted");
    context.fillRect(x(0), TOP - 5, x(prompt) - x(0) - 2, 3);
    if (!focus) return;
    context.fillStyle = report.colour("ink");
    for (const [first, last] of focus.carriers) context.fillRect(x(first), TOP - 5, Math.max(2, x(last + 1) - x(first)), 3);
    context.fillStyle = report.colour("mark");
    for (const [first, last] of originRows()) context.fillRect(x(first), TOP - 10, Math.max(3, x(last + 1) - x(first)), 8);
    if (!focus.flipped) return;
    context.fillStyle = report.colour("accent");
    context.fillRect(x(kv.positions) + 1, TOP - 6, 2, kv.layers * cellHeight + 6);
    context.font = "700 11px system-ui, sans-serif";
    context.fillText("★ split", x(kv.positions) + 7, TOP + 6);
    context.fillText(String(focus.position), x(kv.positions) + 7, TOP + 20);
  }

  function originRows() {
    return (focus?.origins ?? []).filter((mark) => mark.layer < kv.layers).flatMap((mark) => mark.positions);
  }

  function chosen(context) {
    const number = report.state.run;
    const step = report.chosenStep(number);
    const steps = number === 0 ? kv.steps_a : kv.steps_b;
    if (report.state.request !== 0 || step === null || report.isPrinting()) return;
    context.strokeStyle = report.colour("ink");
    context.lineWidth = 1.5;
    const first = steps.indexOf(step);
    if (first >= 0) context.strokeRect(GUTTER + first * cellWidth, TOP, Math.max(2, (steps.lastIndexOf(step) - first + 1) * cellWidth), kv.layers * cellHeight);
  }

  function legend() {
    const items = [swatch(report.colour("equal"), "equal bit for bit")];
    if (bytes.includes(2)) items.push(swatch(report.colour("other-bits"), "other bits, same largest element"));
    if (kv.largest !== null) {
      const middle = Math.sqrt(kv.smallest * kv.largest);
      const drifts = kv.largest > kv.smallest ? [[3, kv.smallest], [129, middle], [255, kv.largest]] : [[255, kv.largest]];
      items.push(...drifts.map(([value, drift], place) => swatch(shade(value), `${place ? "" : "K/V drift "}${drift.toPrecision(2)}`)));
    }
    if (page?.prompt_tokens) items.push(report.lineSwatch("muted", [], "prompt", 3));
    if (originRows().length) items.push(report.lineSwatch("mark", [], "rows of origins", 8));
    if (focus?.carriers.length) items.push(report.lineSwatch("ink", [], "carriers", 3));
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
    const state = value === 0 ? "not recorded in both runs" : value === 1 ? "equal bit for bit" : value === 2 ? "other bits, same largest element" : `K/V drift about ${moved.toPrecision(2)}`;
    const text = page?.a ? report.quoted(report.string(page.a.texts[position])) : "";
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
