// Rules for what TypeScript's checker does not see: habits, and every way in which a text could become markup or code.
const browser =
  "AbortController AbortSignal CustomEvent DOMException Element Event EventTarget HTMLAnchorElement " +
  "HTMLElement HTMLInputElement HTMLSelectElement HTMLTextAreaElement Node ResizeObserver TextDecoderStream TextEncoder " +
  "URL URLSearchParams btoa clearTimeout crypto document fetch history location requestAnimationFrame sessionStorage " +
  "setTimeout window";

export default [
  {
    files: ["**/*.js"],
    languageOptions: {
      ecmaVersion: 2023,
      sourceType: "module",
      globals: Object.fromEntries(browser.split(" ").map((name) => [name, "readonly"])),
    },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "array-callback-return": "error",
      "consistent-return": "error",
      eqeqeq: "error",
      "max-len": [
        "error",
        { code: 100, ignoreComments: true, ignoreStrings: true, ignoreTemplateLiterals: true },
      ],
      "no-alert": "error",
      "no-console": "error",
      "no-constant-condition": ["error", { checkLoops: false }],
      "no-duplicate-imports": "error",
      "no-eval": "error",
      "no-implicit-globals": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-script-url": "error",
      "no-self-compare": "error",
      "no-shadow": "error",
      "no-undef": "error",
      "no-unreachable": "error",
      "no-unused-expressions": "error",
      "no-unused-vars": ["error", { varsIgnorePattern: "^_" }],
      "no-use-before-define": "off",
      "no-var": "error",
      "prefer-const": "error",
      "require-atomic-updates": "off",
      "no-restricted-properties": [
        "error",
        ...["innerHTML", "outerHTML", "insertAdjacentHTML", "srcdoc"].map((property) => ({
          property,
          message: "text is set as text",
        })),
        { object: "document", property: "write", message: "text is set as text" },
      ],
      "no-restricted-globals": ["error", "localStorage", "indexedDB"],
    },
  },
];
