// Values of the interface as guests see them. Types are in `plain.d.ts`.

// The same list as in `plain.d.ts`.
const UNIT = /(Ns|Tokens|Requests|Blocks|Pairs|Completions|Engines|Count)$/;

/** Whether a field is a quantity: its name ends with a unit. */
export function isQuantity(name) {
  return UNIT.test(name);
}

/** Answers of `isQuantity`, which every call asks for every field. */
const known = Object.create(null);

/** A record whose quantities are numbers and whose columns are rows. */
export function plain(value, name = '') {
  if (typeof value === 'bigint') return (known[name] ??= isQuantity(name)) ? Number(value) : value;
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map((item) => plain(item, name));
  // In a component the class of a list is not the global one.
  if (ArrayBuffer.isView(value)) return isQuantity(name) && typeof value[0] === 'bigint' ? Array.from(value, Number) : value;
  const fields = Object.keys(value);
  // A column is none where all of its entries are 0.
  if (fields.length > 0 && isList(value[fields[0]]) && fields.every((field) => isList(value[field] ?? []))) {
    return rows(value, fields);
  }
  const record = {};
  // Most fields are numbers: a call of a function for each would take most of the time.
  for (let index = 0; index < fields.length; index++) {
    const field = fields[index];
    const one = value[field];
    if (typeof one === 'bigint') record[field] = (known[field] ??= isQuantity(field)) ? Number(one) : one;
    else record[field] = typeof one === 'object' ? plain(one, field) : one;
  }
  return record;
}

function isList(value) {
  return Array.isArray(value) || ArrayBuffer.isView(value);
}

/** Columns as a list of rows. */
function rows(columns, fields) {
  const count = columns[fields[0]].length;
  const made = [];
  for (let index = 0; index < count; index++) made.push({});
  for (const field of fields) {
    const column = plain(columns[field], field);
    for (let index = 0; index < count; index++) made[index][field] = column ? column[index] : 0;
  }
  return made;
}
