"use strict";
// Light, dark and print. Pictures read their colours here and draw again on every "redraw".
(() => {
  const root = document.documentElement;
  const button = report.byId("theme");
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = remembered();
  let printing = false;
  let colours = new Map();

  function remembered() {
    try {
      return localStorage.getItem("divtrace-theme");
    } catch {
      return null; // A file opened from disk may have no storage.
    }
  }

  function remember(theme) {
    try {
      localStorage.setItem("divtrace-theme", theme);
    } catch {
      // Then the choice lasts as long as the page.
    }
  }

  function isDark() {
    return !printing && (chosen ?? (prefersDark.matches ? "dark" : "light")) === "dark";
  }

  function apply() {
    root.dataset.theme = isDark() ? "dark" : "light";
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
    button.setAttribute("aria-pressed", String(isDark()));
    colours = new Map();
    report.emit("redraw");
  }

  // Paper has no folds: everything is opened for it, and folded again behind it.
  let opened = [];

  function print(starts) {
    if (printing === starts) return;
    printing = starts;
    if (starts) opened = [...document.querySelectorAll("details:not(.screen):not([open])")];
    for (const part of opened) part.open = starts;
    apply();
  }

  report.isDark = isDark;
  report.isPrinting = () => printing;

  report.colour = (name) => {
    if (!colours.has(name)) colours.set(name, getComputedStyle(root).getPropertyValue(`--${name}`).trim());
    return colours.get(name);
  };
  report.applyTheme = apply;
  // A printed page is about 700 CSS pixels wide, whatever the window is.
  report.pageWidth = (box) => (printing ? 690 : Math.max(320, Math.floor(box.clientWidth)));

  button.addEventListener("click", () => {
    chosen = isDark() ? "light" : "dark";
    remember(chosen);
    apply();
  });
  prefersDark.addEventListener("change", apply);
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  window.matchMedia("print").addEventListener("change", (event) => print(event.matches));
  let pending = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(() => report.emit("redraw"));
  });
})();
