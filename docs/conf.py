"""Configuration of Sphinx: `make docs` builds the site into out/docs, with warnings as errors."""

import noisyact

project = "noisyact"
author = "the noisyact authors"
version = release = noisyact.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "noisyact_lab.site.extension",
]
exclude_patterns = ["_drawn"]
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 3

autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
default_role = "code"
highlight_language = "text"  # a block of Python says so
# torch's inventory is on the network, which a build does not need. Its names are shown without a link.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|nn|contextlib|collections|typing|lightning|transformers|pl)\..*"),
    ("py:class", "Tensor"),
    ("py:.*", r"noisyact\.recurrent\.routing|draw_seed|noisyact\.conversion\.replacing\.Model"),  # internal
]

html_theme = "furo"
html_title = f"noisyact {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
