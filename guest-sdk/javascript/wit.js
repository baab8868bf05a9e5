// Records of the interface, read from the text of its WIT files.

import { isQuantity } from './plain.js';

/** `prompt-tokens` as `promptTokens`. */
function camel(/** @type {string} */ name) {
  return name.replace(/-(.)/g, (/** @type {string} */ _, /** @type {string} */ letter) => letter.toUpperCase());
}

/** The text between the brace at or after `start` and the one that closes it. */
function block(/** @type {string} */ text, /** @type {number} */ start) {
  const open = text.indexOf('{', start);
  let depth = 0;
  for (let at = open; at < text.length; at++) {
    if (text[at] === '{') depth++;
    if (text[at] === '}' && --depth === 0) return text.slice(open + 1, at);
  }
  return '';
}

/** The definitions of a kind (`record`, `enum`, `type`) in an interface, by name. */
function definitions(/** @type {string} */ text, /** @type {string} */ kind) {
  /** @type {Map<string, any>} */
  const found = new Map();
  for (const match of text.matchAll(new RegExp(`(?<=^|\\s)${kind} ([a-z0-9-]+)(?= \\{)`, 'g'))) {
    found.set(match[1], block(text, match.index));
  }
  return found;
}

/** The type of a column, which may be left out, with that of its entries. */
const COLUMN = /^(?:option<)?list<([^<>]*)>+$/;

/**
 * A record of an interface with a value in every field, as a guest sees it: 0, false, the first
 * case, and empty texts and lists. Of columns it is one row.
 *
 * @param {string} wit the text of the interface
 * @param {string} interfaceName
 * @param {string} record
 * @returns {Record<string, any>}
 */
export function blank(wit, interfaceName, record) {
  const bare = wit.replace(/\/\/.*$/gm, '');
  const start = bare.search(new RegExp(`(?<=^|\\s)interface ${interfaceName}(?= \\{)`));
  if (start < 0) throw new Error(`the interface has no \`${interfaceName}\``);
  const text = block(bare, start);
  const records = definitions(text, 'record');
  const enums = definitions(text, 'enum');
  const aliases = new Map(
    [...text.matchAll(/(?<=^|\s)type ([a-z0-9-]+) = ([^;]+);/g)].map((match) => [match[1], match[2].trim()]),
  );

  /** @type {(name: string) => string[][]} */
  const fieldsOf = (name) =>
    [...records.get(name).matchAll(/([a-z0-9-]+):\s*([^,\n]+(?:<[^>]*>)?)/g)].map((match) => [match[1], match[2].trim()]);
  const isColumns = (/** @type {string[][]} */ fields) => fields.every(([, type]) => COLUMN.test(type));
  /** @type {(type: any, name: string) => any} */
  const value = (type, name) => {
    if (aliases.has(type)) return value(aliases.get(type), name);
    if (records.has(type)) return isColumns(fieldsOf(type)) ? [] : made(fieldsOf(type));
    if (enums.has(type)) return enums.get(type).split(',')[0].trim();
    if (type === 'u64' || type === 's64') return isQuantity(name) ? 0 : 0n;
    if (/^([us](8|16|32)|f32|f64)$/.test(type)) return 0;
    if (type === 'bool') return false;
    if (type === 'string') return '';
    return type.startsWith('list<') ? [] : undefined;
  };
  /** @type {(fields: string[][]) => Record<string, any>} */
  const made = (fields) =>
    Object.fromEntries(fields.map(([field, type]) => [camel(field), value(type, camel(field))]));

  if (!records.has(record)) throw new Error(`the interface \`${interfaceName}\` has no record \`${record}\``);
  const fields = fieldsOf(record);
  return made(isColumns(fields) ? fields.map(([field, type]) => [field, COLUMN.exec(type)?.[1] ?? '']) : fields);
}
