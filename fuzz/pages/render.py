"""Render: a template and what it shows, as one HTML file. Everything is escaped; nothing is fetched and nothing runs."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import jinja2


def render(template: str, folder: Path | None = None, /, **shown: object) -> str:
    """A page, or a fragment of one.

    Args:
        template: A file in `templates`, or in `folder`, which comes first.
    """
    return _environment(folder).get_template(template).render(**shown)


@functools.cache
def _environment(folder: Path | None) -> jinja2.Environment:
    folders = [Path(__file__).parent / "templates"]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders if folder is None else [folder, *folders]),
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
