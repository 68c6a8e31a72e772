"use strict";
// Colour and pattern of kinds and paths: each can be told by its pattern alone.
(() => {
  const kindPatterns = { prefill: "solid", decode: "thin", verify: "stripes", recompute: "cross" };
  const pathPatterns = ["solid", "diagonal", "dots", "stripes", "cross", "thin"];
  const paths = pathsByRows();

  // The path that serves the fewest rows comes first and stays plain; what larger calls take is hatched.
  function pathsByRows() {
    const least = new Map();
    for (const plan of report.data.runs.flatMap((run) => run.plans)) {
      for (const { path, rows, site_class: siteClass } of plan.groups) {
        const rank = siteClass === "attention" ? 1e9 : rows;
        least.set(path, Math.min(least.get(path) ?? Infinity, rank));
      }
    }
    return [...least.keys()].sort((left, right) => least.get(left) - least.get(right) || (left < right ? -1 : 1));
  }

  report.kindLook = (kind) => ({ colour: report.colour(kind in kindPatterns ? kind : "other"), pattern: kindPatterns[kind] ?? "dots" });
  report.pathLook = (path) => {
    const place = paths.indexOf(path);
    if (place < 0) return { colour: report.colour("equal"), pattern: "solid" };
    return { colour: report.colour(`path-${place % 6}`), pattern: pathPatterns[place % pathPatterns.length] };
  };
  report.paths = paths;

  // One rectangle in a look. Patterns are left out where they would be noise.
  report.paint = (context, look, x, y, width, height) => {
    context.fillStyle = look.colour;
    if (look.pattern === "thin") {
      const inset = Math.max(0.5, height * 0.22);
      context.fillRect(x, y + inset, width, height - 2 * inset);
      return;
    }
    context.fillRect(x, y, width, height);
    if (look.pattern === "solid" || width < 5 || height < 5) return;
    hatch(context, look.pattern, x, y, width, height);
  };

  function hatch(context, pattern, x, y, width, height) {
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.beginPath();
    if (pattern === "dots") {
      context.fillStyle = report.colour("hatch");
      for (let dotX = x + 2; dotX < x + width; dotX += 5) {
        for (let dotY = y + 2; dotY < y + height; dotY += 5) context.fillRect(dotX, dotY, 1.5, 1.5);
      }
    }
    const gap = 6;
    const first = Math.floor(x / gap) * gap;
    for (let lineX = first - height; pattern !== "dots" && lineX < x + width + height; lineX += gap) {
      if (pattern === "stripes") {
        context.moveTo(lineX, y);
        context.lineTo(lineX, y + height);
        continue;
      }
      context.moveTo(lineX, y + height);
      context.lineTo(lineX + height, y);
      if (pattern === "cross") {
        context.moveTo(lineX, y);
        context.lineTo(lineX + height, y + height);
      }
    }
    context.strokeStyle = report.colour("hatch");
    context.lineWidth = 1;
    context.stroke();
    context.restore();
  }

  report.swatch = (look, label) => {
    const canvas = report.element("canvas", { "aria-hidden": "true" });
    const context = report.sizeCanvas(canvas, 26, 13);
    report.paint(context, look, 0, 0, 26, 13);
    return report.element("span", {}, canvas, label);
  };

  // The same for a line: its dashes and, where it has them, its points.
  report.lineSwatch = (colour, dash, label, width = 1.5, point = 0) => {
    const canvas = report.element("canvas", { "aria-hidden": "true", class: "line" });
    const context = report.sizeCanvas(canvas, 34, 13);
    context.strokeStyle = context.fillStyle = report.colour(colour);
    context.lineWidth = width;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(0, 6.5);
    context.lineTo(34, 6.5);
    context.stroke();
    context.beginPath();
    context.arc(17, 6.5, point / 2, 0, 2 * Math.PI);
    context.fill();
    return report.element("span", {}, canvas, label);
  };

  // A canvas of this size in CSS pixels, sharp on every screen; returns its cleared context.
  report.sizeCanvas = (canvas, width, height) => {
    const scale = Math.min(window.devicePixelRatio || 1, 3);
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  };
})();
