// Draws the page "Explorer": filters, learning curves, and the numbers of a selection of the records in runs.js.
"use strict";

const WIDTH = 380;
const HEIGHT = 250;
const EDGE = { left: 48, right: 10, top: 8, bottom: 24 };
const FILTERS = { experiment: "Experiment", env: "Environment", protocol: "Protocol", algorithm: "Algorithm" };
const place = document.getElementById("explorer");
const titles = Object.fromEntries(RECORDS.experiments.map(({ name, title }) => [name, title]));
let selection = readSelection(location.hash);

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "rect", "clipPath", "g"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const written = (value) => String(Number(value.toPrecision(4))).replace("-", "−");
const writtenEstimate = ([value, low, high]) =>
  written(value) + (low === null ? "" : ` (${written(low)} to ${written(high)})`);
const short = (steps) =>
  steps >= 1e6 ? `${written(steps / 1e6)}M` : steps >= 1e3 ? `${written(steps / 1e3)}k` : written(steps);

// The colour and the line of each setting depend on the experiment alone, so that they stay while filters change.
function looksOf() {
  const all = select(RECORDS, { ...NO_LIMITS, experiment: selection.experiment });
  const settings = [...new Set(all.map(({ setting }) => setting))].filter((setting) => setting !== RECORDS.random);
  const looks = new Map(settings.map((setting, index) => [setting, lookOf(index)]));
  return looks.set(RECORDS.random, { class: "random", "stroke-dasharray": "3 3" });
}

function change(changes) {
  selection = { ...selection, ...changes };
  history.replaceState(null, "", writeSelection(selection));
  draw();
}

// Filters

function makeChoice(key) {
  const values = choices(RECORDS, selection, key);
  const options = key === "experiment" ? RECORDS.experiments.map(({ name }) => name) : values;
  const none = key === "experiment" ? ALL : "";
  // A link may name what is no longer there.
  const known = [none, ...new Set([...options, selection[key]])].filter((value, i, own) => own.indexOf(value) === i);
  const select = make("select", { autocomplete: "off", id: `explorer-${key}` }, ...known.map((value) =>
    make("option", { value }, value === none ? "all" : key === "experiment" ? (titles[value] ?? value) : value)));
  select.value = selection[key];
  // What another experiment does not have would leave nothing.
  select.addEventListener("change", () =>
    change(key === "experiment" ? { ...NO_LIMITS, experiment: select.value } : { [key]: select.value }));
  return make("label", {}, FILTERS[key], select);
}

function makeHyperparameters(groups) {
  const known = [...new Set(groups.flatMap(({ given }) => RECORDS.hyperparameters[given]))].sort();
  const list = make("datalist", { id: "explorer-known" }, ...known.map((value) => make("option", { value })));
  const attributes = { type: "search", list: list.id, placeholder: "such as clip_range=0.2", id: "explorer-with" };
  const field = make("input", { ...attributes, autocomplete: "off", spellcheck: "false" });
  field.value = selection.with;
  field.addEventListener("change", () => change({ with: field.value.trim() }));
  return make("label", {}, "Hyperparameters", field, list);
}

function makeReset() {
  const button = make("button", { type: "button", id: "explorer-reset" }, "Clear filters");
  button.addEventListener("click", () => change({ ...NO_LIMITS, experiment: selection.experiment }));
  return button;
}

// Curves

// Brings a setting to the front, with its interval and its seeds, or none.
function emphasise(chosen) {
  place.classList.toggle("emphasised", chosen !== null);
  for (const node of place.querySelectorAll("[data-setting]"))
    node.classList.toggle("chosen", node.dataset.setting === chosen);
}

function makeLegend(groups, looks) {
  const settings = sortByScore(groups);
  return make("div", { class: "legend", role: "group", "aria-label": "Settings" }, ...settings.map((setting, index) => {
    const box = make("input", { type: "checkbox", autocomplete: "off", id: `explorer-setting-${index}` });
    box.checked = !selection.hide.includes(setting);
    box.addEventListener("change", () => change({
      hide: box.checked ? selection.hide.filter((own) => own !== setting) : [...selection.hide, setting],
    }));
    const line = make("svg", { viewBox: "0 0 30 6", "aria-hidden": "true" },
      make("path", { d: "M0 3L30 3", ...looks.get(setting) }));
    const label = make("label", { "data-setting": setting }, box, line, make("span", {}, setting));
    for (const event of ["pointerenter", "focusin"]) label.addEventListener(event, () => emphasise(setting));
    for (const event of ["pointerleave", "focusout"]) label.addEventListener(event, () => emphasise(null));
    return label;
  }));
}

// Intervals of more settings would hide one another.
const areMany = (curves) => curves.length > COLORS.length + 1;

// The range of the means, and as much of the intervals as keeps them readable.
function rangeOf(curves) {
  const means = curves.flatMap(({ points }) => points.map((point) => point[1]));
  const bands = areMany(curves) ? [] : curves.flatMap(({ points }) => points.flatMap((point) => point.slice(2)));
  const others = bands.filter((end) => end !== null);
  const [low, high] = [Math.min(...means), Math.max(...means)];
  const room = (high - low || Math.abs(high) || 1) * 0.3;
  return [Math.max(Math.min(low, ...others), low - room), Math.min(Math.max(high, ...others), high + room)];
}

function makePanel(groups, looks, index) {
  const random = groups.filter(({ setting }) => setting === RECORDS.random);
  const curves = groups.filter((group) => !random.includes(group)).map((group) => {
    const points = curveOf(group, RECORDS.factors);
    return { group, points, seeds: group.runs.map((run) => run[3].slice(-points.length)).filter((seed) => seed.length) };
  });
  const level = random.flatMap(scoresOf)[0];
  const flat = level === undefined ? [] : [{ points: [[0, level, null, null]] }];
  const farthest = Math.max(...curves.map(({ group }) => group.steps));
  const [low, high] = rangeOf([...curves, ...flat]);
  const margin = (high - low || Math.abs(high) || 1) * 0.04;
  const [bottom, top] = [low - margin, high + margin];
  const x = (steps) => EDGE.left + (steps / farthest) * (WIDTH - EDGE.left - EDGE.right);
  const y = (value) => EDGE.top + ((top - value) / (top - bottom)) * (HEIGHT - EDGE.top - EDGE.bottom);
  // Far outside, where nothing is seen, numbers would be too large for the browser.
  const at = (steps, value) => `${x(steps).toFixed(1)} ${Math.min(Math.max(y(value), -999), 1999).toFixed(1)}`;
  const path = (points) => `M${points.join("L")}`;

  const [env, protocols] = [groups[0].env, [...new Set(curves.map(({ group }) => group.protocol))].join("; ")];
  const title = `Learning curves in ${env}: return of an episode over environment steps, ${protocols}`;
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title, tabindex: 0 });
  const right = WIDTH - EDGE.right;
  for (const tick of ticks(bottom, top, 5)) {
    svg.append(
      make("line", { x1: EDGE.left, x2: right, y1: y(tick), y2: y(tick), class: "grid" }),
      make("text", { x: EDGE.left - 6, y: y(tick) + 4, "text-anchor": "end" }, written(tick)),
    );
  }
  for (const tick of ticks(0, farthest, 4)) {
    const [of, end] = [x(tick), HEIGHT - EDGE.bottom];
    svg.append(
      make("line", { x1: of, x2: of, y1: EDGE.top, y2: end, class: "grid" }),
      make("text", { x: of, y: HEIGHT - 8, "text-anchor": "middle" }, short(tick)),
    );
  }
  const inside = { x: EDGE.left, y: EDGE.top, width: right - EDGE.left, height: HEIGHT - EDGE.top - EDGE.bottom };
  svg.append(make("clipPath", { id: `inside-${index}` }, make("rect", inside)));
  const drawn = make("g", { "clip-path": `url(#inside-${index})` });
  if (level !== undefined) {
    const line = make("path", { d: path([at(0, level), at(farthest, level)]), ...looks.get(RECORDS.random) });
    drawn.append(make("g", { "data-setting": RECORDS.random }, line));
  }
  for (const { group, points, seeds } of curves.filter(({ points }) => points.length)) {
    const look = looks.get(group.setting);
    const own = make("g", { "data-setting": group.setting });
    const certain = points.filter((point) => point[2] !== null);
    if (certain.length) {
      const [lower, upper] = [2, 3].map((end) => certain.map((point) => at(point[0], point[end])));
      own.append(make("path", { d: `${path([...lower, ...upper.reverse()])}Z`, style: `fill: ${look.stroke}`, class: "band" }));
    }
    for (const seed of seeds) {
      own.append(make("path", { d: path(seed.map((value, i) => at(points[i][0], value))), ...look, class: "seed" }));
    }
    own.append(make("path", { d: path(points.map((point) => at(point[0], point[1]))), ...look }));
    drawn.append(own);
  }
  const cursor = make("line", { y1: EDGE.top, y2: HEIGHT - EDGE.bottom, class: "cursor", visibility: "hidden" });
  svg.append(drawn, cursor);
  const output = make("output", {});
  readOut(svg, curves, { cursor, output, x, y, farthest });
  return make("figure", { class: areMany(groups) ? "many" : "" }, make("figcaption", {}, make("strong", {}, env), ` ${protocols}`), svg, output);
}

// Shows the numbers at the pointer, or at the place that arrow keys choose.
function readOut(svg, curves, { cursor, output, x, y, farthest }) {
  const number = Math.max(...curves.map(({ group }) => Math.max(...group.runs.map((run) => run[3].length))));
  let chosen = number - 1;
  // The curve that is nearest to the pointer comes to the front.
  const show = (index, height) => {
    chosen = Math.min(Math.max(index, 0), number - 1);
    const steps = (farthest * (chosen + 1)) / number;
    const at = curves.flatMap(({ group, points }) => {
      const point = points.find((own) => own[0] >= steps - 1);
      return point ? [[group.setting, point.slice(1)]] : [];
    });
    at.sort((one, other) => other[1][0] - one[1][0]);
    cursor.setAttribute("x1", x(steps));
    cursor.setAttribute("x2", x(steps));
    cursor.setAttribute("visibility", "visible");
    const away = ([, [value]]) => Math.abs(y(value) - height);
    const lines = at.map(([setting, numbers]) =>
      make("li", { "data-setting": setting }, `${setting}: ${writtenEstimate(numbers)}`));
    output.replaceChildren(`After ${Math.round(steps).toLocaleString("en")} steps`, make("ul", {}, ...lines));
    if (height !== undefined && at.length) emphasise(at.reduce((one, other) => (away(other) < away(one) ? other : one))[0]);
  };
  const hide = () => {
    cursor.setAttribute("visibility", "hidden");
    output.replaceChildren();
    emphasise(null);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const across = ((event.clientX - box.left) / box.width) * WIDTH;
    const share = (across - EDGE.left) / (WIDTH - EDGE.left - EDGE.right);
    show(Math.round(share * number) - 1, ((event.clientY - box.top) / box.height) * HEIGHT);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  const moves = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -number, End: number };
  svg.addEventListener("keydown", (event) => {
    if (event.key in moves) {
      event.preventDefault();
      show(chosen + moves[event.key]);
    } else if (event.key === "Escape") hide();
  });
}

// Numbers

function makeTable(groups) {
  const [interval, seeds] = ["mean score (95% interval)", "scores of the seeds"];
  const header = ["setting", "environment", "protocol", "steps", interval, seeds, "P(better)"];
  const rows = groups.map((group) => {
    const scores = scoresOf(group);
    const number = scores.length ? writtenEstimate(estimate(scores, RECORDS.factors)) : "no episode ended";
    const ofSeeds = group.runs.map(([seed, score]) => (score === null ? "none" : written(score))).join(", ");
    const base = baselineOf(groups, group);
    const isCompared = group !== base && group.setting !== RECORDS.random;
    const better = isCompared ? probabilityOfBetter(scores, scoresOf(base)).toFixed(2) : "";
    return [group.setting, group.env, group.protocol, short(group.steps), number, ofSeeds, better];
  });
  // A phone shows the name of the column beside each cell but the first.
  const cells = (tag, row) => make("tr", {}, ...row.map((text, column) =>
    make(tag, { "data-column": column && tag === "td" ? header[column] : null }, text)));
  const table = make("table", { class: "docutils" }, make("thead", {}, cells("th", header)),
    make("tbody", {}, ...rows.map((row) => cells("td", row))));
  return make("div", { class: "table-wrapper", tabindex: 0, role: "region", "aria-label": "Scores" }, table);
}

function makeDifferences(groups) {
  const trained = groups.filter(({ setting }) => setting !== RECORDS.random);
  const given = [...new Set(trained.map((group) => group.given))];
  const lists = given.map((own) => RECORDS.hyperparameters[own]);
  const common = (lists[0] ?? []).filter((text) => lists.every((own) => own.includes(text)));
  const rows = given.map((own, index) => {
    const whose = trained.filter((group) => group.given === own);
    const names = [...new Set(whose.map(({ setting }) => setting))].join("; ");
    const where = [...new Set(whose.map(({ env }) => env))].join(", ");
    const rest = lists[index].filter((text) => !common.includes(text)).join(", ");
    return make("li", {}, make("strong", {}, names), ` in ${where}: `, make("code", {}, rest || "nothing else"));
  });
  const same = make("p", {}, "The same in all: ", make("code", {}, common.join(", ") || "nothing"));
  return make("details", {}, make("summary", {}, "Hyperparameters of these runs"), same, make("ul", {}, ...rows));
}

function makeDownloads(groups) {
  const files = {
    "curves.csv": () => curvesCSV(groups, RECORDS.factors),
    "scores.csv": () => scoresCSV(groups, RECORDS.experiments),
    "runs.json": () => asJSON(groups, RECORDS),
  };
  const links = Object.entries(files).map(([name, write]) => {
    const button = make("button", { type: "button", id: `explorer-${name}` }, name);
    button.addEventListener("click", () => {
      const address = URL.createObjectURL(new Blob([write()], { type: "text/plain" }));
      make("a", { href: address, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(address), 1000);
    });
    return button;
  });
  return make("p", { class: "downloads" }, "Download what is shown: ", ...links);
}

function makeSummary(groups) {
  const runs = groups.reduce((sum, group) => sum + group.runs.length, 0);
  const experiment = RECORDS.experiments.find(({ name }) => name === selection.experiment);
  const summary = make("p", { class: "summary", role: "status" }, `${runs} runs are shown. `);
  if (experiment?.page) summary.append(make("a", { href: `${experiment.page}.html` }, "The page about them"), ". ");
  if (experiment?.spanned) summary.append("Their curves average the episodes of a few spans of steps.");
  return summary;
}

function draw() {
  // What has the focus is made anew, and keeps it.
  const focused = document.activeElement?.id;
  const groups = select(RECORDS, selection);
  const shown = shownOf(groups, selection);
  const looks = looksOf();
  const names = new Set(shown.filter(({ setting }) => setting !== RECORDS.random).map(({ panel }) => panel));
  const panels = [...names].map((name) => shown.filter(({ panel }) => panel === name));
  place.classList.remove("emphasised");
  place.replaceChildren(
    make("div", { class: "filters" }, ...Object.keys(FILTERS).map(makeChoice), makeHyperparameters(groups), makeReset()),
    makeSummary(shown),
    makeLegend(groups, looks),
    make("div", { class: "panels" }, ...panels.map((own, index) => makePanel(own, looks, index))),
    makeDownloads(shown),
    makeTable(shown),
    makeDifferences(shown),
  );
  if (focused?.startsWith("explorer-")) document.getElementById(focused)?.focus();
}

window.addEventListener("hashchange", () => {
  // Other addresses lead to sections of the page.
  if (location.hash && !location.hash.includes("=")) return;
  selection = readSelection(location.hash);
  draw();
});
draw();
