// A border between two panes that is moved by dragging or with the arrow keys. Its place is kept for the tab.

import { html, useRef } from "./html.js";
import { useKept } from "./live.js";

const LEAST = 20;
const MOST = 80;
const STEP = 4;

/** Returns the share of the second pane in percent, and the border between the panes. */
export function useBorder(name, first) {
  const [share, setShare] = useKept(name, first);
  const border = useRef(null);
  const set = (value) => setShare(Math.round(Math.min(Math.max(value, LEAST), MOST)));
  const dragged = (event) => {
    if (!event.currentTarget.hasPointerCapture(event.pointerId)) return;
    const { left, width } = border.current.parentElement.getBoundingClientRect();
    set((100 * (left + width - event.clientX)) / width);
  };
  const pressed = (event) => {
    const step = { ArrowLeft: STEP, ArrowRight: -STEP }[event.key];
    if (!step) return;
    event.preventDefault();
    set(share + step);
  };
  const node = html`<div class="border" ref=${border} role="separator" tabindex="0" aria-orientation="vertical" aria-label="Width of the lanes" aria-valuemin=${LEAST} aria-valuemax=${MOST} aria-valuenow=${share} title="Drag, or use the arrow keys. A double click sets it back."
    onPointerDown=${(event) => event.currentTarget.setPointerCapture(event.pointerId)} onPointerMove=${dragged} onKeyDown=${pressed} onDblClick=${() => set(first)}></div>`;
  return [share, node];
}
