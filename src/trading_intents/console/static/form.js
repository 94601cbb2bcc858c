// A form bound to an endpoint's fields: reads their values, and shows a problem's errors at the
// fields that they name.

import { Problem, messageOf } from "./api.js";
import { el, fill } from "./dom.js";

/** @type {(input: Input) => string | boolean | null} null: another one of its group may be chosen */
function readInput(input) {
  if (input instanceof HTMLInputElement && input.type === "checkbox") return input.checked;
  if (input instanceof HTMLInputElement && input.type === "radio")
    return input.checked ? input.value : null;
  return input.value.trim();
}

export class Form {
  /** @param {FormOptions} options */
  constructor(options) {
    this._options = { fields: [], ...options };
    /** @type {Map<string, {row: HTMLElement, error: HTMLElement, inputs: Input[]}>} */
    this._fields = new Map();
    this._isBusy = this._isDisabled = this._isReading = false;
    this._said = el("div", { class: "said", role: "status" });
    this._failed = el("div", { class: "failed", role: "alert" });
    this._button = el(
      "button",
      { type: "submit", class: options.isDangerous ? "danger" : "primary" },
      options.submit,
    );
    this._note = el("p", { class: "note" }, options.note ?? "");
    const oninput = () => this._onInput();
    const onsubmit = (/** @type {Event} */ event) => this._onSubmit(event);
    const attributes = {
      class: `form ${options.name}`,
      autocomplete: "off",
      novalidate: true,
      onsubmit,
      oninput,
    };
    const rows = this._options.fields.map((field) => this._addField(field));
    const actions = el("div", { class: "actions" }, this._button, this._note);
    this.element = el("form", attributes, ...rows, actions, this._failed, this._said);
  }

  get values() {
    /** @type {Values} */
    const values = {};
    for (const { name, isUpper } of this._options.fields) {
      const value =
        this._inputs(name)
          .map(readInput)
          .find((read) => read !== null) ?? "";
      values[name] = isUpper ? String(value).toUpperCase() : value;
    }
    return values;
  }

  /** @param {string} name */
  text(name) {
    return String(this.values[name] ?? "");
  }

  /** @param {Record<string, string | boolean>} values */
  set(values) {
    for (const [name, value] of Object.entries(values)) {
      for (const input of this._inputs(name)) {
        if (input instanceof HTMLInputElement && input.type === "checkbox")
          input.checked = Boolean(value);
        else if (input instanceof HTMLInputElement && input.type === "radio")
          input.checked = input.value === value;
        else input.value = String(value);
      }
    }
  }

  clear() {
    this.element.reset();
    this._forgetProblems();
    this.say("");
  }

  /** @param {string} name */
  focus(name) {
    this._inputs(name)[0]?.focus();
  }

  /** @type {(name: string, isShown: boolean) => void} */
  show(name, isShown) {
    const field = this._fields.get(name);
    if (field) field.row.hidden = !isShown;
  }

  /** @type {(title: string, names: string[]) => HTMLDetailsElement} Puts fields behind a toggle, which a problem opens. */
  fold(title, names) {
    const rows = names.flatMap((name) => this._fields.get(name)?.row ?? []);
    const folded = el("details", { class: "folded" }, el("summary", {}, title));
    rows[0]?.before(folded);
    folded.append(...rows);
    return folded;
  }

  /** @type {(...children: Child[]) => void} What stays in sight at the foot: these, then the button and what it led to. */
  pin(...children) {
    const foot = el("div", { class: "foot" });
    fill(foot, ...children, this._button.parentElement, this._failed, this._said);
    this.element.append(foot);
  }

  /** @type {(name: string, options: [string, string][]) => void} */
  setOptions(name, options) {
    const [select] = this._inputs(name);
    if (!select) return;
    const before = select.value;
    fill(select, ...options.map(([value, label]) => el("option", { value }, label)));
    if (options.some(([value]) => value === before)) select.value = before;
  }

  /** @type {(text: string, look: string) => void} */
  setSubmit(text, look) {
    this._button.textContent = text;
    this._button.className = look;
  }

  /** @type {(credential: HeldCredential | null, needs: string, isPossible?: boolean) => void} */
  setCredential(credential, needs, isPossible = true) {
    this._note.textContent = credential ? `Uses the ${credential.label}.` : needs;
    this._isDisabled = !credential || !isPossible;
    this._updateButton();
  }

  /** @param {boolean} isReading whether the present values are being read: nobody shall type over what is not shown */
  setReading(isReading) {
    this._isReading = isReading;
    for (const { inputs } of this._fields.values())
      for (const input of inputs) input.disabled = isReading;
    this._updateButton();
  }

  /** @param {string} text */
  say(text) {
    this._said.textContent = text;
  }

  /** @param {unknown} error */
  fail(error) {
    this._forgetProblems();
    const { errors, triggered } = error instanceof Problem ? error : { errors: [], triggered: [] };
    const rest = triggered.map((trigger) => `${trigger.detail} (${trigger.reason})`);
    for (const { pointer, detail } of errors)
      if (!pointer.split(/[?/]/).some((name) => this._mark(name, detail)))
        rest.push(`${pointer}: ${detail}`);
    if (!errors.length && !triggered.length) rest.push(messageOf(error));
    fill(this._failed, ...rest.map((text) => el("p", {}, text)));
    const invalid = this.element.querySelector("[aria-invalid]");
    if (invalid instanceof HTMLElement) invalid.focus();
  }

  /** @param {string} name */
  _inputs(name) {
    return this._fields.get(name)?.inputs ?? [];
  }

  _updateButton() {
    this._button.disabled = this._isBusy || this._isDisabled || this._isReading;
  }

  /** @type {(name: string, detail: string) => boolean} Whether there is such a field to show the detail at. */
  _mark(name, detail) {
    const field = this._fields.get(name);
    if (!field || field.row.hidden) return false;
    field.error.textContent = detail;
    field.row.closest("details")?.setAttribute("open", "");
    for (const input of field.inputs) input.setAttribute("aria-invalid", "true");
    return true;
  }

  _forgetProblems() {
    fill(this._failed);
    for (const { error, inputs } of this._fields.values()) {
      error.textContent = "";
      for (const input of inputs) input.removeAttribute("aria-invalid");
    }
  }

  _onInput() {
    this._forgetProblems();
    this.say("");
    this._options.onInput?.();
  }

  /** @param {Event} event */
  async _onSubmit(event) {
    event.preventDefault();
    if (this._button.disabled) return undefined;
    this._forgetProblems();
    const values = this.values;
    const missing = this._options.fields.find(
      ({ name, isRequired }) => isRequired && !values[name] && this._mark(name, "needed"),
    );
    if (missing) return this.focus(missing.name);
    this._isBusy = true;
    this._updateButton();
    this.say("Sending …");
    try {
      this.say((await this._options.onSubmit(values)) ?? "");
    } catch (error) {
      this.say("");
      this.fail(error);
    }
    this._isBusy = false;
    return this._updateButton();
  }

  /** @param {Field} field */
  _addField(field) {
    const id = `${this._options.name}-${field.name}`;
    const error = el("span", { class: "error", id: `${id}-error` });
    const hint = field.hint ? el("span", { class: "hint", id: `${id}-hint` }, field.hint) : null;
    const shared = {
      name: field.name,
      "aria-describedby": `${id}-error${hint ? ` ${id}-hint` : ""}`,
    };
    const { row, inputs } =
      field.kind === "radio" ? makeRadios(field, id, shared) : makeInput(field, id, shared);
    row.append(error, ...(hint ? [hint] : []));
    this._fields.set(field.name, { row, error, inputs });
    return row;
  }
}

/** @type {(field: Field, id: string, shared: Attributes) => {row: HTMLElement, inputs: Input[]}} */
function makeInput(field, id, shared) {
  const { kind, options = [], value } = field;
  const attributes = { ...shared, id, required: field.isRequired, maxlength: field.max };
  const label = el("label", { for: id }, field.label);
  if (kind === "checkbox") {
    const box = el("input", { ...attributes, type: "checkbox", checked: value === "true" });
    return { row: el("div", { class: "field check" }, box, label), inputs: [box] };
  }
  const choices = options.map(([key, text]) =>
    el("option", { value: key, selected: key === value }, text),
  );
  const type = field.isSecret ? "password" : field.isDate ? "date" : "text";
  const typed = { type, value, spellcheck: "false", autocapitalize: "off" };
  const look = {
    inputmode: field.isNumber ? "decimal" : null,
    class: field.isUpper ? "upper" : null,
  };
  const isSelect = kind === "select";
  const input = isSelect
    ? el("select", attributes, ...choices)
    : el("input", { ...attributes, ...typed, ...look });
  return { row: el("div", { class: "field" }, label, input), inputs: [input] };
}

/** @type {(field: Field, id: string, shared: Attributes) => {row: HTMLElement, inputs: Input[]}} */
function makeRadios(field, id, shared) {
  const choices = (field.options ?? []).map(([value, label]) => {
    const checked = value === field.value;
    const input = el("input", { ...shared, type: "radio", id: `${id}-${value}`, value, checked });
    return {
      input,
      row: el("label", { class: `choice ${value.toLowerCase()}`, for: input.id }, input, label),
    };
  });
  const group = el("div", { class: "choices" }, ...choices.map(({ row }) => row));
  return {
    row: el("fieldset", { class: "field" }, el("legend", {}, field.label), group),
    inputs: choices.map(({ input }) => input),
  };
}
