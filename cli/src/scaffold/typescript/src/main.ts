import { sidecar } from "./sidecar.js";

await sidecar.run();
