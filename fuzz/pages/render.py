"""Render: a template and what it shows, as one HTML file. Everything is escaped; nothing is fetched and nothing runs."""

from __future__ import annotations

import time
from pathlib import Path

import jinja2


def render(template: str, **shown: object) -> str:
    """A page, or a fragment of one.

    Args:
        template: A file in `templates`.
    """
    return _environment().get_template(template).render(**shown)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"when": when, "figure": figure, "span": span}
    return environment


def when(seconds: float | None) -> str:
    """A moment, in the reader's own time zone."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def span(seconds: float) -> str:
    """A length of time."""
    whole = round(seconds)
    if whole < 90:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {whole % 60:02} s"


def figure(number: float) -> str:
    """A number, short."""
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.2g}"
