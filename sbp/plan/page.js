"use strict";
document.querySelectorAll(".sbp-plan").forEach((plan) => {
  const body = plan.querySelector("tbody");
  const box = plan.querySelector(".filter");
  if (!body || !box) return;
  const rows = [...body.rows];
  const count = box.querySelector("output");
  const filter = () => {
    const wanted = box.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row) => {
      const text = row.textContent.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    });
    count.textContent = `${shown} of ${rows.length} lines`;
  };
  box.style.display = "block";
  box.addEventListener("input", filter);
  filter();
  const value = (row, column) => {
    const cell = row.cells[column];
    return "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent;
  };
  plan.querySelectorAll("thead th").forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      // Numbers start with the largest; a third click gives the order of the program back.
      const number = "v" in rows[0].cells[column].dataset;
      const states = number ? ["descending", "ascending"] : ["ascending", "descending"];
      const now = states.indexOf(heading.getAttribute("aria-sort"));
      const next = now === 1 ? null : states[now + 1];
      plan.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      const order = [...rows];
      if (next) {
        heading.setAttribute("aria-sort", next);
        const sign = next === "ascending" ? 1 : -1;
        order.sort((a, b) => {
          const x = value(a, column), y = value(b, column);
          return sign * (x < y ? -1 : x > y ? 1 : 0);
        });
      }
      body.append(...order);
    });
  });
});
