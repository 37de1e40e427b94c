// On a phone a table is folded: a row is a block, each cell in it has its column's title. The
// style is in extra.css; without this script wide tables are scrolled.
document.querySelectorAll(".md-typeset table:not([class])").forEach((table) => {
  const titles = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent);
  if (titles.length < 2) return;
  table.dataset.folds = "";
  table.querySelectorAll("tbody tr").forEach((row) =>
    [...row.cells].forEach((cell, column) => (cell.dataset.title = titles[column]))
  );
});
