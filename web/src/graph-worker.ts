// Lays graphs out, in a worker: Graphviz takes up to seconds, and the page stays alive meanwhile.

import { Graphviz } from "@hpcc-js/wasm-graphviz";

onmessage = async ({ data }: MessageEvent<string>): Promise<void> => {
  try {
    const graphviz = await Graphviz.load();
    postMessage({ laid: graphviz.layout(data, "json0" as "json", "dot") }); // json0: without what to draw
  } catch (error) {
    postMessage({ failed: String(error) });
  }
};
