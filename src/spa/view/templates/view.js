"use strict";
// Asks every two seconds whether the page's live part has changed. A report that is being read is not reloaded unasked.
const live = document.getElementById("live"), lost = document.getElementById("lost");
const frame = document.querySelector("iframe"), fresh = document.getElementById("new");
let tag = null, touched = false;

function watchReader() {
  touched = false;
  for (const event of ["pointerdown", "keydown"]) frame.contentWindow.addEventListener(event, () => { touched = true; });
}
function reload() {
  const at = frame.contentWindow.scrollY;
  frame.addEventListener("load", () => frame.contentWindow.scrollTo({top: at, behavior: "instant"}), {once: true});
  frame.contentWindow.location.reload();
  fresh.hidden = true;
}
async function look() {
  try {
    const answer = await fetch(live.dataset.url, {cache: "no-cache"});
    lost.hidden = answer.ok;
    if (answer.ok && answer.headers.get("ETag") !== tag) {
      const changed = tag !== null;
      tag = answer.headers.get("ETag");
      const chosen = [...live.querySelectorAll(":checked")].map(box => box.value);
      live.innerHTML = await answer.text();
      for (const box of live.querySelectorAll("input")) box.checked = chosen.includes(box.value);
      if (frame && changed) touched ? fresh.hidden = false : reload();
    }
  } catch { lost.hidden = false; }
  setTimeout(look, 2000);
}
if (frame) {
  frame.addEventListener("load", watchReader);
  fresh.querySelector("button").addEventListener("click", reload);
}
if (live.dataset.url) look();
