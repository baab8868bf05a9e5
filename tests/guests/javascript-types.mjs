// Writes the types of the guest interface for guests in JavaScript, by jco:
//
//     node javascript-types.mjs PACKAGES WIT OUT
//
// PACKAGES is a folder with jco in its node_modules, WIT the folder of the interface.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const [packages, wit, out] = process.argv.slice(2);
const jco = join(resolve(packages), 'node_modules/@bytecodealliance/jco-transpile/vendor/js-component-bindgen-component.js');
const { $init, generateTypes } = await import(pathToFileURL(jco).href);
await $init;

let declaration = '';
const files = readdirSync(wit).filter((name) => name.endsWith('.wit')).sort();
const texts = files.map((name) => {
  const text = readFileSync(join(wit, name), 'utf8');
  return text.replace(/^package .*;$/m, (line) => ((declaration = line), ''));
});
const text = `${declaration}\n${texts.join('\n')}`;
const worlds = [...text.matchAll(/^world ([a-z-]+) \{([^}]*)\}/gm)];

mkdirSync(out, { recursive: true });
for (const [, world, body] of worlds) {
  // What a guest imports is wrapped by the SDK.
  const wanted = ['types', ...[...body.matchAll(/export ([a-z-]+);/g)].map((match) => match[1])];
  // jco cannot read a folder with every version of its file system.
  const options = {
    wit: { tag: 'source', val: text },
    world,
    guest: true,
    features: { tag: 'list', val: [] },
    tlaCompat: false,
    strict: false,
    flagsAsBigint: false,
    variantsInlineCases: false,
    useNamespaceObjects: false,
    enumValuesScreamingSnakeCase: false,
  };
  for (const [name, bytes] of generateTypes(world, options)) {
    if (!wanted.some((one) => name === `interfaces/vcr-guest-${one}.d.ts`)) continue;
    const lines = new TextDecoder().decode(bytes).split('\n');
    writeFileSync(join(out, basename(name)), lines.map((line) => line.trimEnd()).join('\n'));
  }
}
