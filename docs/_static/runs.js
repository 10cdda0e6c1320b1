// What the page "Explorer" shows of the records, without drawing it: the selection, means and intervals, and files.
"use strict";

// "with" holds hyperparameters, and "hide" the settings that are switched off.
const FIRST = { experiment: "sb3-1m", env: "", protocol: "", algorithm: "", with: "", hide: [] };
const ALL = "all";
const NO_LIMITS = { ...FIRST, experiment: ALL };

// The selection that the part of an address after "#" stands for, which is the first one if it is empty.
function readSelection(hash) {
  const selection = { ...FIRST };
  for (const [key, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (key === "hide") selection.hide = [...selection.hide, value];
    else if (key in FIRST) selection[key] = value;
  }
  return selection;
}

function writeSelection(selection) {
  const written = new URLSearchParams({ experiment: selection.experiment });
  for (const key of ["env", "protocol", "algorithm", "with"]) if (selection[key]) written.set(key, selection[key]);
  for (const setting of selection.hide) written.append("hide", setting);
  return `#${written}`;
}

// Each word must be a hyperparameter as "name=value", or a part of one.
function hasHyperparameters(given, text) {
  return text.split(/\s+/).filter(Boolean).every((word) =>
    given.some((own) => (word.includes("=") ? own === word : own.includes(word))));
}

// The groups of a selection, with the runs of its experiment. The random policy, with which no settings are compared
// but which all are compared with, has no algorithm and hyperparameters, and is where other groups are.
function select(records, selection) {
  const place = records.experiments.findIndex(({ name }) => name === selection.experiment);
  const ofExperiment = (run) => selection.experiment === ALL || run[2].includes(place);
  const whole = records.groups
    .map((group) => ({ ...group, runs: group.runs.filter(ofExperiment) }))
    .filter(({ runs, env }) => runs.length && (!selection.env || env === selection.env));
  const found = whole.filter((group) => group.setting !== records.random
    && (!selection.protocol || group.protocol === selection.protocol)
    && (!selection.algorithm || group.algorithm === selection.algorithm)
    && hasHyperparameters(records.hyperparameters[group.given], selection.with));
  const panels = new Set(found.map(({ panel }) => panel));
  return [...found, ...whole.filter(({ setting, panel }) => setting === records.random && panels.has(panel))];
}

const shownOf = (groups, selection) => groups.filter(({ setting }) => !selection.hide.includes(setting));

// The values of a filter that leave something, given the other filters.
function choices(records, selection, key) {
  const groups = select(records, { ...selection, [key]: NO_LIMITS[key] });
  return [...new Set(groups.filter(({ setting }) => setting !== records.random).map((group) => group[key]))].sort();
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// The mean, and the ends of its interval, which are null with too few values or if all are equal, as in reports.
function estimate(values, factors) {
  const middle = mean(values);
  const squares = values.reduce((sum, value) => sum + (value - middle) ** 2, 0);
  const half = (factors[values.length] ?? 0) * Math.sqrt(squares / (values.length - 1));
  return half > 0 ? [middle, middle - half, middle + half] : [middle, null, null];
}

const scoresOf = ({ runs }) => runs.map(([, score]) => score).filter((score) => score !== null);

// What a group is compared with: SB3's PPO, or the first setting where there is none.
function baselineOf(groups, { panel }) {
  const own = groups.filter((group) => group.panel === panel);
  return own.find(({ setting }) => setting.startsWith("sb3_ppo")) ?? own[0];
}

// The probability that one of the scores is higher than one of the others, where equal ones count half.
const probabilityOfBetter = (scores, others) =>
  mean(scores.flatMap((one) => others.map((other) => (one > other) + (one === other) / 2)));

// The settings as their curves end, from high to low, by their mean place in the pictures that they are in.
function sortByScore(groups) {
  const places = {};
  for (const panel of new Set(groups.map((group) => group.panel))) {
    const own = groups.filter((group) => group.panel === panel && scoresOf(group).length);
    own.sort((one, other) => mean(scoresOf(other)) - mean(scoresOf(one)));
    own.forEach(({ setting }, place) => (places[setting] ??= []).push(place / own.length));
  }
  const settings = [...new Set(groups.map(({ setting }) => setting))];
  return settings.sort((one, other) => mean(places[one] ?? [1]) - mean(places[other] ?? [1]));
}

// Points as [steps, mean, low, high], from the first at which every run has a value.
function curveOf({ runs, steps }, factors) {
  const curves = runs.map((run) => run[3]).filter((curve) => curve.length);
  const points = [];
  for (let i = 0; curves.length && i < curves[0].length; i++) {
    const values = curves.map((curve) => curve[i]);
    if (!values.includes(null)) points.push([(steps * (i + 1)) / curves[0].length, ...estimate(values, factors)]);
  }
  return points;
}

const quoted = (value) => (/[",\n]/.test(value ?? "") ? `"${value.replaceAll('"', '""')}"` : String(value ?? ""));
const asCSV = (header, rows) => [header, ...rows].map((row) => row.map(quoted).join(",") + "\n").join("");

function curvesCSV(groups, factors) {
  const header = ["environment", "protocol", "setting", "seeds", "steps", "mean", "low", "high"];
  return asCSV(header, groups.flatMap((group) => curveOf(group, factors).map((point) =>
    [group.env, group.protocol, group.setting, group.runs.length, ...point])));
}

function scoresCSV(groups, experiments) {
  const header = ["environment", "protocol", "setting", "steps", "seed", "score", "files"];
  return asCSV(header, groups.flatMap((group) => group.runs.map(([seed, score, places]) => {
    const files = places.map((place) => experiments[place].name).join(" ");
    return [group.env, group.protocol, group.setting, group.steps, seed, score, files];
  })));
}

function asJSON(groups, records) {
  const named = groups.map(({ given, panel, runs, ...group }) => ({
    ...group,
    hyperparameters: records.hyperparameters[given],
    runs: runs.map(([seed, score, places, curve]) =>
      ({ seed, score, files: places.map((place) => records.experiments[place].name), curve })),
  }));
  return `${JSON.stringify(named, null, 1)}\n`;
}

// Round numbers, about as many as asked for, from low to high.
function ticks(low, high, number) {
  const rough = (high - low) / number;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}
