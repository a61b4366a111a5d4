// Steps through the sweeps of either mode. Texts, counts and the parts that a step is about come from sweep_walk.py,
// which also draws the picture; here parts are only shown as running, done or still to come.

function mount(root, data) {
  const form = root.querySelector("form");
  const slider = form.elements.step;
  const caption = root.querySelector("figcaption");
  const groups = [...root.querySelectorAll("[data-part]")];
  const chosen = () => data[form.elements.mode.value];

  function show(step) {
    const { overview, total, steps } = chosen();
    const at = Math.min(Math.max(step, 0), steps.length);
    const now = at ? steps[at - 1] : null;
    const before = new Set(steps.slice(0, at).flatMap(({ lit }) => lit));
    for (const group of groups) {
      const { part, only } = group.dataset;
      if (only) group.toggleAttribute("hidden", only !== form.elements.mode.value);
      group.classList.toggle("ds-now", Boolean(now) && now.lit.includes(part));
      group.classList.toggle("ds-later", Boolean(now) && !before.has(part));
    }
    slider.max = steps.length;
    slider.value = at;
    const spoken = now ? say`${at} of ${steps.length}, before ${now.name}` : say`all steps at once`;
    slider.setAttribute("aria-valuetext", spoken);
    caption.innerHTML = now ? now.text : overview;
    root.querySelector(".ds-count").innerHTML = now ? now.count : total;
  }

  // Another mode has other steps: stay before the same site.
  function change() {
    const [mode, other] = form.elements.mode.value === "shifted" ? ["shifted", "unshifted"] : ["unshifted", "shifted"];
    const last = data[other].steps[slider.value - 1];
    show(last ? data[mode].steps.findIndex(({ place }) => place === last.place) + 1 : 0);
  }

  const acts = { back: -1, next: 1 };
  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act]");
    if (button) show(Number(slider.value) + acts[button.dataset.act]);
  });
  slider.addEventListener("input", () => show(Number(slider.value)));
  form.addEventListener("change", (event) => { if (event.target.name === "mode") change(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  show(0);
}
