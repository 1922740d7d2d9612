"""The site of the documentation: what `make docs` adds to the pages in docs/. The settings are in mkdocs.yml.

- `hooks`: the steps of a build, called by mkdocs
- `sources`: the pages that come from elsewhere in the repository, and links between all of them
- `dialect`: Markdown as GitHub reads it, for the stricter reader of mkdocs
- `commands`: a page for each verb of the command line
- `reference`: a page for each public package, from its docstrings (`docstrings` prepares them)
- `results`: the index of measurements
- `notebooks`: notebooks, executed and written as pages
- `theme/`: the looks
"""
