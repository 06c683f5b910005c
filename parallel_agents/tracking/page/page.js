"use strict";
// Draws a document of sections and panels. In a report the document lies in the page; live it arrives by server-sent
// events. Everything that comes from a run is written as text, never as markup.

const COLOURS = ["#0f6fc6", "#d9730d", "#2e8b57", "#c2379a", "#7a5af5", "#b8860b", "#0e8f9f", "#d0342c", "#5c6b7a", "#7a8b00"];
const STAGES = { collect: 0, learn: 1, snapshot: 2, publish: 3, "hand over": 4, wait: 8, checkpoint: 5, evaluate: 6, boundary: 9, "write checkpoint": 5 };
const LEVELS = ["#8fbf9f", "#f2b84b", "#c8342f"];
const state = { smoothing: 0.7, document: null, drawn: new Map(), source: null };
const byId = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (place) => COLOURS[place % COLOURS.length];
const known = (value) => typeof value === "number" && Number.isFinite(value);

function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "circle", "line", "text", "title", "path"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function format(value) {
  if (!known(value)) return typeof value === "string" ? value : "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  return size >= 10000 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}

// -- lines over epochs, with uPlot ---------------------------------------------------------------------------------

function smooth(values) {
  let mean = 0, weight = 0;
  const keep = state.smoothing;
  return !keep ? values : values.map((value) => {
    if (!known(value)) return value;
    mean = keep * mean + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return mean / weight;
  });
}

function aligned(panel) {
  const tables = panel.lines.map((line) => {
    const columns = [line.x || panel.x, line.points ? line.values : smooth(line.values)];
    if (line.low) columns.push(smooth(line.high), smooth(line.low));
    return columns;
  });
  return panel.lines.some((line) => line.x) ? uPlot.join(tables) : [panel.x, ...tables.flatMap((columns) => columns.slice(1))];
}

// what the legend shows: the value under the cursor, without one the last
function legendValue(plot, value, series, index) {
  return format(index === null || index === undefined ? plot.data[series].findLast(known) : value);
}

function chartOptions(panel, width) {
  const series = [{ label: panel.xlabel, value: legendValue }], bands = [];
  const many = panel.lines.some((line) => line.bold);
  panel.lines.forEach((line, place) => {
    const stroke = line.dashed ? css("--muted") : line.bold ? css("--text") : colour(place);
    series.push({
      label: line.name || "value", stroke, width: line.bold ? 2.4 : many ? 1 : 1.8, spanGaps: true,
      dash: line.dashed ? [6, 4] : undefined, paths: line.points ? () => null : undefined,
      points: { show: line.points ? true : undefined, size: line.points ? 7 : 4 }, value: legendValue,
    });
    if (line.low) {
      const hidden = { label: "bound", stroke: "transparent", points: { show: false }, spanGaps: true };
      series.push({ ...hidden }, { ...hidden });
      bands.push({ series: [series.length - 2, series.length - 1], fill: stroke + "30" });
    }
  });
  const axis = { stroke: css("--muted"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 }, font: "12px system-ui, sans-serif" };
  return {
    width, height: panel.height || 240, series, bands, scales: { x: { time: false }, y: { range: (u, low, high) => !known(low) ? [0, 1] : low === high ? [low - (Math.abs(low) / 10 || 1), high + (Math.abs(high) / 10 || 1)] : uPlot.rangeNum(low, high, 0.08, true) } },
    axes: [{ ...axis, values: (u, splits) => splits.map(format), size: 36 }, { ...axis, size: 58, values: (u, splits) => splits.map(format) }],
    cursor: { sync: { key: panel.xlabel }, points: { size: 6 } }, legend: { live: true },
  };
}

function drawChart(panel, previous) {
  const shape = JSON.stringify(panel.lines.map((line) => [line.name, Boolean(line.low), line.dashed]));
  if (previous && previous.shape === shape) {
    previous.plot.setData(aligned(panel));
    previous.node.setAttribute("aria-label", describe(panel));
    return previous;
  }
  const node = element("div", { class: "plot", role: "img", "aria-label": describe(panel) });
  return { node, shape, start(width) {
    this.plot = new uPlot(chartOptions(panel, width), aligned(panel), node);
    node.querySelectorAll(".u-legend .u-series").forEach((row, place) => { if (this.plot.series[place].label === "bound") row.style.display = "none"; });
  }, resize(width) { this.plot.setSize({ width, height: panel.height || 240 }); }, stop() { this.plot.destroy(); } };
}

function describe(panel) {
  const parts = panel.lines.slice(0, 12).map((line) => {
    const values = line.values.filter(known);
    return `${line.name || panel.title}: last ${format(values.at(-1))}, from ${format(Math.min(...values))} to ${format(Math.max(...values))}`;
  });
  return `${panel.title} over ${panel.xlabel}. ${parts.join("; ")}`;
}

// -- small drawings of our own, as SVG -----------------------------------------------------------------------------

function ticks(low, high, count = 5) {
  const raw = (high - low || 1) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) found.push(Number(tick.toPrecision(12)));
  return found;
}

function range(values, margin = 0.06) {
  const low = Math.min(...values), high = Math.max(...values), extra = (high - low || Math.abs(high) || 1) * margin;
  return [low - extra, high + extra];
}

function svgPanel(draw, label) {
  const node = element("div", { class: "plot" });
  const paint = (width) => node.replaceChildren(draw(width));
  return { node, start: paint, resize: paint, stop() {}, label };
}

function axisX(svg, ends, place, y0, y1, label) {
  for (const tick of ticks(...ends)) {
    svg.append(element("line", { x1: place(tick), x2: place(tick), y1: y0, y2: y1, class: "gridline" }));
    svg.append(element("text", { x: place(tick), y: y1 + 16, "text-anchor": "middle", class: "muted" }, format(tick)));
  }
  svg.append(element("text", { x: (place(ends[0]) + place(ends[1])) / 2, y: y1 + 34, "text-anchor": "middle", class: "muted" }, label));
}

function drawIntervals(panel) {
  return svgPanel((width) => {
    const rows = panel.rows, left = Math.min(width * 0.45, 24 + 7 * Math.max(...rows.map((row) => row.name.length)));
    const height = rows.length * 28 + 44, bottom = rows.length * 28 + 4;
    const values = rows.flatMap((row) => [row.estimate, row.low, row.high, ...(row.points || [])]).concat(panel.reference).filter(known);
    const ends = panel.range || range(values), place = (value) => left + (width - left - 16) * (value - ends[0]) / (ends[1] - ends[0]);
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${panel.title}: ` + rows.map((row) => `${row.name} ${format(row.estimate)} (${format(row.low)} to ${format(row.high)})`).join("; ") });
    axisX(svg, ends, place, 0, bottom, panel.xlabel);
    if (known(panel.reference)) svg.append(element("line", { x1: place(panel.reference), x2: place(panel.reference), y1: 0, y2: bottom, stroke: css("--muted"), "stroke-dasharray": "4 3" }));
    rows.forEach((row, index) => {
      const y = index * 28 + 16, paint = row.marked ? COLOURS[2] : COLOURS[0], letters = Math.floor((left - 12) / 6.6);
      const name = row.name.length > letters ? row.name.slice(0, letters - 1) + "…" : row.name;
      svg.append(element("text", { x: left - 12, y: y + 4, "text-anchor": "end" }, name, element("title", {}, row.name)));
      for (const point of (row.points || []).filter(known)) svg.append(element("circle", { cx: place(point), cy: y, r: 2, fill: css("--muted"), opacity: 0.5 }));
      if (known(row.low)) svg.append(element("line", { x1: place(row.low), x2: place(row.high), y1: y, y2: y, stroke: paint, "stroke-width": 3, "stroke-linecap": "round" }));
      if (known(row.estimate)) svg.append(element("circle", { cx: place(row.estimate), cy: y, r: 5.5, fill: paint }, element("title", {}, `${row.name}: ${format(row.estimate)} (${format(row.low)} to ${format(row.high)})`)));
    });
    return svg;
  });
}

function ramp(share) {  // blue, grey, orange: told apart by colour-blind readers too
  const ends = [[33, 102, 172], [170, 176, 184], [217, 95, 2]], at = Math.max(0, Math.min(1, share)) * 2, first = Math.min(1, Math.floor(at));
  return `rgb(${ends[first].map((part, k) => Math.round(part + (ends[first + 1][k] - part) * (at - first))).join(",")})`;
}

function drawScatter(panel) {
  const node = svgPanel((width) => {
    const points = panel.points.filter((point) => known(point.x) && known(point.y)), height = 360, bottom = 310, left = 56;
    if (!points.length) return element("p", {}, "no points yet");
    const xs = range(points.map((point) => point.x)), ys = range(points.map((point) => point.y));
    const values = points.map((point) => point.value).filter(known), low = Math.min(...values), high = Math.max(...values);
    const placeX = (value) => left + (width - left - 12) * (value - xs[0]) / (xs[1] - xs[0]);
    const placeY = (value) => bottom - (bottom - 12) * (value - ys[0]) / (ys[1] - ys[0]);
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${panel.title}: ${points.length} points, ${panel.ylabel} over ${panel.xlabel}; ${panel.value} from ${format(low)} to ${format(high)}` });
    axisX(svg, xs, placeX, 8, bottom, panel.xlabel);
    for (const tick of ticks(...ys)) {
      svg.append(element("line", { x1: left, x2: width - 12, y1: placeY(tick), y2: placeY(tick), class: "gridline" }));
      svg.append(element("text", { x: left - 8, y: placeY(tick) + 4, "text-anchor": "end", class: "muted" }, format(tick)));
    }
    svg.append(element("text", { x: 14, y: 160, "text-anchor": "middle", class: "muted", transform: "rotate(-90 14 160)" }, panel.ylabel));
    const groups = [...new Set(points.map((point) => point.group || ""))];
    for (const point of points) {
      const fill = known(point.value) ? ramp((point.value - low) / (high - low || 1)) : values.length ? css("--line") : colour(groups.indexOf(point.group || ""));
      const radius = 5 * Math.sqrt(known(point.size) ? Math.max(0.3, Math.min(4, point.size)) : 1);
      svg.append(element("circle", { cx: placeX(point.x), cy: placeY(point.y), r: radius, fill, "fill-opacity": 0.85, stroke: css("--card") }, element("title", {}, `${point.name || ""} ${point.group || ""} ${known(point.value) ? `${panel.value} ${format(point.value)}` : ""}`)));
    }
    return svg;
  });
  const values = panel.points.map((point) => point.value).filter(known);
  if (values.length) node.key = [[ramp(0), `${panel.value} ${format(Math.min(...values))}`], [ramp(0.5), "middle"], [ramp(1), format(Math.max(...values))]];
  return node;
}

function drawTimeline(panel) {
  const names = [...new Set(panel.spans.map((span) => span[1]))];
  const paint = (name) => colour(STAGES[name] ?? names.indexOf(name));
  const drawn = svgPanel((width) => {
    const height = panel.lanes.length * 46 + 30, end = Math.max(...panel.spans.map((span) => span[2] + span[3]), 1e-6);
    const place = (seconds) => 2 + (width - 12) * seconds / end;
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${panel.title} in ${panel.lanes.length} threads over ${format(end)} seconds` });
    panel.lanes.forEach((lane, index) => {
      svg.append(element("text", { x: 2, y: index * 46 + 12, class: "muted" }, lane));
      svg.append(element("rect", { x: 2, y: index * 46 + 18, width: width - 12, height: 22, fill: css("--grid") }));
    });
    for (const [lane, name, start, length, label] of [...panel.spans].sort((a, b) => b[3] - a[3])) {
      svg.append(element("rect", { x: place(start), y: lane * 46 + 18, width: Math.max(0.6, place(start + length) - place(start)), height: 22, fill: paint(name) }, element("title", {}, `${name} ${label}: ${format(length * 1000)} ms`)));
    }
    for (const tick of ticks(0, end, width > 600 ? 8 : 4)) svg.append(element("text", { x: place(tick), y: height - 4, "text-anchor": tick ? "middle" : "start", class: "muted" }, `${format(tick)} s`));
    return svg;
  });
  drawn.key = names.map((name) => [paint(name), name]);
  return drawn;
}

function drawNetwork(panel, previous) {
  if (previous && previous.next) {  // what is played goes on to its end
    previous.next(panel);
    return previous;
  }
  const node = element("div"), picture = element("div"), words = element("pre");
  const slider = element("input", { type: "range", min: 0, max: panel.frames.length - 1, value: 0, "aria-label": "turn" });
  const play = element("button", { type: "button" }, "Play");
  let timer = 0, wide = 600, following = panel;
  const paint = () => {
    const frame = panel.frames[Number(slider.value)], width = wide, height = 330;
    const columns = Math.max(...panel.hosts.map((host) => host.x)) + 1, rows = Math.max(...panel.hosts.map((host) => host.y)) + 1;
    const x = (host) => (host.x + 0.5) * width / columns, y = (host) => 40 + (host.y + 0.5) * (height - 50) / rows;
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `The network: ${frame.text}` });
    panel.columns.forEach((name, place) => svg.append(element("text", { x: (place + 0.5) * width / columns, y: 18, "text-anchor": "middle", "font-weight": 600 }, name)));
    for (const [from, to] of panel.links) svg.append(element("line", { x1: x(panel.hosts[from]), y1: y(panel.hosts[from]), x2: x(panel.hosts[to]), y2: y(panel.hosts[to]), class: "axis" }));
    panel.hosts.forEach((host, place) => {
      svg.append(element("circle", { cx: x(host), cy: y(host), r: 13, fill: LEVELS[frame.levels[place]] || LEVELS[0], stroke: css("--muted") }, element("title", {}, `${host.name}: ${panel.levels[frame.levels[place]]}`)));
      svg.append(element("text", { x: x(host), y: y(host) + 28, "text-anchor": "middle" }, host.name));
    });
    picture.replaceChildren(svg);
    words.textContent = [panel.label, frame.text].filter(Boolean).join("\n");
  };
  const take = () => { panel = following; slider.max = panel.frames.length - 1; slider.value = 0; paint(); };
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "Play"; };
  slider.addEventListener("input", paint);
  const go = () => {
    play.textContent = "Pause";
    timer = setInterval(() => {
      if (Number(slider.value) === panel.frames.length - 1) return take();
      slider.value = Number(slider.value) + 1;
      paint();
    }, 300);
  };
  play.addEventListener("click", () => timer ? stop() : go());
  node.append(picture, words, element("div", { class: "row" }, play, slider));
  const show = (width) => { wide = width; paint(); };
  const start = (width) => { show(width); if (!byId("data") && !matchMedia("(prefers-reduced-motion: reduce)").matches) go(); };
  return { node, start, resize: show, stop, next(content) { following = content; }, key: panel.levels.map((name, place) => [LEVELS[place], name]) };
}

// -- tables, facts, tiles and pictures -----------------------------------------------------------------------------

const still = (node, more = {}) => ({ node, start() {}, resize() {}, stop() {}, ...more });

function drawTable(panel) {
  const numeric = (column) => panel.rows.length > 0 && panel.rows.every((row) => row[column] === "" || row[column] === null || /^[-+−]?[\d.,]+(e[-+]?\d+)?%?$/.test(String(row[column])));
  const classes = panel.columns.map((name, column) => numeric(column) ? { class: "number" } : {});
  const head = element("tr", {}, ...panel.columns.map((name, column) => element("th", { scope: "col", ...classes[column] }, name)));
  const rows = panel.rows.map((row) => element("tr", {}, ...row.map((cell, column) => element("td", classes[column], cell === null ? "" : String(cell)))));
  const content = element("table", { class: "data" }, element("thead", {}, head), element("tbody", {}, ...rows));
  return still(element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": panel.title || "table" }, content));
}

function drawFacts(panel) {
  const entries = panel.entries.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  return still(element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": panel.title || "facts" }, element("dl", { class: "facts" }, ...entries)));
}

function drawTiles(panel, previous) {
  const node = previous ? previous.node : element("dl", { class: "tiles" });
  const tiles = panel.tiles.map(([label, value, detail]) => element("div", { class: "tile" }, element("dt", {}, label), element("dd", { class: `value ${label === "Status" ? value : ""}` }, value || "–"), element("dd", { class: "detail" }, detail)));
  node.replaceChildren(...tiles);
  return previous || still(node);
}

function drawImage(panel, previous) {
  if (previous && previous.update && previous.first === panel.address) {
    previous.update(panel);
    return previous;
  }
  const image = element("img", { class: "episode", alt: panel.alt });
  const node = element("div", {}, image);
  if (panel.data) {
    image.src = panel.data;
    return still(node);
  }
  const select = element("select", { "aria-label": "What is shown of the game" });
  let shown, newest;  // an address is set once: setting it again would start the animation anew
  const update = (content) => {
    const chosen = select.value, follow = chosen === (newest ?? "");
    const entries = [...(content.now ? [["now", `now, ${content.now.label}`]] : []), ...[...content.names].reverse().map((name) => [name, `recorded in epoch ${Number(name.match(/\d+/)[0])}`])];
    newest = entries[0][0];
    select.replaceChildren(...entries.map(([value, label]) => element("option", { value }, label)));
    select.value = !follow && entries.some(([value]) => value === chosen) ? chosen : newest;
    const source = select.value === "now" ? content.now.data : content.address + encodeURIComponent(select.value);
    if (source !== shown) image.src = shown = source;
  };
  const drawn = still(node, { first: panel.address, update(content) { drawn.panel = content; update(content); } });
  select.addEventListener("change", () => update(drawn.panel));
  node.append(element("div", { class: "row" }, select));
  drawn.update(panel);
  return drawn;
}

const DRAW = { chart: drawChart, intervals: drawIntervals, scatter: drawScatter, table: drawTable, facts: drawFacts, tiles: drawTiles, image: drawImage, timeline: drawTimeline, network: drawNetwork };
const WIDTH = { tiles: "tiles", table: "full", timeline: "full" };

// -- saving ---------------------------------------------------------------------------------------------------------

function toCsv(panel) {
  const quote = (cell) => { const text = cell === null || cell === undefined ? "" : String(cell); return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
  let rows;
  if (panel.kind === "chart") {
    rows = [["line", panel.xlabel, "value", "low", "high"]];
    for (const line of panel.lines) line.values.forEach((value, k) => rows.push([line.name, (line.x || panel.x)[k], value, line.low?.[k], line.high?.[k]]));
  } else if (panel.kind === "table") rows = [panel.columns, ...panel.rows];
  else {
    const entries = panel.rows || panel.points, names = [...new Set(entries.flatMap((entry) => Object.keys(entry)))];
    rows = [names, ...entries.map((entry) => names.map((name) => entry[name]))];
  }
  return rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
}

function save(content, name) {
  const link = element("a", { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function buttons(entry) {
  const file = (entry.panel.title || "data").replace(/[^\w.-]+/g, "_").toLowerCase(), found = [];
  const button = (label, action) => { const node = element("button", { type: "button", "aria-label": `${entry.panel.title}: save as ${label}` }, label); node.addEventListener("click", action); found.push(node); };
  if (["chart", "intervals", "scatter", "table"].includes(entry.panel.kind)) button("CSV", () => save(new Blob([toCsv(entry.panel)], { type: "text/csv" }), `${file}.csv`));
  if (entry.panel.kind === "chart") button("PNG", () => entry.drawn.plot.ctx.canvas.toBlob((blob) => save(blob, `${file}.png`)));
  return found;
}

// -- the document ---------------------------------------------------------------------------------------------------

function show(panel, key, seen, wide) {
  seen.add(key);
  const old = state.drawn.get(key), text = JSON.stringify(panel);
  if (old && old.text === text && old.smoothing === state.smoothing) return old.card;
  try {
    const drawn = DRAW[panel.kind](panel, old && old.drawn);
    if (old && old.drawn === drawn) {
      Object.assign(old, { panel, text, smoothing: state.smoothing });
      old.note.textContent = panel.note || "";
      return old.card;
    }
    const entry = { panel, text, drawn, smoothing: state.smoothing, note: element("p", { class: "note" }, panel.note || "") };
    if (panel.kind === "tiles") entry.card = drawn.node;
    else {
      const caption = element("figcaption", {}, element("h3", {}, panel.title), ...buttons(entry));
      entry.key = element("div", { class: "key" }, ...(drawn.key || []).map(([paint, name]) => { const mark = element("i"); mark.style.background = paint; return element("span", {}, mark, name); }));
      entry.card = element("figure", { class: `card ${wide}` }, ...(panel.title ? [caption] : []), drawn.node, ...(drawn.key ? [entry.key] : []), entry.note);
    }
    if (old) { old.drawn.stop(); old.card.replaceWith(entry.card); }
    state.drawn.set(key, entry);
    entry.fresh = true;
    return entry.card;
  } catch (error) {
    const entry = { panel, text, smoothing: state.smoothing, drawn: still(element("p")), note: element("p"), card: element("figure", { class: "card" }, element("p", {}, `${panel.title || "A panel"} cannot be drawn: ${error.message}`)) };
    if (old) { old.drawn.stop(); old.card.replaceWith(entry.card); }
    state.drawn.set(key, entry);
    return entry.card;
  }
}

function inner(node) { return Math.max(200, Math.floor(node.parentElement.clientWidth - 34)); }

const observer = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const entry = [...state.drawn.values()].find((one) => one.card === target);
    if (entry && !entry.fresh && entry.width !== target.clientWidth) { entry.width = target.clientWidth; entry.drawn.resize(inner(entry.drawn.node)); }
  }
});

function draw(content) {
  state.document = content;
  document.title = `${content.title} · parallel_agents`;
  byId("title").textContent = content.title;
  byId("notices").hidden = content.notices.length === 0;
  byId("notices").replaceChildren(...content.notices.map((text) => element("li", {}, text)));
  byId("footer").textContent = content.footer || "";
  const seen = new Set(), main = byId("main");
  const places = new Map([...main.querySelectorAll(":scope > section")].map((node) => [node.dataset.key, node]));
  content.sections.forEach((section, index) => {
    const key = `${index} ${section.title}`;
    let node = places.get(key);
    if (!node) {
      node = element("section", { "data-key": key, ...(section.title ? { "aria-label": section.title } : {}) }, ...(section.title ? [element("h2", {}, section.title)] : []), element("div", { class: "grid" }));
      main.append(node);
    }
    places.delete(key);
    const grid = node.lastElementChild;
    const charts = section.panels.filter((panel) => !["tiles", "table"].includes(panel.kind)).length;
    const cards = section.panels.map((panel, place) => {
      const first = panel.kind === "chart" && place === 0 && charts > 0;
      const solo = charts === 1 && ["chart", "scatter", "facts", "network"].includes(panel.kind);
      const beside = charts === 2 && section.panels.some((one) => one.kind === "image");  // a chart and its picture
      const wide = solo ? "full" : WIDTH[panel.kind] ?? (beside ? (first ? "wide" : "") : charts === 2 || charts % 3 === 1 ? "half" : "");
      if (wide === "wide" || solo) panel.height = wide === "wide" ? 440 : 380;
      return show(panel, `${key}/${place} ${panel.kind} ${panel.title}`, seen, wide);
    });
    if (cards.some((card, place) => grid.children[place] !== card) || grid.children.length !== cards.length) grid.replaceChildren(...cards);
  });
  for (const node of places.values()) node.remove();
  main.querySelector("noscript")?.remove();
  for (const [key, entry] of state.drawn) if (!seen.has(key)) { entry.drawn.stop(); state.drawn.delete(key); observer.unobserve(entry.card); }
  for (const entry of state.drawn.values()) if (entry.fresh) { entry.fresh = false; entry.width = entry.card.clientWidth; if (entry.panel.kind !== "tiles") { try { entry.drawn.start(inner(entry.drawn.node)); } catch (error) { entry.drawn.node.textContent = `${entry.panel.title} cannot be drawn: ${error.message}`; } observer.observe(entry.card); } }
  if (!document.body.dataset.drawn) performance.mark("drawn");
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
}

function redraw() {
  for (const [key, entry] of [...state.drawn]) { entry.drawn.stop(); observer.unobserve(entry.card); entry.card.remove(); state.drawn.delete(key); }
  if (state.document) draw(state.document);
}

// -- live -----------------------------------------------------------------------------------------------------------

function options(select, entries, chosen) {
  const same = JSON.stringify(entries);
  if (select.dataset.same !== same) {
    select.dataset.same = same;
    select.replaceChildren(...entries.map(([value, label]) => element("option", { value }, label)));
  }
  select.value = chosen;
  select.parentElement.hidden = entries.length < 2;
}

function connect() {
  state.source?.close();
  const asked = new URLSearchParams(location.hash.slice(1));
  const source = new EventSource(`/events?${new URLSearchParams({ run: asked.get("run") ?? "", agent: asked.get("agent") ?? "" })}`);
  state.source = source;
  source.onmessage = (message) => {
    const content = JSON.parse(message.data);
    byId("connection").hidden = true;
    options(byId("run"), content.runs, content.run);
    options(byId("agent"), content.agents, content.agent);
    state.again = content.again;
    draw(content);
  };
  source.onerror = () => {
    byId("connection").hidden = false;
    byId("connection").textContent = `The server of this page does not answer; what is shown is the last that came. Trying again. To serve it anew: ${state.again || "parallel-agents watch RUN"}`;
    if (source.readyState === EventSource.CLOSED) setTimeout(() => { if (state.source === source) connect(); }, 1000);
  };
}

byId("smoothing").addEventListener("change", () => { state.smoothing = Number(byId("smoothing").value); draw(state.document); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
byId("controls").addEventListener("submit", (event) => event.preventDefault());
const data = byId("data");
if (data) {
  options(byId("run"), [], "");
  options(byId("agent"), [], "");
  draw(JSON.parse(data.textContent));
} else {
  const choose = () => { location.hash = new URLSearchParams({ run: byId("run").value, agent: byId("agent").value }); };
  byId("run").addEventListener("change", () => { byId("agent").value = ""; choose(); });
  byId("agent").addEventListener("change", choose);
  addEventListener("hashchange", connect);
  connect();
}
