/**
 * Owns which key press in the composer sends. No DOM.
 */

const IME_KEY_CODE = 229; // Safari ends a composition before the Enter that confirmed it, and gives it this code.

/** True for Enter alone; never while an input method composes, where Enter picks a word. */
export function sendsOn({ key, shiftKey, altKey, isComposing, keyCode }) {
  return key === "Enter" && !shiftKey && !altKey && !isComposing && keyCode !== IME_KEY_CODE;
}
