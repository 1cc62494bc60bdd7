/**
 * Owns the list of past chats and the drawer that holds it on a narrow screen.
 */

const UNTITLED = "New chat";

export class ChatLinks {
  #list;
  #template;
  #empty;
  #urlOf;
  #current;

  /** list holds the [data-chat-link] items; urlOf(chatId) → path; current() → the id of the chat shown, or null. */
  constructor({ list, template, empty, urlOf, current }) {
    this.#list = list;
    this.#template = template;
    this.#empty = empty;
    this.#urlOf = urlOf;
    this.#current = current;
  }

  /** Show `chat` at the top: it is the one that was active last. */
  place(chat) {
    const item = this.#itemOf(chat.id) ?? this.#create(chat);
    name(item, chat);
    const atTop = this.#list.firstElementChild === item;
    const focused = item.contains(document.activeElement);
    if (!atTop) this.#list.prepend(item);
    if (focused) item.querySelector("[data-chat-link]").focus();
  }

  /** Show `chat` at the end; returns false when it is in the list already. */
  add(chat) {
    if (this.#itemOf(chat.id)) return false;
    const item = this.#create(chat);
    name(item, chat);
    this.#list.append(item);
    return true;
  }

  #itemOf(chatId) {
    return this.#list.querySelector(`[data-chat-id="${CSS.escape(chatId)}"]`)?.closest("li") ?? null;
  }

  #create(chat) {
    const item = this.#template.content.firstElementChild.cloneNode(true);
    const link = item.querySelector("[data-chat-link]");
    link.dataset.chatId = chat.id;
    link.href = this.#urlOf(chat.id);
    if (chat.id === this.#current()) link.setAttribute("aria-current", "page");
    this.#empty.hidden = true;
    return item;
  }
}

function name(item, chat) {
  const link = item.querySelector("[data-chat-link]");
  const title = chat.title || UNTITLED;
  if (link.textContent !== title) link.textContent = title;
}

/** Open and close the drawer: by its button, the veil beside it, and Escape. */
export function wireDrawer({ opener, drawer, veil, behind }) {
  const isOpen = () => opener.getAttribute("aria-expanded") === "true";
  const set = (open) => {
    opener.setAttribute("aria-expanded", String(open));
    drawer.toggleAttribute("data-open", open);
    veil.hidden = !open;
    behind.inert = open;
    if (open) drawer.querySelector("a, button")?.focus();
    else opener.focus();
  };
  opener.addEventListener("click", () => set(!isOpen()));
  veil.addEventListener("click", () => set(false));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && isOpen()) set(false);
  });
}
