"""Drawings for people: text for terminals, pictures and pages. Nothing here knows about attention.

- `palette`: the colours of pages, pictures and terminals
- `cells`: text measured in terminal cells: cut, padded, wrapped; counts, shares and sentences
- `text`: `Drawing`, text whose pieces have roles that a terminal colours, and `Grid`, a table of labelled cells
- `figure`: the labels and files of matplotlib pictures
- `html`: `seal`, which makes a page in one file; `page/` has the style and scripts that all pages share
"""
