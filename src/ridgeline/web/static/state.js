// The state of a page is its URL: reading it, changing it, going there.

export const listeners = new Set();

export function current() {
  const page = location.pathname.replace(/^\/+/, "") || "home";
  return { page, choices: new URLSearchParams(location.search) };
}

export function query(choices) {
  const text = choices.toString();
  return text ? `?${text}` : "";
}

export function go(href, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"]({}, "", href);
  for (const listener of listeners) listener();
}

// Change choices of the page that is shown; a default is not written.
export function choose(changes, defaults = {}, options = {}) {
  const { page, choices } = current();
  for (const [key, value] of Object.entries(changes)) {
    if (value === defaults[key]) choices.delete(key);
    else choices.set(key, value);
  }
  go(`/${page}${query(choices)}`, options);
}

addEventListener("popstate", () => { for (const listener of listeners) listener(); });

// Links inside the workbench change the state and load nothing.
addEventListener("click", (event) => {
  const link = event.target instanceof Element && event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (link.origin !== location.origin || link.hasAttribute("download") || link.target) return;
  if (link.pathname.startsWith("/api/") || link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  go(link.pathname + link.search);
  scrollTo({ top: 0 });
});
