import tseslint from "typescript-eslint";

// Beside TypeScript's own rules: what keeps the core fit for browsers, and its functions short.
export default tseslint.config(
  { ignores: ["lib", "src/api.ts", "src/stream.ts", "src/fields.ts", "*.mjs"] },
  ...tseslint.configs.strictTypeChecked,
  {
    languageOptions: { parserOptions: { project: "./tsconfig.json" } },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      complexity: ["error", 15],
      eqeqeq: "error",
      "max-lines-per-function": ["error", 70],
      "no-restricted-imports": ["error", { patterns: ["node:*"] }],
      "no-restricted-globals": ["error", "process", "Buffer", "global"],
      "@typescript-eslint/no-unnecessary-condition": "off",
      "@typescript-eslint/no-unnecessary-type-parameters": "off",
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    },
  },
  {
    files: ["src/node.ts"],
    rules: { "no-restricted-imports": "off", "no-restricted-globals": "off" },
  },
);
