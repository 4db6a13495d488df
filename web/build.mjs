// Builds src/lastbranch/view/assets/ from web/src/: the same bytes for the same sources and locked packages.
// `node build.mjs [FOLDER]` writes to another folder, for the test that compares.

import { build } from "esbuild";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "src", "lastbranch", "view", "assets");

/** What packages hold of others, whose licences ask for a notice. */
const INSIDE = {
  "@hpcc-js/wasm-graphviz":
    "It holds Graphviz, compiled to WebAssembly, which is licensed under the Eclipse Public License 2.0\n" +
    "(https://www.eclipse.org/legal/epl-2.0/) and comes without warranty of any kind. Its source code is at\n" +
    "https://gitlab.com/graphviz/graphviz, and how it was compiled at https://github.com/hpcc-systems/hpcc-js-wasm.\n" +
    "It holds Expat as well, licensed under the MIT License: https://github.com/libexpat/libexpat.",
};

/** The texts of the licences of what the bundle holds, which those licences ask for. */
function licences(inputs) {
  const names = new Set();
  for (const path of inputs) {
    const found = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path);
    if (found) names.add(found[1]);
  }
  const texts = [...names].sort().map((name) => {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    if (!file) throw new Error(`${name} has no licence text`);
    const holds = INSIDE[name] ? `${INSIDE[name]}\n\n` : "";
    return `${name} ${version}, ${license}\n\n${holds}${readFileSync(join(folder, file), "utf8").trim()}\n`;
  });
  return `The viewer's app.js and graph.js hold parts of these packages.\n\n${texts.join("\n----\n\n")}`;
}

mkdirSync(out, { recursive: true });
const done = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx", graph: "src/graph-worker.ts" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "iife",
  target: ["chrome111", "firefox115", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  legalComments: "none",
  metafile: true,
  logLevel: "warning",
});
// Warnings of highlight.js name its pages; the viewer names no other place.
const script = join(out, "app.js");
writeFileSync(script, readFileSync(script, "utf8").replace(/https:\/\/github\.com\/highlightjs\/[\w./-]+/g, "highlight.js"));
writeFileSync(join(out, "licences.txt"), licences(Object.keys(done.metafile.inputs)));
copyFileSync(join(here, "src", "index.html"), join(out, "index.html"));
