// The connection to NATS, with settings from the environment.

import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { checkServerIdentity, type PeerCertificate } from "node:tls";
import {
  connect,
  credsAuthenticator,
  errors,
  nkeyAuthenticator,
  type NatsConnection,
  type NodeConnectionOptions,
} from "@nats-io/transport-node";

/** How long one attempt may take, and the pause between two attempts, in milliseconds. */
const TRY_MS = 2000;
const PAUSE_MS = 250;
/** The maximum number of different connection errors that are logged before the next success. */
const CAUSES = 32;

export type Environment = Readonly<Record<string, string | undefined>>;

/** Thrown if the settings cannot work, or the server refuses this user. */
export class ConnectionError extends Error {}

/** Reads the settings from `NATS_URL` and the other variables that nodes read too. */
export function optionsOf(environment: Environment, name: string): NodeConnectionOptions {
  const own = (key: string) => environment[`PLANCK_NATS_${key}`] || undefined;
  const servers = (environment.NATS_URL || "nats://127.0.0.1:4222").split(",").map((server) => server.trim());
  const hosts = servers.map(hostOf);
  const options: NodeConnectionOptions = {
    name: `sidecar ${name}`,
    servers: servers.map(shown),
    timeout: TRY_MS,
    maxReconnectAttempts: -1,
    reconnectTimeWait: PAUSE_MS,
    pingInterval: 2000,
    ignoreAuthErrorAbort: true,
    ...userOf(servers),
  };
  if (own("INBOX_PREFIX")) options.inboxPrefix = own("INBOX_PREFIX")!;
  const [ca, certificate, key] = [own("TLS_CA"), own("TLS_CERT"), own("TLS_KEY")];
  if (!certificate !== !key) throw new ConnectionError("set PLANCK_NATS_TLS_CERT and PLANCK_NATS_TLS_KEY, or neither");
  if (ca || certificate || servers.some((server) => server.startsWith("tls://"))) {
    const tls = {
      checkServerIdentity: isOneOf(hosts),
      ...(ca && { ca: read("PLANCK_NATS_TLS_CA", ca) }),
      ...(certificate && { cert: read("PLANCK_NATS_TLS_CERT", certificate) }),
      ...(key && { key: read("PLANCK_NATS_TLS_KEY", key) }),
    };
    // The library passes on more of Node's options than its type has.
    options.tls = tls as NodeConnectionOptions["tls"] & object;
  }
  if (environment.NATS_CREDS) {
    options.authenticator = credsAuthenticator(new TextEncoder().encode(read("NATS_CREDS", environment.NATS_CREDS)));
  } else if (environment.NATS_NKEY) {
    options.authenticator = nkeyAuthenticator(new TextEncoder().encode(seed(environment.NATS_NKEY)));
  }
  return options;
}

/** Connects, and tries again until that succeeds or `stop` is aborted. Each cause of a failure is logged once. */
export async function open(options: NodeConnectionOptions, stop: AbortSignal, log: (line: string) => void): Promise<NatsConnection | undefined> {
  const said = new Set<string>();
  while (!stop.aborted) {
    try {
      const client = await connect(options);
      if (!stop.aborted) return client;
      await client.close();
    } catch (error) {
      const servers = [options.servers].flat().join(",");
      const text = `NATS at ${servers}: ${(error as Error).message}`;
      if (error instanceof errors.AuthorizationError) throw new ConnectionError(`${text}; check NATS_CREDS, NATS_NKEY, or the user in NATS_URL`);
      if (!said.has(text) && said.size < CAUSES) {
        said.add(text);
        log(`${text}; trying again`);
      }
      await sleep(PAUSE_MS, undefined, { signal: stop }).catch(() => undefined);
    }
  }
  return undefined;
}

/** Returns the address without user and password. */
export function shown(server: string): string {
  return server.replace(/^([a-z]+:\/\/)?[^@/]*@/, "$1");
}

/**
 * Checks the certificate against the hosts of the settings. If the address is an IP address, the client library passes no
 * host to TLS, whose default is then `localhost`.
 */
function isOneOf(hosts: readonly string[]): (host: string, certificate: PeerCertificate) => Error | undefined {
  return (_, certificate) => {
    const errors = hosts.map((host) => checkServerIdentity(host, certificate));
    return errors.includes(undefined) ? undefined : errors[0];
  };
}

function hostOf(server: string): string {
  const url = `nats://${shown(server).replace(/^[a-z]+:\/\//, "")}`;
  if (!URL.canParse(url)) throw new ConnectionError(`cannot read NATS_URL (${shown(server)}); expected nats://host:port`);
  return new URL(url).hostname.replace(/^\[|\]$/g, "");
}

/** Returns the user and password, or the token, from the URL. The client library ignores them there. */
function userOf(servers: readonly string[]): NodeConnectionOptions {
  const user = servers.map((server) => /^(?:[a-z]+:\/\/)?([^@/]*)@/.exec(server)?.[1]).find((found) => found !== undefined);
  if (user === undefined) return {};
  const [name, password] = user.split(/:(.*)/s).map(decodeURIComponent);
  return password === undefined ? { token: name! } : { user: name!, pass: password };
}

/** Returns the seed of an nkey. It consists of letters and digits; any other text is the path of a file with the seed. */
function seed(said: string): string {
  return /[/.]/.test(said) ? read("NATS_NKEY", said).trim() : said.trim();
}

function read(variable: string, file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (error) {
    throw new ConnectionError(`cannot read ${variable}=${file}: ${(error as Error).message}`);
  }
}
