// The colours of agents.

/** The turn between two hues that follow each other. With the golden angle, no hue comes twice. */
const TURN = 137.508;
const FIRST = 272;

/** Returns the styles in which an agent's `--lane` has its colour: the same for the same place among the agents. */
export function laneStyle(index) {
  const hue = Math.round((FIRST + index * TURN) * 10) / 10 % 360;
  // The lightness makes every hue readable on the page's grounds, and the page's ground readable on it.
  return { "--lane": `light-dark(oklch(0.46 0.12 ${hue.toFixed(1)}), oklch(0.81 0.11 ${hue.toFixed(1)}))` };
}
