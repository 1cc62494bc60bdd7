/**
 * Owns where the CSRF token of a page's requests comes from.
 */

/** The token by the page's `<meta data-csrf="cookie's name" content="token">`. */
export function csrfToken(meta = document.querySelector("[data-csrf]"), cookies = document.cookie) {
  // The cookie is the newer of the two once another tab has logged in again; scripts may be kept from reading it.
  const cookie = cookies.split("; ").find((each) => each.startsWith(`${meta.dataset.csrf}=`));
  return cookie ? decodeURIComponent(cookie.slice(meta.dataset.csrf.length + 1)) : meta.content;
}
