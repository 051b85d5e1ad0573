// Which sessions of the list are shown, and in which order. Nothing here does I/O.

const byText = (of) => (a, b) => of(b).localeCompare(of(a));

export const ORDERS = {
  created: { label: "newest", compare: byText(({ row }) => row.created_at) },
  activity: { label: "last activity", compare: byText(({ row }) => row.updated_at) },
  cost: { label: "cost", compare: (a, b) => (b.detail.cost ?? -1) - (a.detail.cost ?? -1) },
};

/**
 * Returns the rows `{row, detail, waits, activity}` that are wanted, in the wanted order. Every word of the text must be in
 * the name, the first prompt, the last line, the failure or a wait.
 */
export function pick(rows, { text, state, team, order }) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (each) => {
    if (state && each.activity !== state) return false;
    if (team && each.detail.team !== team) return false;
    if (!words.length) return true;
    const { prompt = "", line = "", failure = "" } = each.detail;
    const all = [each.row.name, prompt, line, failure, ...each.waits.map((wait) => wait.title)].join("\n").toLowerCase();
    return words.every((word) => all.includes(word));
  };
  return rows.filter(fits).sort(ORDERS[order]?.compare ?? ORDERS.created.compare);
}
