// After theatre.js, whose make() it uses: what is shown as a file: an SVG drawing, its pixels, or text

function offer(blob, file) {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function raster(drawing, then) {
  const image = new Image();
  image.addEventListener("load", () => {
    const canvas = make("canvas", { width: 2 * image.width, height: 2 * image.height }); // sharp on dense screens
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(then);
    URL.revokeObjectURL(image.src);
  });
  image.src = URL.createObjectURL(drawing);
}

function picture(stage) {
  const frame = stage.getBoundingClientRect();
  const page = make("svg", { class: "sheet", width: frame.width + 32, height: frame.height + 32 });
  page.append(make("style", {}, [document.querySelector("style").textContent]));
  page.append(document.querySelector(".tiles defs").cloneNode(true), make("rect", { class: "paper", width: "100%", height: "100%" }));
  for (const node of stage.querySelectorAll("header > *, .moves > *, figcaption, .board, pre")) {
    const box = node.getBoundingClientRect();
    const [x, y] = [box.x - frame.x + 16, box.y - frame.y + 16];
    if (node.matches(".board")) {
      const copy = page.appendChild(node.cloneNode(true));
      for (const [name, value] of Object.entries({ x, y, width: box.width, height: box.height })) copy.setAttribute(name, value);
    } else {
      const lines = node.textContent.split("\n").slice(0, 60);
      page.append(...lines.map((line, i) => make("text", { class: "label", x, y: y + 15 + 18 * i }, [line.slice(0, 200)])));
    }
  }
  // XML cannot hold control characters and lone surrogates, which a model may have written.
  return new XMLSerializer().serializeToString(page).toWellFormed().replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "\ufffd");
}
