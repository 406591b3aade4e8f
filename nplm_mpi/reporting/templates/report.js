"use strict";
// Words come from texts and may hold anything: they become text nodes and names of models' columns, never HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const models = () => Bokeh.documents.flatMap((d) => [...d._all_models.values()]);
const named = (name) => models().filter((model) => model.name === name);

// --- colours: the page's own, for figures too ---

const THEMES = ["system", "light", "dark"];

function paint() {
  const css = getComputedStyle(document.documentElement);
  const of = (name) => css.getPropertyValue(name).trim();
  const ink = of("--ink"), soft = of("--soft"), line = of("--line");
  for (const model of models()) {
    if ("axis_label_text_color" in model) {
      Object.assign(model, { axis_label_text_color: ink, major_label_text_color: ink, axis_line_color: soft,
        major_tick_line_color: soft, minor_tick_line_color: null, axis_label_text_font_style: "normal" });
    } else if ("grid_line_color" in model) {
      model.grid_line_color = line;
    } else if ("outline_line_color" in model) {
      model.outline_line_color = line;
    }
  }
  for (const shown of named("label text")) shown.glyph.text_color = ink;
}

function useTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = byId("theme");
  button.textContent = `Colours: ${theme}`;
  button.setAttribute("aria-label", theme === "system" ? "Colours: as the system has them" : `Colours: ${theme}`);
  button.onclick = () => {
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    keep("theme", next);
    useTheme(next);
    paint();
  };
}

// Where a browser keeps nothing for files, nothing is kept.
function keep(name, value) { try { localStorage.setItem(`nplm-${name}`, value); } catch { /* not kept */ } }
function kept(name) { try { return localStorage.getItem(`nplm-${name}`); } catch { return null; } }

// --- curves against examples, hours or epochs ---

function against(by) {
  for (const source of named("by")) source.data = { ...source.data, x: source.data[by] };
  for (const chart of data.charts.filter((chart) => chart.by)) {
    const figure = figureIn(`chart-${chart.name}`);
    if (!figure) continue;
    figure.below[0].axis_label = by;
  }
}

function figureIn(id) {
  const chart = data.charts.find((one) => `chart-${one.name}` === id);
  return chart && models().find((model) => model.id === chart.item.root_id);
}

// --- the map ---

function numbers(text, Kind) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Kind(bytes.buffer);
}

const CLASS_COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F7F7F"];
// Viridis at nine places: dark is rare, bright is frequent, in this order for everyone.
const RAMP = ["#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];

function startMap(map) {
  const x = numbers(map.x, Float32Array), y = numbers(map.y, Float32Array);
  const near = numbers(map.neighbours, Uint32Array), cosines = numbers(map.cosines, Int16Array);
  const N = x.length, shown = map.words.slice(0, N), place = new Map(map.words.map((word, i) => [word, i]));
  const [source] = named("words"), [chosen] = named("chosen"), [labels] = named("labels");
  const figure = figureIn("chart-map");
  let colours = [];

  function colour(by) {
    const most = Math.log(1 + Math.max(1, ...map.counts.slice(0, N)));
    colours = shown.map((_, i) => by === "class" ? CLASS_COLORS[map.classes[i] % CLASS_COLORS.length]
      : RAMP[Math.min(RAMP.length - 1, Math.floor(RAMP.length * Math.log(1 + map.counts[i]) / most))]);
    source.data = { x: [...x], y: [...y], word: shown, count: map.counts.slice(0, N), color: colours };
    const scale = byId("scale");
    scale.replaceChildren();
    if (by === "class") {
      map.class_names.forEach((name, i) => {
        const one = document.createElement("span"), swatch = document.createElement("span");
        swatch.className = "swatch";
        swatch.style.background = CLASS_COLORS[i % CLASS_COLORS.length];
        one.append(swatch, `${name} …`);
        scale.append(one);
      });
    } else {
      const ramp = document.createElement("span");
      ramp.className = "ramp";
      ramp.style.background = `linear-gradient(to right, ${RAMP.join(",")})`;
      const most = Math.max(...map.counts.slice(0, N)), least = Math.min(...map.counts.slice(0, N));
      scale.append(`seen ${least.toLocaleString("en")} times`, ramp, `${most.toLocaleString("en")} times`);
    }
  }

  // The most frequent words in view get labels, as far as these do not cover each other.
  let now = -1;
  function label() {
    const { start: left, end: right } = figure.x_range, { start: low, end: high } = figure.y_range;
    const box = byId("chart-map").getBoundingClientRect();
    const wide = Math.max(200, box.width - 60), tall = Math.max(200, box.height - 40);
    const taken = [], out = { x: [], y: [], text: [], size: [] };
    const first = now < 0 ? [] : [now, ...neighboursOf(now).filter((i) => i < N)];
    const tried = new Set();
    for (const i of [...first, ...shown.keys()]) {
      if (tried.has(i) || x[i] < left || x[i] > right || y[i] < low || y[i] > high) continue;
      tried.add(i);
      const text = shown[i].length > 24 ? `${shown[i].slice(0, 23)}…` : shown[i];
      const px = wide * (x[i] - left) / (right - left), py = tall * (y[i] - low) / (high - low);
      const edge = px + 12 + 7.5 * text.length;
      if (edge > wide + 20 || taken.some(([a, b, c]) => px < b && edge > a && Math.abs(py - c) < 17)) continue;
      taken.push([px, edge, py]);
      out.x.push(x[i]); out.y.push(y[i]); out.text.push(text); out.size.push(i === now ? "16px" : "13px");
      if (taken.length > wide * tall / 9000 || tried.size > 4000) break;
    }
    labels.data = out;
  }
  let waiting;
  const soon = () => { clearTimeout(waiting); waiting = setTimeout(label, 60); };

  function neighboursOf(i) { return [...near.slice(i * map.width, (i + 1) * map.width)]; }

  function look(left, right, low, high) {
    Object.assign(figure.x_range, { start: left, end: right });
    Object.assign(figure.y_range, { start: low, end: high });
    soon();
  }

  function zoom(factor) {
    const { start: left, end: right } = figure.x_range, { start: low, end: high } = figure.y_range;
    const cx = (left + right) / 2, cy = (low + high) / 2, w = factor * (right - left) / 2, h = factor * (high - low) / 2;
    look(cx - w, cx + w, cy - h, cy + h);
  }

  function choose(i, centre) {
    now = i;
    const list = neighboursOf(i), inside = list.filter((j) => j < N);
    byId("near-h").textContent = `Nearest to “${map.words[i]}”`;
    byId("near").replaceChildren(...list.map((j, k) => {
      const item = document.createElement("li"), button = document.createElement("button"), cosine = document.createElement("span");
      button.type = "button";
      button.textContent = map.words[j];
      if (j < N) button.onclick = () => choose(j, true); else { button.disabled = true; button.title = "too rare for the map"; }
      cosine.textContent = (cosines[i * map.width + k] / 1000).toFixed(3);
      item.append(button, cosine);
      return item;
    }));
    chosen.data = { x: [i, ...inside].map((j) => x[j]), y: [i, ...inside].map((j) => y[j]) };
    byId("said").textContent = `“${map.words[i]}”, seen ${map.counts[i].toLocaleString("en")} times in training, and its neighbours.`;
    if (centre) {
      const w = Math.min(0.25, (figure.x_range.end - figure.x_range.start) / 2);
      look(x[i] - w, x[i] + w, y[i] - w, y[i] + w);
    } else soon();
  }

  function find(query) {
    const wanted = query.trim(), small = wanted.toLowerCase();
    byId("matches").replaceChildren();
    if (!wanted) { byId("said").textContent = ""; return; }
    const exact = place.get(wanted) ?? place.get(small) ?? -1;
    const alike = [];
    for (let i = 0; i < N && alike.length < 12; i++) if (i !== exact && shown[i].toLowerCase().startsWith(small)) alike.push(i);
    for (let i = 0; i < N && alike.length < 12; i++) {
      if (i !== exact && !alike.includes(i) && shown[i].toLowerCase().includes(small)) alike.push(i);
    }
    byId("matches").append(...alike.map((i) => {
      const item = document.createElement("li"), button = document.createElement("button");
      button.type = "button";
      button.textContent = shown[i];
      button.onclick = () => choose(i, true);
      item.append(button);
      return item;
    }));
    if (exact >= 0 && exact < N) choose(exact, true);
    else byId("said").textContent = alike.length ? `“${wanted}” is not on the map; words like it are listed.` : `“${wanted}” is not on the map.`;
  }

  byId("find").onsubmit = (event) => { event.preventDefault(); find(byId("query").value); };
  byId("colour").onchange = (event) => colour(event.target.value);
  byId("in").onclick = () => zoom(0.6);
  byId("out").onclick = () => zoom(1 / 0.6);
  byId("whole").onclick = () => look(-1.05, 1.05, -1.05, 1.05);
  source.selected.properties.indices.change.connect(() => {
    // Of several points under the pointer the most frequent word's.
    if (source.selected.indices.length) choose(Math.min(...source.selected.indices), false);
  });
  for (const range of [figure.x_range, figure.y_range]) range.change.connect(soon);
  colour("frequency");
  label();
  return { choose, find };
}

// --- begin ---

async function begin() {
  useTheme(THEMES.includes(kept("theme")) ? kept("theme") : "system");
  await Promise.all(data.charts.map((chart) => Bokeh.embed.embed_item(chart.item)));
  for (const choice of document.querySelectorAll("input[name=by]")) {
    choice.onchange = () => { keep("by", choice.value); against(choice.value); };
    if (data.watching && choice.value === kept("by")) { choice.checked = true; against(choice.value); }
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  const map = data.map && startMap(data.map);
  paint();
  if (data.watching) {
    setInterval(() => { if (byId("refresh").checked && !document.hidden) location.reload(); }, 1000 * data.watching);
  }
  document.documentElement.dataset.ready = "yes";
  return map;
}

begin();
