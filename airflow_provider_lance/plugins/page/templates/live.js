(() => {
  const root = document.documentElement;
  if (!root.dataset.refresh) return;
  root.classList.add("live");
  const main = document.querySelector("main");
  const footer = document.querySelector("footer");
  const keyOf = (node) => (node.dataset ? node.dataset.key || "" : "");

  // Change only what differs, so that scroll, focus, selection and opened details stay.
  function change(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.data = fresh.data;
      return;
    }
    for (const { name } of [...old.attributes])
      if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes)
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    changeChildren(old, fresh);
  }

  function changeChildren(old, fresh) {
    const keyed = new Map();
    for (const each of old.children) if (keyOf(each)) keyed.set(keyOf(each), each);
    let at = old.firstChild;
    for (const next of [...fresh.childNodes]) {
      const key = keyOf(next);
      let same = key ? keyed.get(key) : at;
      if (same && (same.nodeName !== next.nodeName || keyOf(same) !== key)) same = null;
      if (!same) {
        old.insertBefore(document.importNode(next, true), at);
        continue;
      }
      if (same === at) at = at.nextSibling;
      else old.insertBefore(same, at);
      change(same, next);
    }
    while (at) {
      const rest = at.nextSibling;
      at.remove();
      at = rest;
    }
  }

  let timer;
  function later(seconds) {
    clearTimeout(timer);
    timer = setTimeout(refresh, 1000 * (seconds || Number(root.dataset.refresh)));
  }

  async function refresh() {
    if (document.hidden) return;
    let fresh, answer;
    try {
      const signal = AbortSignal.timeout(20000);
      answer = await fetch(location.href, { cache: "no-store", signal });
      fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch {
      const silent = " Airflow does not answer; asking again.";
      footer.textContent = footer.textContent.replace(silent, "") + silent;
      return later();
    }
    const found = fresh.querySelector("main");
    // Something in between answered, such as a proxy's own form to log in.
    if (!found || fresh.documentElement.dataset.page !== "lance") return location.reload();
    const focused = document.activeElement;
    document.title = fresh.title;
    changeChildren(main, found);
    changeChildren(footer, fresh.querySelector("footer"));
    if (focused && focused.isConnected && document.activeElement !== focused)
      focused.focus({ preventScroll: true });
    const asked = fresh.documentElement.dataset.refresh;
    if (!asked) return;
    root.dataset.refresh = asked;
    later();
  }

  async function copy(button) {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      // Without HTTPS there is no clipboard for scripts but this one.
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "copied";
    setTimeout(() => (button.textContent = "copy"), 1500);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.copy");
    if (button) copy(button);
  });
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  later();
})();
