"""Draws screens of the dashboard for the docs: `python docs/draw_dashboard.py`, where chromium is installed.

Opens the real dashboard on the shop of the browser tests and saves what a page shows as SVG: its elements in a
foreignObject, with the rules of its style sheets that apply. There are no pixels, no script, and nothing is loaded from
elsewhere: the reader's browser sets the text, in light or dark.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser.chromium import chromium, served, tab  # noqa: E402
from tests.browser.screenshots import busy, hour_before  # noqa: E402
from tests.browser.shop import Shop  # noqa: E402

from holdfast.dashboard import create  # noqa: E402
from holdfast.names import this_process  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WIDE = 1280

# The page as XML, without what nobody sees, and the rules that match it at this width.
SAVED = """() => {
  const rules = [];
  const collect = (list) => {
    for (const rule of list) {
      if (rule instanceof CSSMediaRule) {
        if (rule.conditionText.includes("color-scheme")) rules.push(rule.cssText);
        else if (matchMedia(rule.conditionText).matches) collect(rule.cssRules);
      } else if (rule instanceof CSSStyleRule) {
        const plain = rule.selectorText.replace(/::?(before|after|marker|placeholder|hover|focus[a-z-]*|active)/g, "");
        try { if (document.querySelector(plain || "*")) rules.push(rule.cssText); } catch { rules.push(rule.cssText); }
      } else if (!(rule instanceof CSSFontFaceRule)) rules.push(rule.cssText);
    }
  };
  for (const sheet of document.styleSheets) collect(sheet.cssRules);
  for (const node of document.querySelectorAll("script, link, noscript, dialog, input[type=hidden], template"))
    node.remove();
  const body = new XMLSerializer().serializeToString(document.body);
  return [rules.join("\\n"), body];
}"""


def framed(title: str, css: str, body: str, high: int) -> str:
    css = re.sub(r"(?<![\w.#-])html\b", "svg", css).replace("100vh", f"{high}px").replace("100dvh", f"{high}px")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high}" role="img">\n<title>{title}</title>\n'
        f"<style><![CDATA[\n{css}\n]]></style>\n"
        f'<foreignObject width="{WIDE}" height="{high}">\n{body}\n</foreignObject>\n</svg>\n'
    )


async def draw() -> None:
    with tempfile.TemporaryDirectory() as place:
        shop = Shop(f"sqlite:///{place}/shop.db")
        async with shop.filled(), served(create(shop.app)) as base:
            await hour_before(shop)
            await busy(shop)
            waiting = [job.id async for job in shop.app.jobs("waiting", limit=1)]
            screens = {"overview": ("/", 1010), "job": (f"/job?id={waiting[0]}", 760)}
            async with tab(base, size=(WIDE, 900)) as one:
                for name, (path, high) in screens.items():
                    await one.open(path)
                    css, body = await one.page.evaluate(SAVED)
                    body = body.replace(place, "/srv/shop").replace(this_process(), "web-1:4711 gunicorn")
                    body = re.sub(r"\s+href=\"/[^\"]*\"", "", re.sub(r">\s+<", ">\n<", body))
                    (IMAGES / f"dashboard-{name}.svg").write_text(
                        framed(f"The dashboard: {name}", css, body, high), encoding="utf-8"
                    )
                    print(f"drew dashboard-{name}.svg")


if __name__ == "__main__":
    chromium().run(draw())
    asyncio.set_event_loop(None)
