"use strict";
// The episode theatre. Everything is set as text, nothing as markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = ["svg", "style", "rect", "path", "use", "text", "circle", "polyline"]; // "style": in saved drawings only
const CELL = 10;
const PROBABILITIES = [0.95, 0.75, 0.5, 0.2];
const SHARES = [0.5, 0.1]; // of a variant's largest advantage
const KEYS = {
  tags: [],
  mask: [["t-on", "sampled"], ["t-off", "inserted"]],
  logprob: [...PROBABILITIES.map((p, i) => [`t-p${i}`, `p ≥ ${p}`]), ["t-p4", "below"], ["t-off", "inserted"]],
};

function make(tag, attributes = {}, children = []) {
  const node = SVG_TAGS.includes(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// ---- Boards: the same drawing as boards.py

function cellsOf(state, data) {
  if (data.digits) {
    const line = state.trim().split("\n")[0];
    if (!/^\|\s+\S/.test(line)) return null;
    return rectangular(line.split("|").filter((row) => row.trim()).map((row) => row.trim().split(/\s+/)));
  }
  const lines = state.trim().split("\n");
  const end = lines.findIndex((line) => line.includes(" "));
  const rows = rectangular((end < 0 ? lines : lines.slice(0, end)).map((line) => [...line]));
  const known = rows ? rows.flat().filter((cell) => Object.hasOwn(data.tiles, cell)).length : 0;
  return rows && 2 * known >= rows.flat().length ? rows : null;
}

function rectangular(rows) {
  const width = rows.length ? rows[0].length : 0;
  const sizes = [rows.length, width];
  return Math.min(...sizes) > 1 && Math.max(...sizes) <= 30 && rows.every((row) => row.length === width) ? rows : null;
}

function board(state, truth, data) {
  const rows = cellsOf(state, data);
  const right = truth === undefined ? rows : cellsOf(truth, data);
  if (!rows || !right || rows.length !== right.length || rows[0].length !== right[0].length) return null;
  const [height, width] = [rows.length, rows[0].length];
  const size = { width: width * CELL, height: height * CELL };
  const parts = [make("rect", { class: "floor", ...size }), make("rect", { fill: "url(#grid-1)", ...size })];
  const wrong = [];
  rows.forEach((row, r) => row.forEach((cell, c) => {
    const at = { x: c * CELL, y: r * CELL };
    const tile = Object.hasOwn(data.tiles, cell) ? data.tiles[cell] : undefined;
    if (tile) parts.push(make("use", { href: `#${tile}`, ...at }));
    else if (tile === undefined && cell !== ".") parts.push(make("text", { x: at.x + 5, y: at.y + 7.6 }, [cell]));
    if (cell !== right[r][c]) wrong.push(make("rect", { class: "wrong", width: CELL, height: CELL, ...at }));
  }));
  if (data.digits) parts.push(make("rect", { fill: `url(#grid-${Math.sqrt(width)})`, ...size }));
  const label = rows.map((row) => row.join("")).join(" / ") + (wrong.length ? `; ${wrong.length} wrong cells` : "");
  const cell = Math.min(36, 220 / width);
  const box = { viewBox: `-1 -1 ${size.width + 2} ${size.height + 2}`, width: width * cell, height: height * cell };
  return make("svg", { class: "board", role: "img", "aria-label": label, ...box }, [...parts, ...wrong]);
}

const quiet = (text) => make("p", { class: "quiet" }, [text]);
const linesOf = (state) => state.replace(/^\n+|\n+$/g, "").split("\n");
function textState(state, truth) {
  const other = truth === undefined ? null : linesOf(truth);
  const lines = linesOf(state).flatMap((line, i) => [other && line !== other[i] ? make("mark", {}, [line]) : line, "\n"]);
  return make("pre", { class: "state" }, lines);
}

// ---- The theatre

function unpack(data) {
  for (const { turns } of data.episodes) {
    turns.forEach((turn, i) => {
      turn.next ??= turns[i + 1] ? turns[i + 1].state : "";
      turn.tokens &&= turn.tokens.map((token) => data.tokens[token]);
    });
  }
  return data;
}

function theatre(root, data) {
  const find = (selector) => root.querySelector(selector);
  const choice = (name) => find(`select[name=${name}]`);
  const [stage, scrub, play] = ["[data-stage]", "[data-scrub]", "[data-go=play]"].map(find);
  const filters = {
    variant: (e) => e.variant,
    split: (e) => e.split,
    step: (e) => (e.step === undefined ? "–" : String(e.step)),
    outcome: (e) => e.outcome,
    format: (e) => (e.turns.every((turn) => !turn.wrong_format) ? "right" : "wrong in a turn"),
  };
  const largest = {}; // advantage of each variant
  for (const { variant, turns } of data.episodes) {
    const sizes = turns.flatMap((now) => now.advantages || []).map(Math.abs);
    largest[variant] = sizes.reduce((a, b) => Math.max(a, b), largest[variant] || 0);
  }
  let [turn, timer, beside] = [0, null, null]; // beside: the last episode chosen for the right
  const shown = () => ["left", "right"].map((side) => choice(side).value).filter((i) => i !== "").map((i) => data.episodes[i]);
  const length = () => Math.max(1, ...shown().map((episode) => episode.turns.length));
  const world = (e) => [e.seed, e.split === "training" ? e.step : "test"].join();
  const part = (e) => `${e.split}${e.step === undefined ? "" : `, step ${e.step}`}`;
  const option = ([e, i]) => [String(i), `${e.variant} · ${part(e)} · seed ${e.seed} · ${e.outcome}, turns: ${e.turns.length}`];

  function fill(select, options, value) {
    select.replaceChildren(...options.map(([key, text]) => make("option", { value: key }, [text])));
    select.value = options.some(([key]) => key === value) ? value : options.length ? options[0][0] : "";
  }

  function refilter() {
    const passes = (e) => Object.entries(filters).every(([name, of]) => ["", of(e)].includes(choice(name).value));
    const matching = data.episodes.map((e, i) => [e, i]).filter(([e]) => passes(e));
    fill(choice("left"), matching.map(option), choice("left").value);
    find("[data-count]").textContent = `${matching.length} of ${data.episodes.length} embedded episodes match.`;
    rematch();
  }

  function rematch() {
    const [left, before] = [data.episodes[choice("left").value], data.episodes[beside]];
    const same = data.episodes.map((e, i) => [e, i]).filter(([e]) => left && e !== left && world(e) === world(left));
    const like = ([e]) => e.variant === before.variant && e.split === before.split;
    const other = ([e]) => e.variant !== left.variant && e.split === left.split;
    const [, next] = (before && (same.find(like) || same.find(other))) || [];
    fill(choice("right"), [["", same.length ? "none" : "none was embedded"], ...same.map(option)], String(next));
    choice("right").disabled = !same.length;
    go(0);
  }

  function open() {
    const index = data.episodes.findIndex((episode) => `#${episode.id}` === location.hash);
    if (index < 0) return;
    Object.keys(filters).forEach((name) => { choice(name).value = ""; });
    refilter();
    choice("left").value = String(index);
    rematch();
    setTimeout(() => { stage.focus({ preventScroll: true }); root.scrollIntoView(); }); // after the browser's own jump
  }

  function go(to) {
    turn = Math.max(0, Math.min(to, length() - 1));
    scrub.max = length();
    scrub.value = turn + 1;
    find("[data-turn]").textContent = `turn ${turn + 1} of ${length()}`;
    const episodes = shown();
    stage.replaceChildren(...(episodes.length ? episodes.map(pane) : [quiet("No episode matches the filters.")]));
    stage.classList.toggle("two", episodes.length > 1);
    find("[data-permalink]").setAttribute("href", episodes.length ? `#${episodes[0].id}` : "#episodes");
  }

  function run(start) {
    clearInterval(timer);
    timer = start ? setInterval(() => { go(turn + 1); run(turn < length() - 1); }, 900) : null;
    play.setAttribute("aria-label", start ? "Pause" : "Play");
    play.classList.toggle("playing", start);
  }

  function act(name) {
    if (name === "play" && timer === null && turn >= length() - 1) go(0);
    run(name === "play" && timer === null);
    if (name !== "play") go({ first: 0, back: turn - 1, on: turn + 1, last: length() - 1 }[name]);
  }

  function state(caption, text, truth, right, note) {
    const tag = make("em", { class: `tag ${right ? "good" : "bad"}` }, [right ? "exact" : "differs"]);
    const head = [make("b", {}, [caption]), ...(truth === undefined ? [] : [" ", tag]), ...(note ? [" ", make("span", {}, [note])] : [])];
    return make("figure", { class: "shot" }, [make("figcaption", {}, head), board(text, truth, data) || textState(text, truth)]);
  }

  function pane(episode) {
    const over = turn >= episode.turns.length;
    const now = episode.turns[Math.min(turn, episode.turns.length - 1)];
    const body = [make("header", {}, [
      make("b", { class: "variant" }, [dot(episode.variant), episode.variant]),
      make("em", { class: `tag ${episode.outcome === "success" ? "good" : "bad"}` }, [episode.outcome]),
      make("span", { class: "meta" }, [`${part(episode)} · seed ${episode.seed} · reward ${episode.reward}`]),
    ])];
    if (episode.error) body.push(make("p", { class: "error" }, [episode.error]));
    if (!now) return make("article", { class: "pane" }, [...body, quiet("No turn was played.")]);
    const { state: imagined, right, probability, remembered, plan } = now.imagined || {};
    const facts = [`reward ${now.reward || 0}`, now.penalty && `penalty ${now.penalty}`, plan && `planned: ${plan.join(", ")}`];
    const moves = (now.executed || []).map((action) => make("kbd", {}, [action]));
    body.push(make("p", { class: "moves" }, [
      make("span", { class: "meta" }, [over ? `ended after turn ${episode.turns.length}` : `turn ${turn + 1}`]),
      ...(moves.length ? moves : [make("span", { class: "quiet" }, ["no action was executed"])]),
      ...(now.wrong_format ? [make("em", { class: "tag bad" }, ["wrong format"])] : []),
      make("span", { class: "meta" }, [facts.filter(Boolean).join(" · ")]),
    ]));
    const states = [state("before", now.state)];
    if (now.prediction !== undefined) states.push(state("predicted", now.prediction, now.next, now.right));
    const believed = remembered ? "seen before in this episode" : probability && `probability ${probability}`;
    if (imagined) states.push(state(remembered ? "remembered" : "imagined", imagined, now.next, right, believed));
    body.push(make("div", { class: "shots" }, [...states, state("actual", now.next)]), response(now, episode));
    return make("article", { class: over ? "pane over" : "pane" }, body);
  }

  function dot(variant) {
    const circle = make("circle", { cx: 1, cy: 1, r: 1, fill: data.colors[variant] || "currentColor" });
    return make("svg", { class: "dot", viewBox: "0 0 2 2", "aria-hidden": "true" }, [circle]);
  }

  function response(now, episode) {
    const most = largest[episode.variant];
    const mode = choice("colour").value;
    const out = make("pre", { class: "response" });
    if (mode !== "tags" && !now.tokens) return quiet("No tokens were recorded for this turn.");
    if (mode === "advantage" && !now.advantages) return quiet(`No advantages: this turn was not trained on.${episode.split === "training" ? "" : " The split “training” has them."}`);
    if (mode === "tags") {
      let tag = "out";
      for (const piece of now.response.split(/(<\/?(?:think|observation|prediction|answer)>)/)) {
        const name = /^<(\/?)(\w+)>$/.exec(piece);
        if (name) tag = !name[1] ? name[2] : /think|answer/.test(name[2]) ? "out" : "think";
        if (piece) out.append(name ? piece : make("span", { class: `r-${tag}` }, [piece]));
      }
    } else {
      now.tokens.forEach((text, i) => {
        const logprob = now.logprobs[i];
        const [advantage, value] = [now.advantages, now.values].map((list) => (list ? list[i] : null));
        const kinds = { mask: "t-on", logprob: `t-p${PROBABILITIES.filter((p) => Math.exp(logprob) < p).length}`, advantage: sign(advantage, most) };
        const facts = Object.entries({ "log-prob": logprob, advantage, value }).filter(([, fact]) => fact !== null && fact !== undefined);
        const title = logprob === null ? "inserted, never trained" : facts.map((fact) => fact.join(" ")).join(", ");
        out.append(make("span", { class: logprob === null ? "t-off" : kinds[mode], title }, [text]));
      });
    }
    const scale = SHARES.map((share, i) => [i, (share * most).toPrecision(2)]);
    const signed = [...scale.map(([i, a]) => [`t-a${i}`, `≥ ${a}`]), ["t-a2", "near 0"], ...scale.reverse().map(([i, a]) => [`t-n${i}`, `≤ −${a}`])];
    const keys = mode === "advantage" ? [...signed, ["t-off", "inserted"]] : KEYS[mode];
    const legend = keys.flatMap(([kind, text]) => [make("span", { class: kind }, [text]), " "]);
    return make("div", {}, [out, make("p", { class: "meta key" }, legend)]);
  }

  function sign(advantage, most) {
    const level = SHARES.findIndex((share) => Math.abs(advantage) >= share * most);
    return level < 0 || !advantage ? "t-a2" : `${advantage > 0 ? "t-a" : "t-n"}${level}`;
  }

  function save(kind) {
    const name = shown().map((episode) => episode.id).join("_") || "episode";
    const lines = shown().map((episode) => `${JSON.stringify(episode)}\n`);
    if (kind === "jsonl") return offer(new Blob(lines, { type: "application/jsonl" }), `${name}.jsonl`);
    const drawing = new Blob([picture(stage)], { type: "image/svg+xml" });
    const file = `${name}-turn${turn + 1}.${kind}`;
    return kind === "svg" ? offer(drawing, file) : raster(drawing, (pixels) => offer(pixels, file));
  }

  for (const [name, of] of Object.entries(filters)) {
    const values = [...new Set(data.episodes.map(of))];
    if (name === "step") values.sort((a, b) => Number(a) - Number(b) || a.localeCompare(b));
    fill(choice(name), [["", "all"], ...values.map((value) => [value, value])], "");
    choice(name).addEventListener("change", refilter);
  }
  const changes = { left: rematch, right: () => { beside = choice("right").value; go(turn); }, colour: () => go(turn) };
  for (const [name, change] of Object.entries(changes)) choice(name).addEventListener("change", change);
  scrub.addEventListener("input", () => { run(false); go(Number(scrub.value) - 1); });
  for (const button of root.querySelectorAll("[data-go]")) button.addEventListener("click", () => act(button.dataset.go));
  for (const button of root.querySelectorAll("[data-save]")) button.addEventListener("click", () => save(button.dataset.save));
  root.addEventListener("keydown", (event) => {
    const key = { ArrowLeft: "back", ArrowRight: "on", Home: "first", End: "last", " ": "play" }[event.key];
    const own = event.target.matches(event.key === " " ? "select, input, button, a" : "select, input");
    if (!key || own || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    act(key);
  });
  window.addEventListener("hashchange", open);
  root.hidden = false;
  beside = data.episodes.findIndex((e) => world(e) === world(data.episodes[0]) && e.variant !== data.episodes[0].variant);
  refilter();
  window.addEventListener("load", open);
}

const embedded = document.getElementById("theatre-data");
if (embedded) theatre(document.getElementById("theatre"), unpack(JSON.parse(embedded.textContent)));
