"""What a page does beyond being read: sort, filter and copy a table, hint at what is beside it, show an experiment.

Some 90 lines of our own, and no library.  Plotly, Bokeh and Vega-Lite draw figures, from 0.8 MB (Vega-Lite) to 4.5 MB
(Plotly) a page, in the thirty pages that this repository ships; and none of them sorts or copies a table.  Figures are
drawn beforehand, as SVG, whose `<title>` every browser shows under the pointer.  So without a script a page lacks
nothing that it says.
"""

SCRIPT = r"""
"use strict";
(() => {
  const make = (name, text, parent) => {
    const made = document.createElement(name);
    made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };
  const copy = (text, button) => {
    const said = button.textContent;
    const tell = what => { button.textContent = what; setTimeout(() => { button.textContent = said; }, 1500); };
    const by_hand = () => {
      const area = make("textarea", text, document.querySelector("dialog[open]") || document.body);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      tell(done ? "copied" : "not allowed");
    };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(() => tell("copied"), by_hand); else by_hand();
  };
  const value = cell => {
    const text = cell.textContent.trim().replace(/,(?=\d{3})/g, "").replace(/−/g, "-");
    const found = text.match(/^[<+]?-?(\d+\.?\d*(e-?\d+)?|∞)/);
    return found ? (found[1] === "∞" ? Infinity : parseFloat(found[0].replace(/^[<+]/, ""))) : text;
  };
  const compare = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
  for (const part of document.querySelectorAll(".wide")) {
    const table = part.querySelector("table"), scroll = part.querySelector(".scroll");
    const tools = part.querySelector(".tools"), more = part.querySelector(".more");
    const hint = () => {
      const beside = scroll.scrollWidth - scroll.clientWidth - scroll.scrollLeft > 1;
      part.classList.toggle("overflows", scroll.scrollWidth - scroll.clientWidth > 1);
      more.textContent = beside ? "more to the right →" : "← more to the left";
    };
    scroll.addEventListener("scroll", hint);
    new ResizeObserver(hint).observe(scroll);
    hint();
    if (!table) continue;
    const body = table.tBodies[0];
    if (body.rows.length > 8) {
      const filter = make("input", "");
      filter.type = "search";
      filter.placeholder = "filter rows";
      filter.setAttribute("aria-label", "filter rows");
      filter.addEventListener("input", () => {
        const wanted = filter.value.toLowerCase();
        for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
      });
      tools.prepend(filter);
    }
    const button = make("button", "copy as CSV");
    button.type = "button";
    button.addEventListener("click", () => {
      const rows = [...table.rows].filter(row => !row.hidden);
      const quoted = cell => '"' + cell.textContent.trim().replaceAll('"', '""') + '"';
      copy(rows.map(row => [...row.cells].map(quoted).join(",")).join("\n"), button);
    });
    tools.prepend(button);
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.dataset.sort = "";
      head.tabIndex = 0;
      const sort = () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...body.rows].map(row => [value(row.cells[column]), row]);
        rows.sort((a, b) => up ? compare(a[0], b[0]) : compare(b[0], a[0]));
        body.append(...rows.map(one => one[1]));
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
    });
  }
  // Shows the steps of a map up to one; without scripts all of them are shown.
  for (const box of document.querySelectorAll(".play")) {
    const button = box.querySelector("button"), range = box.querySelector("input"), said = box.querySelector("output");
    const groups = box.closest("figure").querySelectorAll("g.step");
    const show = () => {
      said.value = range.value;
      for (const g of groups) g.style.opacity = +g.dataset.step <= +range.value ? 1 : .06;
    };
    let timer = 0;
    range.addEventListener("input", show);
    button.addEventListener("click", () => {
      clearInterval(timer);
      range.value = 0;
      show();
      timer = setInterval(() => {
        if (+range.value >= +range.max) return clearInterval(timer);
        range.value = +range.value + 1;
        show();
      }, 450);
    });
    box.style.display = "block";
  }
  const data = document.getElementById("experiments");
  if (!data) return;
  const { measure, folder, experiments } = JSON.parse(data.textContent);
  const dialog = make("dialog", "", document.body);
  const drawn = curve => {
    const whole = curve.filter(point => point[1] !== null), xs = curve.map(p => p[0]), ys = whole.map(p => p[1]);
    if (whole.length < 2) return null;
    const [low, high, last] = [Math.min(...ys), Math.max(...ys), Math.max(...xs, 1)];
    const x = v => (60 + 430 * v / last).toFixed(1), y = v => (150 - 135 * (v - low) / (high - low || 1)).toFixed(1);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 500 175");
    const text = (at, down, said, anchor) => `<text x="${at}" y="${down}" text-anchor="${anchor}">${said}</text>`;
    svg.innerHTML = `<polyline points="${whole.map(p => x(p[0]) + "," + y(p[1])).join(" ")}"></polyline>` +
      text(55, 18, high.toPrecision(3), "end") + text(55, 153, low.toPrecision(3), "end") +
      text(60, 170, "0", "middle") + text(490, 170, last + " steps", "end");
    return svg;
  };
  const show = number => {
    const known = experiments[number];
    dialog.replaceChildren();
    make("h3", "Experiment " + number, dialog);
    if (known) make("p", known[0], dialog);
    const figure = known && drawn(known[1]);
    if (figure) {
      make("p", measure + ", by steps from the fault", dialog).className = "left-out";
      dialog.append(figure);
    }
    const command = make("pre", `python -m fault_injection replay ${folder} --id ${number}`, dialog);
    const button = make("button", "copy the command", dialog), close = make("button", "close", dialog);
    button.addEventListener("click", () => copy(command.textContent, button));
    close.addEventListener("click", () => dialog.close());
    dialog.showModal();
  };
  document.addEventListener("click", event => {
    const of = event.target.closest("[data-experiment]");
    if (of) show(of.dataset.experiment);
  });
})();
"""
