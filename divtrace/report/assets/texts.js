"use strict";
// The shown request in both runs: tokens to point at and to choose, and the candidates of the chosen one.
(() => {
  const { data, element } = report;
  const columns = report.byId("text-columns");
  const picker = report.byId("request");
  const MOST_TOKENS = 6000;
  let chosen = null;
  let spans = [new Map(), new Map()];

  data.requests.forEach((page, place) => {
    const split = page.split === null ? "" : `, splits at position ${page.split}`;
    picker.append(element("option", { value: String(place) }, `${page.id}${split}`));
  });
  picker.addEventListener("change", () => report.showRequest(Number(picker.value)));
  if (data.left_out_requests) {
    report.byId("request-note").textContent = `${report.counted(data.left_out_requests, "more request")} left out of this page to keep it small.`;
  }

  function draw() {
    const page = report.page();
    spans = [new Map(), new Map()];
    columns.replaceChildren();
    report.byId("candidates").replaceChildren();
    if (!page) return;
    picker.value = String(report.state.request);
    prompt(page);
    data.runs.forEach((run, number) => columns.append(side(page, run, number)));
    chosen = page.split !== null && page.split >= page.prompt_tokens ? page.split : page.prompt_tokens;
    showSplit();
    candidates();
  }

  function prompt(page) {
    const { texts } = page.a ?? page.b;
    const shown = report.byId("prompt-text");
    report.byId("prompt").querySelector("summary").textContent = `Prompt, ${report.counted(page.prompt_tokens, "token")}`;
    shown.replaceChildren(...texts.slice(0, Math.min(page.prompt_tokens, MOST_TOKENS)).map((text) => element("span", { class: "tok plain" }, report.string(text))));
  }

  function side(page, run, number) {
    const own = report.side(page, number);
    const title = element("h3", {}, report.isPair ? element("span", { class: number ? "tag b" : "tag" }, run.label) : "", ` ${run.name}`,
      element("small", { class: "note" }, own ? report.counted(own.tokens.length - page.prompt_tokens, "token") : "does not have this request"));
    const list = element("div", { class: "text", tabindex: "0", role: "listbox", "aria-label": `Output of ${report.runName(number)}`, "aria-orientation": "horizontal" });
    if (own) list.append(...tokens(page, own, number));
    list.addEventListener("click", (event) => event.target.dataset.position && choose(Number(event.target.dataset.position), number));
    list.addEventListener("mouseover", (event) => event.target.dataset.position && report.tip(event, tipText(page, own, Number(event.target.dataset.position))));
    list.addEventListener("mouseleave", report.hideTip);
    list.addEventListener("keydown", (event) => keys(event, page, own, number));
    return element("div", { class: "side" }, title, list);
  }

  function tokens(page, own, number) {
    const made = [];
    const last = Math.min(own.tokens.length, page.prompt_tokens + MOST_TOKENS);
    for (let position = page.prompt_tokens; position < last; position++) {
      const gap = own.gaps[position - page.prompt_tokens];
      const isAfter = page.split !== null && position > page.split;
      const classes = ["tok", position === page.split ? "split" : isAfter ? "after" : gapClass(gap)];
      const token = element("span", { class: classes.join(" "), role: "option", "aria-selected": "false", id: `tok-${number}-${position}` }, report.string(own.texts[position]).replaceAll("\n", "↵\n"));
      token.dataset.position = String(position);
      spans[number].set(position, token);
      made.push(token);
    }
    return made;
  }

  function gapClass(gap) {
    if (gap === undefined || gap === null || gap > 1) return "";
    return gap <= 0.01 ? "gap-3" : gap <= 0.1 ? "gap-2" : "gap-1";
  }

  function tipText(page, own, position) {
    const place = position - page.prompt_tokens;
    const lines = [`${report.quoted(report.string(own.texts[position]))}, token ${own.tokens[position]}`, `position ${position}, step ${own.steps[place] ?? "–"}`, `gap ${report.number(own.gaps[place])}`];
    if (page.margin_drift[place] !== undefined && page.margin_drift[place] !== null) lines.push(`gap drift ${report.number(page.margin_drift[place])}`);
    return lines.join("\n");
  }

  function choose(position, number) {
    chosen = position;
    const page = report.page();
    const step = report.side(page, number)?.steps[position - page.prompt_tokens];
    candidates();
    if (step !== undefined) report.select(number, step);
  }

  report.chooseToken = (position) => {
    chosen = position;
    candidates();
  };

  function keys(event, page, own, number) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -Infinity, End: Infinity };
    if (!own || !(event.key in moves)) return;
    event.preventDefault();
    const last = own.tokens.length - 1;
    choose(Math.min(last, Math.max(page.prompt_tokens, (chosen ?? page.prompt_tokens) + moves[event.key])), number);
    spans[number].get(chosen)?.scrollIntoView({ block: "nearest" });
  }

  function showSplit() {
    const page = report.page();
    for (const list of columns.querySelectorAll(".text")) {
      const split = list.querySelector(".split");
      if (!split || page.split === null) continue;
      // Scrolled by whole lines, so that none is cut at the top.
      const line = parseFloat(getComputedStyle(list).lineHeight);
      const top = split.offsetTop - (line - split.offsetHeight) / 2;
      list.scrollTop = Math.max(0, top - Math.round(list.clientHeight / 2 / line) * line);
    }
  }

  function mark() {
    const page = report.page();
    spans.forEach((tokensOf, number) => {
      const step = number < data.runs.length ? report.chosenStep(number) : null;
      const steps = page ? report.side(page, number)?.steps ?? [] : [];
      if (tokensOf.has(chosen)) columns.querySelectorAll(".text")[number].setAttribute("aria-activedescendant", `tok-${number}-${chosen}`);
      for (const [position, token] of tokensOf) {
        token.classList.toggle("in-step", step !== null && steps[position - page.prompt_tokens] === step);
        token.setAttribute("aria-selected", String(position === chosen));
      }
    });
  }

  function candidates() {
    const page = report.page();
    const place = chosen - page.prompt_tokens;
    const tops = [0, 1].map((number) => topOf(report.side(page, number), place));
    const box = report.byId("candidates");
    mark();
    if (!tops[0] && !tops[1]) {
      box.replaceChildren(element("p", { class: "note" }, "No candidates are stored for this token."));
      return;
    }
    const isComparable = report.isPair && (page.split === null || chosen <= page.split) && tops[0] && tops[1];
    box.replaceChildren(table(page, tops, isComparable));
    if (report.isPair && !isComparable) box.append(element("p", { class: "note" }, "After the split the runs read different tokens, so these logits cannot be compared."));
  }

  function topOf(own, place) {
    if (!own?.top || place < 0 || place >= own.steps.length) return null;
    const { k, tokens: ids, texts, logits } = own.top;
    const found = new Map();
    for (let rank = 0; rank < k; rank++) found.set(ids[place * k + rank], { text: report.string(texts[place * k + rank]), logit: logits[place * k + rank], rank });
    return { found, wrote: own.tokens[own.tokens.length - own.steps.length + place] };
  }

  function table(page, tops, isComparable) {
    const ids = [...new Set(tops.flatMap((top) => (top ? [...top.found.keys()] : [])))];
    const shown = data.runs.map((_, number) => number).filter((number) => tops[number]);
    const rows = ids.map((id) => {
      const known = shown.map((number) => tops[number].found.get(id));
      const text = known.find(Boolean).text;
      const drift = isComparable && known[0] && known[1] ? (known[1].logit - known[0].logit).toPrecision(3) : "–";
      const cells = shown.map((number, column) => element("td", { class: tops[number].wrote === id ? "wrote" : "" }, `${known[column] ? known[column].logit.toFixed(6) : "–"}${tops[number].wrote === id ? " ◀ written" : ""}`));
      return element("tr", {}, element("th", { scope: "row" }, `${report.quoted(text)} (${id})`), ...cells, ...(isComparable ? [element("td", {}, drift)] : []));
    });
    const heads = ["candidate", ...shown.map((number) => (report.isPair ? `logit in ${data.runs[number].label}` : "logit")), ...(isComparable ? ["logit drift"] : [])];
    return element("table", {}, element("caption", {}, `Candidates at position ${chosen}${chosen === page.split ? ", the split" : ""}`),
      element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))), element("tbody", {}, ...rows));
  }

  report.on("request", draw);
  report.on("select", mark);
})();
