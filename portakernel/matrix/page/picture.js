// The picture's cells are links to what the filter leaves; here they are reached by arrow keys, and marked.
const grid = document.querySelector("#picture [role=grid]");

function startPicture() {
  const lines = [...grid.rows].map((line) => [...line.querySelectorAll("a")]).filter((line) => line.length);
  const links = lines.flat();
  const choices = links.map((link) => ["op", "vendor", "arch"].map((name) => new URLSearchParams(link.hash.slice(1)).get(name) ?? ""));

  // one of all is in the order of tabs: who passes by is not held up by hundreds
  function enter(link) {
    for (const other of grid.querySelectorAll('a[tabindex="0"]')) other.tabIndex = -1;
    link.tabIndex = 0;
  }

  function mark() {
    const chosen = ["op", "vendor", "arch"].map((name) => form.elements[name].value).join("/");
    links.forEach((link, i) => {
      if (choices[i].join("/") === chosen) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
  }

  // where a link's middle is, so that up and down lead to what stands above and below whatever it spans
  function beside(link, step) {
    const place = lines.findIndex((line) => line.includes(link));
    const middle = (one) => {
      const box = one.getBoundingClientRect();
      return box.left + box.width / 2;
    };
    const away = (one) => Math.abs(middle(one) - middle(link));
    const line = lines[place + step] ?? [];
    return line.reduce((best, one) => (best && away(best) <= away(one) ? best : one), undefined);
  }

  grid.addEventListener("keydown", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.altKey) return;
    const line = lines.find((several) => several.includes(link));
    const to = {
      ArrowRight: () => line[line.indexOf(link) + 1],
      ArrowLeft: () => line[line.indexOf(link) - 1],
      ArrowDown: () => beside(link, 1),
      ArrowUp: () => beside(link, -1),
      Home: () => line[0],
      End: () => line.at(-1),
    }[event.key];
    if (to) {
      const next = to();
      if (next) {
        enter(next);
        next.focus();
      }
    } else if (event.key === " ") link.click();
    else return;
    event.preventDefault();
  });
  grid.addEventListener("focusin", (event) => event.target.closest("a") && enter(event.target));
  grid.addEventListener("mouseover", (event) => {
    const link = event.target.closest("a");
    if (link) link.title = link.getAttribute("aria-label");
  });
  document.addEventListener("filtered", mark);
  enter(links[0]);
  mark();
}

// the rows, without a fragment, which is the filter's
document.getElementById("to-rows").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("matrix").scrollIntoView();
});
if (grid) startPicture();
