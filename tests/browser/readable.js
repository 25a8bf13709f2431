// The texts below `root` whose colour is too close to what lies behind them: WCAG's contrast, 4.5 or, for large ones, 3.
(root) => {
  const rgba = (css) => {
    const parts = css.match(/[\d.]+/g).map(Number);
    const scale = css.startsWith("color(") ? 255 : 1;
    return [...parts.slice(0, 3).map((part) => part * scale), parts.length > 3 ? parts[3] : 1];
  };
  const over = (top, below) => top.slice(0, 3).map((part, i) => part * top[3] + below[i] * (1 - top[3]));
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((part) => part / 255).map((p) => (p <= 0.03928 ? p / 12.92 : ((p + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  let seen = 0;
  for (const element of document.querySelectorAll(root + " *")) {
    const text = [...element.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join("");
    if (!text || !element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
    seen += 1;
    const style = getComputedStyle(element);
    const ground = behind(element);
    const [a, b] = [luminance(over(rgba(style.color), ground)), luminance(ground)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.6 && style.fontWeight >= 700);
    if (contrast < (large ? 3 : 4.5)) found.push(`${contrast.toFixed(1)} ${style.color}: ${text.slice(0, 40)}`);
  }
  return [seen, found];
}
