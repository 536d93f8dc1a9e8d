// Tables that can be sorted by any column. The order stays while the rows change.

const orders = new Map();
const UNITS = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86400 };

// Return a number for a number or a duration such as "3m20s ago"; otherwise the text.
function sortKey(text) {
  if (/^-?[\d,]+(\.\d+)?%?$/.test(text)) return parseFloat(text.replaceAll(",", ""));
  if (/^((\d+(\.\d+)?)(ms|[smhd]))+( ago)?$/.test(text)) {
    return [...text.matchAll(/(\d+(?:\.\d+)?)(ms|[smhd])/g)].reduce((sum, [, number, unit]) => sum + number * UNITS[unit], 0);
  }
  return text;
}

const collator = new Intl.Collator("en", { numeric: true });

function compare(one, other) {
  const [a, b] = [sortKey(one), sortKey(other)];
  return typeof a === "number" && typeof b === "number" ? a - b : collator.compare(one, other);
}

// Draw a table into a place. `name` is where its order is remembered; `cell` may make a cell's content.
export function drawTable(place, table, name, cell = (text) => text) {
  const order = orders.get(name);
  const rows = table.rows.map((cells, index) => ({ cells, marked: table.marked.includes(index) }));
  if (order) rows.sort((a, b) => compare(a.cells[order.column], b.cells[order.column]) * order.sign);
  let box = place.querySelector(`:scope > .table[data-name="${CSS.escape(name)}"]`);
  const isNew = !box;
  if (isNew) {
    box = document.createElement("div");
    box.className = "table";
    box.dataset.name = name;
    box.append(Object.assign(document.createElement("h2")), document.createElement("table"), Object.assign(document.createElement("p"), { className: "note" }));
    place.append(box);
  }
  const [title, body, note] = box.children;
  title.textContent = table.title;
  note.textContent = table.note;
  note.hidden = !table.note;
  const columns = JSON.stringify([table.columns, order]);
  if (isNew || box.dataset.columns !== columns) {
    const focused = [...(body.tHead?.rows[0].cells ?? [])].findIndex((th) => th.contains(document.activeElement));
    body.tHead?.remove();
    const head = body.createTHead().insertRow();
    for (const [column, text] of table.columns.entries()) {
      const th = document.createElement("th");
      th.scope = "col";
      if (table.right.includes(column)) th.className = "right";
      if (order?.column === column) th.ariaSort = order.sign > 0 ? "ascending" : "descending";
      const button = document.createElement("button");
      button.textContent = text || "role";
      button.addEventListener("click", () => {
        const now = orders.get(name);
        orders.set(name, { column, sign: now?.column === column ? -now.sign : 1 });
        drawTable(place, box.table, name, cell);
      });
      th.append(button);
      head.append(th);
    }
    if (focused >= 0) head.cells[focused]?.querySelector("button").focus();
    box.dataset.columns = columns;
  }
  box.table = table;
  const filled = document.createElement("tbody");
  for (const row of rows) {
    const tr = filled.insertRow();
    if (row.marked) tr.className = "marked";
    for (const [column, text] of row.cells.entries()) {
      const td = tr.insertCell();
      if (table.right.includes(column)) td.className = "right";
      td.append(cell(text, column));
    }
  }
  const focus = [...(body.tBodies[0]?.querySelectorAll("a") ?? [])].findIndex((link) => link === document.activeElement);
  body.tBodies[0]?.remove();
  body.append(filled);
  if (focus >= 0) filled.querySelectorAll("a")[focus]?.focus();
}

// Remove the tables that are not shown any more.
export function keepTables(place, names) {
  for (const box of [...place.children]) if (!names.includes(box.dataset.name)) box.remove();
}
