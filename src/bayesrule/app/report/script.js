"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  root.classList.add("js");

  // Sorting: rows without a value stay last in both directions.
  const table = document.getElementById("leaderboard-table");
  const compare = (a, b, sign, text) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    return sign * (text ? a.localeCompare(b) : Number(a) - Number(b));
  };
  const sortBy = (header) => {
    const headers = all("thead th", table);
    const column = headers.indexOf(header);
    const flip = { ascending: "descending", descending: "ascending" };
    const direction = flip[header.getAttribute("aria-sort")] || header.dataset.first;
    const sign = direction === "ascending" ? 1 : -1;
    const text = header.dataset.kind === "text";
    const key = (row) => row.cells[column]?.dataset.value ?? "";
    const failed = (row) => row.classList.contains("failed");
    const rows = all("tbody tr", table).sort((a, b) =>
      failed(a) - failed(b) || compare(key(a), key(b), sign, text));
    headers.forEach((h) => h.setAttribute("aria-sort", h === header ? direction : "none"));
    table.tBodies[0].append(...rows);
  };
  all("thead th", table).forEach((header) =>
    header.querySelector("button").addEventListener("click", () => sortBy(header)));

  // Legend: a chip gives its method a colour on top of the others, which stay grey behind it;
  // resting on a chip dims all others.
  const chips = all(".chip");
  const series = (index) => all(`.compared .series[data-method="${index}"]`);
  const setShown = (chip, shown) => {
    chip.setAttribute("aria-pressed", String(shown));
    series(chip.dataset.toggles).forEach((mark) => {
      mark.classList.toggle("behind", !shown);
      if (shown) mark.parentNode.append(mark);
    });
  };
  const setHint = (chip, on) => {
    document.querySelector(".compared").classList.toggle("hint-on", on);
    series(chip.dataset.toggles).forEach((mark) => mark.classList.toggle("hint", on));
  };
  chips.forEach((chip) => {
    chip.addEventListener("click", () => {
      setShown(chip, chip.getAttribute("aria-pressed") !== "true");
      setHint(chip, false);
    });
    chip.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && setHint(chip, true));
    chip.addEventListener("pointerleave", () => setHint(chip, false));
  });
  all("[data-all]").forEach((button) => button.addEventListener("click", () =>
    chips.forEach((chip) => setShown(chip, button.dataset.all === "true"))));

  // Selectors: one panel of a group is shown.
  const show = (select) => {
    all(`#${select.dataset.picks} > .panel`).forEach((panel) => {
      panel.hidden = panel.dataset.panel !== select.value;
    });
  };
  all("select[data-picks]").forEach((select) => {
    select.selectedIndex = 0; // some browsers keep the old choice on reload
    select.addEventListener("change", () => show(select));
    show(select);
  });
  const choice = document.getElementById("closer-choice");
  all("[data-step]").forEach((button) => button.addEventListener("click", () => {
    const many = choice.options.length;
    choice.selectedIndex = (choice.selectedIndex + Number(button.dataset.step) + many) % many;
    show(choice);
  }));
  const follow = () => {
    const found = /^#method-(\d+)$/.exec(location.hash);
    if (!found || !choice || !document.getElementById(found[0].slice(1))) return;
    choice.value = found[1];
    show(choice);
    document.getElementById("closer-look").scrollIntoView();
  };
  addEventListener("hashchange", follow);
  follow();

  // Tooltips: the <title> of a mark, at once and on touch as well.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest?.(".plot *");
    const title = mark && [...mark.children].find((child) => child.tagName === "title");
    if (title) {
      mark.dataset.tip = title.textContent;
      title.remove(); // or the browser would show it a second time
    }
    tip.hidden = !mark?.dataset.tip;
    if (tip.hidden) return;
    tip.textContent = mark.dataset.tip;
    const left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8);
    const above = event.clientY - tip.offsetHeight - 10;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above > 4 ? above : event.clientY + 16}px`;
  });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  // Light and dark: the system's choice until the reader makes one.
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => { theme.textContent = isDark() ? "Light mode" : "Dark mode"; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  system.addEventListener("change", name);
  name();
})();
