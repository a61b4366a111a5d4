// The map of the stack: switches choose what works, a slider follows one token. Words, numbers and the first picture
// come from stack_map.py.

// The chapters lie beside the page that the figure was written for; anywhere else they are on the published site.
function readdress(root, site) {
  if ("content_root" in document.documentElement.dataset) return;
  for (const link of root.querySelectorAll("a[href]")) {
    if (site) {
      link.href = `${site[0]}://${site[1]}${link.getAttribute("href")}`;
      link.target = "_blank";
      link.rel = "noopener";
    } else link.removeAttribute("href");
  }
}

function mount(root, data) {
  const [switches, walk] = root.querySelectorAll("form");
  const slider = walk.elements.step;
  const parts = new Map([...root.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
  const edges = [...root.querySelectorAll("[data-edge]")];
  const map = root.querySelector(".ds-map");
  const trail = root.querySelector(".ds-trail");
  const caption = root.querySelector("figcaption");
  let told = data.words.hint;
  const chosen = (name) => switches.elements[name].value;

  function takeModel() {
    const { names, pictures, trail: rows, stops } = data.models[chosen("model")];
    for (const [part, name] of Object.entries(names)) parts.get(part).querySelector(".ds-name").textContent = name;
    for (const [part, picture] of Object.entries(pictures)) parts.get(part).querySelector(".ds-picture").innerHTML = picture;
    trail.innerHTML = rows;
    slider.max = stops.length;
  }

  const stateNow = () => data.states[["model", "phase", "cache", "context"].map(chosen).join(" ")];

  function takeState() {
    const [notes, , text] = stateNow();
    data.parts.forEach((key, i) => {
      const [how, words] = data.notes[notes[i]];
      const note = parts.get(key).querySelector(".ds-note");
      parts.get(key).dataset.state = how;
      if (note) note.textContent = words.say;
    });
    root.querySelector(".ds-says").innerHTML = text;
    follow(0);
  }

  // The stop of the token that is looked at, from 1; 0 for none.
  function follow(step) {
    const { stops } = data.models[chosen("model")];
    const at = Math.min(Math.max(step, 0), stops.length);
    const now = stops[at - 1];
    for (const [key, part] of parts) part.toggleAttribute("data-here", key === now?.part);
    const [, labels] = stateNow();
    for (const edge of edges) {
      const here = edge.dataset.edge === now?.edge;
      const [amount, what, kind] = data.labels[labels[data.arrows.indexOf(edge.dataset.edge)]];
      const lines = edge.querySelectorAll("text");
      [lines[0].textContent, lines[1].textContent] = at ? (here ? now.label : ["", ""]) : [amount, what];
      edge.dataset.kind = kind;
      edge.toggleAttribute("data-here", here);
    }
    map.toggleAttribute("data-following", at > 0);
    const rows = [...trail.children];
    rows.forEach((row, i) => {
      row.toggleAttribute("data-here", i === at - 1);
      row.toggleAttribute("data-later", at > 0 && i >= at);
    });
    const where = { at, all: stops.length, name: at && rows[at - 1].firstElementChild.textContent };
    const words = at ? data.words.step.replace(/\{(\w+)\}/g, (_, word) => where[word]) : data.words.start;
    // What stays the same is not written again, or it would be read out again.
    const text = at ? `<p><b>${words}.</b> ${now.text}</p>` : data.words.hint;
    if (text !== told) caption.innerHTML = told = text;
    slider.value = at;
    slider.setAttribute("aria-valuetext", words);
  }

  const acts = { back: -1, next: 1 };
  const keys = { ArrowLeft: -1, ArrowRight: 1 };
  walk.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act]");
    if (button) follow(Number(slider.value) + acts[button.dataset.act]);
  });
  // A slider answers arrow keys by itself.
  walk.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.target === slider) return;
    event.preventDefault();
    follow(Number(slider.value) + keys[event.key]);
  });
  slider.addEventListener("input", () => follow(Number(slider.value)));
  switches.addEventListener("change", (event) => {
    if (event.target.name === "model") takeModel();
    takeState();
  });
  for (const form of [switches, walk]) form.addEventListener("submit", (event) => event.preventDefault());
  readdress(root, data.site);
  follow(0);
}
