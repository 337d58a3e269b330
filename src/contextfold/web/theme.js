// @ts-check
"use strict";
/*
 * Sets the light, dark or system theme. This is a classic script in the head, so that the first paint has the right
 * theme. No other script stores or reads the choice.
 */
(() => {
  const KEY = "contextfold.theme";
  const CHOICES = ["system", "light", "dark"];
  const SIGNS = { system: "◐", light: "☀", dark: "☾" };

  /** @returns {string} */
  function chosen() {
    const stored = localStorage.getItem(KEY) ?? "";
    return CHOICES.includes(stored) ? stored : "system";
  }

  /** @param {string} theme */
  function apply(theme) {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }

  /** @param {HTMLElement} button */
  function label(button) {
    const theme = chosen();
    button.textContent = SIGNS[/** @type {"system"} */ (theme)];
    button.setAttribute("aria-label", `Theme: ${theme}`);
    button.title = `Theme: ${theme}`;
  }

  apply(chosen());
  addEventListener("DOMContentLoaded", () => {
    const button = /** @type {HTMLElement} */ (document.getElementById("theme"));
    label(button);
    button.addEventListener("click", () => {
      const next = CHOICES[(CHOICES.indexOf(chosen()) + 1) % CHOICES.length];
      localStorage.setItem(KEY, next);
      apply(next);
      label(button);
    });
  });
})();
