// Draws the page "playground": the objectives of objectives.js and their slopes over r, as sliders move.
"use strict";

const SELECTED = ["Clipped", "SPO", "KLPenalized"];
const FARTHEST = 4;
const POINTS = 400;
const WIDTH = 360;
const HEIGHT = 240;
const EDGE = { left: 34, right: 8, top: 8, bottom: 22 };
const PANELS = [
  { what: "value", a: 1, title: "objective − its value at r = 1, A = 1", low: -1.5, high: 3 },
  { what: "value", a: -1, title: "objective − its value at r = 1, A = −1", low: -3, high: 1.5 },
  { what: "slope", a: 1, title: "derivative in log r, A = 1", low: -3, high: 3 },
  { what: "slope", a: -1, title: "derivative in log r, A = −1", low: -3, high: 3 },
];

const names = Object.keys(OBJECTIVES);
const chosen = new Set(SELECTED);
const coefficients = Object.fromEntries(Object.entries(COEFFICIENTS).map(([key, { first }]) => [key, first]));

function make(tag, attributes, ...children) {
  const svg = ["svg", "path", "line", "text", "rect", "clipPath", "circle", "g"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const acrossOf = (r) => EDGE.left + (r / FARTHEST) * (WIDTH - EDGE.left - EDGE.right);
const downOf = (value, { low, high }) =>
  EDGE.top + ((high - value) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);

// A panel without its curves.
function makePanel(panel, index) {
  const [right, bottom] = [WIDTH - EDGE.right, HEIGHT - EDGE.bottom];
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": panel.title });
  const inside = { x: EDGE.left, y: EDGE.top, width: right - EDGE.left, height: bottom - EDGE.top };
  svg.append(make("clipPath", { id: `inside-${index}` }, make("rect", inside)));
  for (let tick = Math.ceil(panel.low); tick <= panel.high; tick++) {
    const y = downOf(tick, panel);
    svg.append(
      make("line", { x1: EDGE.left, x2: right, y1: y, y2: y, class: tick === 0 ? "zero" : "grid" }),
      make("text", { x: EDGE.left - 6, y: y + 4, "text-anchor": "end" }, String(tick).replace("-", "−")),
    );
  }
  for (let tick = 0; tick <= FARTHEST; tick++) {
    const x = acrossOf(tick);
    svg.append(
      make("line", { x1: x, x2: x, y1: EDGE.top, y2: bottom, class: tick === 1 ? "zero" : "grid" }),
      make("text", { x, y: HEIGHT - 6, "text-anchor": "middle" }, tick === FARTHEST ? "r" : String(tick)),
    );
  }
  panel.curves = make("g", { "clip-path": `url(#inside-${index})` });
  svg.append(panel.curves);
  svg.append(make("circle", { cx: acrossOf(1), cy: downOf(panel.what === "value" ? 0 : panel.a, panel), r: 4 }));
  return make("figure", {}, make("figcaption", {}, panel.title), svg);
}

function drawCurves() {
  const end = Math.min(FARTHEST, 1 / coefficients.oldProb);
  for (const panel of PANELS) {
    panel.curves.replaceChildren();
    for (const name of names.filter((name) => chosen.has(name))) {
      const start = panel.what === "value" ? evaluate(name, 1, panel.a, coefficients).value : 0;
      let path = "";
      for (let i = 1; i < POINTS; i++) {
        const r = (i / POINTS) * end;
        const value = evaluate(name, r, panel.a, coefficients)[panel.what] - start;
        // Far outside, where nothing is seen, numbers would be too large for the browser.
        const y = clamp(downOf(value, panel), -9999, 9999);
        path += `${path ? "L" : "M"}${acrossOf(r).toFixed(2)} ${y.toFixed(2)}`;
      }
      panel.curves.append(make("path", { d: path, ...lookOf(names.indexOf(name)) }));
    }
  }
}

function makeChoice(name, showSliders) {
  // Browsers would otherwise remember the inputs of an earlier visit, which the curves do not.
  const box = make("input", { type: "checkbox", autocomplete: "off" });
  box.checked = chosen.has(name);
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(name);
    else chosen.delete(name);
    showSliders();
    drawCurves();
  });
  const line = make("svg", { viewBox: "0 0 30 6", "aria-hidden": "true" },
    make("path", { d: "M0 3L30 3", ...lookOf(names.indexOf(name)) }));
  return make("label", {}, box, line, name);
}

function makeSlider(key) {
  const { symbol, from, to, first } = COEFFICIENTS[key];
  const slider = make("input", { type: "range", min: from, max: to, step: (to - from) / 1000, autocomplete: "off" });
  const output = make("output", {});
  const set = (value) => {
    coefficients[key] = value;
    output.textContent = Number(value.toPrecision(3));
  };
  slider.value = first;
  set(first);
  slider.addEventListener("input", () => {
    set(Number(slider.value));
    drawCurves();
  });
  return make("label", {}, make("span", { class: "symbol" }, symbol), slider, output);
}

function makePlayground(place) {
  const sliders = Object.fromEntries(Object.keys(COEFFICIENTS).map((key) => [key, makeSlider(key)]));
  const showSliders = () => {
    const used = new Set(["oldProb", ...names.filter((name) => chosen.has(name)).flatMap((name) => OBJECTIVES[name].uses)]);
    for (const [key, slider] of Object.entries(sliders)) slider.hidden = !used.has(key);
  };
  place.replaceChildren(
    make("div", { class: "choices" }, ...names.map((name) => makeChoice(name, showSliders))),
    make("div", { class: "sliders" }, ...Object.values(sliders)),
    make("div", { class: "panels" }, ...PANELS.map(makePanel)),
  );
  showSliders();
  drawCurves();
}

makePlayground(document.getElementById("playground"));
