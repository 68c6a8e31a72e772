"use strict";
// The page's data and a few helpers that every part uses. Text from a trace only ever becomes a text node.
const report = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const listeners = new Map();

  function element(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name === "class") made.className = value;
      else if (name in made && typeof value !== "string") made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  return {
    data,
    element,
    isPair: data.runs.length === 2,
    byId: (id) => document.getElementById(id),
    string: (index) => data.strings[index],
    on(name, listener) {
      if (!listeners.has(name)) listeners.set(name, []);
      listeners.get(name).push(listener);
    },
    // Pictures listen through this: while the page starts nothing is drawn that would be drawn again at once.
    picture(name, draw) {
      this.on(name, () => this.isStarted && draw());
    },
    isStarted: false,
    emit(name, value) {
      for (const listener of listeners.get(name) ?? []) listener(value);
    },
    side: (page, run) => (run === 0 ? page.a : page.b),
    counted: (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`,
    number: (value, digits = 3) => (value === null || value === undefined ? "–" : Number(value).toPrecision(digits)),
    // Between quotation marks, spaces at the ends visible.
    quoted: (text) => `“${text.replaceAll("\n", "↵").replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length))}”`,
    oneLine: (text) => text.replaceAll("\n", "↵"),
    runName: (run) => (data.runs.length === 2 ? `run ${data.runs[run].label}, ${data.runs[run].name}` : data.runs[run].name),
  };
})();
