"""Pages: a failure and a campaign as one self-contained HTML file each, which opens offline and runs no script.

    failure ──┐                 ┌── timeline   (a trace as lanes, cells and marks: geometry, no drawing)
    campaign ─┴──> render ──────┴── templates  (Jinja2, escaped throughout; SVG and CSS inline)

Rendering only: nothing is decided here. What is asked of a page for the service's sake is a fragment of the same templates.
"""
