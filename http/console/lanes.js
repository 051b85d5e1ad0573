// The lanes beside a conversation: one column for each agent, with time running downwards as in the
// conversation. A click on a bar goes to its place in the conversation.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { laneStyle } from "./colour.js";
import { duration } from "./format.js";
import { useNow } from "./live.js";
import { layout } from "./timeline.js";

/** The least and the greatest width of a lane, in pixels. */
const NARROW = 88;
const WIDE = 420;
/** The part around the visible heights that is drawn too, in pixels. */
const MARGIN = 400;

export function Lanes({ store, onGo }) {
  const { state, timeline } = store;
  const box = useRef(null);
  const isAtEnd = useRef(true);
  const [view, setView] = useState({ top: 0, height: 800, width: 360 });
  const isRunning = timeline.open.size > 0;
  const now = useNow(500, isRunning);
  const plan = useMemo(() => layout(timeline, now), [timeline, timeline.lastSeq, isRunning && now]);
  const lanes = [...state.agents.values()];
  const column = new Map(lanes.map((agent, index) => [agent.id, index]));
  const isSeen = (top, bottom) => bottom > view.top - MARGIN && top < view.top + view.height + MARGIN;

  const look = () => {
    if (!box.current) return;
    const { scrollTop, clientHeight, clientWidth, scrollHeight } = box.current;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < 60;
    setView({ top: scrollTop, height: clientHeight, width: clientWidth });
  };
  useEffect(() => {
    const sized = new ResizeObserver(look);
    sized.observe(box.current);
    return () => sized.disconnect();
  }, [lanes.length > 0]);
  useLayoutEffect(() => {
    if (isAtEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [plan.height]);

  if (!lanes.length) return html`<p class="muted lanes-empty">The lanes of the agents appear here when they begin to work.</p>`;
  const wide = Math.min(Math.max(Math.floor(view.width / lanes.length), NARROW), WIDE);
  const width = lanes.length * wide;
  const bars = plan.bars.filter((bar) => isSeen(bar.top, bar.bottom));
  return html`<div class="lanes" ref=${box} onScroll=${look} onKeyDown=${moveFocus} role="group" aria-label="Lanes of the agents. Arrow keys move between the bars.">
    <div class="lane-heads" style=${{ width: `${width}px` }}>
      ${lanes.map((agent) => html`<a key=${agent.id} class="lane-head" style=${{ ...laneStyle(agent.index), width: `${wide}px` }} href=${`#/sessions/${store.info?.name}/agents/${agent.id}`} title=${`${agent.name}: ${agent.state}`}>
        <span class="lane-name">${agent.name || "agent"}</span><span class="lane-state">${agent.state}</span></a>`)}
    </div>
    <div class="lane-body" style=${{ width: `${width}px`, height: `${plan.height + 20}px` }}>
      ${lanes.map((agent, index) => html`<div key=${agent.id} class="lane-line" style=${{ left: `${index * wide + wide / 2}px` }}></div>`)}
      ${plan.breaks.filter((each) => isSeen(each.top, each.top + 34)).map((each) => html`<div key=${each.key} class="lane-break" style=${{ top: `${each.top + 8}px` }}>${duration(each.ms)} pause</div>`)}
      ${bars.map((bar, index) => html`<${Bar} key=${bar.id} bar=${bar} wide=${wide} column=${column.get(bar.agent) ?? 0} color=${laneStyle(state.agents.get(bar.agent)?.index ?? 0)} onGo=${onGo} isFirst=${index === 0} />`)}
      <${Arrows} arrows=${plan.arrows.filter((arrow) => column.has(arrow.from) && isSeen(arrow.start, arrow.top + 20))} column=${column} wide=${wide} width=${width} height=${plan.height + 20} />
      ${plan.marks.filter((mark) => isSeen(mark.top, mark.top + 20)).map((mark) => html`<button key=${`${mark.kind}${mark.seq}`} class=${`mark ${mark.kind}`} tabindex="-1" style=${{ top: `${mark.top - 8}px`, left: `${(column.get(mark.agent) ?? 0) * wide + wide - 24}px` }} title=${`${mark.kind}: ${mark.text}`} aria-label=${`${mark.kind}: ${mark.text}`} onClick=${() => onGo(mark)}>${MARKS[mark.kind]}</button>`)}
    </div>
  </div>`;
}

const MARKS = { retry: "↻", error: "!", failover: "⇄" };

function Bar({ bar, wide, column, color, onGo, isFirst }) {
  const inset = bar.kind === "turn" ? 6 : 14;
  const style = {
    ...color,
    top: `${bar.top}px`,
    left: `${column * wide + inset}px`,
    width: `${wide - 2 * inset}px`,
    height: `${Math.max(bar.bottom - bar.top - 1, 4)}px`,
  };
  const length = duration(bar.end - bar.from);
  const about = `${bar.label}, ${length}${bar.outcome ? `, ${bar.outcome}` : ""}${bar.isOpen ? ", running" : ""}`;
  const isTall = bar.bottom - bar.top >= 14 && bar.kind !== "turn";
  return html`<button class=${`bar ${bar.kind} ${bar.isOpen ? "open" : ""} ${bar.outcome === "error" || bar.outcome === "retry" ? "bad" : ""}`} style=${style} tabindex=${isFirst ? 0 : -1} title=${about} aria-label=${about} onClick=${() => onGo(bar)}>${isTall && html`<span>${bar.label}</span>`}</button>`;
}

function Arrows({ arrows, column, wide, width, height }) {
  return html`<svg class="arrows" width=${width} height=${height} aria-hidden="true">
    <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" /></marker></defs>
    ${arrows.map((arrow) => {
      const from = column.get(arrow.from) * wide + wide / 2;
      const to = (column.get(arrow.to) ?? 0) * wide + wide / 2;
      const side = to > from ? -1 : 1;
      const edge = wide / 2 - 14;
      return html`<g key=${arrow.seq}><title>${arrow.text}</title>
        <path d=${`M${from - side * edge} ${arrow.start + 8} C${from - side * (edge + 24)} ${arrow.start + 8}, ${to + side * (edge + 34)} ${arrow.top + 5}, ${to + side * (edge + 9)} ${arrow.top + 5}`} marker-end="url(#tip)" /></g>`;
    })}
  </svg>`;
}

/** Moves the focus to the next bar above or below. */
function moveFocus(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || !event.target.classList.contains("bar")) return;
  event.preventDefault();
  const bars = [...event.currentTarget.querySelectorAll(".bar")];
  bars[bars.indexOf(event.target) + step]?.focus();
}
