// JSON Schemas as values. Each describes an argument to the model, checks the received value, and gives it its type.

/** Names a value that does not fit its schema. */
export class Misfit extends Error {}

/** Describes an argument: its JSON Schema for the model, and a check that gives the value its type. */
export interface Schema<T> {
  readonly json: Record<string, unknown>;
  /** The default of an argument that is left out; `undefined` if the argument is required. */
  readonly absent?: { value: T };
  /** Returns the value as `T`, or throws a `Misfit` that names `where` it does not fit. */
  fit(value: unknown, where: string): T;
}

/** The arguments of a tool by their names. */
export type Fields = Readonly<Record<string, Schema<any>>>;

/** The type of the arguments that fields describe. */
export type ArgsOf<F extends Fields> = { [K in keyof F]: F[K] extends Schema<infer T> ? T : never };

const described = (json: Record<string, unknown>, description?: string) =>
  description === undefined ? json : { ...json, description };

function plain<T>(type: string, is: (value: unknown) => value is T, description?: string): Schema<T> {
  return {
    json: described({ type }, description),
    fit(value, where) {
      if (is(value)) return value;
      throw new Misfit(`${where} must be of type ${type}`);
    },
  };
}

export const string = (description?: string): Schema<string> =>
  plain("string", (value) => typeof value === "string", description);

export const number = (description?: string): Schema<number> =>
  plain("number", (value): value is number => typeof value === "number" && Number.isFinite(value), description);

export const integer = (description?: string): Schema<number> =>
  plain("integer", (value): value is number => Number.isInteger(value), description);

export const boolean = (description?: string): Schema<boolean> =>
  plain("boolean", (value) => typeof value === "boolean", description);

/** Any value. */
export const any = (description?: string): Schema<unknown> => ({ json: described({}, description), fit: (value) => value });

/** One of these values. */
export function oneOf<const T extends readonly (string | number | boolean)[]>(values: T, description?: string): Schema<T[number]> {
  return {
    json: described({ enum: [...values] }, description),
    fit(value, where) {
      if (values.some((one) => one === value)) return value as T[number];
      throw new Misfit(`${where} must be one of ${values.map((one) => JSON.stringify(one)).join(", ")}`);
    },
  };
}

export function array<T>(of: Schema<T>, description?: string): Schema<T[]> {
  return {
    json: described({ type: "array", items: of.json }, description),
    fit(value, where) {
      if (!Array.isArray(value)) throw new Misfit(`${where} must be an array`);
      return value.map((item, at) => of.fit(item, `${where}[${at}]`));
    },
  };
}

export function object<F extends Fields>(fields: F, description?: string): Schema<ArgsOf<F>> {
  const names = Object.keys(fields);
  const required = names.filter((name) => !fields[name]?.absent);
  const properties = Object.fromEntries(names.map((name) => [name, fields[name]?.json]));
  return {
    json: described({ type: "object", properties, required, additionalProperties: false }, description),
    fit(value, where) {
      if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Misfit(`${where} must be an object`);
      const unknown = Object.keys(value).find((name) => !Object.hasOwn(fields, name));
      if (unknown !== undefined) throw new Misfit(`\`${unknown}\` is not known in ${where}; known are: ${names.join(", ")}`);
      const missing = required.find((name) => !Object.hasOwn(value, name));
      if (missing !== undefined) throw new Misfit(`\`${missing}\` is missing in ${where}`);
      const given = value as Record<string, unknown>;
      const fit = ([name, schema]: [string, Schema<any>]) =>
        [name, Object.hasOwn(given, name) ? schema.fit(given[name], `\`${name}\``) : schema.absent?.value] as const;
      return Object.fromEntries(Object.entries(fields).map(fit)) as ArgsOf<F>;
    },
  };
}

/** An argument that may be left out, and its default. */
export function optional<T>(schema: Schema<T>): Schema<T | undefined>;
export function optional<T>(schema: Schema<T>, otherwise: T): Schema<T>;
export function optional<T>(schema: Schema<T>, otherwise?: T): Schema<T | undefined> {
  return { ...schema, absent: { value: otherwise } };
}
