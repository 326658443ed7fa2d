for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const told = figure.querySelector(".told");
  for (const dot of figure.querySelectorAll("circle[data-told]")) {
    const tell = () => { told.textContent = dot.dataset.told; };
    dot.addEventListener("mouseenter", tell);
    dot.addEventListener("focus", tell);
  }
}
