"""Sphinx's settings for `make site`, for the pages (-t html) and for the slides (-t revealjs)."""

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

project = "Why does my chat slow down?"
author = "the authors of the course"
copyright = "its authors; text and figures CC BY 4.0, code MIT"
language = "en"
exclude_patterns = []

extensions = ["myst_nb"]
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # nothing from the network
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
html_static_path = ["static"]
html_title = project
html_copy_source = False
html_show_search_summary = False  # it would read pages anew, which a browser refuses for files in a folder
html_css_files = ["site.css"]

if tags.has("revealjs"):  # type: ignore[name-defined]  # noqa: F821  (Sphinx provides it)
    extensions += ["sphinx_revealjs"]
    suppress_warnings = ["toc.not_included"]  # each is opened by itself
    revealjs_css_files = ["slides.css"]
    revealjs_style_theme = "white"
    revealjs_static_path = html_static_path
    revealjs_script_conf = {
        "width": 1280, "height": 720, "margin": 0.04, "center": False,
        "hash": True, "transition": "none", "slideNumber": "c/t",
    }  # fmt: skip
else:
    html_theme = "sphinx_book_theme"
    html_context = {"default_mode": "auto"}
    html_theme_options = {
        "home_page_in_toc": True,
        "navbar_persistent": [],
        "show_toc_level": 2,
        "use_download_button": False,
        "use_fullscreen_button": False,
    }


def mathml(self, node):
    """A formula as MathML, which browsers draw themselves."""
    block = node.tagname == "math_block"
    formula = tex2mathml(node.astext(), as_block=block)
    self.body.append(f'<div class="formula">{formula}</div>' if block else formula)
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", inline_renderers=(mathml, None), block_renderers=(mathml, None))
