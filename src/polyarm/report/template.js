"use strict";
// Shows, sorts and filters; every statistic was worked out before. Text enters the page as text
// only (textContent, attributes), never as markup.
(() => {
  const [TASK, POLICY, INDEX, REPEAT, OUTCOME, STEPS, RETURN, SECONDS, ATTEMPTS, VIDEOS, ERROR, TIMINGS, TRAJECTORY, HASH, INVALID] =
    Array(15).keys();
  const OUTCOMES = ["success", "failure", "error"];
  const FIRST_ROWS = 25, MORE_ROWS = 200;

  const data = JSON.parse(document.getElementById("data").textContent);
  const { tasks, policies, episodes } = data;
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  function make(tag, properties = {}, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }
  const format = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
  const number = (value) => (typeof value === "number" ? format.format(value) : String(value));
  const seconds = (value) =>
    typeof value !== "number" ? String(value) : value < 100 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : `${Math.round(value / 60)} min`;
  const named = (task) => {
    const cut = task.indexOf("/") + 1;
    return [make("span", { className: "suite", textContent: task.slice(0, cut) }), task.slice(cut)];
  };
  const label = (one) => `#${one[INDEX]}` + (one[REPEAT] ? `.${one[REPEAT]}` : "");
  const title = (one) => `${tasks[one[TASK]]} ${label(one)}`;
  const message = (one) => one[ERROR].message || one[ERROR].kind || "";

  const state = { policy: policies.length - 1, text: "", task: "", outcome: "all", column: null, down: false, rows: FIRST_ROWS };
  let visible = [];

  // The grid.
  const grid = document.getElementById("grid");
  const cells = new Array(episodes.length);
  const groups = [];

  function buildGrid() {
    const order = episodes.map((_, place) => place).sort((a, b) => {
      const x = episodes[a], y = episodes[b];
      return x[TASK] - y[TASK] || x[INDEX] - y[INDEX] || x[REPEAT] - y[REPEAT];
    });
    const boxes = tasks.map((name) => {
      const box = make("div");
      const group = make("div", { className: "group" }, make("b", {}, ...named(name)), box);
      groups.push({ group, box });
      return box;
    });
    for (const place of order) {
      const one = episodes[place];
      const filmed = one[VIDEOS].length > 0;
      const name = `${title(one)}: ${OUTCOMES[one[OUTCOME]]}, ${one[STEPS]} steps${filmed ? ", with video" : ""}`;
      const cell = make("button", { type: "button", className: `cell ${OUTCOMES[one[OUTCOME]]}${filmed ? " filmed" : ""}`, tabIndex: -1, title: name });
      cell.setAttribute("aria-label", name);
      cell.dataset.open = place;
      cells[place] = cell;
      boxes[one[TASK]].append(cell);
    }
    grid.append(...groups.map(({ group }) => group));
  }

  function moveInGrid(event) {
    const from = event.target.closest("button.cell");
    if (!from) return;
    const shown = all("button.cell:not([hidden])", grid);
    const place = shown.indexOf(from);
    const row = from.parentElement.parentElement;
    const next = { ArrowRight: shown[place + 1], ArrowLeft: shown[place - 1], Home: shown[0], End: shown.at(-1),
      ArrowDown: neighbour(row, "nextElementSibling", from), ArrowUp: neighbour(row, "previousElementSibling", from) }[event.key];
    if (!(event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End")) return;
    event.preventDefault();
    if (next) { rove(next); next.focus(); }
  }

  function neighbour(row, direction, from) {
    const place = all("button.cell:not([hidden])", row).indexOf(from);
    for (let other = row[direction]; other; other = other[direction]) {
      const candidates = other.hidden ? [] : all("button.cell:not([hidden])", other);
      if (candidates.length) return candidates[Math.min(place, candidates.length - 1)];
    }
  }

  let roving = null;
  function rove(cell) {
    if (roving) roving.tabIndex = -1;
    roving = cell || null;
    if (roving) roving.tabIndex = 0;
  }

  // Filters and the table of episodes.
  function matches(one) {
    if (one[POLICY] !== state.policy) return false;
    if (state.outcome !== "all" && OUTCOMES[one[OUTCOME]] !== state.outcome) return false;
    if (state.task !== "" && one[TASK] !== Number(state.task)) return false;
    return !state.text || `${title(one)} ${Object.values(one[ERROR]).join(" ")}`.toLowerCase().includes(state.text);
  }

  function key(one, column) {
    const value = column === TASK ? tasks[one[TASK]] : column === INDEX ? one[INDEX] + one[REPEAT] / 1e6 : one[column];
    return typeof value === "string" && column !== TASK ? Number(value) : value;
  }

  function compare(a, b) {
    // NaN goes last, whichever way the rest is sorted.
    if (Number.isNaN(a) || Number.isNaN(b)) return (Number.isNaN(a) ? 1 : 0) - (Number.isNaN(b) ? 1 : 0);
    const result = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b || 0;
    return state.down ? -result : result;
  }

  function refresh() {
    visible = [];
    const filled = new Set();
    episodes.forEach((one, place) => {
      const match = matches(one);
      if (cells[place].hidden === match) cells[place].hidden = !match;
      if (match) { visible.push(place); filled.add(one[TASK]); }
    });
    groups.forEach(({ group }, place) => { group.hidden = !filled.has(place); });
    if (state.column !== null) visible.sort((a, b) => compare(key(episodes[a], state.column), key(episodes[b], state.column)) || a - b);
    rove(find("button.cell:not([hidden])", grid));
    const total = episodes.filter((one) => one[POLICY] === state.policy).length;
    const counted = `${total.toLocaleString("en")} ${total === 1 ? "episode" : "episodes"}`;
    document.getElementById("found").textContent = visible.length === total ? counted : `${visible.length.toLocaleString("en")} of ${counted}`;
    state.rows = FIRST_ROWS;
    drawRows();
  }

  function drawRows() {
    find("#table tbody").replaceChildren(...visible.slice(0, state.rows).map(row));
    const left = visible.length - state.rows;
    const more = document.getElementById("more");
    more.hidden = left <= 0;
    more.textContent = `Show ${Math.min(left, MORE_ROWS).toLocaleString("en")} more of ${Math.max(left, 0).toLocaleString("en")}`;
  }

  function row(place) {
    const one = episodes[place], outcome = OUTCOMES[one[OUTCOME]];
    const open = make("button", { type: "button", className: "link", textContent: outcome });
    open.setAttribute("aria-label", `Open ${title(one)}, ${outcome}`);
    const cell = (text, name, className = "n") => {
      const td = make("td", { className, textContent: text });
      if (name) td.dataset.label = name;
      return td;
    };
    const line = make("tr", {},
      make("td", {}, make("i", { className: `cell ${outcome}` }), open),
      make("td", { className: "task" }, ...named(tasks[one[TASK]])), cell(label(one)), cell(number(one[STEPS]), "steps"), cell(number(one[RETURN]), "return"),
      cell(seconds(one[SECONDS])), cell(one[ATTEMPTS], one[ATTEMPTS] === 1 ? "attempt" : "attempts"), cell(message(one), "", "message"));
    line.lastChild.title = message(one);
    line.dataset.open = place;
    return line;
  }

  function sortEpisodes(header) {
    const column = Number(header.dataset.column);
    state.down = state.column === column ? !state.down : false;
    state.column = column;
    mark(header, state.down);
    refresh();
  }

  function mark(header, down) {
    for (const other of header.parentElement.children) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
  }

  // The tables of tasks.
  function sortTasks(header) {
    const column = header.cellIndex, body = header.closest("table").tBodies[0];
    // Names rise at first, numbers fall: the best task is what one looks for.
    const down = header.hasAttribute("aria-sort") ? header.getAttribute("aria-sort") === "ascending" : column > 0;
    mark(header, down);
    const keyed = [...body.rows].map((line) => [line.cells[column].dataset.key, line]);
    keyed.sort(([a], [b]) => {
      const result = column ? (a === "" || a === "nan" ? -Infinity : Number(a)) - (b === "" || b === "nan" ? -Infinity : Number(b)) || 0 : a.localeCompare(b, "en", { numeric: true });
      return down ? -result : result;
    });
    body.append(...keyed.map(([, line]) => line));
  }

  function filterTasks(text) {
    for (const line of all(".tasks tbody tr")) line.hidden = !line.cells[0].dataset.key.toLowerCase().includes(text);
  }

  function showPolicy(place) {
    state.policy = place;
    for (const block of all("[data-view]")) block.hidden = Number(block.dataset.view) !== place;
    for (const dot of all(".dot")) dot.setAttribute("aria-pressed", String(dot.dataset.policy === policies[place]));
    const select = document.getElementById("policy");
    if (select) select.value = String(place);
    refresh();
  }

  // One episode.
  const dialog = document.getElementById("detail");
  let opened = null;

  // "./" and encoded parts: whatever the path, it stays a file beside the report.
  const address = (path) => "./" + path.split("/").map(encodeURIComponent).join("/");

  function video(path) {
    const player = make("video", { src: address(path), controls: true, muted: true, loop: true, playsInline: true, autoplay: true, preload: "auto" });
    const caption = make("figcaption", { textContent: path });
    player.addEventListener("error", () => player.replaceWith(make("p", { className: "hint", textContent: "This video cannot be played; is the file still beside the report?" })));
    return make("figure", {}, player, caption);
  }

  function definitions(pairs, className) {
    return make("dl", { className }, ...pairs.map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }))));
  }

  function timeSplit(timings) {
    const parts = Object.entries(timings).filter(([, value]) => value > 0);
    const total = parts.reduce((sum, [, value]) => sum + value, 0);
    if (!parts.length) return "";
    const swatch = (name, place) => make("i", { className: `part-${place % 8} of-${name.replace(/[^a-z]/g, "")}` });
    const bars = parts.map(([name, value], place) => {
      const bar = swatch(name, place);
      bar.style.width = `${(100 * value) / total}%`;
      return bar;
    });
    const stack = make("div", { className: "stack" }, ...bars);
    stack.setAttribute("aria-hidden", "true");
    const legend = parts.map(([name, value], place) => make("li", {}, swatch(name, place), name, make("b", { textContent: seconds(value) })));
    return make("figure", { className: "split" }, stack, make("ul", { className: "legend" }, ...legend));
  }

  function open(place) {
    const one = episodes[place], outcome = OUTCOMES[one[OUTCOME]];
    opened = place;
    document.getElementById("detail-title").textContent = title(one);
    document.getElementById("detail-outcome").replaceChildren(make("i", { className: `cell ${outcome}` }), outcome);
    const facts = [["Steps", number(one[STEPS])], ["Return", number(one[RETURN])], ["Time", seconds(one[SECONDS])], ["Attempts", String(one[ATTEMPTS])]];
    if (one[INVALID]) facts.push(["Invalid actions", String(one[INVALID])]);
    const body = document.getElementById("detail-body");
    body.replaceChildren(make("div", { className: "videos" }, ...one[VIDEOS].map(video)));
    if (!one[VIDEOS].length) body.replaceChildren();
    const { message: text, ...others } = one[ERROR];
    if (text) body.append(make("pre", { className: "error-text", textContent: text }));
    body.append(definitions(facts, "numbers"), timeSplit(one[TIMINGS]));
    const files = [["Policy", policies[one[POLICY]]], ["Trajectory", one[TRAJECTORY]], ["Action hash", one[HASH]]].filter(([, value]) => value);
    const known = Object.entries(others).filter(([, value]) => value);
    const isShort = ([, value]) => value.length < 60 && !value.includes("\n");
    body.append(definitions([...known.filter(isShort).map(([name, value]) => [`Error ${name}`, value]), ...files], "files"));
    for (const [name, value] of known) if (!isShort([name, value])) body.append(make("h3", { textContent: name }), make("pre", { textContent: value }));
    if (!dialog.open) dialog.showModal();
    body.parentElement.scrollTop = 0;
    history.replaceState(null, "", `#episode-${place}`);
  }

  function go(by) {
    const place = visible.indexOf(opened);
    const next = visible[place + by];
    if (place >= 0 && next !== undefined) open(next);
  }

  dialog.addEventListener("close", () => {
    document.getElementById("detail-body").replaceChildren(); // stops the videos
    history.replaceState(null, "", location.pathname + location.search);
    const cell = cells[opened];
    if (document.activeElement === document.body && cell && !cell.hidden) { rove(cell); cell.focus(); }
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.target.tagName === "VIDEO") return; // its own keys seek
    if (event.key === "ArrowRight") go(1);
    if (event.key === "ArrowLeft") go(-1);
  });
  dialog.addEventListener("click", (event) => {
    const step = event.target.closest("[data-go]");
    if (step) go(Number(step.dataset.go));
    if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
  });

  // Events.
  document.addEventListener("click", (event) => {
    const target = event.target;
    const opener = target.closest("[data-open]");
    if (opener) return open(Number(opener.dataset.open));
    const header = target.closest("thead th");
    if (header && target.closest("button")) return header.dataset.column ? sortEpisodes(header) : sortTasks(header);
    const task = target.closest("[data-task]");
    if (task) {
      form.elements.task.value = String(tasks.indexOf(task.dataset.task));
      readFilters();
      return document.getElementById("episodes").scrollIntoView();
    }
    const dot = target.closest(".dot");
    if (dot) return showPolicy(policies.indexOf(dot.dataset.policy));
    if (target.id === "more") { state.rows += MORE_ROWS; drawRows(); }
  });
  grid.addEventListener("keydown", moveInGrid);

  const form = document.getElementById("filters");
  form.elements.task.append(...tasks.map((name, place) => make("option", { value: place, textContent: name })));
  function readFilters() {
    state.text = form.elements.text.value.trim().toLowerCase();
    state.task = form.elements.task.value;
    state.outcome = form.elements.outcome.value;
    refresh();
  }
  let waiting = 0;
  form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(readFilters, 60); });
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("task-filter").addEventListener("input", (event) => filterTasks(event.target.value.trim().toLowerCase()));
  const chooser = document.getElementById("policy");
  if (chooser) chooser.addEventListener("change", () => showPolicy(Number(chooser.value)));

  buildGrid();
  showPolicy(state.policy);
  const linked = /^#episode-(\d+)$/.exec(location.hash);
  if (linked && episodes[Number(linked[1])]) {
    showPolicy(episodes[Number(linked[1])][POLICY]);
    open(Number(linked[1]));
  }
})();
