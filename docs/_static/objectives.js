// The objectives of sb3_ppo_variants for one sample, for the page "playground". tests/test_playground.py compares them
// with the package. They are maximised; slopes are derivatives with respect to log r, KL(old || new) and
// KL(new || old).
"use strict";

// The sliders: symbol, range, and the value at first, which is the default of the arguments.
const COEFFICIENTS = {
  eps: { symbol: "ε", from: 0.02, to: 1, first: 0.2 },
  epsHigh: { symbol: "ε high", from: 0.02, to: 4, first: 0.28 },
  c: { symbol: "c", from: 1.01, to: 4, first: 3 },
  alpha: { symbol: "α of Rollback", from: 0.01, to: 2, first: 0.3 },
  delta: { symbol: "δ of TrulyPPO", from: 0.001, to: 0.3, first: 0.03 },
  deltaTRG: { symbol: "δ of TRGPPO", from: 0.001, to: 0.3, first: 0.001 },
  alphaKL: { symbol: "α of TrulyPPO", from: 0.1, to: 20, first: 5 },
  tau: { symbol: "τ of P3O", from: 0.5, to: 8, first: 4 },
  tauPos: { symbol: "τ of SAPO, A > 0", from: 0.2, to: 8, first: 1 },
  tauNeg: { symbol: "τ of SAPO, A < 0", from: 0.2, to: 8, first: 1.05 },
  alphaDPO: { symbol: "α of DPO", from: 0.1, to: 4, first: 2 },
  betaDPO: { symbol: "β of DPO", from: 0.1, to: 4, first: 0.6 },
  betaP3O: { symbol: "β of P3O", from: 0, to: 10, first: 0.1 },
  beta: { symbol: "β of KLPenalized, KLHinge", from: 0, to: 10, first: 1 },
  betaReverse: { symbol: "β of ReverseKL", from: 0, to: 10, first: 3 },
  target: { symbol: "d_targ", from: 0.001, to: 0.1, first: 0.01 },
  eta: { symbol: "η", from: 0, to: 2000, first: 1000 },
  oldProb: { symbol: "π_old(a|s)", from: 0.05, to: 0.95, first: 0.25 },
};

const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

const clipped = ({ r, a }, low, high) => {
  const bounded = clamp(r, low, high);
  return r * a <= bounded * a ? [r * a, r * a] : [bounded * a, 0];
};

const gated = ({ r, a }, tau) => {
  const s = 1 / (1 + Math.exp(-tau * (r - 1)));
  return [(4 / tau) * s * a, 4 * s * (1 - s) * r * a];
};

const penalized = ({ r, a, kl }, beta) => [r * a - beta * kl, r * a, -beta];

const penalizedReverse = ({ r, a, reverseKL }, beta) => [r * a - beta * reverseKL, r * a, 0, -beta];

// Each takes a sample and the values of the sliders, and returns the objective and its slopes.
const OBJECTIVES = {
  Unclipped: { uses: [], of: ({ r, a }) => [r * a, r * a] },
  Clipped: { uses: ["eps"], of: (s, { eps }) => clipped(s, 1 - eps, 1 + eps) },
  ClipHigher: { uses: ["eps", "epsHigh"], of: (s, { eps, epsHigh }) => clipped(s, 1 - eps, 1 + epsHigh) },
  DualClip: {
    uses: ["eps", "c"],
    of: (s, { eps, c }) => (s.a < 0 && s.r > c ? [c * s.a, 0] : clipped(s, 1 - eps, 1 + eps)),
  },
  CISPO: {
    uses: ["epsHigh"],
    of: ({ r, a }, { epsHigh }) => [Math.min(r, 1 + epsHigh) * a * Math.log(r), Math.min(r, 1 + epsHigh) * a],
  },
  Rollback: {
    uses: ["eps", "alpha"],
    of: ({ r, a }, { eps, alpha }) => {
      const bound = 1 + Math.sign(a) * eps;
      return (r - bound) * a > 0 ? [((1 + alpha) * bound - alpha * r) * a, -alpha * r * a] : [r * a, r * a];
    },
  },
  TrulyPPO: {
    uses: ["delta", "alphaKL"],
    of: (s, { delta, alphaKL }) => penalized(s, s.kl >= delta && s.r * s.a > s.a ? alphaKL : 0),
  },
  TRGPPO: {
    uses: ["eps", "deltaTRG"],
    of: (s, { eps, deltaTRG, oldProb }) => {
      const [least, greatest] = rangeOfRatio(deltaTRG, oldProb);
      return clipped(s, Math.min(least, 1 - eps), Math.max(greatest, 1 + eps));
    },
  },
  SPO: {
    uses: ["eps"],
    of: ({ r, a }, { eps }) => {
      const pull = (Math.abs(a) / eps) * (r - 1);
      return [r * a - (pull * (r - 1)) / 2, (a - pull) * r];
    },
  },
  P3O: {
    uses: ["tau", "betaP3O"],
    of: (s, { tau, betaP3O }) => {
      const [value, slope] = gated(s, tau);
      return [value - betaP3O * s.kl, slope, -betaP3O];
    },
  },
  SAPO: { uses: ["tauPos", "tauNeg"], of: (s, { tauPos, tauNeg }) => gated(s, s.a > 0 ? tauPos : tauNeg) },
  DPO: {
    uses: ["alphaDPO", "betaDPO"],
    of: ({ r, a }, { alphaDPO, betaDPO }) => {
      const [scale, moved, factor] = a >= 0 ? [alphaDPO, (r - 1) * a, r] : [betaDPO, Math.log(r) * a, 1];
      if (moved <= 0) return [r * a, r * a];
      const bounded = Math.tanh(moved / scale);
      return [r * a - moved + scale * bounded, (r - factor * bounded ** 2) * a];
    },
  },
  KLPenalized: { uses: ["beta"], of: (s, { beta }) => penalized(s, beta) },
  KLHinge: {
    uses: ["beta", "target", "eta"],
    of: (s, { beta, target, eta }) => {
      const beyond = Math.max(0, s.kl - 2 * target);
      const [value, slope] = penalized(s, beta);
      return [value - eta * beyond ** 2, slope, -beta - 2 * eta * beyond];
    },
  },
  ReverseKL: { uses: ["betaReverse"], of: (s, { betaReverse }) => penalizedReverse(s, betaReverse) },
};

// KL(old || new) if the policy chooses between two actions, of which the one that was taken is r times as likely now.
const klOf = (r, oldProb) => -oldProb * Math.log(r) - (1 - oldProb) * Math.log((1 - oldProb * r) / (1 - oldProb));

// The least and the greatest ratio with a KL of at most delta.
function rangeOfRatio(delta, oldProb) {
  return [0, 1 / oldProb].map((outside) => {
    let inside = 1;
    for (let i = 0; i < 60; i++) {
      const middle = (inside + outside) / 2;
      if (klOf(middle, oldProb) < delta) inside = middle;
      else outside = middle;
    }
    return inside;
  });
}

// The objective, and its derivative with respect to log r, of a sample in a state with two actions.
function evaluate(name, r, a, coefficients) {
  const { oldProb } = coefficients;
  const prob = oldProb * r;
  const other = Math.log((1 - prob) / (1 - oldProb));
  const reverseKL = prob * Math.log(r) + (1 - prob) * other;
  const sample = { r, a, kl: klOf(r, oldProb), reverseKL };
  const [value, slope, byKL = 0, byReverseKL = 0] = OBJECTIVES[name].of(sample, coefficients);
  const pull = (byKL * (prob - oldProb)) / (1 - prob) + byReverseKL * prob * (Math.log(r) - other);
  return { value, slope: slope + pull };
}
