// What the compiler does not find: promises that nobody waits for, shadowed names, switches that forget a case.
import tseslint from "typescript-eslint";

const unused = { argsIgnorePattern: "^_", varsIgnorePattern: "^_", destructuredArrayIgnorePattern: "^_" };

export default tseslint.config(
  { ignores: ["node_modules/", "**/*.mjs"] },
  tseslint.configs.recommendedTypeChecked,
  {
    languageOptions: { parserOptions: { projectService: true } },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": "error",
      "@typescript-eslint/consistent-type-imports": "error",
      "@typescript-eslint/explicit-module-boundary-types": "error",
      "@typescript-eslint/no-shadow": "error",
      "@typescript-eslint/no-unused-vars": ["error", unused],
      "@typescript-eslint/switch-exhaustiveness-check": "error",
      // Headers of answers are JSON from our own server: a number or a text wherever the page prints one.
      "@typescript-eslint/no-base-to-string": "off",
      "@typescript-eslint/restrict-template-expressions": "off",
      // Callbacks in properties are functions, and no callback uses `this`.
      "@typescript-eslint/unbound-method": "off",
    },
  },
  // The test runner waits for its tests.
  { files: ["test/*.ts"], rules: { "@typescript-eslint/no-floating-promises": "off" } },
);
