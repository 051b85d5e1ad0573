import assert from "node:assert/strict";
import { test } from "node:test";
import { laneStyle } from "../colour.js";

const AGENTS = 64;

/** Returns the relative luminance of a colour in OKLCH, by the matrices of CSS Color 4. */
function luminance(lightness, chroma, hue) {
  const angle = (hue * Math.PI) / 180;
  const [a, b] = [chroma * Math.cos(angle), chroma * Math.sin(angle)];
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const clip = (value) => Math.min(Math.max(value, 0), 1);
  const red = clip(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s);
  const green = clip(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s);
  const blue = clip(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

const contrast = (one, two) => (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);

function coloursOf(index) {
  const found = [...laneStyle(index)["--lane"].matchAll(/oklch\(([\d.]+) ([\d.]+) ([\d.]+)\)/g)];
  return found.map(([, ...numbers]) => numbers.map(Number));
}

test("no two agents have one colour", () => {
  const all = Array.from({ length: AGENTS }, (_, index) => laneStyle(index)["--lane"]);
  assert.equal(new Set(all).size, AGENTS);
  const hues = Array.from({ length: 8 }, (_, index) => coloursOf(index)[0][2]);
  for (const [at, one] of hues.entries()) {
    for (const two of hues.slice(at + 1)) {
      const apart = Math.abs(one - two);
      assert.ok(Math.min(apart, 360 - apart) > 20, `${one} and ${two}`);
    }
  }
});

test("every colour is readable on the grounds of the page", () => {
  // The luminances of the lightest and darkest of the surfaces in style.css on which a name stands.
  const [light, dark] = [[1, 0.86], [0.0065, 0.022]];
  for (let index = 0; index < AGENTS; index++) {
    const [onLight, onDark] = coloursOf(index).map((numbers) => luminance(...numbers));
    for (const ground of light) assert.ok(contrast(onLight, ground) >= 4.5, `${index} on light: ${contrast(onLight, ground)}`);
    for (const ground of dark) assert.ok(contrast(onDark, ground) >= 4.5, `${index} on dark: ${contrast(onDark, ground)}`);
  }
});
