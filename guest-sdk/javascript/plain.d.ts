/** The end of the name of a quantity: its unit. Quantities of 64 bits are numbers in a guest. */
export type Quantity = `${string}${
  | 'Ns'
  | 'Tokens'
  | 'Requests'
  | 'Blocks'
  | 'Pairs'
  | 'Completions'
  | 'Engines'
  | 'Count'}`;

type List = Uint8Array | Uint16Array | Uint32Array | Int32Array | BigUint64Array | BigInt64Array | Float64Array | Array<any>;

type Entry<T, Name> = T extends BigUint64Array | BigInt64Array
  ? Name extends Quantity
    ? number
    : bigint
  : T extends Array<infer Item>
    ? Plain<Item>
    : number;

/**
 * A value of the interface as guests see it: quantities of 64 bits are numbers, and columns are
 * rows. Other values, such as ids and seeds of 64 bits, stay as they are.
 */
export type Plain<T, Name = ''> = T extends bigint
  ? Name extends Quantity
    ? number
    : bigint
  : T extends string | number | boolean | null | undefined
    ? T
    : T extends BigUint64Array | BigInt64Array
      ? Name extends Quantity
        ? number[]
        : T
      : T extends Uint8Array | Uint16Array | Uint32Array | Int32Array | Float64Array
        ? T
        : T extends Array<infer Item>
          ? Plain<Item>[]
          : T[keyof T] extends List | undefined
            ? { [Field in keyof T]-?: Entry<NonNullable<T[Field]>, Field> }[]
            : { [Field in keyof T]: Plain<T[Field], Field> };

export function plain<T>(value: T): Plain<T>;
export function isQuantity(name: string): boolean;
