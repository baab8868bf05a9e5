// Makes a component of a guest in JavaScript. Run by `vcr guest build` beside the packages that it imports:
//
//     node javascript.mjs '{"dir": ..., "module": ..., "wit": ..., "world": ..., "work": ..., "out": ...}'

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import * as node from 'node:module';
import { dirname, join, relative, resolve, sep } from 'node:path';
import { componentize } from '@bytecodealliance/componentize-js';
import { init, parse } from 'es-module-lexer';

const SDK = /(^|\/)vcr-guest\.js$/;

class ProjectError extends Error {}

/** JavaScript of a module; in place of types are blanks, so that lines and columns stay. */
function javascript(path) {
  let text;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    throw new ProjectError(`cannot read \`${path}\`: ${error.message}`);
  }
  if (!/\.[mc]?ts$/.test(path)) return text;
  if (!node.stripTypeScriptTypes) {
    throw new ProjectError(`\`${path}\` is TypeScript, which needs Node.js 22.13 or later, but \`node\` is ${process.version}`);
  }
  return node.stripTypeScriptTypes(text);
}

/** Imports of worlds that a guest has only where it imports these names from the SDK. */
const OPTIONAL = { observe: /\bobserve\b|\*\s+as\b/, groups: /\bkvGroupShapes\b|\*\s+as\b/ };

/** The modules of the guest by path, and the optional imports that they use. */
function modules(entry) {
  const texts = new Map();
  const used = new Set();
  const open = [entry];
  while (open.length > 0) {
    const path = open.pop();
    if (texts.has(path)) continue;
    const text = javascript(path);
    texts.set(path, text);
    for (const { n: name, d: kind, ss, se } of parse(text, path)[0]) {
      // -2 is `import.meta`; what a dynamic import gets is known only when it runs.
      if (kind !== -1) continue;
      if (!/^\.{0,2}\//.test(name)) {
        throw new ProjectError(`\`${path}\` imports \`${name}\`: a guest can import files by relative paths only; bundle packages into a file first`);
      }
      open.push(resolve(dirname(path), name));
      if (!SDK.test(name)) continue;
      for (const [one, names] of Object.entries(OPTIONAL)) if (names.test(text.slice(ss, se))) used.add(one);
    }
  }
  return { texts, used };
}

/** The folder that holds all of `paths`. */
function common(paths) {
  let folder = dirname(paths[0]);
  while (!paths.every((path) => path.startsWith(folder + sep))) folder = dirname(folder);
  return folder;
}

/** The interface in one text, without the optional imports that the guest does not use. */
function interfaceText(folder, used) {
  let declaration = '';
  const files = readdirSync(folder).filter((name) => name.endsWith('.wit')).sort();
  const texts = files.map((name) => {
    const text = readFileSync(join(folder, name), 'utf8');
    return text.replace(/^package .*;$/m, (line) => ((declaration = line), ''));
  });
  const unused = Object.keys(OPTIONAL).filter((one) => !used.has(one));
  const lines = new RegExp(`^ *import (${unused.join('|')});$`, 'gm');
  const text = texts.join('\n');
  return `${declaration}\n${unused.length > 0 ? text.replace(lines, '') : text}`;
}

async function main() {
  const { dir, module, wit, world, work, out } = JSON.parse(process.argv[2]);
  await init;
  const entry = resolve(dir, module);
  const { texts, used } = modules(entry);
  const root = common([...texts.keys(), join(resolve(dir), '_')]);
  const source = join(work, 'source');
  for (const [path, text] of texts) {
    const to = join(source, relative(root, path));
    mkdirSync(dirname(to), { recursive: true });
    writeFileSync(to, text);
  }

  const text = interfaceText(resolve(dir, wit), used);
  const witPath = join(work, 'guest.wit');
  writeFileSync(witPath, text);
  const name = /^package ([^@;]+)@([^;]+);/m.exec(text);
  const body = new RegExp(`^world ${world} \\{([^}]*)\\}`, 'm').exec(text)?.[1] ?? '';
  const imports = [...body.matchAll(/^ *import ([a-z-]+);$/gm)].map((match) => match[1]);
  const project = relative(root, resolve(dir));
  const known = { project: project && `${project}/`, wit: text };
  writeFileSync(
    join(source, 'vcr-host.js'),
    [
      ...imports.map((one) => `import * as ${one} from '${name[1]}/${one}@${name[2]}';`),
      `globalThis[Symbol.for('vcr-guest')] = { ...${JSON.stringify(known)}, ${imports.join(', ')} };`,
      '',
    ].join('\n'),
  );
  const start = join(source, 'vcr-start.js');
  writeFileSync(start, `import './vcr-host.js';\nexport * from './${relative(root, entry)}';\n`);

  // The component names its modules relative to the current folder.
  process.chdir(source);
  const { component } = await componentize({
    sourcePath: start,
    witPath,
    worldName: world,
    disableFeatures: ['stdio', 'random', 'clocks', 'http', 'fetch-event'],
  });
  writeFileSync(out, component);
}

try {
  await main();
} catch (error) {
  console.error(error instanceof ProjectError || error.message ? error.message : String(error));
  process.exit(1);
}
