
"use strict";
// What runs say is only ever put into text nodes; attributes get fixed words, numbers and labels for screen readers.
(() => {
  const SHOWN_AT_FIRST = 20000;
  // The same rule as is_invisible in _report_page.py.
  const INVISIBLE = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
  const SVG = "http://www.w3.org/2000/svg";

  const body = document.querySelector("#runs tbody");
  const comparison = document.getElementById("comparison");
  const tools = document.getElementById("tools");

  function make(name, attributes, ...children) {
    const element = document.createElement(name);
    for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
    element.append(...children);
    return element;
  }

  function say(text) {
    document.getElementById("said").textContent = text;
  }

  function counted(number, noun) {
    return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  }

  function appendVisible(element, text) {
    let done = 0;
    for (const match of text.matchAll(INVISIBLE)) {
      const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
      element.append(text.slice(done, match.index), make("span", { class: "code" }, "U+" + code));
      done = match.index + match[0].length;
    }
    element.append(text.slice(done));
    return element;
  }

  // A place in a text, or the one before it if it lies inside a character of two units.
  function outside(text, place) {
    return /^[\ud800-\udbff][\udc00-\udfff]/.test(text.slice(place - 1, place + 1)) ? place - 1 : place;
  }

  // Text with the stretch from..to marked. A very long one is shown in part until it is asked for.
  function appendText(element, text, from, to) {
    const wanted = Math.max(SHOWN_AT_FIRST, Math.min(to, from + 2000));
    const end = text.length > wanted + 1000 ? outside(text, wanted) : text.length;
    const shown = text.slice(0, end);
    appendVisible(element, shown.slice(0, from));
    if (to > from) element.append(appendVisible(make("mark", {}), shown.slice(from, to)));
    appendVisible(element, shown.slice(Math.max(from, to)));
    if (end < text.length) {
      const more = make("button", { type: "button" }, `show all ${text.length.toLocaleString("en")} characters`);
      more.addEventListener("click", () => {
        element.textContent = "";
        appendVisible(element, text);
      });
      element.append(" ", more);
    }
    return element;
  }

  function plain(element, text) {
    return appendText(element, text, 0, 0);
  }

  function pairs(listed) {
    const list = make("dl", { class: "pairs" });
    for (const [label, text] of listed) list.append(appendVisible(make("dt", {}), label), plain(make("dd", {}), text));
    return list;
  }

  // As _report_runs.py and _text.py say times.
  function duration(ms) {
    if (ms < 1000) return `${ms} ms`;
    if (ms < 10000) return `${(ms / 1000).toFixed(2)} s`;
    const whole = Math.round(ms / 1000);
    for (const [unit, size, below, part] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]]) {
      if (whole < size) continue;
      const rest = Math.floor((whole % size) / part);
      return `${Math.floor(whole / size)} ${unit}` + (rest ? ` ${rest} ${below}` : "");
    }
    return `${whole} s`;
  }

  function load(number) {
    return JSON.parse(document.getElementById("d" + number).textContent);
  }

  // --- one trajectory

  function timeline(steps) {
    const longest = Math.max(1, ...steps.map((step) => step.ms[0] + step.ms[1] + step.ms[2]));
    const list = make("ol", { class: "timeline" });
    for (const step of steps) {
      const svg = document.createElementNS(SVG, "svg");
      for (const [name, value] of [["width", "100%"], ["height", "12"], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
      let left = 0;
      ["model", "action", "rest"].forEach((kind, index) => {
        const bar = document.createElementNS(SVG, "rect");
        const width = (100 * step.ms[index]) / longest;
        for (const [name, value] of [["x", left + "%"], ["width", width + "%"], ["height", "12"], ["class", kind]]) {
          bar.setAttribute(name, value);
        }
        left += width;
        svg.append(bar);
      });
      const figures = `model ${duration(step.ms[0])}, action ${duration(step.ms[1])}, rest ${duration(step.ms[2])}`;
      list.append(make("li", {}, make("span", {}, `step ${step.n}`), svg, make("span", {}, figures)));
    }
    const legend = make("p", { class: "legend" });
    for (const kind of ["model", "action", "rest"]) legend.append(make("span", { class: kind }, kind));
    return [make("h3", {}, "Time of each step"), legend, list];
  }

  function stepElement(step) {
    const summary = appendVisible(make("summary", {}, `Step ${step.n}: `), step.title);
    const element = make("details", { open: "" }, summary);
    for (const [label, text] of step.parts) element.append(make("h4", {}, label), plain(make("pre", { dir: "auto" }), text));
    element.append(appendVisible(make("small", {}), step.counts));
    return element;
  }

  function trajectory(run) {
    const content = document.createDocumentFragment();
    content.append(pairs(run.facts));
    if (run.params.length) content.append(make("details", {}, make("summary", {}, "Parameters"), pairs(run.params)));
    if (run.steps.length) content.append(...timeline(run.steps), make("h3", {}, "Steps"));
    for (const step of run.steps) {
      for (const pause of step.pauses) content.append(appendVisible(make("p", { class: "pause" }), pause));
      content.append(stepElement(step));
    }
    for (const note of run.after) content.append(appendVisible(make("p", { class: "pause" }), note));
    return content;
  }

  // --- two runs side by side

  // Where two texts stop and start again being equal: [from, end in the first, end in the second].
  function differing(first, second) {
    const shorter = Math.min(first.length, second.length);
    let from = 0;
    while (from < shorter && first[from] === second[from]) from += 1;
    from = Math.min(outside(first, from), outside(second, from));
    let tail = 0;
    while (tail < shorter - from && first[first.length - 1 - tail] === second[second.length - 1 - tail]) tail += 1;
    // Behind it, for the end of what differs: one more unit is taken in.
    if ([first, second].some((text) => outside(text, text.length - tail) !== text.length - tail)) tail -= 1;
    return [from, first.length - tail, second.length - tail];
  }

  function compared(first, second) {
    const labels = new Set([...first, ...second].map(([label]) => label));
    const one = new Map(first);
    const other = new Map(second);
    return [...labels].filter((label) => one.get(label) !== other.get(label)).map((label) => [label, one.get(label), other.get(label)]);
  }

  function sides(differences) {
    const content = document.createDocumentFragment();
    for (const [label, one, other] of differences) {
      const [from, oneEnd, otherEnd] = differing(one ?? "", other ?? "");
      const cells = [[one, oneEnd, "A"], [other, otherEnd, "B"]].map(([text, end, side]) => {
        const cell = make("div", {}, make("h4", {}, `${side}: ${text === undefined ? "no " : ""}`));
        appendVisible(cell.firstChild, label);
        if (text !== undefined) cell.append(appendText(make("pre", { dir: "auto" }), text, from, end));
        return cell;
      });
      content.append(make("div", { class: "sides" }, ...cells));
    }
    return content;
  }

  function verdict(differ, noun) {
    return differ ? `${counted(differ, noun)} differ${differ === 1 ? "s" : ""}` : `All ${noun}s are equal.`;
  }

  function compare(first, second) {
    comparison.textContent = "";
    const title = make("h2", {}, "A: ");
    appendVisible(title, first.key);
    appendVisible(title, " and B: ");
    appendVisible(title, second.key);
    const close = make("button", { type: "button" }, "Close the comparison");
    close.addEventListener("click", () => {
      comparison.hidden = true;
      document.getElementById("compare").focus();
    });
    comparison.append(title, close, make("h3", {}, "The runs"), sides(compared(first.facts, second.facts)));
    const params = compared(first.params, second.params);
    comparison.append(make("h3", {}, verdict(params.length, "parameter")), sides(params));
    let differ = 0;
    const steps = document.createDocumentFragment();
    for (let index = 0; index < Math.max(first.steps.length, second.steps.length); index += 1) {
      const differences = compared(first.steps[index]?.parts ?? [], second.steps[index]?.parts ?? []);
      if (!differences.length) continue;
      differ += 1;
      steps.append(make("h3", {}, `Step ${index}${differ === 1 ? ", the first that differs" : ""}`), sides(differences));
    }
    comparison.append(make("h3", {}, verdict(differ, "step")), steps);
    comparison.hidden = false;
    comparison.focus();
  }

  // --- the table

  const chosen = [];

  function choose(box, number) {
    if (box.checked) chosen.push({ box, number });
    else chosen.splice(chosen.findIndex((each) => each.box === box), 1);
    // A third one takes the place of the first.
    if (chosen.length > 2) chosen.shift().box.checked = false;
    document.getElementById("compare").disabled = chosen.length !== 2;
    say(`${chosen.length} of 2 runs chosen for the comparison`);
  }

  function unfold(line, button) {
    const next = line.nextElementSibling;
    if (next && next.classList.contains("details")) {
      next.hidden = !next.hidden;
      button.setAttribute("aria-expanded", String(!next.hidden));
      return;
    }
    const cell = make("td", { colspan: String(line.cells.length) });
    cell.append(trajectory(load(line.dataset.run)));
    line.after(make("tr", { class: "details" }, cell));
    button.setAttribute("aria-expanded", "true");
  }

  function value(line, column, kind) {
    const cell = line.cells[column];
    return kind === "number" ? Number(cell.dataset.value) : cell.textContent;
  }

  function sort(heading, column) {
    const kind = heading.dataset.sort;
    const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const lines = [...body.rows].filter((line) => !line.classList.contains("details"));
    const groups = lines.map((line) => {
      const next = line.nextElementSibling;
      return { key: value(line, column, kind), lines: next && next.classList.contains("details") ? [line, next] : [line] };
    });
    groups.sort((a, b) => (a.key < b.key ? -direction : a.key > b.key ? direction : 0));
    for (const each of heading.parentElement.cells) each.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    body.append(...groups.flatMap((group) => group.lines));
    say(`sorted by ${heading.textContent}, ${direction > 0 ? "ascending" : "descending"}`);
  }

  function filter(wanted) {
    let count = 0;
    for (const line of body.rows) {
      if (line.classList.contains("details")) continue;
      line.hidden = !(line.cells[0].textContent + "\n" + line.cells[1].textContent).toLowerCase().includes(wanted);
      count += !line.hidden;
      const next = line.nextElementSibling;
      if (line.hidden && next && next.classList.contains("details")) {
        next.hidden = true;
        line.querySelector("th > button").setAttribute("aria-expanded", "false");
      }
    }
    say(`${counted(count, "run")} shown`);
  }

  function prepare() {
    [...document.querySelectorAll("#runs thead th")].forEach((heading, column) => {
      const button = make("button", { type: "button" }, ...heading.childNodes);
      button.addEventListener("click", () => sort(heading, column));
      heading.append(button);
    });
    for (const line of body.rows) {
      const cell = line.cells[0];
      const button = make("button", { type: "button", "aria-expanded": "false" }, ...cell.childNodes);
      button.addEventListener("click", () => unfold(line, button));
      const box = make("input", { type: "checkbox", "aria-label": "compare " + button.textContent });
      box.addEventListener("change", () => choose(box, line.dataset.run));
      cell.append(box, button);
    }
    const search = make("input", { type: "search" });
    search.addEventListener("input", () => filter(search.value.toLowerCase()));
    const button = make("button", { type: "button", id: "compare", disabled: "" }, "Compare the two runs chosen");
    button.addEventListener("click", () => compare(load(chosen[0].number), load(chosen[1].number)));
    tools.append(make("label", {}, make("span", {}, "Show runs with"), search), button);
  }

  prepare();
})();
