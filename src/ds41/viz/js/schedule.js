// Another number of requests run together. Pictures and words come from draft_schedule.py.

function mount(root, data) {
  const form = root.querySelector("form");
  form.addEventListener("input", () => {
    const requests = form.elements.together.value;
    root.querySelector(".ds-picture").innerHTML = data.pictures[requests];
    root.querySelector("figcaption").innerHTML = data.captions[requests];
  });
  form.addEventListener("submit", (event) => event.preventDefault());
}
