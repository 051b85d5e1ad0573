// The colours: those of the system, or light or dark.

const STORED = "planck.theme";
const THEMES = ["system", "light", "dark"];

export function theme() {
  const stored = localStorage.getItem(STORED);
  return THEMES.includes(stored) ? stored : "system";
}

/** Changes to the next theme and returns it. */
export function nextTheme() {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  localStorage.setItem(STORED, next);
  apply(next);
  return next;
}

function apply(name) {
  document.documentElement.dataset.theme = name;
}

apply(theme());
