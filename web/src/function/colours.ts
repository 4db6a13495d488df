// Source text in colours. Only the tokens of highlight.js are taken, never its HTML.

import hljs from "highlight.js/lib/core";
import armasm from "highlight.js/lib/languages/armasm";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import go from "highlight.js/lib/languages/go";
import rust from "highlight.js/lib/languages/rust";
import x86asm from "highlight.js/lib/languages/x86asm";

/** A part of a line; `scope` is a class of app.css, or empty. */
export interface Piece {
  readonly text: string;
  readonly scope: string;
}

const LANGUAGES = { armasm, c, cpp, go, rust, x86asm };
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);

const BY_ENDING: Record<string, keyof typeof LANGUAGES> = {
  c: "c",
  h: "cpp",
  cc: "cpp",
  cpp: "cpp",
  cxx: "cpp",
  hh: "cpp",
  hpp: "cpp",
  hxx: "cpp",
  inl: "cpp",
  go: "go",
  rs: "rust",
  asm: "x86asm",
  s: "x86asm",
  sx: "x86asm",
};

const SCOPES: Record<string, string> = {
  keyword: "keyword",
  literal: "literal",
  number: "literal",
  string: "string",
  char: "string",
  comment: "comment",
  doctag: "comment",
  meta: "meta",
  type: "type",
  built_in: "type",
  title: "title",
};

/** What highlight.js makes: a tree of scopes, with texts as its leaves. */
interface Node {
  readonly scope?: string;
  readonly children: readonly (Node | string)[];
}

/** The pieces of each line of a file; without colours where its language is not known. Assembly is that of `arch`. */
export function coloured(file: string, lines: readonly string[], arch: string): Piece[][] {
  const named = BY_ENDING[file.slice(file.lastIndexOf(".") + 1).toLowerCase()];
  const language = named === "x86asm" && /^(arm|aarch)/i.test(arch) ? "armasm" : named;
  if (!language) return lines.map((text) => [{ text, scope: "" }]);
  const made = hljs.highlight(lines.join("\n"), { language, ignoreIllegals: true });
  const root = (made as unknown as { _emitter?: { rootNode?: Node } })._emitter?.rootNode;
  if (!root) return lines.map((text) => [{ text, scope: "" }]);
  const out: Piece[][] = [[]];
  const walk = (node: Node, scope: string): void => {
    for (const child of node.children) {
      if (typeof child !== "string") {
        walk(child, SCOPES[(child.scope ?? "").split(".")[0] ?? ""] ?? scope);
        continue;
      }
      child.split("\n").forEach((text, i) => {
        if (i) out.push([]);
        if (text) out[out.length - 1]?.push({ text, scope });
      });
    }
  };
  walk(root, "");
  return out;
}
