// How settings and objectives are drawn: in the pictures of reports, the explorer and the playground alike.
"use strict";

// The lines of reports are half as wide.
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"];
const DASHES = ["none", "8 3", "2 3", "12 3 2 3", "12 3 2 3 2 3"];

// The colour and the line of the nth setting. Each line takes its turn with all colours.
function lookOf(index) {
  const line = DASHES[Math.floor(index / COLORS.length) % DASHES.length];
  return { stroke: COLORS[index % COLORS.length], "stroke-dasharray": line };
}
