/**
 * Write a Planck sidecar: a program that brings tools and compactors to the agents of a cluster, over NATS.
 *
 * ```ts
 * import { Sidecar, array, number } from "planck-sidecar";
 *
 * const sidecar = new Sidecar("calculator", "1.0.0");
 *
 * sidecar.tool("add", { description: "Adds numbers.", effect: "pure", args: { numbers: array(number()) } }, ({ numbers }) =>
 *   numbers.reduce((sum, one) => sum + one, 0),
 * );
 *
 * await sidecar.run();
 * ```
 */
export { Conversation, type Compactor, type Message, type Part, type Summary } from "./compactor.js";
export { ConnectionError, type Environment } from "./connection.js";
export { type Context, type Effect, type Progress } from "./request_handler.js";
export { Harness, type Answer, type Said } from "./harness.js";
export { Misfit, any, array, boolean, integer, number, object, oneOf, optional, string, type ArgsOf, type Fields, type Schema } from "./schema.js";
export { Sidecar, type ServeOptions, type SidecarOptions, type ToolOptions } from "./sidecar.js";
