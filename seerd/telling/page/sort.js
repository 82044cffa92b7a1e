// Sorts the table of trials by the column that was clicked; the page can be read without it.

function key(row, at) {
  const cell = row.cells[at];
  const number = cell.dataset.v;
  if (number === undefined) return cell.textContent;
  return Number(number);
}

function compared(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b));
}

function sort(head) {
  const body = head.closest("table").tBodies[0];
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const at = head.cellIndex;
  const missing = (row) => Number(row.cells[at].dataset.v === "");
  const order = (a, b) =>
    missing(a) - missing(b) || (down ? -1 : 1) * compared(key(a, at), key(b, at));
  body.append(...[...body.rows].sort(order));
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sort(button.closest("th")));
}
