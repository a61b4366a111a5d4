// A moment of the day. What every session does then is read from the lanes that serving_day.py has drawn.

function mount(root, data) {
  const slider = root.querySelector("input");
  const plot = root.querySelector(".ds-plot");
  const mark = plot.querySelector(".ds-at");
  const units = Number(slider.max);
  const lanes = [...plot.querySelectorAll(".ds-lane")].map((lane) => ({
    name: lane.querySelector("span").innerHTML,
    runs: [...lane.querySelectorAll("path")].map((path) => [
      path.getAttribute("class").slice(3),
      [...path.getAttribute("d").matchAll(/M(\d+) [\d.]+h(\d+)/g)].map(([, start, length]) => [Number(start), Number(length)]),
    ]),
  }));

  function clock(seconds) {
    const whole = Math.floor(seconds + 0.5);
    const two = (number) => String(number % 60).padStart(2, "0");
    return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60))}:${two(whole)}`;
  }

  function readable(bytes) {
    const step = Math.min(Math.max(Math.floor(Math.log10(Math.max(bytes, 1)) / 3), 0), 5);
    return `${plain(Number((bytes / 1000 ** step).toPrecision(3)))} ${["B", "kB", "MB", "GB", "TB", "PB"][step]}`;
  }

  const within = (runs, at) => runs.some(([start, length]) => start <= at && at < start + length);
  // Short stretches are drawn longer than they are, so of two that seem to overlap the later state counts.
  const doing = (lane, at) => lane.runs.filter(([state, runs]) => data.does.includes(state) && within(runs, at)).pop()?.[0];

  function heldAt(points, seconds) {
    let bytes = 0;
    for (const [when, amount] of points) if (when <= seconds) bytes = amount;
    return bytes;
  }

  function show(moment) {
    const seconds = data.from + ((data.to - data.from) * moment) / units;
    // At its very end the day is what it was until then.
    const at = Math.min(moment, units - 1);
    const sessions = data.does.map((state) => [state, lanes.filter((lane) => doing(lane, at) === state).map(({ name }) => name)]);
    const does = sessions.filter(([, names]) => names.length).map(([state, names]) =>
      `${data.words[state]}: ${state === "tool" && names.length > 4 ? names.length : names.join(", ")}`);
    const lies = data.lies.map((state) => {
      const count = lanes.filter((lane) => lane.runs.some(([name, runs]) => name === state && within(runs, at))).length;
      return say`${data.words[state]}: ${count} of ${lanes.length}`;
    });
    const held = Object.entries(data.held).map(([tier, points]) => `${data.tiers[tier]} ${readable(heldAt(points, seconds))}`);
    mark.hidden = false;
    mark.style.left = `${(100 * moment) / units}%`;
    slider.value = moment;
    slider.setAttribute("aria-valuetext", clock(seconds));
    const holds = held.length ? say`held: ${held.join("; ")}` : "";
    const lines = [does.join("; ") || say`no session does anything`, lies.join("; "), holds];
    root.querySelector("figcaption").innerHTML = `<b>${clock(seconds)}</b> ${lines.filter(Boolean).join("<br>")}`;
  }

  slider.addEventListener("input", () => show(Number(slider.value)));
  root.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    show(Math.round(Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1) * units));
  });
}
