// Hooks that read from the front again and again while a page is shown.

import { useCallback, useEffect, useRef, useState } from "./html.js";

/**
 * Reads now and then every `period` milliseconds, not while the tab is hidden. Returns the latest
 * `value`, the `problem` of the latest read, and `again` to read at once.
 */
export function usePoll(read, period, keys = []) {
  const [state, setState] = useState({ value: undefined, problem: undefined });
  const again = useRef(() => {});
  useEffect(() => {
    let stopped = false;
    let timer;
    let isReading = false;
    async function step() {
      clearTimeout(timer);
      if (isReading) return;
      isReading = true;
      try {
        const value = await read();
        if (!stopped) setState({ value, problem: undefined });
      } catch (problem) {
        if (!stopped) setState((old) => ({ value: old.value, problem }));
      }
      isReading = false;
      clearTimeout(timer);
      if (!stopped && !document.hidden) timer = setTimeout(step, period);
    }
    const shown = () => !document.hidden && step();
    again.current = step;
    document.addEventListener("visibilitychange", shown);
    addEventListener("planck-key", step);
    step();
    return () => {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
      removeEventListener("planck-key", step);
    };
  }, keys);
  return { ...state, again: useCallback(() => again.current(), []) };
}

/** Renders again every `period` milliseconds while `isOn`, and returns the time. */
export function useNow(period, isOn = true) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!isOn) return undefined;
    const timer = setInterval(() => setNow(Date.now()), period);
    return () => clearInterval(timer);
  }, [period, isOn]);
  return isOn ? now : Date.now();
}

/** Runs an action of a button: returns `run`, whether it `isRunning`, and its `problem`. */
export function useAction() {
  const [state, setState] = useState({ isRunning: false, problem: undefined });
  const run = useCallback(async (action) => {
    setState({ isRunning: true, problem: undefined });
    try {
      const value = await action();
      setState({ isRunning: false, problem: undefined });
      return value;
    } catch (problem) {
      setState({ isRunning: false, problem });
      return undefined;
    }
  }, []);
  const clear = useCallback(() => setState({ isRunning: false, problem: undefined }), []);
  return { ...state, run, clear };
}

/** A state that is kept for the tab under a name. */
export function useKept(name, first) {
  const key = `planck.${name}`;
  const [value, setValue] = useState(() => {
    try {
      return JSON.parse(sessionStorage.getItem(key)) ?? first;
    } catch {
      return first;
    }
  });
  const keep = useCallback((next) => {
    sessionStorage.setItem(key, JSON.stringify(next));
    setValue(next);
  }, [key]);
  return [value, keep];
}
