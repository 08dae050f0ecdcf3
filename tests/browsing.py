"""A headless Chromium for tests, and what they ask of any page."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

SIZES = {"wide": 1280, "narrow": 390}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

CONTRAST = """
() => {
  const parse = colour => { const m = colour.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = ([r, g, b]) => {
    const f = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
  };
  const behind = node => {
    for (let at = node; at; at = at.parentElement) {
      const own = parse(getComputedStyle(at).backgroundColor);
      if (own[3] > 0.5) return own;
    }
    return [255, 255, 255, 1];
  };
  const poor = [];
  for (const node of document.querySelectorAll("main *:not(svg *)")) {
    const text = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
    if (!text || !node.getClientRects().length) continue;
    const a = light(parse(getComputedStyle(node).color)), b = light(behind(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const said = node.textContent.trim().slice(0, 30);
    if (ratio < 4.5) poor.push(`${node.tagName} ${node.className} ${said}: ${ratio.toFixed(2)}`);
  }
  return poor;
}
"""
"""Text that is hard to read on what lies behind it: WCAG's ratio is under 4.5."""

CROWDED = """
() => {
  const found = [];
  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].filter(text => text.textContent.trim());
    const boxes = texts.map(text => text.getBoundingClientRect());
    boxes.forEach((box, i) => {
      if (box.right > frame.right + 1 || box.left < frame.left - 1 || box.bottom > frame.bottom + 1)
        found.push(`clipped: ${texts[i].textContent}`);
      for (let j = 0; j < i; j++) {
        const other = boxes[j];
        const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
        const down = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
        if (across > 1 && down > 3) found.push(`overlap: ${texts[j].textContent} / ${texts[i].textContent}`);
      }
    });
  }
  return found;
}
"""
"""Texts of a picture that lie on each other or out of it."""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; without one, the test is skipped and says why."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium is installed")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def looks(browser: Browser, url: str) -> Iterator[tuple[str, Page]]:
    """A page in light and dark, wide and narrow."""
    for scheme in SCHEMES:
        for name, width in SIZES.items():
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.goto(url)
            yield f"{scheme}, {name}", page
            page.close()


def ugly(page: Page) -> list[str]:
    """What is wrong with how a page looks."""
    wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    found = [f"{wide} pixels too wide"] if wide > 0 else []
    return [*found, *page.evaluate(CONTRAST), *page.evaluate(CROWDED)]
