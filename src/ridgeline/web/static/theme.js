// The colours that were chosen last, before anything is drawn.
const chosen = localStorage.getItem("ridgeline-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
