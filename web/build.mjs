// Builds src/lastbranch/view/assets/ from web/src/: the same bytes for the same sources and locked packages.
// `node build.mjs [FOLDER]` writes to another folder, for the test that compares.

import { build } from "esbuild";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "src", "lastbranch", "view", "assets");

const { Graphviz } = await import("@hpcc-js/wasm-graphviz");

/** What packages hold of others, whose licences ask for a notice. Their texts are those of spdx-license-list. */
const INSIDE = {
  "@hpcc-js/wasm-graphviz": [
    {
      name: `Graphviz ${(await Graphviz.load()).version()}, compiled to WebAssembly`,
      licence: "EPL-2.0",
      holders: "AT&T Intellectual Property and the contributors of Graphviz",
      more:
        "It comes without warranty of any kind. Its source code is available under the same licence at\n" +
        "https://gitlab.com/graphviz/graphviz, and how it was compiled at https://github.com/hpcc-systems/hpcc-js-wasm.",
    },
    {
      name: "Expat, compiled to WebAssembly (https://github.com/libexpat/libexpat)",
      licence: "MIT",
      holders:
        "1998-2000 Thai Open Source Software Center Ltd and Clark Cooper\nCopyright (c) 2001-2025 Expat maintainers",
    },
    {
      name: "Emscripten's runtime, and musl in it (https://github.com/emscripten-core/emscripten)",
      licence: "MIT",
      holders: "2010-2014 Emscripten authors\nCopyright (c) 2005-2020 Rich Felker, et al.",
    },
    { name: "fzstd (https://github.com/101arrowz/fzstd)", licence: "MIT", holders: "2020 Arjun Barrett" },
  ],
};

/** The notice of one of these. */
function notice({ name, licence, holders, more = "" }) {
  const { licenseText } = JSON.parse(
    readFileSync(join(here, "node_modules", "spdx-license-list", "licenses", `${licence}.json`), "utf8"),
  );
  const [first, ...rest] = licenseText.trim().split("\n\n");
  const said = `Copyright (c) ${holders}`;
  const text = licence === "MIT" ? [first, said, ...rest.slice(1)] : [said, more, first, ...rest];
  return `It holds ${name}, ${licence}\n\n${text.join("\n\n").replace(/[ \t]+$/gm, "")}\n`;
}

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
    const own = `${name} ${version}, ${license}\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
    return [own, ...(INSIDE[name] ?? []).map(notice)].join("\n--\n\n");
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
writeFileSync(
  script,
  readFileSync(script, "utf8").replace(/https:\/\/github\.com\/highlightjs\/[\w./-]+/g, "highlight.js"),
);
writeFileSync(join(out, "licences.txt"), licences(Object.keys(done.metafile.inputs)));
copyFileSync(join(here, "src", "index.html"), join(out, "index.html"));
