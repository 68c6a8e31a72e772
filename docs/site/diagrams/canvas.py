"""A small canvas that writes SVG as text: same calls, same bytes. Must not know what a picture shows.

Colours are classes, so that one file reads on light and on dark pages; what differs is hatched too, never told by
colour alone. Lengths are SVG user units, about a pixel each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

STYLE = """
  text { font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif; fill: var(--ink); }
  .card { fill: var(--card); }
  .ink { fill: var(--ink); } .muted { fill: var(--muted); } .bold { font-weight: 600; } .small { font-size: 11.5px; }
  .code { font-family: ui-monospace, 'SF Mono', Menlo, Consolas, 'Noto Sans Mono', monospace; font-size: 12px; }
  .plain { fill: var(--plain); stroke: var(--edge); } .box { fill: var(--card); stroke: var(--edge); }
  .a { fill: var(--a); stroke: var(--a); } .b { fill: var(--b); stroke: var(--b); }
  .a-soft { fill: var(--a-soft); stroke: var(--a); } .b-soft { fill: var(--b-soft); stroke: var(--b); }
  text.a, text.b { stroke: none; } text.on { fill: var(--on); }
  .differs { fill: url(#hatch); stroke: var(--b); }
  .line { stroke: var(--muted); fill: none; } .a-line { stroke: var(--a); fill: none; }
  .b-line { stroke: var(--b); fill: none; } .wide { stroke-width: 2.2; } .dashed { stroke-dasharray: 5 4; }
  .middle { text-anchor: middle; } .end { text-anchor: end; }
"""
LIGHT = {
    "card": "#f7f8fa", "ink": "#1d2329", "muted": "#59636e", "plain": "#e3e8ee", "edge": "#aab4bf", "on": "#ffffff",
    "a": "#005a9c", "a-soft": "#d3e5f4", "b": "#b34700", "b-soft": "#fbe3d3",
}  # fmt: skip
DARK = {
    "card": "#1f242b", "ink": "#e8ecf0", "muted": "#a4afba", "plain": "#333b45", "edge": "#66717d", "on": "#10151a",
    "a": "#6db8f2", "a-soft": "#173a55", "b": "#ffa057", "b-soft": "#4b2a12",
}  # fmt: skip


@dataclass(slots=True)
class Canvas:
    """A picture in the making. `title` and `description` are what a screen reader says."""

    width: int
    height: int
    title: str
    description: str
    parts: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, style: str, corner: float = 3) -> None:
        """A rectangle with round corners."""
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="{_n(corner)}"'
        self.parts.append(f'<rect {place} class="{style}"/>')

    def text(self, x: float, y: float, words: str, style: str = "ink") -> None:
        """One line of text; y is its base line."""
        self.parts.append(f'<text x="{_n(x)}" y="{_n(y)}" class="{style}">{escape(words, quote=False)}</text>')

    def lines(self, x: float, y: float, rows: list[str], style: str = "ink", leading: float = 17) -> None:
        """Lines of text below each other."""
        for number, words in enumerate(rows):
            self.text(x, y + number * leading, words, style)

    def path(self, points: list[tuple[float, float]], style: str, arrow: str | None = None) -> None:
        """A line through points, with an arrow head of kind `line`, `a` or `b` at its end."""
        drawn = " L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        head = f' marker-end="url(#head-{arrow})"' if arrow else ""
        self.parts.append(f'<path d="M{drawn}" class="{style}"{head}/>')

    def arc(
        self, start: tuple[float, float], end: tuple[float, float], height: float, style: str, arrow: str | None = None
    ) -> None:
        """A curve over two points, `height` above them at its middle control point."""
        (x, y), (to_x, to_y) = start, end
        control = f"{_n((x + to_x) / 2)} {_n(min(y, to_y) - height)}"
        head = f' marker-end="url(#head-{arrow})"' if arrow else ""
        self.parts.append(f'<path d="M{_n(x)} {_n(y)} Q{control} {_n(to_x)} {_n(to_y)}" class="{style}"{head}/>')

    def cells(self, x: float, y: float, styles: list[str], size: float = 20, gap: float = 3) -> None:
        """A row of squares, one for each style."""
        for number, style in enumerate(styles):
            self.rect(x + number * (size + gap), y, size, size, style, corner=2)

    def render(self) -> str:
        """The whole file."""
        heads = "".join(
            f'<marker id="head-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="var(--{colour})"/></marker>'
            for kind, colour in (("line", "muted"), ("a", "a"), ("b", "b"))
        )
        hatch = (
            '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            '<rect width="6" height="6" fill="var(--b-soft)"/>'
            '<rect width="2" height="6" fill="var(--b)"/></pattern>'
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'width="{self.width}" height="{self.height}" aria-labelledby="title description">'
        )
        return "\n".join([
            head,
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="description">{escape(self.description)}</desc>',
            f"<style>\n  :root {{ {_variables(LIGHT)} }}",
            f"  @media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}{STYLE}</style>",
            f"<defs>{heads}{hatch}</defs>",
            f'<rect width="{self.width}" height="{self.height}" class="card" rx="6"/>',
            *self.parts,
            "</svg>",
            "",
        ])  # fmt: skip


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
