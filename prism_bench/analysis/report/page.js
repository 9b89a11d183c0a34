
"use strict";
// Each column's head becomes a button that sorts: first ascending, then descending; what is empty stays last.
for (const table of document.querySelectorAll("table.sheet")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column], sign));
      body.append(...rows);
    });
  });
}

function compare(a, b, sign) {
  const empty = (a.textContent === "") - (b.textContent === "");
  if (empty) return empty;
  if (a.dataset.value !== undefined && b.dataset.value !== undefined) {
    return sign * (Number(a.dataset.value) - Number(b.dataset.value));
  }
  return sign * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
}

// Nothing stays folded on paper.
const folded = () => document.querySelectorAll("details:not([open])");
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...folded()];
  opened.forEach((one) => { one.open = true; });
});
window.addEventListener("afterprint", () => opened.forEach((one) => { one.open = false; }));
