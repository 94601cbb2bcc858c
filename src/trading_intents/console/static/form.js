// A form bound to an endpoint's fields: reads their values, and shows a problem's errors at the fields that they name.

import { Problem } from "./api.js";
import { el, fill } from "./dom.js";

/**
 * @typedef {object} Field
 * @property {string} name
 * @property {string} label
 * @property {"text" | "select" | "checkbox" | "radio" | "textarea"} [kind]
 * @property {[string, string][]} [options]
 * @property {string} [value]
 * @property {string} [hint]
 * @property {boolean} [isRequired]
 * @property {boolean} [isUpper]
 * @property {boolean} [isNumber] shows digits on a phone's keyboard
 * @property {boolean} [isSecret]
 * @property {number} [max] characters
 */
/** @typedef {Record<string, string | boolean>} Values */
/**
 * @typedef {object} FormOptions
 * @property {string} name
 * @property {Field[]} fields
 * @property {string} submit the button's text
 * @property {(values: Values) => Promise<string | void>} onSubmit returns what to say when it is done
 * @property {() => void} [onInput]
 * @property {string} [note] which credential it uses
 * @property {boolean} [isDangerous]
 */

export class Form {
  /** @param {FormOptions} options */
  constructor(options) {
    this._options = options;
    /** @type {Map<string, (HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement)[]>} */
    this._inputs = new Map();
    /** @type {Map<string, HTMLElement>} */
    this._errors = new Map();
    /** @type {Map<string, HTMLElement>} */
    this._rows = new Map();
    this._isBusy = false;
    this._isDisabled = false;
    this._isReading = false;
    this._said = el("div", { class: "said", role: "status" });
    this._failed = el("div", { class: "failed", role: "alert" });
    this._button = el("button", { type: "submit", class: options.isDangerous ? "danger" : "primary" }, options.submit);
    this._note = el("p", { class: "note" }, options.note ?? "");
    this.element = el(
      "form",
      {
        class: `form ${options.name}`,
        autocomplete: "off",
        novalidate: true,
        onsubmit: (/** @type {Event} */ event) => this._onSubmit(event),
        oninput: () => this._onInput(),
      },
      ...options.fields.map((field) => this._row(field)),
      el("div", { class: "actions" }, this._button, this._note),
      this._failed,
      this._said,
    );
  }

  /** @returns {Values} */
  get values() {
    /** @type {Values} */
    const found = {};
    for (const field of this._options.fields) {
      const inputs = this._inputs.get(field.name) ?? [];
      const [first] = inputs;
      if (field.kind === "checkbox") found[field.name] = first instanceof HTMLInputElement && first.checked;
      else if (field.kind === "radio")
        found[field.name] = inputs.find((input) => input instanceof HTMLInputElement && input.checked)?.value ?? "";
      else found[field.name] = field.isUpper ? (first?.value ?? "").trim().toUpperCase() : (first?.value ?? "").trim();
    }
    return found;
  }

  /** @param {string} name */
  text(name) {
    return String(this.values[name] ?? "");
  }

  /** @param {Record<string, string | boolean | null | undefined>} values */
  set(values) {
    for (const [name, value] of Object.entries(values)) {
      for (const input of this._inputs.get(name) ?? []) {
        if (input instanceof HTMLInputElement && input.type === "checkbox") input.checked = Boolean(value);
        else if (input instanceof HTMLInputElement && input.type === "radio") input.checked = input.value === value;
        else input.value = value === null || value === undefined ? "" : String(value);
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
    this._inputs.get(name)?.[0]?.focus();
  }

  /**
   * @param {string} name
   * @param {boolean} isShown
   */
  show(name, isShown) {
    const row = this._rows.get(name);
    if (row) row.hidden = !isShown;
  }

  /**
   * @param {string} name
   * @param {[string, string][]} options
   */
  setOptions(name, options) {
    const [select] = this._inputs.get(name) ?? [];
    if (!select) return;
    const before = select.value;
    fill(select, ...options.map(([value, label]) => el("option", { value }, label)));
    if (options.some(([value]) => value === before)) select.value = before;
  }

  /** @param {string} text */
  setSubmit(text) {
    this._button.textContent = text;
  }

  /** @param {string} text */
  setNote(text) {
    this._note.textContent = text;
  }

  /** @param {boolean} isDisabled whether no credential of the session may send it */
  setDisabled(isDisabled) {
    this._isDisabled = isDisabled;
    this._updateButton();
  }

  /** @param {boolean} isReading whether the present values are still being read: nobody shall type over what is not shown */
  setReading(isReading) {
    this._isReading = isReading;
    for (const inputs of this._inputs.values()) for (const input of inputs) input.disabled = isReading;
    this._updateButton();
  }

  _updateButton() {
    this._button.disabled = this._isBusy || this._isDisabled || this._isReading;
  }

  /** @param {string} text */
  say(text) {
    this._said.textContent = text;
  }

  /** @param {unknown} error */
  fail(error) {
    this._forgetProblems();
    const rest = [];
    if (error instanceof Problem) {
      for (const { pointer, detail } of error.errors) {
        const name = pointer.replace("?", "/").split("/").pop() ?? "";
        const place = this._errors.get(name);
        if (place && !this._rows.get(name)?.hidden) this._mark(name, detail);
        else rest.push(`${pointer}: ${detail}`);
      }
      if (error.triggered.length) rest.push(...error.triggered.map((trigger) => `${trigger.reason}: ${trigger.detail}`));
      else if (!error.errors.length) rest.push(error.message);
    } else rest.push(error instanceof Error ? error.message : String(error));
    fill(this._failed, ...rest.map((text) => el("p", {}, text)));
    const invalid = this.element.querySelector("[aria-invalid]");
    if (invalid instanceof HTMLElement) invalid.focus();
  }

  /**
   * @param {string} name
   * @param {string} detail
   */
  _mark(name, detail) {
    const place = this._errors.get(name);
    if (place) place.textContent = detail;
    for (const input of this._inputs.get(name) ?? []) input.setAttribute("aria-invalid", "true");
  }

  _forgetProblems() {
    fill(this._failed);
    for (const place of this._errors.values()) place.textContent = "";
    for (const inputs of this._inputs.values()) for (const input of inputs) input.removeAttribute("aria-invalid");
  }

  _onInput() {
    this._forgetProblems();
    this.say("");
    this._options.onInput?.();
  }

  /** @param {Event} event */
  async _onSubmit(event) {
    event.preventDefault();
    if (this._isBusy || this._button.disabled) return;
    const missing = this._options.fields.find(
      (field) => field.isRequired && !this._rows.get(field.name)?.hidden && !this.values[field.name],
    );
    this._forgetProblems();
    if (missing) {
      this._mark(missing.name, "needed");
      this.focus(missing.name);
      return;
    }
    this._isBusy = true;
    this._updateButton();
    this.say("Sending …");
    try {
      const said = (await this._options.onSubmit(this.values)) ?? "";
      this.say(said);
    } catch (error) {
      this.say("");
      this.fail(error);
    } finally {
      this._isBusy = false;
      this._updateButton();
    }
  }

  /** @param {Field} field */
  _row(field) {
    const id = `${this._options.name}-${field.name}`;
    const error = el("span", { class: "error", id: `${id}-error` });
    const described = `${id}-error${field.hint ? ` ${id}-hint` : ""}`;
    const hint = field.hint ? el("span", { class: "hint", id: `${id}-hint` }, field.hint) : null;
    this._errors.set(field.name, error);
    const row = field.kind === "radio" ? this._radios(field, id, described) : this._single(field, id, described);
    row.append(error);
    if (hint) row.append(hint);
    this._rows.set(field.name, row);
    return row;
  }

  /**
   * @param {Field} field
   * @param {string} id
   * @param {string} described
   */
  _single(field, id, described) {
    const attributes = { id, name: field.name, "aria-describedby": described, required: field.isRequired, maxlength: field.max };
    let input;
    if (field.kind === "select")
      input = el(
        "select",
        attributes,
        ...(field.options ?? []).map(([value, label]) => el("option", { value, selected: value === field.value }, label)),
      );
    else if (field.kind === "textarea") input = el("textarea", { ...attributes, rows: 2 });
    else if (field.kind === "checkbox") input = el("input", { ...attributes, type: "checkbox", checked: field.value === "true" });
    else
      input = el("input", {
        ...attributes,
        type: field.isSecret ? "password" : "text",
        value: field.value,
        inputmode: field.isNumber ? "decimal" : null,
        spellcheck: "false",
        autocapitalize: "off",
        class: field.isUpper ? "upper" : null,
      });
    this._inputs.set(field.name, [input]);
    const label = el("label", { for: id }, field.label);
    return field.kind === "checkbox" ? el("div", { class: "field check" }, input, label) : el("div", { class: "field" }, label, input);
  }

  /**
   * @param {Field} field
   * @param {string} id
   * @param {string} described
   */
  _radios(field, id, described) {
    const inputs = (field.options ?? []).map(([value]) =>
      el("input", {
        type: "radio",
        id: `${id}-${value}`,
        name: field.name,
        value,
        checked: value === field.value,
        "aria-describedby": described,
      }),
    );
    this._inputs.set(field.name, inputs);
    const choices = (field.options ?? []).map(([value, label], place) =>
      el(
        "label",
        { class: `choice ${value.toLowerCase()}`, for: `${id}-${value}` },
        /** @type {HTMLInputElement} */ (inputs[place]),
        label,
      ),
    );
    return el("fieldset", { class: "field" }, el("legend", {}, field.label), el("div", { class: "choices" }, ...choices));
  }
}
