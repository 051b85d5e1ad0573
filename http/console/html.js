// Binds the templates to the renderer. Templates create nodes and texts, never markup from a
// string, so a text of a model or a tool stays a text.

import { h, render, Component } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { h, render, Component };
export {
  useCallback,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "./vendor/hooks.js";

export const html = htm.bind(h);

/** Makes a component that is rendered again only if one of its properties is another value. */
export function memo(render) {
  return class Memo extends Component {
    shouldComponentUpdate(next) {
      const keys = Object.keys(next);
      return (
        keys.length !== Object.keys(this.props).length ||
        keys.some((key) => next[key] !== this.props[key])
      );
    }

    render(props) {
      return h(render, props);
    }
  };
}
