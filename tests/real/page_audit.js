// What is wrong with the page on screen: text that is cut, that lies on other text or is too pale, a body that scrolls
// sideways. Answers a list of sentences; an empty one is a good page. The same file runs in every browser.

const problems = [];
const report = (what, text) => { if (problems.length < 40) problems.push(`${what}: "${text.trim().replace(/\s+/g, " ").slice(0, 60)}"`); };

// -- boxes -----------------------------------------------------------------------------------------------------------

const meet = (one, two) => ({ left: Math.max(one.left, two.left), top: Math.max(one.top, two.top), right: Math.min(one.right, two.right), bottom: Math.min(one.bottom, two.bottom) });
const empty = box => box.right - box.left < 1 || box.bottom - box.top < 1;
const boxOf = element => { const { left, top, right, bottom } = element.getBoundingClientRect(); return { left, top, right, bottom }; };
const clips = style => /hidden|clip|auto|scroll/.test(style.overflowX + style.overflowY);
const scrolls = style => /auto|scroll/.test(style.overflowX + style.overflowY);

// the part of a box that its ancestors show, and whether one of them cuts it off for good
function shown(element, box, text) {
  let seen = box;
  for (let above = element; above && above !== document.documentElement; above = above.parentElement) {
    const style = getComputedStyle(above);
    if (above instanceof SVGElement && above.tagName !== "svg") continue;
    if (above.tagName === "svg" ? getComputedStyle(above).overflow === "hidden" : clips(style) && above !== document.body) {
      const room = boxOf(above), inside = meet(seen, room);
      const cut = seen.left < room.left - 1.5 || seen.right > room.right + 1.5 || (above.tagName === "svg" && (seen.top < room.top - 2 || seen.bottom > room.bottom + 2));
      if (cut && !scrolls(style) && style.textOverflow !== "ellipsis") report("cut off", text);
      if (cut && style.textOverflow === "ellipsis" && !above.closest("[title]") && !above.querySelector("[title]") && !above.matches(".label")) report("cut off without a title", text);
      seen = inside;
      if (empty(seen) || (style.textOverflow === "ellipsis" && seen.right - seen.left < 12)) return null; // dots alone
    }
  }
  return seen;
}

// -- colours ---------------------------------------------------------------------------------------------------------

function colour(text) {
  const srgb = text.match(/color\(srgb ([^)]*)\)/);
  if (srgb) { const [r, g, b, a] = srgb[1].split(/[ /]+/).map(Number); return [r * 255, g * 255, b * 255, a ?? 1]; }
  const parts = (text.match(/rgba?\(([^)]*)\)/) || [, "0, 0, 0, 0"])[1].split(/[ ,/]+/).map(Number);
  return [parts[0], parts[1], parts[2], parts[3] ?? 1];
}

const over = ([r, g, b, a], [u, v, w]) => [r * a + u * (1 - a), g * a + v * (1 - a), b * a + w * (1 - a), 1];
function light([r, g, b]) {
  const [x, y, z] = [r, g, b].map(part => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}

function behind(element) {
  const layers = [];
  for (let above = element; above; above = above.parentElement) {
    const [r, g, b, a] = colour(getComputedStyle(above).backgroundColor);
    if (a > 0) layers.push([r, g, b, a]);
    if (a === 1) break;
  }
  return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
}

function contrast(element) {
  const style = getComputedStyle(element), paper = behind(element);
  const ink = colour(element instanceof SVGElement ? style.fill : style.color);
  ink[3] *= Number(style.opacity);
  const [one, two] = [light(over(ink, paper)), light(paper)];
  const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05), size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 600);
  return ratio >= (large ? 3 : 4.5) - 0.01 ? null : `${ratio.toFixed(2)}:1`;
}

// -- texts -----------------------------------------------------------------------------------------------------------

const texts = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement, text = node.textContent;
  if (!text.trim() || /^(SCRIPT|STYLE|NOSCRIPT|TITLE|OPTION)$/i.test(element.tagName) || element.closest("title, noscript, .hidden, [hidden], :disabled")) continue;
  if (!element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true })) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  let visible = false;
  for (const { left, top, right, bottom } of range.getClientRects()) {
    if (right - left < 1 || bottom - top < 1) continue;
    const seen = shown(element, { left, top, right, bottom }, text);
    if (!seen) continue;
    visible = true;
    if (seen.left < -1 || seen.right > document.documentElement.scrollWidth + 1) report("off the page", text);
    const inset = (bottom - top) * 0.22;
    texts.push({ box: { left: seen.left + 0.5, right: seen.right - 0.5, top: seen.top + inset, bottom: seen.bottom - inset }, text, node });
  }
  const pale = visible && contrast(element);
  if (pale) report(`too pale, ${pale}`, text);
}

texts.sort((one, two) => one.box.top - two.box.top);
for (let at = 0; at < texts.length; at++) {
  for (let next = at + 1; next < texts.length && texts[next].box.top < texts[at].box.bottom; next++) {
    if (texts[at].node !== texts[next].node && !empty(meet(texts[at].box, texts[next].box))) report(`on each other, with "${texts[next].text.trim().slice(0, 40)}"`, texts[at].text);
  }
}

if (document.documentElement.scrollWidth > innerWidth + 1) problems.push(`the body scrolls sideways: ${document.documentElement.scrollWidth} of ${innerWidth} pixels`);
return problems;
